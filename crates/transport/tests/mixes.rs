//! Mixes of services and operations, over wires that lose, duplicate, reorder and corrupt packets.

use std::collections::BTreeSet;
use weir_transport::testing::{Entry, Faults, Pair, Rng, SRQ, Setup, good, remote, write};
use weir_transport::*;

const BAD: Faults = Faults { loss: 0.1, duplication: 0.05, reordering: 0.1, corruption: 0.03 };
const FENCED: SendFlags = SendFlags::SIGNALED.union(SendFlags::FENCE);

/// An RC and an XRC connection share one queue, which runs empty repeatedly.
#[test]
fn rc_and_xrc_share_one_queue_over_bad_wires() {
    const EACH: usize = 24;
    const SLOT: usize = 4000;
    for seed in 0..40 {
        let setup = |service, seed| Setup {
            service,
            srq: service == Service::Rc,
            faults: BAD,
            seed,
            mtu: Mtu::M256,
            min_rnr_timer: 1,
            ..Setup::default()
        };
        let mut rc = setup(Service::Rc, seed).pair();
        let mut xrc = setup(Service::Xrc, seed + 1000).pair();
        let srqs = xrc.nodes[1].host.srqs.clone();
        rc.nodes[1].host.srqs = srqs.clone();
        rc.nodes[1].host.srq = SRQ;
        let mut rng = Rng(seed);
        let length = |k: usize| (k * 397) % 2500;
        for k in 0..EACH {
            for pair in [&mut rc, &mut xrc] {
                pair.post(k as u64, SendOp::SendImm { imm: k as u32 }, k * SLOT, length(k));
            }
        }
        let (mut posted, mut ran_empty) = (0, false);
        srqs.borrow_mut().entry(SRQ).or_default();
        while posted < 2 * EACH || !srqs.borrow()[&SRQ].is_empty() || rc.wire.next_arrival().is_some() {
            ran_empty |= posted > 0 && srqs.borrow()[&SRQ].is_empty();
            if posted < 2 * EACH && rng.chance(0.1) {
                xrc.post_srq_recv(SRQ, posted as u64, 200_000 + posted * SLOT, SLOT);
                posted += 1;
            }
            let more = rc.step() | xrc.step();
            assert!(more || posted < 2 * EACH, "seed {seed}: there is no further event");
        }
        while rc.step() | xrc.step() {}
        assert!(ran_empty, "seed {seed}");
        let mut used = BTreeSet::new();
        for pair in [&rc, &xrc] {
            assert_eq!(pair.outcomes(0, Queue::Send), good(0..EACH as u64), "seed {seed}");
            let received = pair.completions(1, Queue::Receive);
            assert!(received.iter().map(|c| c.imm).eq(0..EACH as u32), "seed {seed}: in order and once");
            for completion in received {
                let (k, slot) = (completion.imm as usize, completion.wr_id as usize);
                assert_eq!((completion.status, completion.byte_len as usize), (Status::Success, length(k)));
                assert_eq!(pair.memory(1, 200_000 + slot * SLOT, length(k)), pair.memory(0, k * SLOT, length(k)));
                assert!(used.insert(slot), "seed {seed}: receive {slot} was used twice");
            }
            assert!(pair.canaries_live());
        }
        assert_eq!(used.len(), 2 * EACH);
    }
}

/// A WRITE or a SEND forwards the value that an earlier atomic or READ has fetched. Returns the values that arrived.
fn fetch_and_send_on(faults: Faults, seed: u64, flags: SendFlags) -> (Pair, Vec<u64>) {
    const ROUNDS: usize = 12;
    let (local, counter, arrived) = (100_000, 500_000, 600_000);
    let mut pair = Setup { faults, seed, mtu: Mtu::M256, burst: 1 + seed as usize % 9, ..Setup::default() }.pair();
    let (remote_addr, rkey) = remote(counter);
    pair.fill(1, counter, &1000u64.to_ne_bytes());
    pair.fill(0, local, &[0xee; 16 * ROUNDS]);
    for k in 0..ROUNDS {
        let (id, at) = (k as u64 * 4, local + 16 * k);
        match k % 3 {
            0 => pair.post(id, SendOp::FetchAdd { remote_addr, rkey, add: 1 }, at, 8),
            1 => {
                // `compare` is the value that the previous rounds leave.
                let compare = 1000 + k as u64;
                pair.post(id, SendOp::CompareSwap { remote_addr, rkey, compare, swap: compare + 1 }, at, 8);
            }
            _ => {
                pair.post(id, SendOp::Read { remote_addr, rkey }, at, 8);
                // A retransmitted READ reads memory again: the atomic must not execute before the READ is complete.
                pair.post_as(0, id + 3, SendOp::FetchAdd { remote_addr, rkey, add: 1 }, at + 8, 8, flags);
            }
        }
        pair.post(id + 1, write(700_000), 0, (k * 531) % 2000);
        if k % 2 == 0 {
            pair.post_as(0, id + 2, write(arrived + 8 * k), at, 8, flags);
        } else {
            pair.post_recv(k as u64, arrived + 8 * k, 8);
            pair.post_as(0, id + 2, SendOp::Send, at, 8, flags);
        }
    }
    pair.run_until_idle();
    let bytes = pair.memory(1, arrived, 8 * ROUNDS);
    let values = bytes.chunks(8).map(|value| u64::from_ne_bytes(value.try_into().expect("eight bytes")));
    let values = values.collect();
    (pair, values)
}

