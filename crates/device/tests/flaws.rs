//! The flaws of real adapters, live: RNR NAKs for page faults, packet damming, packet flood, and a limit of the
//! outstanding READs of all QPs. Times are lower bounds, which hold on a busy machine too; the few upper bounds are
//! generous.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;
mod profile_setup;

use profile_setup::*;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use weir_transport::{
    AckTimeout, Delay, Flood, PageFaults, Profile, RequesterFaults, ResponderFaults, RnrWait, Spread,
};

/// Like a ConnectX-4, with an ACK timeout that is short enough for tests.
fn flawed(name: &str, timeout: Duration) -> Profile {
    Profile {
        name: name.into(),
        ack_timeout: AckTimeout { floor: timeout, growth: 1, ..Profile::ideal().ack_timeout },
        rnr_wait: RnrWait { factor: Spread { low: 2.65, high: 4.3 }, powers_of_two: true, discards: true },
        page_faults: PageFaults {
            serial: false,
            requester: RequesterFaults::Discard { retransmit: Delay::exactly(Duration::from_micros(520)) },
            responder: ResponderFaults::RnrNak { read_after: Duration::from_micros(140) },
            resolve: Delay { low: Duration::from_micros(250), high: ms(1) },
        },
        repeated_read: Delay { low: Duration::from_micros(70), high: Duration::from_micros(89) },
        damming: true,
        flood: Some(Flood { stale: Duration::from_micros(40), waiting: 16 }),
        ..Profile::ideal()
    }
}

#[test]
fn a_read_that_faults_at_the_responder_waits_as_long_as_real_adapters_do() {
    let _serial = one_at_a_time();
    let (client, server) = (Side::new(&flawed("rnr", LONG)), Side::new(&flawed("rnr", LONG)));
    let [qp, _peer] = client.pair(&server);
    exchange_hellos(&qp, &client, &server);
    let (here, there) = (Memory::pinned(&client, 1), Memory::on_demand(&server, 4));
    there.fill(100);
    let before = counts();
    for page in 0..4 {
        let began = Instant::now();
        post_read(&qp, 1, here.sge(8 * page, 8), &there, page * PAGE);
        let took = client.ended(1)[0].1 - began;
        // The RNR timer of 20.48 ms, which the adapter stretches by a factor of 2.65 to 4.3, starts after the NAK.
        assert!(took >= Duration::from_micros(54_272 + 140), "{took:?}");
        assert_eq!(here.word(8 * page).load(Ordering::Relaxed), 100 + (page * PAGE / 8) as u64);
    }
    // A page that is late on a busy machine costs another NAK.
    assert!(since(before).rnr_naks >= 4, "{:?}", since(before));
    // The pages are present now.
    let before = counts();
    (0..4).for_each(|page| {
        post_read(&qp, 1, here.sge(8, 8), &there, page * PAGE + 8);
        client.ended(1);
    });
    assert_eq!(since(before).rnr_naks, 0);
}

#[test]
fn writes_wait_for_local_pages_and_get_rnr_naks_for_remote_pages() {
    let _serial = one_at_a_time();
    let (client, server) = (Side::new(&flawed("writes", LONG)), Side::new(&flawed("writes", LONG)));
    let [qp, _peer] = client.pair(&server);
    exchange_hellos(&qp, &client, &server);
    let (here, pinned, there) =
        (Memory::on_demand(&client, 1), Memory::pinned(&server, 1), Memory::on_demand(&server, 1));
    here.fill(5);
    let before = counts();
    post_write(&qp, 1, here.sge(0, 64), &pinned, 0);
    client.ended(1);
    assert_eq!(since(before).rnr_naks, 0, "a fault on a local page causes no NAK");
    post_write(&qp, 1, here.sge(0, 64), &there, 0);
    client.ended(1);
    assert!(since(before).rnr_naks >= 1);
    assert_eq!((pinned.word(8).load(Ordering::Relaxed), there.word(8).load(Ordering::Relaxed)), (6, 6));
}

#[test]
fn a_response_that_meets_a_fault_is_dropped_and_requested_again() {
    let _serial = one_at_a_time();
    let client = Side::new(&flawed("discards", LONG));
    let server = Side::new(&Profile { name: "behind-it".into(), ..Profile::ideal() });
    let [qp, _peer] = client.pair(&server);
    exchange_hellos(&qp, &client, &server);
    let (here, there) = (Memory::on_demand(&client, 1), Memory::pinned(&server, 1));
    there.fill(9);
    let began = Instant::now();
    post_read(&qp, 1, here.sge(0, 64), &there, 0);
    let took = client.ended(1)[0].1 - began;
    assert!(took >= Duration::from_micros(520), "{took:?}");
    assert_eq!(here.word(8).load(Ordering::Relaxed), 10);
}

/// READs of fresh pages of the server; returns their time and the counts. The first is pending when the others are
/// posted.
fn damming(name: &str, timeout: Duration, reads: usize) -> (Duration, Counts) {
    let (client, server) = (Side::new(&flawed(name, timeout)), Side::new(&flawed(name, timeout)));
    let [qp, _peer] = client.pair(&server);
    exchange_hellos(&qp, &client, &server);
    let (here, there) = (Memory::pinned(&client, 1), Memory::on_demand(&server, 8));
    there.fill(1);
    let before = counts();
    let began = Instant::now();
    for n in 0..reads {
        if n > 0 {
            is_pending(before);
        }
        post_read(&qp, n as u64, here.sge(8 * n, 8), &there, 8 * n);
    }
    let ended = client.ended(reads);
    for n in 0..reads {
        assert_eq!(here.word(8 * n).load(Ordering::Relaxed), 1 + n as u64);
    }
    (ended[reads - 1].1 - began, since(before))
}

