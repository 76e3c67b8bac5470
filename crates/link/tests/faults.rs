//! Injected faults: reproducible, at the given rates, and none besides the given ones.

mod common;

use common::{Dummy, outbox};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use weir_link::faults::{FaultSpec, Faults};
use weir_link::{Arrival, Carrier, Fate, Inbox};

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

fn now() -> u64 {
    NOW.get()
}

fn faults(spec: &str) -> Faults<Dummy> {
    NOW.set(1_000_000_000);
    let spec: FaultSpec = spec.parse().unwrap();
    Faults::with_clock(Dummy::default(), &spec, now)
}

fn to() -> SocketAddr {
    "10.0.0.2:20481".parse().unwrap()
}

fn from() -> IpAddr {
    "10.0.0.1".parse().unwrap()
}

/// A datagram that can be identified even with three flipped bits.
fn datagram(number: u32) -> Vec<u8> {
    number.to_be_bytes().repeat(25)
}

/// The number that most words of the datagram contain.
fn number(bytes: &[u8]) -> u32 {
    let mut votes = BTreeMap::new();
    for word in bytes.chunks_exact(4) {
        *votes.entry(u32::from_be_bytes(word.try_into().unwrap())).or_insert(0) += 1;
    }
    *votes.iter().max_by_key(|(_, count)| **count).unwrap().0
}

/// Sends `count` datagrams, a few per call, a microsecond apart; then waits until all have left.
fn send(faults: &mut Faults<Dummy>, count: u32) -> Vec<(u32, Fate, Vec<u8>)> {
    let mut next = 0;
    while next < count {
        let part: Vec<_> = (next..count.min(next + 1 + next % 7)).map(datagram).collect();
        let groups: Vec<_> = part.iter().map(|bytes| (to(), from(), bytes.as_slice(), bytes.len())).collect();
        faults.send(&outbox(&groups)).unwrap();
        next += part.len() as u32;
        NOW.set(now() + 1000);
    }
    while let Some(due) = faults.due() {
        NOW.set(due.max(now()));
        faults.flush_due(now()).unwrap();
        assert!(faults.due().is_none_or(|due| due > now()), "due datagrams leave");
    }
    faults.inner_mut().sent.drain(..).map(|(group, bytes)| (number(&bytes), group.fate, bytes)).collect()
}

#[test]
fn an_empty_specification_changes_nothing() {
    let mut faults = faults("");
    let sent = send(&mut faults, 100);
    assert_eq!(sent, (0..100).map(|i| (i, Fate::empty(), datagram(i))).collect::<Vec<_>>());
    assert_eq!(faults.max_segments(), 1);
    assert_eq!(faults.outgoing().datagrams, 100);
}

#[test]
fn the_same_seed_gives_the_same_fates() {
    let spec = "loss=0.1,dup=0.1,reorder=0.1,corrupt=0.1,seed=7";
    let first = send(&mut faults(spec), 2000);
    assert_eq!(first, send(&mut faults(spec), 2000));
    assert_ne!(first, send(&mut faults(&spec.replace('7', "8")), 2000));
    // The seed of a run without a given seed can be given to the next run.
    let mut drawn = faults("loss=0.5");
    let again = format!("loss=0.5,seed={}", drawn.seed());
    assert_eq!(send(&mut drawn, 500), send(&mut faults(&again), 500));
}

#[test]
fn fates_do_not_depend_on_each_other() {
    let lost = |spec: &str| {
        let sent: Vec<u32> = send(&mut faults(spec), 1000).into_iter().map(|(number, ..)| number).collect();
        (0..1000).filter(|number| !sent.contains(number)).collect::<Vec<_>>()
    };
    assert_eq!(lost("loss=0.1,seed=3"), lost("loss=0.1,seed=3,reorder=0.2,corrupt=0.2,dup=0.2,delay=5us"));
}

#[test]
fn faults_occur_at_the_given_rates() {
    const COUNT: u32 = 20_000;
    let mut faults = faults("loss=0.02,dup=0.03,reorder=0.04,corrupt=0.05,seed=1");
    let sent = send(&mut faults, COUNT);
    let counts = faults.outgoing();
    let near = |got: u64, probability: f64| {
        let expected = probability * f64::from(COUNT);
        assert!((got as f64 - expected).abs() < 5.0 * expected.sqrt(), "{got} instead of {expected}");
    };
    near(counts.lost, 0.02);
    near(counts.duplicated, 0.03 * 0.98);
    near(counts.corrupted, 0.05 * 0.98);
    near(counts.reordered + counts.delayed, 0.04 * 0.98);
    assert!(counts.delayed * 10 < counts.reordered, "few datagrams are followed only by others that are held back");
    assert_eq!(sent.len() as u64, u64::from(COUNT) - counts.lost + counts.duplicated);
    let with = |fate: Fate| sent.iter().filter(|(_, f, _)| f.contains(fate)).count() as u64;
    assert_eq!(with(Fate::DUPLICATED), counts.duplicated);
    assert_eq!(with(Fate::CORRUPTED), counts.corrupted);
    assert_eq!(with(Fate::REORDERED), counts.reordered);
}