#[test]
fn a_fenced_request_sends_the_fetched_value() {
    for seed in 0..60 {
        let (pair, values) = fetch_and_send_on(BAD, seed, FENCED);
        assert!(pair.outcomes(0, Queue::Send).iter().all(|(_, status)| *status == Status::Success), "seed {seed}");
        assert_eq!(values, (1000..1012).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(pair.memory(1, 500_000, 8), 1012u64.to_ne_bytes(), "each atomic was done once");
        let atomics = pair.nodes[1].host.journal.iter().filter(|entry| matches!(entry, Entry::Atomic { .. }));
        assert_eq!(atomics.count(), 12);
        assert!(pair.canaries_live());
    }
    // Without the fence the values differ.
    let (_, values) = fetch_and_send_on(Faults::default(), 0, SendFlags::SIGNALED);
    assert_ne!(values, (1000..1012).collect::<Vec<_>>());
}

/// Drains the send queue several times while packets are lost and retransmitted: begun work requests finish, no other
/// begins, and none is lost.
#[test]
fn a_qp_that_retransmits_drains_in_sqd() {
    let mut in_retransmission = 0;
    for seed in 0..60 {
        let faults = Faults { loss: 0.15, ..BAD };
        let mut pair = Setup { faults, seed, mtu: Mtu::M256, burst: 1 + seed as usize % 5, ..Setup::default() }.pair();
        let (counter, rkey) = remote(900_000);
        pair.fill(1, 900_000, &0u64.to_ne_bytes());
        let post = |pair: &mut Pair, k: usize| {
            let (at, len) = (k * 4000, 1 + (k * 797) % 3000);
            match k % 4 {
                0 => pair.post(k as u64, write(300_000 + at), at, len),
                1 => {
                    pair.post_recv(k as u64, 300_000 + at, 4000);
                    pair.post(k as u64, SendOp::Send, at, len);
                }
                2 => pair.post(k as u64, SendOp::Read { remote_addr: remote(at).0, rkey }, 600_000 + at, len),
                _ => pair.post(k as u64, SendOp::FetchAdd { remote_addr: counter, rkey, add: 1 }, 800_000 + at, 8),
            }
        };
        let (mut posted, mut drained) = (0, 0);
        let mut rng = Rng(seed);
        while posted < 48 {
            for _ in 0..12 {
                post(&mut pair, posted);
                posted += 1;
            }
            let before = pair.wire.log.len();
            let some = 1 + rng.below(60) as usize;
            pair.run_until(|pair| pair.wire.log.len() > before + some);
            let lost = pair.wire.log.iter().rev().take(some).any(|sent| sent.lost);
            in_retransmission += u32::from(lost && pair.nodes[0].qp.in_flight() != InFlight::default());
            let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
            let node = &mut pair.nodes[0];
            let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
            node.qp.modify(pair.now, &attr, mask, &mut node.host).expect("to SQD");
            pair.run_until_idle();
            drained += 1;
            let reported = pair.nodes[0].host.events().iter().filter(|e| **e == QpEvent::SendQueueDrained).count();
            assert_eq!(reported, drained, "seed {seed}: drained once each time");
            assert_eq!(pair.nodes[0].qp.in_flight(), InFlight::default());
            // Work requests posted in SQD wait.
            let (done, sent) = (pair.outcomes(0, Queue::Send).len(), pair.wire.count(|sent| sent.from == 0));
            post(&mut pair, posted);
            posted += 1;
            pair.run_until_idle();
            assert_eq!(pair.outcomes(0, Queue::Send).len(), done);
            assert_eq!(pair.wire.count(|sent| sent.from == 0), sent);
            assert_eq!(pair.outcomes(0, Queue::Send), good(0..done as u64), "seed {seed}");
            pair.modify_from(0, QpState::Rts, QpAttr::default());
        }
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good(0..posted as u64), "seed {seed}");
        let adds = (0..posted).filter(|k| k % 4 == 3).count() as u64;
        assert_eq!(pair.memory(1, 900_000, 8), adds.to_ne_bytes());
        for k in 0..posted {
            let (at, len) = (k * 4000, 1 + (k * 797) % 3000);
            match k % 4 {
                0 | 1 => assert_eq!(pair.memory(1, 300_000 + at, len), pair.memory(0, at, len), "seed {seed}"),
                2 => assert_eq!(pair.memory(0, 600_000 + at, len), pair.memory(1, at, len), "seed {seed}"),
                _ => {}
            }
        }
        assert!(pair.canaries_live());
    }
    assert!(in_retransmission > 60, "{in_retransmission} of 240 times");
}

