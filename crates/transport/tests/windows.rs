//! Window binds, invalidation by work request, and ATOMIC WRITE: their order, over any wire.

use weir_transport::testing::{Entry, Fate, Faults, Pair, Setup, good, remote};
use weir_transport::*;
use weir_wire::Operation;

const WINDOW: u32 = 0x900;

/// Binds bytes of node 0's region to a window with the key `old`.
fn bind(old: u32, new: u32, at: usize, len: u64) -> SendOp {
    let (addr, mr_lkey) = remote(at);
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    SendOp::BindWindow(Bind { window_rkey: old, new_rkey: new, mr_lkey, addr, len, access })
}

fn write(at: usize, rkey: u32) -> SendOp {
    SendOp::Write { remote_addr: remote(at).0, rkey }
}

fn events(pair: &Pair, node: usize, of: impl Fn(&Entry) -> bool) -> usize {
    pair.nodes[node].host.journal.iter().filter(|entry| of(entry)).count()
}

#[test]
fn a_window_is_valid_from_its_bind_to_its_invalidation() {
    let mut pair = Setup::default().pair();
    // Node 0 binds a window and sends a message to node 1, which writes to the window and invalidates it with a SEND.
    pair.post(1, bind(WINDOW, WINDOW + 1, 4096, 1000), 0, 0);
    pair.post(2, SendOp::Send, 0, 16);
    pair.post_recv(10, 100_000, 100);
    let receive = RecvWr { wr_id: 20, sges: &[] };
    pair.nodes[0].qp.post_recv(&receive).expect("room in the receive queue");
    assert!(pair.run_until(|pair| pair.outcomes(1, Queue::Receive) == good([10])));
    pair.post_as(1, 30, write(4096, WINDOW + 1), 50_000, 1000, SendFlags::SIGNALED);
    pair.post_as(1, 31, SendOp::SendInvalidate { rkey: WINDOW + 1 }, 0, 0, SendFlags::SIGNALED);
    pair.run_until_idle();
    assert_eq!((pair.outcomes(0, Queue::Send), pair.outcomes(1, Queue::Send)), (good([1, 2]), good([30, 31])));
    assert_eq!(pair.memory(0, 4096, 1000), pair.memory(1, 50_000, 1000));
    let received = pair.completions(0, Queue::Receive)[0];
    assert_eq!((received.flags, received.imm), (WcFlags::WITH_INV, WINDOW + 1));
    assert_eq!(pair.completions(0, Queue::Send)[0].opcode, WcOpcode::BindWindow);
    // The rkey is invalid now.
    pair.post_as(1, 32, write(4096, WINDOW + 1), 0, 8, SendFlags::SIGNALED);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(1, Queue::Send)[2], (32, Status::RemoteAccess));
}

#[test]
fn invalidating_an_unknown_rkey_is_a_remote_access_error() {
    let mut pair = Setup::default().pair();
    pair.post_recv(10, 0, 100);
    pair.post(1, SendOp::SendInvalidate { rkey: 0x4321 }, 0, 10);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RemoteAccess)]);
    assert_eq!(pair.nodes[1].host.events(), [QpEvent::CommunicationEstablished, QpEvent::AccessError][1..]);
}

#[test]
fn local_work_fails_in_order() {
    for (op, status) in [
        (SendOp::LocalInvalidate { key: 0x999 }, Status::LocalQpOperation),
        (bind(WINDOW, WINDOW + 1, usize::MAX / 2, 8), Status::MwBind),
    ] {
        let mut pair = Setup::default().pair();
        pair.post(1, write(0, remote(0).1), 0, 5000);
        pair.post(2, bind(WINDOW, WINDOW + 2, 0, 8), 0, 0);
        pair.post(3, op, 0, 0);
        pair.post(4, write(0, remote(0).1), 0, 8);
        pair.run_until_idle();
        let outcomes = [(1, Status::Success), (2, Status::Success), (3, status), (4, Status::WrFlushed)];
        assert_eq!(pair.outcomes(0, Queue::Send), outcomes);
    }
}