#[test]
fn each_fate_changes_the_datagram_as_named() {
    let sent = send(&mut faults("dup=0.1,reorder=0.1,corrupt=0.1,loss=0.1,seed=5"), 5000);
    for (at, (number, fate, bytes)) in sent.iter().enumerate() {
        let flipped: u32 = bytes.iter().zip(datagram(*number)).map(|(a, b)| (a ^ b).count_ones()).sum();
        if fate.contains(Fate::CORRUPTED) {
            assert!((1..=3).contains(&flipped));
        } else {
            assert_eq!(flipped, 0);
        }
        let before = sent[..at].iter().filter(|(other, f, _)| other > number && !f.contains(Fate::DUPLICATED));
        let overtakers = before.count();
        if fate.contains(Fate::REORDERED) {
            assert!((1..=3).contains(&overtakers), "{number} was overtaken by {overtakers}");
        } else if !fate.contains(Fate::DUPLICATED) {
            assert_eq!(overtakers, 0, "{number}");
        }
        if fate.contains(Fate::DUPLICATED) {
            assert!(sent.iter().any(|(other, f, _)| other == number && !f.contains(Fate::DUPLICATED)));
        }
    }
}

#[test]
fn a_delay_keeps_the_order_and_the_time() {
    let mut faults = faults("delay=50us,jitter=20us,seed=1");
    let start = now();
    let one = datagram(1);
    for i in 0..100u64 {
        NOW.set(start + i * 1000);
        faults.send(&outbox(&[(to(), from(), &one, one.len())])).unwrap();
        let out = faults.inner().sent.len() as u64;
        // Datagrams sent at least 70 µs ago have left; datagrams sent less than 50 µs ago have not.
        assert!(out >= i.saturating_sub(70) && out <= (i + 1).saturating_sub(50), "{out} of {i}");
    }
    assert_eq!(send(&mut faults, 0).len(), 100);
    assert_eq!(faults.outgoing().delayed, 100);
}

#[test]
fn a_datagram_without_overtakers_leaves_after_a_millisecond() {
    let mut faults = faults("reorder=1,seed=1");
    let start = now();
    let one = datagram(1);
    faults.send(&outbox(&[(to(), from(), &one, one.len())])).unwrap();
    assert_eq!(faults.inner().sent.len(), 0);
    assert_eq!(faults.due(), Some(start + 1_000_000));
    faults.flush_due(start + 999_999).unwrap();
    assert_eq!(faults.inner().sent.len(), 0);
    faults.flush_due(start + 1_000_000).unwrap();
    assert_eq!(faults.inner().sent[0].0.fate, Fate::DELAYED, "it was delayed but not reordered");
    assert_eq!(faults.due(), None);
}

#[test]
fn delayed_datagrams_occupy_bounded_memory() {
    let mut faults = faults("delay=1s");
    let bytes = vec![0; 60_000];
    for _ in 0..1000 {
        let group = (to(), from(), bytes.as_slice(), bytes.len());
        faults.send(&outbox(&[group])).unwrap();
    }
    let counts = faults.outgoing();
    assert!(counts.overflowed > 0 && counts.overflowed + counts.delayed == 1000);
    assert!(counts.delayed * 60_000 <= 32 << 20);
    assert_eq!(send(&mut faults, 0).len() as u64, counts.delayed);
}

fn arrival(segment: usize) -> Arrival {
    let mut arrival = Arrival::new("10.0.0.2:20481".parse().unwrap(), 20480, 0, 0);
    arrival.to = from();
    arrival.segment = segment;
    arrival
}

/// Lets `count` datagrams arrive, ten per arrival, and receives until all have been processed.
fn receive(faults: &mut Faults<Dummy>, count: u32) -> Vec<(u32, Fate)> {
    let numbers: Vec<u32> = (0..count).collect();
    let joined = numbers.chunks(10).map(|ten| (arrival(100), ten.iter().flat_map(|n| datagram(*n)).collect()));
    faults.inner_mut().arriving = joined.collect();
    let mut inbox = Inbox::new(8);
    let mut got = Vec::new();
    loop {
        let count = faults.receive(&mut inbox).unwrap();
        assert_eq!(count, inbox.arrivals.len());
        for arrival in &inbox.arrivals {
            assert!(!arrival.fate.contains(Fate::LOST));
            assert_eq!((arrival.from, arrival.to, arrival.to_port), (to(), from(), 20480));
            let datagrams: Vec<_> = inbox.datagrams(arrival).collect();
            assert_eq!(datagrams.len(), 1);
            got.push((number(datagrams[0]), arrival.fate));
        }
        match faults.due() {
            Some(due) => NOW.set(due.max(now())),
            None if count == 0 => return got,
            None => {}
        }
    }
}