/// A message that loses packets does not cost a shared queue a receive: its receive serves another message.
#[test]
fn lost_uc_and_ud_messages_cost_no_shared_receive() {
    const COUNT: usize = 60;
    for (service, seed) in (0..30).flat_map(|seed| [(Service::Uc, seed), (Service::Ud, seed)]) {
        let faults = Faults { loss: 0.1, corruption: 0.05, ..Faults::default() };
        let mut pair = Setup { service, srq: true, faults, seed, mtu: Mtu::M256, ..Setup::default() }.pair();
        let header = if service == Service::Ud { 40 } else { 0 };
        for k in 0..COUNT {
            let len = (k * 397) % if service == Service::Ud { 257 } else { 3000 };
            pair.post_srq_recv(0, k as u64, 400_000 + k * 4000, 4000);
            pair.post(k as u64, SendOp::SendImm { imm: k as u32 }, k * 4000, len);
        }
        pair.run_until_idle();
        // On a good wire, as many messages arrive as there are receives left.
        let came = pair.completions(1, Queue::Receive).len();
        assert!(came < COUNT, "{service:?} seed {seed}: nothing was lost");
        pair.wire.faults = Faults::default();
        for k in came..COUNT {
            pair.post(k as u64, SendOp::SendImm { imm: k as u32 }, k * 4000, 100);
        }
        pair.run_until_idle();
        let received = pair.completions(1, Queue::Receive);
        assert!(received.iter().map(|c| c.wr_id).eq(0..COUNT as u64), "{service:?} seed {seed}");
        assert!(pair.nodes[1].host.srqs.borrow()[&0].is_empty());
        for completion in received {
            let (k, slot) = (completion.imm as usize, completion.wr_id as usize);
            let len = completion.byte_len as usize - header;
            assert_eq!(completion.status, Status::Success);
            let arrived = pair.memory(1, 400_000 + slot * 4000 + header, len);
            assert_eq!(arrived, pair.memory(0, k * 4000, len), "{service:?} seed {seed}");
        }
        assert!(pair.canaries_live());
    }
}

/// The peer's SEND with invalidate invalidates a window while the peer's WRITEs use it: each WRITE is complete or ends
/// with an error, and after the invalidation no byte is written.
#[test]
fn no_write_lands_after_a_remote_invalidation() {
    const WINDOW: u32 = 0x901;
    for seed in 0..40 {
        let mut pair = Setup { faults: BAD, seed, mtu: Mtu::M256, ..Setup::default() }.pair();
        let (addr, mr_lkey) = remote(0);
        let access = Access::REMOTE_WRITE;
        let bind = Bind { window_rkey: WINDOW, new_rkey: WINDOW, mr_lkey, addr, len: 100_000, access };
        pair.post_as(1, 1, SendOp::BindWindow(bind), 0, 0, SendFlags::SIGNALED);
        assert!(pair.run_until(|pair| pair.outcomes(1, Queue::Send) == good([1])));
        let last = 3 + seed % 12;
        for k in 0..20 {
            if k == last {
                pair.post_recv(9, 0, 0);
                pair.post(100, SendOp::SendInvalidate { rkey: WINDOW }, 0, 0);
            }
            let op = SendOp::Write { remote_addr: remote(k as usize * 3000).0, rkey: WINDOW };
            pair.post(k, op, 200_000 + k as usize * 3000, 3000);
        }
        let untouched = pair.memory(1, last as usize * 3000, 100_000 - last as usize * 3000);
        pair.run_until_idle();
        let outcomes = pair.outcomes(0, Queue::Send);
        let ids = (0..last).chain([100]);
        let done = outcomes.iter().take_while(|(_, status)| *status == Status::Success).count();
        assert!(outcomes.iter().map(|(id, _)| *id).zip(ids).take(done).all(|(is, shall)| is == shall), "seed {seed}");
        // The next WRITE's NAK acknowledges everything before it; if the wire loses it, the retries run out.
        let (_, status) = outcomes[done];
        let reported = status == Status::RemoteAccess && done == last as usize + 1;
        assert!(reported || (status == Status::RetryExceeded && done <= last as usize + 1), "seed {seed}: {status:?}");
        assert!(outcomes[done + 1..].iter().all(|(_, status)| *status == Status::WrFlushed));
        for k in 0..last as usize {
            assert_eq!(pair.memory(1, k * 3000, 3000), pair.memory(0, 200_000 + k * 3000, 3000), "seed {seed}");
        }
        assert_eq!(pair.memory(1, last as usize * 3000, untouched.len()), untouched, "seed {seed}");
        let ends = pair.nodes[1].host.journal.iter().filter(|entry| matches!(entry, Entry::Invalidate { .. }));
        assert_eq!((ends.count(), pair.outcomes(1, Queue::Receive)), (1, good([9])));
    }
}
