//! The bodies of the fuzz targets for shared memory; unit tests call them too.

use super::*;
use crate::local::endpoint::{Endpoint, Side};
use weir_wire::Headers;

/// A new segment, as both sides map it.
pub fn pair() -> (Endpoint, Endpoint) {
    let (made, file) = Segment::create().expect("memory for a segment");
    (Endpoint::new(made, Side::Maker), Endpoint::new(Segment::open(&file).expect("a sealed segment"), Side::Taker))
}

/// Any bytes as what a peer writes into both rings and the control words, while this side writes and reads.
pub fn ring(bytes: &[u8]) {
    let mut words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    let steps = bytes.len() / 16;
    hostile(steps, &mut || words.next().unwrap_or(0));
}

/// A peer that changes both rings and all control words as it likes, while this side writes and reads: nothing may be
/// read or written outside of the segment, and nothing may panic. A guard page after the mapping is not needed: each
/// length is compared with the ring's.
pub fn hostile(steps: usize, next: &mut impl FnMut() -> u64) {
    let (mut a, b) = pair();
    for _ in 0..steps {
        let what = next();
        match what % 8 {
            // Anything anywhere in the ring that is read, mostly at its next record.
            0..=3 => {
                let near = a.consumer.tail.wrapping_add(next() % 3 * 8);
                let position = if what & 8 == 0 { near } else { next() } & !7;
                let value = match what >> 4 & 3 {
                    0 => next(),
                    1 => GAP,
                    2 => (next() % 5000) | (next() & IS_LONG) | (next() << TAG_SHIFT),
                    _ => 0,
                };
                prefix_at(&b.producer.segment, b.producer.ring, position).store(value, Ordering::Relaxed);
            }
            4 => {
                let value = if what & 8 == 0 { next() } else { (next() % (2 * RING as u64)) & !63 };
                b.producer.segment.consumed(a.producer.ring).store(value, Ordering::Relaxed);
            }
            5 | 6 => read(&mut a.consumer, next()),
            _ => write(&mut a.producer, next(), next()),
        }
    }
}

/// Reads a packet, if there is one, as the engine does.
fn read(consumer: &mut Consumer, random: u64) {
    let Ok(Some(record)) = consumer.next() else { return };
    assert!(record.head().len() >= record.headers_room());
    let parsed = Headers::parse(record.head(), record.headers_room());
    let headers = parsed.map_or(12 + 4 * (random % 9) as usize, |headers| headers.len());
    let base = consumer.segment.packets(consumer.ring).as_ptr() as usize;
    if let Some(body) = consumer.body(&record, headers) {
        let range = body.as_ptr_range();
        assert!(range.start as usize >= base && range.end as usize <= base + RING);
        std::hint::black_box(body.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
    }
    consumer.advance(&record);
    consumer.release();
    assert_eq!(consumer.tail % ALIGN as u64, 0);
}

fn write(producer: &mut Producer, headers: u64, body: u64) {
    let (headers, body) = (12 + 4 * (headers % 9) as usize, (body % 4100) as usize);
    let Ok(room) = producer.reserve(headers, body) else { return };
    let base = producer.segment.packets(producer.ring).as_ptr() as usize;
    let (start, rest) = producer.buffers(&room);
    start.fill(1);
    rest.fill(2);
    assert!(start.as_ptr() as usize >= base && rest.as_ptr_range().end as usize <= base + RING);
    producer.commit(room, 7);
    producer.publish();
}
