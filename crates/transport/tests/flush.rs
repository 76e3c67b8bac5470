//! FLUSH: what was written before it is in memory when it completes, and both the QP and the key must allow it.

use std::time::Duration;
use weir_transport::testing::{Entry, Faults, Pair, SRQ, Setup, remote, write};
use weir_transport::{Access, Flush, QpState, Queue, SendOp, Service, Status, WcOpcode};

const VISIBLE: Flush = Flush { global: true, persistent: false, whole: false };

fn flush(offset: usize, length: u32, flush: Flush) -> SendOp {
    let (remote_addr, rkey) = remote(offset);
    SendOp::Flush { remote_addr, rkey, length, flush }
}

fn flushed(pair: &Pair) -> Vec<usize> {
    let lengths = pair.nodes[1].host.journal.iter().filter_map(|entry| match entry {
        Entry::Flush { len, .. } => Some(*len),
        _ => None,
    });
    lengths.collect()
}

#[test]
fn a_flush_completes_after_what_it_flushes() {
    for service in [Service::Rc, Service::Xrc] {
        let mut pair = Setup { service, ..Setup::default() }.pair();
        if service == Service::Xrc {
            // The queue exists from its first receive on.
            pair.post_srq_recv(SRQ, 10, 400_000, 8);
        }
        pair.post(1, write(0), 1000, 5000);
        pair.post(2, flush(0, 5000, VISIBLE), 0, 0);
        pair.post(3, flush(0, 0, Flush { persistent: true, whole: true, ..VISIBLE }), 0, 0);
        pair.post(4, flush(0, 0, VISIBLE), 0, 0);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [1, 2, 3, 4].map(|id| (id, Status::Success)), "{service:?}");
        assert_eq!(pair.completions(0, Queue::Send)[1].opcode, WcOpcode::Flush);
        assert_eq!(pair.memory(1, 0, 5000), pair.memory(0, 1000, 5000));
        assert_eq!(flushed(&pair), [5000, 1 << 20], "no bytes are not checked");
        let writes_last = pair.nodes[1].host.journal.iter().rposition(|entry| matches!(entry, Entry::Write { .. }));
        let first_flush = pair.nodes[1].host.journal.iter().position(|entry| matches!(entry, Entry::Flush { .. }));
        assert!(writes_last < first_flush);
    }
}

#[test]
fn a_lost_response_does_not_repeat_it() {
    for seed in 0..40 {
        let faults = Faults { loss: 0.3, ..Faults::default() };
        let mut pair = Setup { faults, seed, timeout: 8, ..Setup::default() }.pair();
        for id in 0..8usize {
            pair.post(2 * id as u64, write(id * 100), 1000, 100);
            pair.post(2 * id as u64 + 1, flush(id * 100, 100, VISIBLE), 0, 0);
        }
        pair.run_until_idle();
        let outcomes = pair.outcomes(0, Queue::Send);
        assert!(outcomes.iter().map(|(id, _)| *id).eq(0..outcomes.len() as u64), "{seed}: {outcomes:?}");
        if outcomes.iter().all(|(_, status)| *status == Status::Success) {
            assert_eq!(flushed(&pair), [100; 8], "{seed}");
        }
    }
}

#[test]
fn queue_pair_and_key_must_allow_it() {
    let persistent = Flush { persistent: true, ..VISIBLE };
    let only_visible = Access::all() - Access::FLUSH_PERSISTENT;
    // What the QP allows, what the key allows, and what the FLUSH gets.
    for (qp, key, op, expected) in [
        (Access::all(), Access::all(), persistent, Status::Success),
        (Access::all(), only_visible, VISIBLE, Status::Success),
        (Access::all(), only_visible, persistent, Status::RemoteAccess),
        (Access::all(), only_visible, Flush { whole: true, ..persistent }, Status::RemoteAccess),
        (only_visible, Access::all(), persistent, Status::RemoteInvalidRequest),
        (Access::all() - Access::FLUSH_GLOBAL, Access::all(), VISIBLE, Status::RemoteInvalidRequest),
    ] {
        let mut pair = Setup { access: qp, ..Setup::default() }.pair();
        for region in pair.nodes[1].host.memory.borrow_mut().regions() {
            region.access = key;
        }
        pair.post(1, flush(0, 8, op), 0, 0);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, expected)], "{qp:?} {key:?} {op:?}");
        assert_eq!(pair.nodes[0].qp.state() == QpState::Error, expected != Status::Success);
    }
}

#[test]
fn a_range_must_be_within_the_key() {
    let mut pair = Setup { latency: Duration::from_micros(1), ..Setup::default() }.pair();
    pair.post(1, flush((1 << 20) - 8, 8, VISIBLE), 0, 0);
    pair.post(2, flush((1 << 20) - 8, 9, VISIBLE), 0, 0);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success), (2, Status::RemoteAccess)]);
}
