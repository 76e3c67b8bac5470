//! Packet flood (T 5.2): QPs that are notified late that their page is present.

mod quirk_setup;

use quirk_setup::*;
use std::time::Duration;
use weir_transport::testing::{Pair, Setup, address, read};
use weir_transport::*;
use weir_wire::Operation;

/// A flawed adapter that tracks `remembered` READs, and takes 160 µs for each READ that it searches through.
fn flooded(remembered: u32) -> Profile {
    let search = 160 * US;
    Profile { flood: Some(Flood { remembered, search }), ..flawed() }
}

/// Requesters of one adapter, each connected to its own responder.
struct Adapter {
    pairs: Vec<Pair>,
    fault_notifier: FaultNotifier,
    start: Instant,
}

impl Adapter {
    fn new(setup: &Setup, qps: usize) -> Adapter {
        let pairs: Vec<Pair> = (0..qps)
            .map(|_| {
                let mut pair = pair(setup, Odp::Client);
                pair.unnotified_nodes = Some(Vec::new());
                pair
            })
            .collect();
        let start = pairs[0].now;
        Adapter { pairs, fault_notifier: FaultNotifier::new(setup.profile.flood), start }
    }

    /// Runs until idle and returns the completion times of each QP's operations.
    fn run(&mut self) -> Vec<Vec<Duration>> {
        let mut done = vec![Vec::new(); self.pairs.len()];
        for _ in 0..10_000_000 {
            self.pairs.iter_mut().for_each(Pair::transmit);
            let pair = self.pairs.iter().enumerate().filter_map(|(i, pair)| Some((pair.next_event()?, i))).min();
            match (pair, self.fault_notifier.next()) {
                (None, None) => return done,
                (Some((at, i)), notified) if notified.is_none_or(|notified| at <= notified) => {
                    self.pairs[i].step();
                    self.after(i, &mut done[i]);
                }
                (_, Some(notified)) => {
                    while let Some(qp) = self.fault_notifier.poll(notified) {
                        let pair = &mut self.pairs[qp as usize];
                        until(pair, notified);
                        pair.notify(0, Side::Requester);
                    }
                }
                (Some(_), None) => unreachable!("one of the pairs has an event"),
            }
        }
        panic!("still busy");
    }

    fn after(&mut self, i: usize, done: &mut Vec<Duration>) {
        let pair = &mut self.pairs[i];
        if let Some(reads) = pair.nodes[0].qp.unnotified_reads() {
            self.fault_notifier.waits(i as u32, reads);
        }
        for _ in pair.unnotified_nodes.replace(Vec::new()).expect("the pair does not notify by itself") {
            self.fault_notifier.resolved(pair.now, i as u32);
        }
        let count = pair.completions(0, Queue::Send).len();
        done.resize(count, pair.now - self.start);
    }
}

fn packets(adapter: &Adapter) -> usize {
    adapter
        .pairs
        .iter()
        .map(|pair| pair.wire.count(|sent| sent.headers.bth.opcode.operation() == Some(Operation::ReadRequest)))
        .sum()
}

#[test]
fn of_128_reads_the_first_30_complete_after_5_ms() {
    // T 5.2.2, fig 5.9: 128 QPs, one operation of 32 bytes each, all on one page.
    let mut adapter = Adapter::new(&setup(flooded(98)), 128);
    adapter.pairs.iter_mut().enumerate().for_each(|(i, pair)| pair.post(i as u64, read(32 * i), 32 * i, 32));
    let done = adapter.run();
    let times: Vec<Duration> = done.iter().map(|each| each[0]).collect();
    let (first, rest) = times.split_at(30);
    assert!(rest.iter().all(|time| (MS / 2..MS).contains(time)), "{rest:?}");
    assert!(first.iter().all(|time| (5 * MS..7 * MS).contains(time)), "{first:?}");
    // These keep retransmitting meanwhile.
    let requests = packets(&adapter);
    assert!((128 * 2 + 30 * 8..128 * 2 + 30 * 12).contains(&requests), "{requests}");
}

#[test]
fn no_qp_waits_if_all_reads_are_tracked() {
    let mut adapter = Adapter::new(&setup(flooded(128)), 128);
    adapter.pairs.iter_mut().enumerate().for_each(|(i, pair)| pair.post(i as u64, read(32 * i), 32 * i, 32));
    let done = adapter.run();
    assert!(done.iter().all(|each| each[0] < MS));
    assert_eq!(packets(&adapter), 2 * 128);
}

#[test]
fn more_operations_and_pages_take_longer() {
    let last = |operations: usize| {
        let mut adapter = Adapter::new(&setup(flooded(98)), 128);
        for i in 0..operations {
            adapter.pairs[i % 128].post(i as u64, read(32 * i), 32 * i, 32);
        }
        let done = adapter.run();
        assert!(done.iter().flatten().count() == operations);
        (done.into_iter().flatten().max().expect("some"), packets(&adapter))
    };
    let (one, four) = (last(128), last(512));
    assert!(four.0 > 3 * one.0 && four.1 > 3 * one.1, "{one:?} {four:?}");
}

#[test]
fn a_requester_that_is_not_notified_drops_responses_and_retransmits() {
    let mut pair = pair(&setup(flooded(1)), Odp::Client);
    pair.unnotified_nodes = Some(Vec::new());
    let start = pair.now;
    pair.post(0, read(0), 0, 100);
    until(&mut pair, start + 10 * MS);
    assert_eq!(pair.nodes[0].qp.unnotified_reads(), Some(1));
    assert_eq!(pair.outcomes(0, Queue::Send), [], "its page has been present for more than 9 ms");
    assert_eq!(pair.unnotified_nodes, Some(vec![0]));
    let asked = pair.wire.count(|sent| sent.from == 0);
    assert!((16..=18).contains(&asked), "{asked}");
    pair.notify(0, Side::Requester);
    assert_eq!(pair.nodes[0].qp.unnotified_reads(), None);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(0, Status::Success)]);
    assert!(pair.now - start < 11 * MS);
    assert!(pair.memory(0, 0, 100) == pair.memory(1, 0, 100));
}

#[test]
fn without_the_flaw_no_notification_is_needed() {
    let mut pair = pair(&setup(flawed()), Odp::Client);
    pair.unnotified_nodes = Some(Vec::new());
    pair.post(0, read(0), 0, 100);
    assert!(pair.run_until(|pair| !pair.outcomes(0, Queue::Send).is_empty()));
    assert_eq!(pair.nodes[0].qp.unnotified_reads(), None);
}

#[test]
fn a_removed_page_causes_another_notification() {
    let mut pair = pair(&setup(flooded(98)), Odp::Client);
    for i in 0..4 {
        pair.post(i, read(100), 100, 100);
        pair.run_until_idle();
        pair.paging(0).invalidate(address(0), 4096, Duration::ZERO);
    }
    assert_eq!(pair.outcomes(0, Queue::Send).len(), 4);
    assert_eq!(pair.paging(0).counts.entered, 4);
}

#[test]
fn a_reset_ends_the_flood() {
    let mut pair = pair(&setup(flooded(1)), Odp::Client);
    pair.unnotified_nodes = Some(Vec::new());
    let start = pair.now;
    pair.post(0, read(0), 0, 100);
    until(&mut pair, start + MS);
    assert!(pair.nodes[0].qp.unnotified_reads().is_some());
    pair.modify_from(0, QpState::Reset, QpAttr::default());
    assert_eq!(pair.nodes[0].qp.unnotified_reads(), None);
}