#[test]
fn incoming_datagrams_meet_faults_too() {
    let mut plain = faults("dir=in");
    assert_eq!(plain.max_segments(), 64);
    assert_eq!(receive(&mut plain, 1000), (0..1000).map(|i| (i, Fate::empty())).collect::<Vec<_>>());

    let spec = "loss=0.1,dup=0.1,reorder=0.1,corrupt=0.1,seed=7,dir=both,delay=2us";
    let mut both = faults(spec);
    let got = receive(&mut both, 3000);
    assert_eq!(got, receive(&mut faults(spec), 3000));
    let counts = both.incoming();
    assert_eq!((counts.datagrams, counts.overflowed), (3000, 0));
    assert_eq!(got.len() as u64, 3000 - counts.lost + counts.duplicated);
    assert!(counts.reordered > 200 && counts.corrupted > 200 && counts.lost > 200);
    assert_eq!(both.outgoing().datagrams, 0);
}

#[test]
fn an_inbox_that_is_full_loses_nothing() {
    // All delayed datagrams are due at once: ten times the capacity of an inbox.
    let mut faults = faults("delay=1ms,dir=in");
    let numbers: Vec<u32> = (0..100).collect();
    faults.inner_mut().arriving =
        numbers.iter().map(|n| (arrival(60_000), [datagram(*n), vec![0; 59_900]].concat())).collect();
    let mut inbox = Inbox::new(8);
    while !faults.inner().arriving.is_empty() {
        assert_eq!(faults.receive(&mut inbox).unwrap(), 0);
    }
    NOW.set(now() + 1_000_000);
    let mut got = Vec::new();
    while faults.due().is_some() {
        assert!(faults.receive(&mut inbox).unwrap() > 0);
        got.extend(inbox.arrivals.iter().map(|arrival| number(&inbox.bytes[arrival.start..arrival.start + 100])));
    }
    assert_eq!(got, numbers);
}

/// The final counts are reported once, whether the program closes its device or not.
#[test]
fn the_counts_are_reported_once_at_the_end() {
    for closed in [true, false] {
        let reports = std::sync::Arc::new(std::sync::Mutex::new(vec![]));
        let mut lossy = faults("loss=0.1,dup=0.1,seed=7");
        let sink = reports.clone();
        lossy.at_end(move |outgoing, incoming| sink.lock().unwrap().push((outgoing, incoming)));
        send(&mut lossy, 1000);
        let counts = lossy.outgoing();
        assert!(counts.lost > 50 && counts.duplicated > 50, "{counts}");
        assert!(reports.lock().unwrap().is_empty());
        if closed {
            lossy.close();
            assert_eq!(reports.lock().unwrap().len(), 1);
        }
        drop(lossy);
        assert_eq!(*reports.lock().unwrap(), [(counts, Default::default())]);
        let text = format!("1000 datagrams: {} lost, {} duplicated,", counts.lost, counts.duplicated);
        assert!(counts.plus(Default::default()).to_string().starts_with(&text), "{counts}");
    }
}

#[test]
fn a_look_everywhere_does_not_end_at_lost_datagrams() {
    for (spec, seen) in [("loss=1,dir=in", 2), ("dir=in", 1), ("dir=out", 0)] {
        let mut faults = faults(spec);
        let arrival = (Arrival::new(to(), 4791, 0, 100), datagram(1));
        (faults.inner_mut().arriving, faults.inner_mut().silent) = (vec![arrival.clone()], vec![arrival]);
        let mut inbox = Inbox::new(4);
        faults.look_everywhere();
        assert_eq!(faults.receive(&mut inbox).unwrap(), usize::from(seen < 2), "{spec}");
        assert_eq!(faults.incoming().datagrams, seen, "{spec}");
        // The next look is an ordinary one again.
        faults.inner_mut().silent = vec![(Arrival::new(to(), 4791, 0, 100), datagram(2))];
        assert_eq!(faults.receive(&mut inbox).unwrap(), 0, "{spec}");
        assert_eq!(faults.inner().silent.len(), 1, "{spec}");
    }
}
