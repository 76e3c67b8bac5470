//! Receivers that are not ready, peers that do not respond: waits, and how many tries there are.

use std::time::Duration;
use weir_transport::testing::{Fate, Pair, Setup, read, remote, write};
use weir_transport::*;
use weir_wire::Syndrome;

#[test]
fn the_sender_waits_for_a_receiver_that_is_not_ready() {
    for op in [SendOp::Send, SendOp::WriteImm { remote_addr: remote(0).0, rkey: remote(0).1, imm: 1 }] {
        // Code 12 is 640 µs.
        let mut pair = Setup::default().pair();
        pair.post(1, write(0), 0, 100);
        pair.post(2, op, 0, 3000);
        let start = pair.now;
        let waits = |pair: &Pair| pair.nodes[0].qp.requester_state() == RequesterState::WaitReceiver;
        assert!(pair.run_until(|pair| pair.wire.naks().len() == 3 && waits(pair)));
        assert_eq!(pair.nodes[0].qp.requester_state(), RequesterState::WaitReceiver);
        pair.post_recv(9, 400_000, 3000);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success), (2, Status::Success)]);
        assert_eq!(pair.outcomes(1, Queue::Receive), [(9, Status::Success)]);
        // No sequence NAK for the rest of the message.
        assert!(
            pair.wire.naks().iter().all(|nak| matches!(nak, Syndrome::RnrNak(t) if t.code() == 12)),
            "{:?}",
            pair.wire.naks()
        );
        assert_eq!(pair.wire.naks().len(), 3);
        let took = pair.now - start;
        assert!((Duration::from_micros(1920)..Duration::from_micros(1950)).contains(&took), "three rounds: {took:?}");
    }
}

#[test]
fn an_rnr_nak_ends_a_row_of_timeouts() {
    // Two of three RNR NAKs are lost, for far longer than retry_cnt timeouts.
    let mut pair = Setup { retry_cnt: 2, ..Setup::default() }.pair();
    let mut naks_sent = 0;
    pair.wire.rule = Some(Box::new(move |from, _| {
        naks_sent += from;
        if from == 1 && naks_sent <= 30 && naks_sent % 3 != 0 { Fate::Drop } else { Fate::Pass }
    }));
    pair.post(1, SendOp::Send, 0, 10);
    assert!(pair.run_until(|pair| pair.wire.naks().len() == 30));
    pair.post_recv(9, 0, 10);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)]);
}

#[test]
fn a_receiver_that_is_never_ready_exhausts_the_rnr_retries() {
    for rnr_retry in [0, 1, 6] {
        let mut pair = Setup { rnr_retry, ..Setup::default() }.pair();
        pair.post(1, SendOp::Send, 0, 10);
        pair.post(2, SendOp::Send, 0, 10);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RnrRetryExceeded), (2, Status::WrFlushed)]);
        // The second message's packet must not cause a further NAK: one NAK per try.
        assert_eq!(pair.wire.naks().len(), usize::from(rnr_retry) + 1);
        assert_eq!(pair.nodes[0].qp.state(), QpState::Error);
        assert_eq!(pair.nodes[1].qp.state(), QpState::Rts);
    }
}

#[test]
fn a_dead_peer_is_detected_in_the_time_given_by_the_attributes() {
    for (retry_cnt, timeout) in [(0, 10), (1, 10), (7, 10), (3, 14), (2, 1)] {
        let setup = Setup { retry_cnt, timeout, ..Setup::default() };
        let mut pair = setup.pair();
        pair.wire.rule = Some(Box::new(|_, _| Fate::Drop));
        pair.post(1, write(0), 0, 10);
        pair.post(2, read(0), 0, 10);
        let start = pair.now;
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RetryExceeded), (2, Status::WrFlushed)]);
        let t = Duration::from_nanos(4096 << timeout).max(setup.profile.ack_timeout.floor);
        // The first timeout is short, because most follow a loss; later ones grow up to the maximum of the clause.
        let tries: Vec<u32> = (0..=u32::from(retry_cnt)).map(|n| (1 << n).min(4)).collect();
        assert_eq!(pair.now - start, t * tries.iter().sum());
        let first = pair.wire.log[0].headers.bth.psn;
        let sent: Vec<_> = pair.wire.log.iter().filter(|s| s.headers.bth.psn == first).map(|s| s.at).collect();
        let waited: Vec<_> = sent.windows(2).map(|two| two[1] - two[0]).collect();
        assert_eq!(waited, tries[..tries.len() - 1].iter().map(|n| t * *n).collect::<Vec<_>>());
        assert_eq!(pair.wire.count(|s| s.from == 0), 2 * (usize::from(retry_cnt) + 1));
    }
}

#[test]
fn a_patient_requester_outlasts_its_retries() {
    for (patience, t) in
        [(Duration::from_secs(2), Duration::from_millis(5)), (Duration::ZERO, Duration::from_millis(5))]
    {
        let mut pair = Setup { retry_cnt: 1, timeout: 10, ..Setup::default() }.pair();
        pair.nodes[0].qp.set_patience(patience);
        pair.wire.rule = Some(Box::new(|_, _| Fate::Drop));
        let began = pair.now;
        pair.post(1, write(0), 0, 10);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RetryExceeded)]);
        let took = pair.now - began;
        assert!(took >= patience && took <= patience + 4 * t, "{took:?}");
    }
}

#[test]
fn timeout_0_waits_indefinitely() {
    let mut pair = Setup { timeout: 0, ..Setup::default() }.pair();
    pair.wire.rule = Some(Box::new(|_, _| Fate::Drop));
    pair.post(1, write(0), 0, 10);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), []);
    assert_eq!(pair.nodes[0].qp.poll_timeout(), None);
}

#[test]
fn progress_resets_the_retries() {
    // Each packet needs three tries; in total that is far more than retry_cnt.
    let setup = Setup { retry_cnt: 2, ..Setup::default() };
    let mut pair = setup.pair();
    let mut tries = std::collections::HashMap::new();
    pair.wire.rule = Some(Box::new(move |from, packet| {
        let count = tries.entry(packet.headers.bth.psn).or_insert(0);
        *count += 1;
        if from == 0 && *count % 3 != 0 { Fate::Drop } else { Fate::Pass }
    }));
    for wr_id in 0..6 {
        pair.post(wr_id, write(0), 0, 10);
        pair.run_until_idle();
    }
    assert_eq!(pair.outcomes(0, Queue::Send), (0..6).map(|id| (id, Status::Success)).collect::<Vec<_>>());
}