#[test]
fn an_invalidation_waits_for_earlier_users_of_the_key() {
    // The WRITE reads through the key that is invalidated after it, and its packets are lost at first.
    let mut pair = Setup::default().pair();
    let mut lost = 0;
    pair.wire.rule = Some(Box::new(move |from, _| {
        lost += usize::from(from == 0);
        if from == 0 && lost <= 3 { Fate::Drop } else { Fate::Pass }
    }));
    pair.post(1, bind(WINDOW, WINDOW + 1, 0, 8192), 0, 0);
    let sge = Sge { addr: remote(0).0, length: 5000, lkey: WINDOW + 1 };
    let wr = SendWr { wr_id: 2, op: write(9000, remote(0).1), flags: SendFlags::SIGNALED, data: Data::Gather(&[sge]) };
    pair.nodes[0].qp.post_send(&wr).expect("room in the send queue");
    pair.post(3, SendOp::LocalInvalidate { key: WINDOW + 1 }, 0, 0);
    pair.post(4, write(20_000, remote(0).1), 0, 8);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good(1..=4));
    assert_eq!(pair.memory(1, 9000, 5000), pair.memory(0, 0, 5000));
    assert_eq!(events(&pair, 0, |entry| matches!(entry, Entry::Invalidate { .. })), 1);
}

/// Whatever is retransmitted, local work requests are executed once and everything completes in order.
#[test]
fn local_work_is_executed_once_on_a_bad_wire() {
    for seed in 0..60 {
        let faults = Faults { loss: 0.15, duplication: 0.1, reordering: 0.1, corruption: 0.05 };
        let mut pair = Setup { faults, seed, mtu: Mtu::M256, burst: 1 + seed as usize % 9, ..Setup::default() }.pair();
        let rkey = remote(0).1;
        let mut key = WINDOW;
        pair.fill(1, 500_000, &[0; 8]);
        for k in 0..12u64 {
            let at = k as usize * 4000;
            let (remote_addr, _) = remote(500_000);
            pair.post(k * 6, bind(key, key + 1, at, 3000), 0, 0);
            pair.post(k * 6 + 1, write(at, rkey), at, 1 + (k as usize * 531) % 3000);
            pair.post_as(0, k * 6 + 2, SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 600_000, 8, SendFlags::SIGNALED);
            // A fenced bind is executed after the atomic.
            let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
            pair.post_as(0, k * 6 + 3, bind(key + 1, key + 2, at, 100), 0, 0, fenced);
            pair.post(k * 6 + 4, SendOp::AtomicWrite { remote_addr: remote(700_000 + at).0, rkey }, at, 8);
            pair.post(k * 6 + 5, SendOp::LocalInvalidate { key: key + 2 }, 0, 0);
            key += 3;
            if k % 4 == 3 {
                pair.run_until_idle();
            }
        }
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good(0..72), "seed {seed}");
        let retired: Vec<u32> = pair.completions(0, Queue::Send).iter().map(|c| c.retired).collect();
        assert_eq!(retired, (1..=72).collect::<Vec<_>>());
        assert_eq!(events(&pair, 0, |entry| matches!(entry, Entry::Bind { .. })), 24);
        assert_eq!(events(&pair, 0, |entry| matches!(entry, Entry::Invalidate { .. })), 12);
        assert_eq!(pair.memory(1, 500_000, 8), 12u64.to_ne_bytes());
        for k in 0..12 {
            let at = k * 4000;
            let len = 1 + (k * 531) % 3000;
            assert_eq!(pair.memory(1, at, len), pair.memory(0, at, len));
            assert_eq!(pair.memory(1, 700_000 + at, 8), pair.memory(0, at, 8));
        }
        assert!(pair.canaries_live());
        assert_eq!(pair.nodes[0].qp.in_flight(), InFlight::default());
    }
}

