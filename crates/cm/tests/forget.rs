//! What a process says when its program forgets a connection, in every state.

use std::time::Duration;
use weir_cm::testing::{Pair, address, reply, request};
use weir_cm::{ConnectionId, Error, Event, RejectReason, Request, SidrReply, SidrRequest, SidrStatus, Transport};
use weir_wire::cm::Message;

const LONG: Duration = Duration::from_secs(2000);

/// A process forgets, and its peer has this event; the process keeps nothing after timewait.
fn forgotten(mut pair: Pair, process: usize, id: ConnectionId) -> Event {
    pair.events.iter_mut().for_each(|events| events.clear());
    pair.cms[process].forget(pair.now, id);
    assert_eq!(pair.cms[process].ready(id, &[]), Err(Error::UnknownId));
    pair.settle();
    let event = pair.event(1 - process);
    if let Event::DisconnectRequest { id, .. } = event {
        pair.cms[1 - process].disconnect(pair.now, id, &[]).unwrap();
    }
    pair.run(LONG);
    assert!(pair.cms[process].is_empty());
    assert!(pair.events[process].is_empty(), "no event of a forgotten connection");
    event
}

#[track_caller]
fn is_rejected(event: Event, id: ConnectionId, reason: RejectReason) {
    assert!(
        matches!(&event, Event::Rejected { id: found, reason: why, .. } if (*found, *why) == (id, reason)),
        "{event:?}"
    );
}

#[test]
fn before_the_answer_to_its_req_the_peer_hears_of_a_timeout() {
    for delayed in [false, true] {
        let mut pair = Pair::quiet();
        let (active, passive) = pair.requested(1);
        if delayed {
            pair.cms[1].delay(pair.now, passive, 20, &[]).unwrap();
            pair.settle();
        }
        is_rejected(forgotten(pair, 0, active), passive, RejectReason::TIMEOUT);
    }
}

#[test]
fn a_request_or_reply_without_answer_is_rejected() {
    for delayed in [false, true] {
        let mut pair = Pair::quiet();
        let (active, passive) = pair.requested(1);
        if delayed {
            pair.cms[1].delay(pair.now, passive, 20, &[]).unwrap();
            pair.settle();
        }
        is_rejected(forgotten(pair, 1, passive), active, RejectReason::CONSUMER);
        let mut pair = Pair::quiet();
        let (active, passive) = pair.replied((1, 2));
        if delayed {
            pair.cms[0].delay(pair.now, active, 20, &[]).unwrap();
            pair.settle();
        }
        is_rejected(forgotten(pair, 0, active), passive, RejectReason::CONSUMER);
    }
}

#[test]
fn after_the_rep_the_connection_stays_in_timewait() {
    for delayed in [false, true] {
        let mut pair = Pair::quiet();
        let (active, passive) = pair.replied((1, 2));
        if delayed {
            pair.cms[0].delay(pair.now, active, 20, &[]).unwrap();
            pair.settle();
        }
        pair.cms[1].forget(pair.now, passive);
        assert_eq!(pair.cms[1].len(), 1);
        pair.settle();
        is_rejected(pair.events[0].pop_back().unwrap(), active, RejectReason::CONSUMER);
        pair.run(Duration::from_secs(3));
        assert!(pair.cms[1].is_empty());
    }
}

#[test]
fn an_established_connection_is_disconnected() {
    for process in [0, 1] {
        let mut pair = Pair::quiet();
        let (active, passive) = pair.connected((1, 2));
        let ids = [active, passive];
        let event = forgotten(pair, process, ids[process]);
        assert!(matches!(event, Event::DisconnectRequest { id, .. } if id == ids[1 - process]));
    }
}

#[test]
fn the_disconnection_of_a_forgotten_connection_is_repeated() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.connected((1, 2));
    pair.lose[0] = 3;
    pair.cms[0].forget(pair.now, active);
    pair.run(Duration::from_secs(30));
    assert!(matches!(pair.event(1), Event::DisconnectRequest { id, .. } if id == passive));
}

#[test]
fn a_forgotten_peer_that_disconnects_at_the_same_time_is_answered() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.connected((1, 2));
    pair.cms[0].forget(pair.now, active);
    pair.cms[1].forget(pair.now, passive);
    pair.run(Duration::from_secs(5));
    assert!(pair.is_silent() && pair.cms.iter().all(|cm| cm.is_empty()));
    assert_eq!(pair.sent.len(), 4, "a DREQ and a DREP of each");
}

