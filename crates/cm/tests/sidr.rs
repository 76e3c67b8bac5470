//! Resolution of a service to a UD QP.

use std::time::Duration;
use weir_cm::testing::{Pair, address};
use weir_cm::{Config, ConnectionId, Error, Event, PortSpace, ServiceId, SidrReply, SidrRequest, SidrStatus};
use weir_wire::cm::{Message, SidrReq};

fn request() -> SidrRequest {
    let service_id = ServiceId::ip(PortSpace::UDP, 7);
    SidrRequest { service_id, pkey: 0x8001, private: b"hello".to_vec(), ..SidrRequest::default() }
}

fn reply() -> SidrReply {
    let (info, private) = (b"info".to_vec(), b"welcome".to_vec());
    SidrReply { status: SidrStatus::VALID, qpn: 0xabcdef, qkey: 0x1234_5678, info, private }
}

/// Process 0 asks, and process 1 has the request.
fn asked(pair: &mut Pair) -> (ConnectionId, ConnectionId) {
    let active = pair.cms[0].resolve_service(pair.now, &address(0), &request()).unwrap();
    pair.settle();
    let Event::ServiceRequest { id, .. } = pair.event(1) else { panic!() };
    (active, id)
}

#[test]
fn a_service_is_resolved() {
    let mut pair = Pair::quiet();
    let active = pair.cms[0].resolve_service(pair.now, &address(0), &request()).unwrap();
    pair.settle();
    let Event::ServiceRequest { id, from, request: seen } = pair.event(1) else { panic!() };
    assert_eq!((from, seen.private.len(), &seen.private[..5]), (address(1), 216, &b"hello"[..]));
    assert_eq!(seen, SidrRequest { private: seen.private.clone(), ..request() });
    pair.cms[1].answer_service(pair.now, id, &reply()).unwrap();
    assert_eq!(pair.cms[1].answer_service(pair.now, id, &reply()), Err(Error::WrongState));
    pair.settle();
    let Event::ServiceReply { id, reply: seen } = pair.event(0) else { panic!() };
    assert_eq!((id, seen.private.len(), &seen.private[..7]), (active, 136, &b"welcome"[..]));
    assert_eq!(seen, SidrReply { private: seen.private.clone(), ..reply() });
    pair.run(Duration::from_secs(1000));
    assert!(pair.is_silent());
    assert_eq!(pair.sent.len(), 2);
}

#[test]
fn lost_requests_and_replies_are_repeated_and_the_service_is_asked_once() {
    let mut pair = Pair::quiet();
    pair.lose[0] = 2;
    let active = pair.cms[0].resolve_service(pair.now, &address(0), &request()).unwrap();
    pair.run(Duration::from_secs(10));
    let Event::ServiceRequest { id, .. } = pair.event(1) else { panic!() };
    pair.run(Duration::from_secs(10));
    assert!(pair.is_silent(), "a repeated request is none");
    pair.lose[1] = 3;
    pair.cms[1].answer_service(pair.now, id, &reply()).unwrap();
    pair.cms[1].forget(pair.now, id);
    pair.run(Duration::from_secs(20));
    assert!(matches!(pair.event(0), Event::ServiceReply { id, .. } if id == active));
    assert!(pair.is_silent());
    assert_eq!(pair.messages(1).len(), 4);
    pair.run(Duration::from_secs(70));
    assert!(pair.cms[1].is_empty());
}

#[test]
fn a_service_without_a_process_is_unreachable() {
    let mut pair = Pair::quiet();
    pair.lose[0] = usize::MAX;
    let active = pair.cms[0].resolve_service(pair.now, &address(0), &request()).unwrap();
    pair.run(Duration::from_secs(68));
    assert!(pair.is_silent());
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.event(0), Event::ServiceUnreachable { id: active });
    assert_eq!(pair.messages(0).len(), 16);
}

#[test]
fn a_request_id_can_be_used_again() {
    let mut pair = Pair::quiet();
    let (_, passive) = asked(&mut pair);
    pair.cms[1].answer_service(pair.now, passive, &reply()).unwrap();
    pair.settle();
    let Message::SidrReq(old) = pair.messages(0).remove(0) else { panic!() };
    pair.clear_sent();
    pair.inject(1, SidrReq { service_id: ServiceId(5), ..old });
    assert!(matches!(pair.event(1), Event::ServiceRequest { id, .. } if id != passive));
    assert!(pair.sent.is_empty());
}

#[test]
fn a_request_that_the_program_does_not_answer_ends() {
    let mut pair = Pair::quiet();
    let (active, passive) = asked(&mut pair);
    pair.cms[0].forget(pair.now, active);
    pair.run(Duration::from_secs(70));
    assert_eq!(pair.cms[1].answer_service(pair.now, passive, &reply()), Err(Error::WrongState));
    pair.cms[1].forget(pair.now, passive);
    assert!(pair.cms[1].is_empty());
}

#[test]
fn what_a_flood_of_requests_leaves_is_bounded() {
    let config = Config { max_half_open: 20, max_half_open_per_peer: 15, ..Config::default() };
    let mut pair = Pair::new(1, Default::default(), config);
    for request_id in 0..1000 {
        pair.inject(1, SidrReq { request_id, ..SidrReq::default() });
    }
    assert_eq!(pair.events[1].len(), 15);
    let mut answered = 0;
    for request_id in 1000..2000 {
        while let Some(Event::ServiceRequest { id, .. }) = pair.events[1].pop_front() {
            pair.cms[1].answer_service(pair.now, id, &reply()).unwrap();
            pair.cms[1].forget(pair.now, id);
            answered += 1;
        }
        pair.inject(1, SidrReq { request_id, ..SidrReq::default() });
    }
    assert!(answered > 1000, "answers make room for requests");
    assert!(pair.cms[1].len() <= 20 + 15);
}
