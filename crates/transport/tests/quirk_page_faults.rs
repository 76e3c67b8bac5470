//! One operation that meets a network page fault: packets and times of T fig 4.2 to 4.4, with an RNR wait of 3.84 ms,
//! 0.52 ms between two requests, and 0.48 ms per page.

mod quirk_setup;

use quirk_setup::*;
use std::time::Duration;
use weir_transport::testing::{self, Setup, read, remote, write};
use weir_transport::*;

fn send(_: usize) -> SendOp {
    SendOp::Send
}

#[test]
fn a_read_with_a_missing_page_at_the_server() {
    let mut pair = pair(&setup(flawed()), Odp::Server);
    let ladder = run(&mut pair, &[read], Duration::ZERO);
    let expected = [
        (0.0, "READ 1"),
        (0.140, "RNR NAK 1"),
        // Sent without a new request, and dropped.
        (0.482, "response 1"),
        (3.980, "READ 1"),
        (4.062, "response 1"),
    ];
    compare(&ladder, &expected, 0.002);
}

#[test]
fn a_read_with_a_missing_page_at_the_client() {
    let mut pair = pair(&setup(flawed()), Odp::Client);
    let ladder = run(&mut pair, &[read], Duration::ZERO);
    compare(&ladder, &[(0.0, "READ 1"), (0.002, "response 1"), (0.522, "READ 1"), (0.604, "response 1")], 0.002);
}

#[test]
fn a_read_is_retransmitted_whether_or_not_the_page_is_present() {
    let mut profile = flawed();
    profile.page_faults.resolve = Delay::exactly(1400 * US);
    let mut pair = pair(&setup(profile), Odp::Client);
    let ladder = run(&mut pair, &[read], Duration::ZERO);
    let requests: Vec<Duration> = ladder.iter().filter(|step| step.what == "READ 1").map(|step| step.at).collect();
    // The response to each retransmission is 80 µs late.
    assert_eq!(requests, [0, 522, 522 + 602, 522 + 2 * 602].map(|us| us * US));
}

#[test]
fn a_page_slower_than_all_retries_does_not_end_the_qp() {
    for damming in [true, false] {
        for operation in [read as fn(usize) -> SendOp, write, send] {
            let mut profile = Profile { damming, ..flawed() };
            profile.page_faults.resolve = Delay::exactly(3000 * MS);
            let mut pair = pair(&Setup { retry_cnt: 1, ..setup(profile) }, Odp::Server);
            pair.post_recv(7, 0, 100);
            // `run` expects success.
            run(&mut pair, &[operation], Duration::ZERO);
            assert!(pair.nodes[0].qp.retransmissions().rnr_naks > 1, "{damming}");
        }
    }
}

#[test]
fn a_dropped_response_repeats_only_the_reads_that_were_under_way() {
    // Without damming, new READs are accepted during the replays: their responses leave behind these, in PSN order, so
    // that the requester does not go back again.
    let mut pair = pair(&setup(Profile { damming: false, ..flawed() }), Odp::Client);
    (0..40).for_each(|i| pair.post(i, read(100 * i as usize), 100 * i as usize, 100));
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send).len(), 40);
    // max_rd_atomic is 4.
    let requests = pair.wire.count(|sent| sent.from == 0);
    assert_eq!(requests, 40 + 4);
}

#[test]
fn a_read_with_odp_on_both_sides_follows_the_traces() {
    let mut pair = pair(&setup(flawed()), Odp::Both);
    let ladder = run(&mut pair, &[read], Duration::ZERO);
    let expected = [
        (0.0, "READ 1"),
        (0.140, "RNR NAK 1"),
        // It is dropped, but causes a page fault at the client, which is resolved before the next response.
        (0.482, "response 1"),
        (3.980, "READ 1"),
        (4.062, "response 1"),
    ];
    compare(&ladder, &expected, 0.002);
}

#[test]
fn sends_and_writes_get_an_rnr_nak_after_the_page_is_present() {
    for (operation, name) in [(send as fn(usize) -> SendOp, "SEND 1"), (write, "WRITE 1")] {
        let mut pair = pair(&setup(flawed()), Odp::Server);
        pair.post_recv(7, 0, 100);
        let ladder = run(&mut pair, &[operation], Duration::ZERO);
        compare(&ladder, &[(0.0, name), (0.482, "RNR NAK 1"), (4.322, name), (4.324, "ACK 1")], 0.002);
    }
}

#[test]
fn sends_and_writes_wait_for_their_own_pages() {
    for (operation, name) in [(send as fn(usize) -> SendOp, "SEND 1"), (write, "WRITE 1")] {
        let mut pair = pair(&setup(flawed()), Odp::Client);
        pair.post_recv(7, 0, 100);
        let ladder = run(&mut pair, &[operation], Duration::ZERO);
        assert_eq!(ladder.iter().map(|step| step.what.as_str()).collect::<Vec<_>>(), [name, "ACK 1"]);
        assert_eq!(ladder[0].at, 480 * US);
    }
}

