use super::fuzz::{hostile, pair};
use super::*;
use crate::local::endpoint::Endpoint;
use std::collections::VecDeque;

/// The next number of a pseudo-random sequence.
struct Random(u64);

impl Random {
    fn new() -> Random {
        let seed = getrandom::u64().unwrap();
        println!("seed {seed}");
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Writes a packet: headers of zeros that begin with `number`, and a body that depends on it.
fn write(producer: &mut Producer, headers: usize, body: usize, number: u64) -> Result<(), NoRoom> {
    let room = producer.reserve(headers, body)?;
    let (start, rest) = producer.buffers(&room);
    start.fill(0);
    start[..8].copy_from_slice(&number.to_le_bytes());
    rest.iter_mut().zip(contents(number)).for_each(|(byte, value)| *byte = value);
    producer.commit(room, number as u32);
    Ok(())
}

fn contents(number: u64) -> impl Iterator<Item = u8> {
    (0..).map(move |at: u64| (number.wrapping_mul(31) ^ at.wrapping_mul(7)) as u8)
}

/// Reads a packet and compares it with what was written.
fn read(consumer: &mut Consumer, headers: usize, body: usize, number: u64) {
    let record = consumer.next().unwrap().expect("a packet");
    let first = u64::from_le_bytes(*record.head().first_chunk().unwrap());
    assert_eq!((first, record.tag), (number, number as u32));
    assert!(record.headers_room() >= headers);
    let bytes = consumer.body(&record, headers).unwrap();
    assert!(bytes.len() == body && bytes.iter().copied().eq(contents(number).take(body)), "packet {number}");
    consumer.advance(&record);
}

#[test]
fn a_ring_is_a_queue() {
    let (mut a, mut b) = pair();
    let mut random = Random::new();
    let (mut queue, mut number, mut full) = (VecDeque::new(), 0, 0);
    // Several times around the ring.
    for _ in 0..12_000 {
        if random.below(100) < 55 {
            let headers = 12 + 4 * random.below(9);
            let body = if random.below(2) == 0 { random.below(LONG + 100) } else { random.below(4097) };
            match write(&mut a.producer, headers, body, number) {
                Ok(()) => {
                    queue.push_back((headers, body, number));
                    number += 1;
                }
                Err(error) => {
                    assert_eq!(error, NoRoom::Full);
                    full += 1;
                }
            }
        }
        if random.below(3) == 0 {
            a.producer.publish();
        }
        // Phases in which the ring fills, and in which it is emptied.
        let reads = if number % 2000 < 1500 { random.below(2) } else { random.below(8) };
        for _ in 0..reads {
            match b.consumer.next().unwrap() {
                None => break,
                Some(_) => {
                    let (headers, body, number) = queue.pop_front().expect("it was written");
                    read(&mut b.consumer, headers, body, number);
                }
            }
        }
        if random.below(4) == 0 {
            b.consumer.release();
        }
    }
    a.producer.publish();
    while let Some((headers, body, number)) = queue.pop_front() {
        read(&mut b.consumer, headers, body, number);
    }
    assert!(b.consumer.next().unwrap().is_none());
    println!("{number} packets, {full} times full");
    assert!(number > 3000);
}

#[test]
fn packets_are_seen_when_they_are_published() {
    let (mut a, mut b) = pair();
    write(&mut a.producer, 12, 0, 1).unwrap();
    write(&mut a.producer, 28, 600, 2).unwrap();
    assert!(b.consumer.next().unwrap().is_none());
    assert!(a.producer.publish() && !a.producer.publish());
    read(&mut b.consumer, 12, 0, 1);
    read(&mut b.consumer, 28, 600, 2);
    assert!(b.consumer.next().unwrap().is_none());
    // The other direction is a ring of its own.
    write(&mut b.producer, 44, 4096, 3).unwrap();
    b.producer.publish();
    assert!(b.consumer.next().unwrap().is_none());
    read(&mut a.consumer, 44, 4096, 3);
}

#[test]
fn a_full_ring_has_room_again_when_its_consumer_has_read() {
    let (mut a, mut b) = pair();
    let mut count = 0;
    while write(&mut a.producer, 12, 4096, count).is_ok() {
        count += 1;
    }
    assert!(count as usize > RING / 4300 - 2);
    a.producer.publish();
    read(&mut b.consumer, 12, 4096, 0);
    read(&mut b.consumer, 12, 4096, 1);
    assert_eq!(write(&mut a.producer, 12, 4096, count), Err(NoRoom::Full), "the memory is not given back yet");
    b.consumer.release();
    write(&mut a.producer, 12, 4096, count).unwrap();
}

#[test]
fn a_consumer_that_claims_too_much_lies() {
    let (mut a, _b) = pair();
    let fill = |a: &mut Endpoint| loop {
        if let Err(error) = write(&mut a.producer, 12, 4096, 0) {
            return error;
        }
    };
    assert_eq!(fill(&mut a), NoRoom::Full);
    let consumed = |a: &Endpoint| a.producer.segment.consumed(a.producer.ring) as *const AtomicU64;
    for lie in [1, 65, u64::MAX, 1 << 40, RING as u64 + 64] {
        // SAFETY: an atomic of a mapping that is still there.
        unsafe { (*consumed(&a)).store(lie, Ordering::Relaxed) };
        assert_eq!(fill(&mut a), NoRoom::Lie, "{lie}");
    }
}

#[test]
fn hostile_bytes_lead_nowhere_else() {
    let mut random = Random::new();
    hostile(20_000, &mut || random.next());
}

#[test]
fn the_fuzzed_ring_survives() {
    weir_trials::run("ring", fuzz::ring);
}
