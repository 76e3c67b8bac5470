//! Packet flood (T 5.2): requesters that dropped responses wait for page-fault events, which are served in turn.

mod quirk_setup;

use quirk_setup::*;
use std::time::Duration;
use weir_transport::testing::{Entry, Pair, address, good, read, remote, write};
use weir_transport::*;
use weir_wire::Operation;

/// The events of one page, with stale events of this time.
fn flooded(stale: Duration) -> Profile {
    let mut profile = Profile { flood: Some(Flood { stale, waiting: 16 }), ..flawed() };
    // The page comes after the second response was dropped.
    profile.page_faults.resolve = Delay::exactly(700 * US);
    profile
}

fn asked(pair: &Pair) -> usize {
    pair.wire.count(|sent| sent.headers.bth.opcode.operation() == Some(Operation::ReadRequest))
}

fn writes(pair: &Pair) -> usize {
    pair.wire.count(|sent| sent.headers.bth.opcode.operation() == Some(Operation::WriteOnly))
}

fn done(pair: &Pair) -> bool {
    !pair.outcomes(0, Queue::Send).is_empty()
}

#[test]
fn a_requester_that_dropped_twice_waits_for_its_event() {
    // The harness counts every event as stale. The first is served at 5 ms, the one of the second drop at 10 ms.
    let mut pair = pair(&setup(flooded(5 * MS)), Odp::Client);
    let start = pair.now;
    pair.post(0, read(0), 0, 100);
    until(&mut pair, start + 9900 * US);
    assert!(!done(&pair), "its page has been present for more than 9 ms");
    // It keeps repeating the READ and dropping the response.
    assert!((16..=18).contains(&asked(&pair)), "{}", asked(&pair));
    assert!(pair.run_until(done));
    assert_eq!(pair.outcomes(0, Queue::Send), [(0, Status::Success)]);
    assert!((10 * MS..11 * MS).contains(&(pair.now - start)), "{:?}", pair.now - start);
    assert!(pair.memory(0, 0, 100) == pair.memory(1, 0, 100));
}

#[test]
fn a_requester_that_dropped_once_needs_no_event() {
    let mut profile = flooded(50 * MS);
    profile.page_faults.resolve = Delay::exactly(480 * US);
    let mut pair = pair(&setup(profile), Odp::Client);
    let start = pair.now;
    pair.post(0, read(0), 0, 100);
    assert!(pair.run_until(done));
    assert!(pair.now - start < MS && asked(&pair) == 2, "{}", asked(&pair));
}

#[test]
fn without_the_flaw_a_requester_takes_the_response_when_its_page_is_present() {
    let mut pair = pair(&setup(Profile { flood: None, ..flooded(5 * MS) }), Odp::Client);
    let start = pair.now;
    pair.post(0, read(0), 0, 100);
    assert!(pair.run_until(done));
    assert!(pair.now - start < 2 * MS && asked(&pair) == 3, "{}", asked(&pair));
}

#[test]
fn outgoing_data_waits_for_its_event() {
    for (flood, least) in [(Some(5 * MS), 5 * MS), (None, Duration::ZERO)] {
        let mut profile = flooded(5 * MS);
        profile.flood = flood.map(|stale| Flood { stale, waiting: 16 });
        let mut pair = pair(&setup(profile), Odp::Client);
        let start = pair.now;
        pair.post(0, write(0), 0, 100);
        assert!(pair.run_until(done));
        let took = pair.now - start;
        assert!(took >= least && took < least + MS, "{took:?}");
        assert!(pair.memory(0, 0, 100) == pair.memory(1, 0, 100));
    }
}

/// Whether 100 bytes from each of two pages have arrived.
fn both_arrived(pair: &Pair) -> bool {
    [0, 4096].iter().all(|at| pair.memory(0, *at, 100) == pair.memory(1, *at, 100))
}

/// Two WRITEs of a page each, posted together: number of WRITEs sent, and the time until both complete.
fn two_writes(profile: Profile) -> (usize, Duration) {
    let mut pair = pair(&setup(profile), Odp::Client);
    let start = pair.now;
    (0..2).for_each(|i| pair.post(i, write(4096 * i as usize), 4096 * i as usize, 100));
    assert!(pair.run_until(|pair| pair.outcomes(0, Queue::Send).len() == 2));
    assert_eq!(pair.outcomes(0, Queue::Send), [(0, Status::Success), (1, Status::Success)]);
    assert!(both_arrived(&pair));
    (writes(&pair), pair.now - start)
}