/// Returns when an RNR NAK has arrived: its request is pending for 54 ms or more then.
fn is_pending(before: Counts) {
    let until = Instant::now() + LONG;
    while since(before).rnr_naks == 0 {
        assert!(Instant::now() < until, "no RNR NAK: {:?}", since(before));
        // Sleeps so that on a busy machine the adapter's thread gets the core and receives packets.
        std::thread::sleep(ms(1));
    }
}

#[test]
fn a_request_posted_while_a_read_is_pending_is_lost_until_the_ack_timeout() {
    const TIMEOUT: Duration = ms(400);
    let _serial = one_at_a_time();
    let (alone, counted) = damming("one-read", TIMEOUT, 1);
    assert!(alone < TIMEOUT, "{alone:?} {counted:?}");
    assert_eq!((counted.lost, counted.ack_timeouts), (0, 0));
    let (two, counted) = damming("two-reads", TIMEOUT, 2);
    assert!(two >= TIMEOUT, "{two:?} {counted:?}");
    assert!(counted.lost == 1 && counted.ack_timeouts >= 1, "{counted:?}");
    // The same requests without the flaw.
    let profile = Profile { damming: false, ..flawed("two-reads-undammed", TIMEOUT) };
    let (client, server) = (Side::new(&profile), Side::new(&profile));
    let [qp, _peer] = client.pair(&server);
    exchange_hellos(&qp, &client, &server);
    let (here, there) = (Memory::pinned(&client, 1), Memory::on_demand(&server, 8));
    let before = counts();
    post_read(&qp, 0, here.sge(0, 8), &there, 0);
    is_pending(before);
    post_read(&qp, 1, here.sge(8, 8), &there, 8);
    client.ended(2);
    assert_eq!((since(before).lost, since(before).ack_timeouts), (0, 0));
}

#[test]
fn requesters_resume_by_their_own_events_and_keep_retransmitting() {
    // Long enough that all READs wait before the page is resolved, on a busy machine too.
    const RESOLVE: Duration = ms(150);
    const STALE: Duration = ms(30);
    const QPS: u32 = 6;
    let _serial = one_at_a_time();
    let flawed = flawed("flood", LONG);
    let page_faults = PageFaults { resolve: Delay::exactly(RESOLVE), ..flawed.page_faults };
    let profile = Profile { page_faults, flood: Some(Flood { stale: STALE, waiting: 2 }), ..flawed };
    let (client, server) = (Side::new(&profile), Side::new(&Profile::ideal()));
    let qps: Vec<_> = (0..QPS).map(|_| client.pair(&server)).collect();
    qps.iter().for_each(|[qp, _]| exchange_hellos(qp, &client, &server));
    let (here, there) = (Memory::on_demand(&client, 1), Memory::pinned(&server, 1));
    let before = counts();
    let began = Instant::now();
    for (n, [qp, _]) in qps.iter().enumerate() {
        post_read(qp, n as u64, here.sge(8 * n, 8), &there, 8 * n);
    }
    // Each READ drops two responses before the page is there. The fault and the stale events of the first drops are served
    // before the events of the second drops.
    for (at, (n, time)) in client.ended(QPS as usize).into_iter().enumerate() {
        let served = RESOLVE + STALE * (QPS - 1) + STALE * (at as u32 + 1);
        assert!(time - began >= served, "{n}: {:?} of {served:?}", time - began);
    }
    // The READs were retransmitted every half a millisecond.
    assert!(since(before).sent > 100, "{:?}", since(before));
    // Their faults last until these events.
    let values = here.values();
    assert!(values.page_fault_resume_ns >= (STALE * QPS).as_nanos() as u64, "{values:?}");
}

/// A READ that drops a single response waits for no event: its fault lasts until the page is present.
#[test]
fn the_fault_of_a_read_that_drops_one_response_is_counted_with_flood_too() {
    const RETRANSMIT: Duration = ms(200);
    let _serial = one_at_a_time();
    let flawed = flawed("one-drop", LONG);
    let requester = RequesterFaults::Discard { retransmit: Delay::exactly(RETRANSMIT) };
    let profile = Profile { page_faults: PageFaults { requester, ..flawed.page_faults }, ..flawed };
    let (client, server) = (Side::new(&profile), Side::new(&Profile::ideal()));
    let [qp, _peer] = client.pair(&server);
    exchange_hellos(&qp, &client, &server);
    let (here, there) = (Memory::on_demand(&client, 1), Memory::pinned(&server, 1));
    let began = Instant::now();
    post_read(&qp, 1, here.sge(0, 64), &there, 0);
    client.ended(1);
    while here.values().page_fault_wait_ns == 0 {
        assert!(began.elapsed() < LONG, "not counted: {:?}", here.values());
        std::thread::sleep(ms(1));
    }
    let (values, took) = (here.values(), began.elapsed());
    let wait = Duration::from_nanos(values.page_fault_wait_ns);
    // The profile's adapter takes 0.25 ms or more.
    assert!(values.page_faults == 1 && wait >= Duration::from_micros(250) && wait < took, "{wait:?} of {took:?}");
}