/// An ATOMIC WRITE with a lost response is not executed again.
#[test]
fn an_atomic_write_is_executed_once() {
    let mut pair = Setup::default().pair();
    let mut lost = false;
    pair.wire.rule = Some(Box::new(move |from, _| {
        let drop = from == 1 && !lost;
        lost |= drop;
        if drop { Fate::Drop } else { Fate::Pass }
    }));
    let (remote_addr, rkey) = remote(4096);
    pair.post(1, SendOp::AtomicWrite { remote_addr, rkey }, 64, 8);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
    assert_eq!(pair.completions(0, Queue::Send)[0].opcode, WcOpcode::AtomicWrite);
    assert_eq!(pair.memory(1, 4096, 8), pair.memory(0, 64, 8));
    assert_eq!(events(&pair, 1, |entry| matches!(entry, Entry::Write { .. })), 1);
    assert!(pair.wire.count(|sent| sent.headers.bth.opcode.operation() == Some(Operation::AtomicWrite)) > 1);
    // A length other than eight bytes; an unaligned address.
    let wr = SendWr {
        wr_id: 2,
        op: SendOp::AtomicWrite { remote_addr, rkey },
        flags: SendFlags::empty(),
        data: Data::Inline(&[0; 4]),
    };
    assert_eq!(pair.nodes[0].qp.post_send(&wr), Err(PostError::Length));
    pair.post(3, SendOp::AtomicWrite { remote_addr: remote_addr + 4, rkey }, 64, 8);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send)[1], (3, Status::RemoteInvalidRequest));
}

/// A window is invalidated while WRITEs through it arrive: each WRITE is complete or ends with an error.
#[test]
fn invalidation_races_with_writes() {
    for seed in 0..30 {
        let faults = Faults { loss: 0.1, reordering: 0.1, ..Faults::default() };
        let mut pair = Setup { faults, seed, mtu: Mtu::M256, ..Setup::default() }.pair();
        // Node 0 writes to a window of node 1 while node 1 invalidates it.
        pair.post_as(1, 1, bind(WINDOW, WINDOW + 1, 0, 100_000), 0, 0, SendFlags::SIGNALED);
        assert!(pair.run_until(|pair| pair.outcomes(1, Queue::Send) == good([1])));
        for k in 0..20 {
            pair.post(k, write(k as usize * 3000, WINDOW + 1), 200_000 + k as usize * 3000, 3000);
        }
        let until = 1 + seed as usize % 20;
        pair.run_until(|pair| pair.wire.count(|sent| sent.from == 0) >= until * 3);
        pair.post_as(1, 2, SendOp::LocalInvalidate { key: WINDOW + 1 }, 0, 0, SendFlags::SIGNALED);
        pair.run_until_idle();
        let outcomes = pair.outcomes(0, Queue::Send);
        assert_eq!(outcomes.len(), 20);
        let done = outcomes.iter().take_while(|(_, status)| *status == Status::Success).count();
        for k in 0..done {
            assert_eq!(pair.memory(1, k * 3000, 3000), pair.memory(0, 200_000 + k * 3000, 3000), "seed {seed}");
        }
        if let Some((_, status)) = outcomes.get(done) {
            // The responder sends the NAK once; if the wire loses it, the retries are exhausted.
            assert!(matches!(status, Status::RemoteAccess | Status::RetryExceeded), "seed {seed}: {status:?}");
            assert!(outcomes[done + 1..].iter().all(|(_, status)| *status == Status::WrFlushed));
        }
        assert!(pair.canaries_live());
    }
}

#[test]
fn an_rkey_is_invalidated_after_earlier_reads_are_answered() {
    // The READ is not fenced: the invalidation of its rkey arrives before its response leaves.
    let mut pair = Setup::default().pair();
    pair.post(1, bind(WINDOW, WINDOW + 1, 4096, 10_000), 0, 0);
    pair.run_until_idle();
    for wr_id in 20..22 {
        pair.nodes[0].qp.post_recv(&RecvWr { wr_id, sges: &[] }).expect("room in the receive queue");
    }
    let read = SendOp::Read { remote_addr: remote(4096).0, rkey: WINDOW + 1 };
    pair.post_as(1, 30, read, 50_000, 10_000, SendFlags::SIGNALED);
    pair.post_as(1, 31, SendOp::SendInvalidate { rkey: WINDOW + 1 }, 0, 0, SendFlags::SIGNALED);
    pair.post_as(1, 32, SendOp::Send, 0, 0, SendFlags::SIGNALED);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(1, Queue::Send), good([30, 31, 32]));
    assert_eq!(pair.outcomes(0, Queue::Receive), good([20, 21]));
    assert_eq!(pair.memory(0, 4096, 10_000), pair.memory(1, 50_000, 10_000));
    assert_eq!(pair.nodes[1].qp.retransmissions().ack_timeouts, 0, "it is retransmitted at once");
    assert_eq!(events(&pair, 0, |entry| matches!(entry, Entry::Invalidate { .. })), 1);
}