#[test]
fn a_second_fault_in_a_row_makes_the_requester_deaf_to_acks() {
    let profile = flooded(5 * MS);
    // The first page's event is served at 5 ms. The first WRITE leaves, and the second meets a fault before the ACK
    // arrives: until the event of that one, at 10 ms, the requester drops all ACKs, and repeats the first each 520 us.
    let (sent, took) = two_writes(profile.clone());
    assert!((11..=13).contains(&sent) && (10 * MS..11 * MS).contains(&took), "{sent} WRITEs, {took:?}");
    let (sent, _) = two_writes(Profile { flood: None, ..profile });
    assert_eq!(sent, 2, "without the flaw");
}

/// `first` from a page that is present at 5 ms, local requests, and a WRITE from the next page: deaf until 10 ms.
fn deaf_at_6_ms(first: SendOp, local: &[SendOp]) -> (Pair, Instant) {
    let mut pair = pair(&setup(flooded(5 * MS)), Odp::Client);
    let start = pair.now;
    pair.post(0, first, 0, 100);
    local.iter().for_each(|op| pair.post(1, *op, 0, 0));
    pair.post(2, write(4096), 4096, 100);
    until(&mut pair, start + 6 * MS);
    (pair, start)
}

#[test]
fn a_deaf_requester_takes_a_nak() {
    let SendOp::Write { remote_addr, .. } = write(0) else { unreachable!() };
    let (pair, _) = deaf_at_6_ms(SendOp::Write { remote_addr, rkey: 9 }, &[]);
    let expected = [(0, Status::RemoteAccess), (2, Status::WrFlushed)];
    assert_eq!(pair.outcomes(0, Queue::Send), expected);
}

#[test]
fn a_deaf_requester_is_drained_after_its_event() {
    let (mut pair, start) = deaf_at_6_ms(write(0), &[]);
    pair.modify_from(0, QpState::Sqd, QpAttr::default());
    until(&mut pair, start + 9900 * US);
    assert!(!done(&pair) && pair.nodes[0].qp.attr().sq_draining);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good([0]));
    assert!(!pair.nodes[0].qp.attr().sq_draining);
    pair.modify_from(0, QpState::Rts, QpAttr::default());
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good([0, 2]));
    assert!(both_arrived(&pair));
}

#[test]
fn a_local_request_is_performed_once_although_a_deaf_requester_repeats_what_is_before_it() {
    let (addr, mr_lkey) = remote(0);
    let bind = Bind { window_rkey: 9, new_rkey: 10, mr_lkey, addr, len: 8, access: Access::empty() };
    let (mut pair, start) = deaf_at_6_ms(write(0), &[SendOp::BindWindow(bind)]);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good(0..3));
    assert_eq!(pair.nodes[0].host.journal.iter().filter(|entry| matches!(entry, Entry::Bind { .. })).count(), 1);
    assert!((11..=13).contains(&writes(&pair)) && pair.now - start < 11 * MS, "{}", writes(&pair));
}

#[test]
fn an_ack_between_two_faults_is_taken() {
    let mut pair = pair(&setup(flooded(5 * MS)), Odp::Client);
    pair.post(0, write(0), 0, 100);
    pair.run_until_idle();
    // A WRITE from the page that is present now, and one from the next page. The ACK of the WRITE before them has ended
    // the row, so that the ACK of the first is taken while the second waits.
    pair.post(1, write(100), 100, 100);
    pair.post(2, write(4096), 4096, 100);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send).len(), 3);
    assert_eq!(writes(&pair), 3);
}

#[test]
fn a_removed_page_causes_another_fault() {
    let mut pair = pair(&setup(flooded(100 * US)), Odp::Client);
    for i in 0..4 {
        pair.post(i, read(100), 100, 100);
        pair.run_until_idle();
        pair.paging(0).invalidate(address(0), 4096, Duration::ZERO);
    }
    assert_eq!(pair.outcomes(0, Queue::Send).len(), 4);
    assert_eq!(pair.paging(0).counts.entered, 4);
}

#[test]
fn a_reset_ends_the_wait() {
    let mut pair = pair(&setup(flooded(5 * MS)), Odp::Client);
    let start = pair.now;
    pair.post(0, read(0), 0, 100);
    until(&mut pair, start + 2 * MS);
    pair.modify_from(0, QpState::Reset, QpAttr::default());
    assert_eq!(pair.nodes[0].qp.take_fault_event(), None);
    pair.run_until_idle();
    assert!(!done(&pair));
}
