//! A READ and later requests of its QP, without a fence: the READ's data is that of its place in the order.

use weir_transport::testing::{Fate, PagingSetup, Pair, Rng, Setup, good, read, remote, write};
use weir_transport::*;

/// What a node does with a request that waits for READs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// It holds the request until the responses have left.
    Hold,
    /// It sends the responses at once, as far as one poll goes.
    ReadOut,
    /// It has no room for the request.
    Lose,
}

const WAYS: [Way; 3] = [Way::Hold, Way::ReadOut, Way::Lose];
/// Where the READs read, at node 1, and where their data goes, at node 0.
const PLACE: usize = 300_000;
const COPY: usize = 500_000;

fn setup(way: Way) -> Setup {
    Setup { most_held: if way == Way::Lose { 0 } else { 1000 }, reads_out: way == Way::ReadOut, ..Setup::default() }
}

/// Reads `len` bytes, and then has each of `ops` change them. Returns what was there before, and what was read.
fn read_then(pair: &mut Pair, len: usize, ops: &[SendOp], at: usize) -> (Vec<u8>, Vec<u8>) {
    let before = pair.memory(1, PLACE, len);
    pair.post(0, read(PLACE), COPY, len);
    for (number, op) in ops.iter().enumerate() {
        let length = match op {
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite { .. } => 8,
            _ => len,
        };
        pair.post(number as u64 + 1, *op, at, length);
    }
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good(0..=ops.len() as u64));
    (before, pair.memory(0, COPY, len))
}

#[test]
fn requests_after_a_read_do_not_change_what_it_reads() {
    let (remote_addr, rkey) = remote(PLACE);
    let ops = [
        write(PLACE),
        SendOp::Send,
        SendOp::WriteImm { remote_addr, rkey, imm: 7 },
        SendOp::FetchAdd { remote_addr, rkey, add: 0x0101_0101_0101_0101 },
        SendOp::AtomicWrite { remote_addr, rkey },
    ];
    for way in WAYS {
        for op in ops {
            for (len, burst, frames) in [(8, 16, false), (3000, 2, true), (150_000, 16, false), (150_000, 1, true)] {
                let mut pair = Setup { burst, frames, ..setup(way) }.pair();
                pair.post_recv(9, PLACE, len);
                let (before, got) = read_then(&mut pair, len, &[op], 0);
                assert!(got == before, "{way:?}, {op:?}, {len} bytes in bursts of {burst}");
                assert!(pair.memory(1, PLACE, len) != before, "{op:?} was executed");
                let lost = pair.nodes[0].qp.retransmissions();
                assert_eq!(lost.ack_timeouts, 0, "{way:?}, {op:?}");
                assert_eq!(lost.sequence_naks > 0, way == Way::Lose, "{way:?}, {op:?}, {len}: {lost:?}");
            }
        }
    }
}

#[test]
fn a_profile_can_have_later_requests_executed_first() {
    let profile = Profile { late_reads: true, ..Profile::ideal() };
    let mut pair = Setup { profile, ..Setup::default() }.pair();
    let (before, got) = read_then(&mut pair, 1000, &[write(PLACE)], 0);
    assert!(got != before);
    assert_eq!(got, pair.memory(0, 0, 1000), "the READ returns what the WRITE wrote");
}

#[test]
fn a_fence_orders_them_whatever_the_profile_says() {
    let profile = Profile { late_reads: true, ..Profile::ideal() };
    let mut pair = Setup { profile, ..Setup::default() }.pair();
    let before = pair.memory(1, PLACE, 1000);
    pair.post(0, read(PLACE), COPY, 1000);
    pair.post_as(0, 1, write(PLACE), 0, 1000, SendFlags::SIGNALED | SendFlags::FENCE);
    pair.run_until_idle();
    assert_eq!(pair.memory(0, COPY, 1000), before);
}