#[test]
fn the_target_of_an_xrc_connection_says_nothing() {
    let mut pair = Pair::quiet();
    let xrc = Request { transport: Transport::Xrc, ..request(1) };
    let active = pair.cms[0].connect(pair.now, &address(0), &xrc).unwrap();
    pair.settle();
    let Event::Request { id: passive, .. } = pair.event(1) else { panic!() };
    pair.cms[1].accept(pair.now, passive, &reply(2)).unwrap();
    pair.settle();
    pair.cms[0].ready(active, &[]).unwrap();
    pair.settle();
    pair.clear_sent();
    pair.cms[1].forget(pair.now, passive);
    pair.run(LONG);
    assert!(pair.messages(1).is_empty() && pair.cms[1].is_empty());
    // The initiator can disconnect all the same.
    pair.cms[0].disconnect(pair.now, active, &[]).unwrap();
    pair.settle();
    assert!(matches!(pair.events[0].back(), Some(Event::Disconnected { timed_out: false, .. })));
}

#[test]
fn a_disconnection_of_the_peer_is_confirmed() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.connected((1, 2));
    pair.cms[1].disconnect(pair.now, passive, &[]).unwrap();
    pair.settle();
    assert!(matches!(forgotten(pair, 0, active), Event::Disconnected { timed_out: false, .. }));
}

#[test]
fn a_connection_that_is_over_is_only_removed() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.requested(1);
    pair.cms[1].reject(pair.now, passive, RejectReason::CONSUMER, &[], &[]).unwrap();
    pair.settle();
    pair.clear_sent();
    pair.cms[0].forget(pair.now, active);
    pair.cms[1].forget(pair.now, passive);
    pair.collect();
    assert!(pair.sent.is_empty() && pair.cms.iter().all(|cm| cm.is_empty()));
}

#[test]
fn in_timewait_the_connection_is_only_kept_for_repetitions() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.connected((1, 2));
    pair.cms[0].disconnect(pair.now, active, &[]).unwrap();
    pair.settle();
    let dreq = pair.sent[0].1;
    pair.cms[1].disconnect(pair.now, passive, &[]).unwrap();
    pair.cms[1].forget(pair.now, passive);
    pair.settle();
    pair.clear_sent();
    pair.cms[1].handle(pair.now, &address(1), &dreq);
    pair.collect();
    assert!(matches!(pair.messages(1)[..], [Message::Drep(_)]));
    pair.run(Duration::from_secs(3));
    assert!(pair.cms[1].is_empty());
}

#[test]
fn events_that_wait_are_dropped() {
    let mut pair = Pair::quiet();
    let active = pair.cms[0].connect(pair.now, &address(0), &request(1)).unwrap();
    let rej = weir_wire::cm::Rej { remote_comm_id: active.0, ..Default::default() };
    pair.cms[0].handle(pair.now, &address(0), &Message::from(rej).emit(0, 0));
    pair.cms[0].forget(pair.now, active);
    assert_eq!(pair.cms[0].poll_event(), None);
}

#[test]
fn a_request_that_is_ignored_is_a_request_again() {
    let mut pair = Pair::quiet();
    let (_, passive) = pair.requested(1);
    pair.clear_sent();
    pair.cms[1].ignore(passive).unwrap();
    assert!(pair.cms[1].is_empty());
    pair.run(Duration::from_secs(7));
    assert!(matches!(pair.event(1), Event::Request { id, .. } if id != passive));
    assert!(pair.messages(1).is_empty());
}

#[test]
fn resolutions_end_in_silence_or_with_a_rejection() {
    let mut pair = Pair::quiet();
    let active = pair.cms[0].resolve_service(pair.now, &address(0), &SidrRequest::default()).unwrap();
    pair.settle();
    let Event::ServiceRequest { id: passive, .. } = pair.event(1) else { panic!() };
    pair.cms[1].forget(pair.now, passive);
    pair.settle();
    let reply = SidrReply { status: SidrStatus::REJECTED, private: vec![0; 136], ..SidrReply::default() };
    assert_eq!(pair.event(0), Event::ServiceReply { id: active, reply });
    let other = pair.cms[0].resolve_service(pair.now, &address(0), &SidrRequest::default()).unwrap();
    pair.settle();
    pair.clear_sent();
    pair.cms[0].forget(pair.now, active);
    pair.cms[0].forget(pair.now, other);
    pair.collect();
    assert!(pair.sent.is_empty());
    let id = pair.event(1).id();
    pair.cms[1].forget(pair.now, id);
    pair.run(LONG);
    assert!(pair.cms.iter().all(|cm| cm.is_empty()));
}
