//! Packet flood (T 5.2): requesters that dropped responses wait for page-fault events, which are served in turn.

mod quirk_setup;

use quirk_setup::*;
use std::time::Duration;
use weir_transport::testing::{Pair, address, read, write};
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