#[test]
fn requests_before_a_late_nak_are_acknowledged_at_once() {
    let mut pair = pair(&setup(flawed()), Odp::Server);
    pair.paging(1).prefetch(testing::address(0), 4096, true);
    pair.run_until_idle();
    let start = pair.now;
    pair.post(0, write(0), 0, 100);
    pair.post(1, write(8192), 0, 100);
    assert!(pair.run_until(|pair| !pair.outcomes(0, Queue::Send).is_empty()));
    assert!(pair.now - start < 300 * US, "{:?}", pair.now - start);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send).len(), 2);
}

#[test]
fn a_page_resolved_before_the_nak_suppresses_it() {
    let mut profile = flawed();
    profile.page_faults.resolve = Delay::exactly(50 * US);
    let mut pair = pair(&setup(profile), Odp::Server);
    let ladder = run(&mut pair, &[read], Duration::ZERO);
    compare(&ladder, &[(0.0, "READ 1"), (0.052, "response 1"), (0.052, "ACK 1")], 0.002);
}

#[test]
fn a_nak_is_still_sent_for_requests_dropped_meanwhile() {
    let mut profile = flawed();
    profile.page_faults.resolve = Delay::exactly(100 * US);
    profile.damming = false;
    let mut pair = pair(&setup(profile), Odp::Server);
    let ladder = run(&mut pair, &[read, write], 30 * US);
    let expected = [
        (0.0, "READ 1"),
        (0.030, "WRITE 2"),
        (0.102, "response 1"),
        // The WRITE was not executed.
        (0.140, "RNR NAK 2"),
        // Its page is present for reading only.
        (3.980, "WRITE 2"),
        (4.082, "RNR NAK 2"),
        (7.922, "WRITE 2"),
        (7.924, "ACK 2"),
    ];
    compare(&ladder, &expected, 0.002);
}

#[test]
fn waits_and_timeouts_differ_within_their_bounds_and_repeat_with_the_seed() {
    let ladder = |seed, factor, timeout| {
        let profile = Profile {
            seed,
            rnr_wait: RnrWait { factor, powers_of_two: true, discards: true },
            ack_timeout: AckTimeout { factor: timeout, ..flawed().ack_timeout },
            ..flawed()
        };
        let mut pair = pair(&setup(profile), Odp::Server);
        run(&mut pair, &[read, read], MS)
    };
    let (wait, timeout) = (Spread { low: 2.65, high: 4.3 }, Spread { low: 1.6, high: 2.0 });
    assert_eq!(ladder(3, wait, timeout), ladder(3, wait, timeout));
    let times = |seed| {
        let ladder = ladder(seed, wait, timeout);
        let at = |n: usize| ladder[n].at.as_secs_f64() * 1e3;
        let names: Vec<&str> = ladder.iter().map(|step| step.what.as_str()).collect();
        let (nak, again) = (1, 3);
        assert_eq!((names[nak], names[again]), ("RNR NAK 1", "READ 1"), "seed {seed}: {names:?}");
        (at(again) - at(nak), at(6) - at(5))
    };
    let times: Vec<(f64, f64)> = (1..=20).map(times).collect();
    for (name, low, high, all) in [
        ("RNR wait", 1.28 * 2.65, 1.28 * 4.3, times.iter().map(|t| t.0).collect::<Vec<_>>()),
        ("timeout", 268.4 * 1.6, 268.5 * 2.0, times.iter().map(|t| t.1).collect()),
    ] {
        let (least, most) = (all.iter().copied().fold(f64::MAX, f64::min), all.iter().copied().fold(0.0, f64::max));
        assert!(low <= least && most <= high, "{name}: {all:?}");
        assert!(most - least > (high - low) / 2.0, "{name} hardly differs: {all:?}");
    }
}

#[test]
fn the_least_exponent_and_the_factor_determine_the_timeout() {
    for (exponent, expected) in [(1, TIMEOUT), (16, TIMEOUT), (17, 2 * TIMEOUT)] {
        let mut setup = setup(flawed());
        (setup.timeout, setup.paging) = (exponent, None);
        let mut pair = setup.pair();
        pair.wire.rule = Some(Box::new(|_, _| testing::Fate::Drop));
        let start = pair.now;
        pair.post(0, read(0), 0, 100);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(0, Status::RetryExceeded)]);
        // T_o = t / 8 (T 4.3).
        let timeout = (pair.now - start) / 8;
        assert!(timeout.abs_diff(expected) < 10 * US, "{exponent}: {timeout:?}");
    }
}

#[test]
fn a_duplicate_zero_length_read_is_late_too() {
    let mut pair = pair(&Setup { timeout: 16, ..setup(flawed()) }, Odp::Client);
    let mut lost = false;
    pair.wire.rule = Some(Box::new(move |from, _| {
        if from == 1 && !std::mem::replace(&mut lost, true) { testing::Fate::Drop } else { testing::Fate::Pass }
    }));
    let (remote_addr, rkey) = remote(0);
    let start = pair.now;
    pair.post(0, SendOp::Read { remote_addr, rkey }, 0, 0);
    pair.run_until_idle();
    let last = ladder(&pair, start);
    assert_eq!(last[3].at - last[2].at, 82 * US, "{last:?}");
}
