//! Packet damming (T 5.1): while a duplicate READ is replayed, new requests of its QP are lost at the responder.

mod quirk_setup;

use quirk_setup::*;
use std::time::Duration;
use weir_transport::testing::{self, Pair, Setup, address, read, write};
use weir_transport::*;

fn send(_: usize) -> SendOp {
    SendOp::Send
}

/// Whether an ACK timeout expired.
fn timed_out(pair: &Pair) -> bool {
    pair.nodes[0].qp.retransmissions().ack_timeouts > 0
}

#[test]
fn the_server_side_of_figure_5_3() {
    let mut pair = pair(&setup(flawed()), Odp::Server);
    let ladder = run(&mut pair, &[read, read], MS);
    let timeout = TIMEOUT.as_secs_f64() * 1e3;
    let expected = [
        (0.0, "READ 1"),
        (0.140, "RNR NAK 1"),
        (0.482, "response 1"),
        (3.980, "READ 1"),
        (3.980, "READ 2 lost"),
        (4.062, "response 1"),
        (4.062 + timeout, "READ 2"),
        // A new READ to the responder, so without extra delay.
        (4.064 + timeout, "response 2"),
    ];
    compare(&ladder, &expected, 0.002);
}

#[test]
fn the_client_side_of_figure_5_3() {
    let mut pair = pair(&setup(flawed()), Odp::Client);
    let ladder = run(&mut pair, &[read, read], 200 * US);
    let timeout = TIMEOUT.as_secs_f64() * 1e3;
    let expected = [
        (0.0, "READ 1"),
        (0.002, "response 1"),
        (0.522, "READ 1"),
        (0.522, "READ 2 lost"),
        (0.604, "response 1"),
        (0.604 + timeout, "READ 2"),
        (0.606 + timeout, "response 2"),
    ];
    compare(&ladder, &expected, 0.002);
}

#[test]
fn a_later_request_shows_the_gap() {
    // T fig 5.6: the third READ is posted when the pending period is over.
    let mut pair = pair(&setup(flawed()), Odp::Server);
    let ladder = run(&mut pair, &[read, read, read], 3 * MS);
    let expected = [
        (0.0, "READ 1"),
        (0.140, "RNR NAK 1"),
        (0.482, "response 1"),
        (3.980, "READ 1"),
        (3.980, "READ 2 lost"),
        (4.062, "response 1"),
        (6.0, "READ 3"),
        (6.002, "NAK 2"),
        (6.002, "READ 2"),
        (6.002, "READ 3"),
        (6.004, "response 2"),
        (6.004, "response 3"),
    ];
    compare(&ladder, &expected, 0.002);
    assert!(!timed_out(&pair));
}

#[test]
fn requests_within_the_pending_period_wait_for_the_timeout() {
    for count in 2..=4 {
        let mut pair = pair(&setup(flawed()), Odp::Server);
        let ladder = run(&mut pair, &[read as fn(usize) -> SendOp; 4][..count], MS);
        let lost = ladder.iter().filter(|step| step.what.ends_with("lost")).count();
        assert_eq!(lost, count - 1);
        assert!(timed_out(&pair), "{count}");
    }
}

#[test]
fn only_requests_posted_before_the_end_of_the_replay_are_lost() {
    for odp in [Odp::Server, Odp::Client, Odp::Both] {
        let end = if odp == Odp::Client { 522 * US } else { 3980 * US };
        let begin = if odp == Odp::Client { 2 * US } else { 140 * US };
        for (interval, lost) in [
            (Duration::ZERO, false),
            (begin - US, false),
            (begin + US, true),
            (end / 2, true),
            (end - US, true),
            // READ 1 is being replayed.
            (end + 20 * US, true),
            (end + 100 * US, false),
            (end + MS, false),
        ] {
            let mut pair = pair(&setup(flawed()), odp);
            let ladder = run(&mut pair, &[read, read], interval);
            let seen = ladder.iter().any(|step| step.what == "READ 2 lost");
            assert_eq!((seen, timed_out(&pair)), (lost, lost), "{odp:?} {interval:?} {ladder:#?}");
        }
    }
}

#[test]
fn the_kind_and_pages_of_the_second_request_do_not_matter() {
    for (second, touched) in [(read as fn(usize) -> SendOp, true), (write, false), (write, true), (send, true)] {
        let mut pair = pair(&setup(flawed()), Odp::Server);
        if touched {
            pair.paging(1).prefetch(address(8192), 8192, true);
            pair.run_until_idle();
        }
        pair.post_recv(9, 8192, 5000);
        let start = pair.now;
        pair.post(0, read(0), 0, 100);
        until(&mut pair, start + MS);
        // Also of several packets.
        pair.post(1, second(8192), 50_000, 5000);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(0, Status::Success), (1, Status::Success)]);
        let lost = pair.wire.count(|sent| sent.dammed);
        assert_eq!(lost, if matches!(second(0), SendOp::Read { .. }) { 1 } else { 2 });
        assert!(timed_out(&pair));
        let (from, to) = if matches!(second(0), SendOp::Read { .. }) { (1, 0) } else { (0, 1) };
        let offset = |node| if node == 1 { 8192 } else { 50_000 };
        assert!(pair.memory(to, offset(to), 5000) == pair.memory(from, offset(from), 5000));
    }
}