#[test]
fn nothing_waits_for_a_read_of_no_bytes_nor_for_atomics() {
    let mut pair = setup(Way::Lose).pair();
    let (remote_addr, rkey) = remote(PLACE);
    pair.post(0, read(PLACE), COPY, 0);
    pair.post(1, SendOp::FetchAdd { remote_addr, rkey, add: 1 }, COPY, 8);
    pair.post(2, write(PLACE), 0, 1000);
    pair.post(3, read(PLACE), COPY, 1000);
    pair.post(4, read(PLACE), COPY, 1000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good(0..5));
    assert_eq!(pair.nodes[0].qp.retransmissions(), Retransmissions::default());
    assert_eq!(pair.memory(0, COPY, 1000), pair.memory(0, 0, 1000));
}

#[test]
fn duplicates_change_nothing() {
    for way in WAYS {
        for burst in [1, 16] {
            let mut pair = Setup { burst, ..setup(way) }.pair();
            pair.wire.rule = Some(Box::new(|from, _| if from == 0 { Fate::Twice } else { Fate::Pass }));
            let (before, got) = read_then(&mut pair, 20_000, &[write(PLACE), write(PLACE)], 0);
            assert!(got == before, "{way:?}, bursts of {burst}");
            assert_eq!(pair.memory(1, PLACE, 20_000), pair.memory(0, 0, 20_000));
        }
    }
}

/// Both nodes post READs, WRITEs, SENDs and atomics at random, which use the same few places. The result is that of one
/// request after the other.
#[test]
fn random_requests_have_the_result_of_one_after_the_other() {
    const REQUESTS: usize = 60;
    const SLOT: usize = 4096;
    for seed in 0..120 {
        let mut rng = Rng(seed + 1);
        let way = WAYS[seed as usize % 3];
        let paging = PagingSetup { held: if way == Way::Lose { 0 } else { 1000 }, ..PagingSetup::default() };
        let mut setup = Setup { mtu: Mtu::M256, burst: 1 + rng.below(12) as usize, seed, ..setup(way) };
        setup.paging = (seed % 5 == 0).then_some(paging);
        let mut pair = setup.pair();
        // What each node's memory must be, and where it must be the same.
        let mut model = [0, 1].map(|node| pair.memory(node, 0, setup.region));
        for k in 0..REQUESTS {
            for node in 0..2 {
                let peer = 1 - node;
                // The places; the data of WRITEs; the results of READs and atomics.
                let place = rng.below(3) as usize * SLOT / 2;
                let (data, result) = (100_000 + rng.below(50) as usize * 100, 200_000 + k * SLOT);
                let large = rng.chance(0.3);
                let len = 1 + rng.below(if large { SLOT as u64 } else { 64 }) as usize;
                let (remote_addr, rkey) = remote(place);
                let (op, at, len) = match rng.below(3) {
                    0 => (SendOp::Read { remote_addr, rkey }, result, len),
                    1 => (write(place), data, len),
                    _ => (SendOp::FetchAdd { remote_addr, rkey, add: k as u64 + 1 }, result, 8),
                };
                match op {
                    SendOp::Read { .. } => {
                        let bytes = model[peer][place..place + len].to_vec();
                        model[node][at..at + len].copy_from_slice(&bytes);
                    }
                    SendOp::Write { .. } => {
                        let bytes = model[node][at..at + len].to_vec();
                        model[peer][place..place + len].copy_from_slice(&bytes);
                    }
                    _ => {
                        let value: [u8; 8] = model[peer][place..place + 8].try_into().unwrap();
                        let sum = u64::from_ne_bytes(value).wrapping_add(k as u64 + 1);
                        model[node][at..at + 8].copy_from_slice(&value);
                        model[peer][place..place + 8].copy_from_slice(&sum.to_ne_bytes());
                    }
                }
                pair.post_as(node, k as u64, op, at, len, SendFlags::SIGNALED);
            }
            if rng.chance(0.2) {
                pair.run_until_idle();
            }
        }
        pair.run_until_idle();
        for (node, model) in model.iter().enumerate() {
            assert_eq!(pair.outcomes(node, Queue::Send), good(0..REQUESTS as u64), "seed {seed}");
            assert!(pair.memory(node, 0, setup.region) == *model, "seed {seed}, {way:?}: memory of node {node}");
        }
    }
}