#[test]
fn a_stream_of_reads_needs_no_timeout() {
    // max_rd_atomic is 4: when the pending period ends, 4 duplicates are replayed. Each answer lets a new READ leave, which
    // is lost; but the READ after the last answer shows the gap (T fig 5.7: one QP is fine).
    let mut pair = pair(&setup(flawed()), Odp::Server);
    let start = pair.now;
    (0..4).for_each(|i| pair.post(i, read(100 * i as usize), 100 * i as usize, 100));
    until(&mut pair, start + MS);
    (4..20).for_each(|i| pair.post(i, read(100 * i as usize), 100 * i as usize, 100));
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send).len(), 20);
    assert_eq!(pair.wire.count(|sent| sent.dammed), 3);
    assert!(!timed_out(&pair));
    assert!(pair.now - start < 10 * MS);
}

#[test]
fn an_adapter_without_the_flaw_loses_nothing() {
    let mut pair = pair(&setup(Profile { damming: false, ..flawed() }), Odp::Both);
    run(&mut pair, &[read, read], MS);
    assert_eq!(pair.wire.count(|sent| sent.dammed), 0);
    assert!(!timed_out(&pair));
}

#[test]
fn a_small_egress_does_not_change_the_loss() {
    for burst in [1, 16] {
        let setup = testing::Setup { burst, ..setup(flawed()) };
        let mut pair = pair(&setup, Odp::Server);
        let start = pair.now;
        pair.post(0, read(0), 0, 100);
        until(&mut pair, start + MS);
        pair.post(1, write(300), 300, 20_000);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(0, Status::Success), (1, Status::Success)]);
        assert!(pair.wire.count(|sent| sent.dammed) > 0 && timed_out(&pair), "{burst}");
        assert!(pair.memory(1, 300, 20_000) == pair.memory(0, 300, 20_000));
        assert!(pair.now - start < 2 * TIMEOUT);
    }
}

#[test]
fn an_error_or_a_drain_ends_the_damming() {
    let mut pair = pair(&setup(flawed()), Odp::Server);
    let start = pair.now;
    pair.post(0, read(0), 0, 100);
    until(&mut pair, start + MS);
    // SQD: requests posted meanwhile are not begun. They are not lost either when they are begun later.
    pair.modify_from(0, QpState::Sqd, QpAttr::default());
    pair.post(1, read(100), 100, 100);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(0, Status::Success)]);
    pair.modify_from(0, QpState::Rts, QpAttr::default());
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(0, Status::Success), (1, Status::Success)]);
    assert!(!timed_out(&pair));
    // The same with more requests than fit into the window, and with RTS before all are retransmitted.
    for wait in 0..40 {
        let window = Limits { request_bytes: 600, read_bytes: 600 };
        let mut pair = self::pair(&Setup { burst: 1, window, ..setup(flawed()) }, Odp::Server);
        let start = pair.now;
        (0..10).for_each(|n| pair.post(n, write(100 * n as usize), 100 * n as usize, 100));
        until(&mut pair, start + 2 * MS);
        pair.modify_from(0, QpState::Sqd, QpAttr::default());
        until(&mut pair, start + 2500 * US + wait * 50 * US);
        pair.modify_from(0, QpState::Rts, QpAttr::default());
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|n| (n, Status::Success)));
    }
    // In the error state all work requests are flushed.
    let mut pair = self::pair(&setup(flawed()), Odp::Server);
    let start = pair.now;
    pair.post(0, read(0), 0, 100);
    until(&mut pair, start + MS);
    pair.post(1, read(100), 100, 100);
    pair.modify_from(0, QpState::Error, QpAttr::default());
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(0, Status::WrFlushed), (1, Status::WrFlushed)]);
}

#[test]
fn without_a_read_first_nothing_is_lost() {
    // "Caused by READ operations" (T 5.1): a repeated WRITE or SEND is acknowledged at once.
    for first in [write as fn(usize) -> SendOp, send] {
        for second in [read as fn(usize) -> SendOp, write, send] {
            let mut pair = pair(&setup(flawed()), Odp::Server);
            (0..2).for_each(|n| pair.post_recv(n, 50_000 + 1000 * n as usize, 1000));
            let ladder = run(&mut pair, &[first, second], MS);
            assert!(ladder.iter().all(|step| !step.what.ends_with("lost")) && !timed_out(&pair), "{ladder:#?}");
        }
    }
}

#[test]
fn figure_6_2_a_send_after_the_answer_is_lost_in_the_replay() {
    // The page comes after the READ was repeated: first its answer leaves, then the replay, and a SEND that leaves 26 µs
    // after the answer is lost.
    let mut profile = flawed();
    profile.page_faults.resolve = Delay::exactly(4683 * US);
    let mut pair = pair(&setup(profile), Odp::Server);
    pair.paging(1).prefetch(address(50_000), 1000, true);
    pair.post_recv(1, 50_000, 100);
    let start = pair.now;
    pair.post(0, read(0), 0, 100);
    assert!(pair.run_until(|pair| !pair.outcomes(0, Queue::Send).is_empty()));
    let answered = pair.now;
    until(&mut pair, answered + 26 * US);
    pair.post(1, send(0), 100, 100);
    pair.run_until_idle();
    let timeout = TIMEOUT.as_secs_f64() * 1e3;
    let expected = [
        (0.0, "READ 1"),
        (0.140, "RNR NAK 1"),
        (3.980, "READ 1"),
        (4.685, "response 1"),
        (4.711, "SEND 2 lost"),
        (4.765, "response 1"),
        (4.711 + timeout, "SEND 2"),
        (4.713 + timeout, "ACK 2"),
    ];
    compare(&ladder(&pair, start), &expected, 0.002);
}
