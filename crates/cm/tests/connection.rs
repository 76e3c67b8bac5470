//! A connection from its request to the end of timewait, without faults; and what each call may do.

use std::time::Duration;
use weir_cm::testing::{Pair, address, reply, request};
use weir_cm::{ConnectionId, Ece, Error, Event, RejectReason, Reply, Request, Transport};
use weir_wire::cm::Message;

const LONG: Duration = Duration::from_secs(100);

#[test]
fn the_passive_side_sees_the_request_as_it_was_made() {
    let mut pair = Pair::quiet();
    let request = Request {
        transport: Transport::Uc,
        responder_resources: 3,
        initiator_depth: 5,
        flow_control: true,
        srq: true,
        retry_count: 6,
        rnr_retry_count: 2,
        path_mtu: 5,
        max_retries: 4,
        ack_timeout: 17,
        flow_label: 0x12345,
        traffic_class: 0x60,
        ece: Ece { vendor_id: 0x15b3, options: 0x1000 },
        ..request(0x123456)
    };
    pair.cms[0].connect(pair.now, &address(0), &request).unwrap();
    pair.settle();
    let Event::Request { from, request: seen, .. } = pair.event(1) else { panic!() };
    assert_eq!(from, address(1));
    assert_eq!((seen.private.len(), &seen.private[..5]), (92, &b"hello"[..]));
    assert_eq!(*seen, Request { private: seen.private.clone(), ..request });
}

#[test]
fn the_active_side_sees_the_reply_as_it_was_made() {
    for transport in [Transport::Rc, Transport::Uc, Transport::Xrc] {
        let mut pair = Pair::quiet();
        let active = pair.cms[0].connect(pair.now, &address(0), &Request { transport, ..request(1) }).unwrap();
        pair.settle();
        let Event::Request { id, request, .. } = pair.event(1) else { panic!() };
        assert_eq!(request.transport, transport);
        let reply = Reply {
            qkey: 4,
            responder_resources: 3,
            initiator_depth: 5,
            flow_control: true,
            srq: true,
            rnr_retry_count: 2,
            target_ack_delay: 15,
            ece: Ece { vendor_id: 0x0115b3, options: 0x2000 },
            ..reply(0xabcdef)
        };
        pair.cms[1].accept(pair.now, id, &reply).unwrap();
        pair.settle();
        let Event::Reply { id, reply: seen } = pair.event(0) else { panic!() };
        assert_eq!((id, seen.private.len(), &seen.private[..7]), (active, 196, &b"welcome"[..]));
        assert_eq!(*seen, Reply { private: seen.private.clone(), ..reply });
    }
}

#[test]
fn three_messages_establish_a_connection() {
    let mut pair = Pair::quiet();
    let (active, _) = pair.replied((11, 12));
    pair.cms[0].ready(active, b"now").unwrap();
    pair.settle();
    let Event::Established { private, .. } = pair.event(1) else { panic!() };
    assert_eq!(private[..4], *b"now\0");
    pair.run(LONG);
    assert!(pair.is_silent());
    assert_eq!(pair.sent.len(), 3);
}

#[test]
fn the_first_packet_establishes_as_well_as_the_rtu() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.replied((11, 12));
    pair.lose[0] = 1;
    pair.cms[0].ready(active, b"").unwrap();
    pair.cms[1].established(passive).unwrap();
    assert!(matches!(pair.event(1), Event::Established { .. }));
    assert_eq!(pair.cms[1].established(passive), Err(Error::Connected));
    pair.clear_sent();
    pair.run(LONG);
    assert!(pair.is_silent() && pair.sent.is_empty(), "the REP is not repeated");
}

#[test]
fn either_side_disconnects() {
    for first in [0, 1] {
        let mut pair = Pair::quiet();
        let (active, passive) = pair.connected((11, 12));
        let ids = [active, passive];
        pair.cms[first].disconnect(pair.now, ids[first], b"bye").unwrap();
        pair.settle();
        let Event::DisconnectRequest { id, private } = pair.event(1 - first) else { panic!() };
        assert_eq!((id, &private[..4]), (ids[1 - first], &b"bye\0"[..]));
        pair.cms[1 - first].disconnect(pair.now, id, b"good bye").unwrap();
        pair.settle();
        let Event::Disconnected { id, timed_out: false, private } = pair.event(first) else { panic!() };
        assert_eq!((id, &private[..9]), (ids[first], &b"good bye\0"[..]));
        // Timewait is 2.1 s.
        assert!(pair.is_silent());
        pair.run(Duration::from_secs(2));
        assert_eq!(pair.event(0), Event::TimewaitExit { id: active });
        assert_eq!(pair.event(1), Event::TimewaitExit { id: passive });
        pair.cms[0].forget(pair.now, active);
        pair.cms[1].forget(pair.now, passive);
        assert!(pair.is_silent() && pair.cms.iter().all(|cm| cm.is_empty()));
    }
}

#[test]
fn both_sides_disconnect_at_once() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.connected((11, 12));
    pair.cms[0].disconnect(pair.now, active, b"").unwrap();
    pair.cms[1].disconnect(pair.now, passive, b"").unwrap();
    pair.settle();
    for (process, id) in [(0, active), (1, passive)] {
        assert!(matches!(pair.event(process), Event::Disconnected { id: found, timed_out: false, .. } if found == id));
        assert!(matches!(pair.messages(process)[..], [Message::Dreq(_), Message::Drep(_)]));
    }
    pair.run(LONG);
    assert_eq!([pair.event(0), pair.event(1)], [active, passive].map(|id| Event::TimewaitExit { id }));
    assert!(pair.is_silent());
}

#[test]
fn a_target_that_is_slow_to_answer_makes_timewait_longer() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.requested(11);
    pair.cms[1].accept(pair.now, passive, &Reply { target_ack_delay: 22, ..reply(12) }).unwrap();
    pair.settle();
    pair.cms[0].ready(active, b"").unwrap();
    pair.cms[0].disconnect(pair.now, active, b"").unwrap();
    pair.settle();
    pair.events[1].clear();
    pair.events[0].clear();
    pair.cms[1].disconnect(pair.now, passive, b"").unwrap();
    pair.settle();
    assert!(matches!(pair.event(0), Event::Disconnected { .. }));
    // 2.1 s and 17.2 s.
    pair.run(Duration::from_secs(18));
    assert!(pair.events[0].is_empty());
    pair.run(Duration::from_secs(2));
    assert_eq!(pair.event(0), Event::TimewaitExit { id: active });
}

#[test]
fn a_rejection_says_why() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.requested(11);
    pair.cms[1].reject(pair.now, passive, RejectReason::INVALID_MTU, &[0x30, 0], b"no").unwrap();
    pair.settle();
    let Event::Rejected { id, reason, ari, private } = pair.event(0) else { panic!() };
    assert_eq!(
        (id, reason, &ari[..], &private[..3]),
        (active, RejectReason::INVALID_MTU, &[0x30, 0][..], &b"no\0"[..])
    );
    pair.run(LONG);
    assert!(pair.is_silent());
}

#[test]
fn the_active_side_rejects_the_reply() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.replied((11, 12));
    pair.cms[0].reject(pair.now, active, RejectReason::CONSUMER, &[], b"").unwrap();
    pair.settle();
    let reason = RejectReason::CONSUMER;
    assert!(matches!(pair.event(1), Event::Rejected { id, reason: found, .. } if (id, found) == (passive, reason)));
    pair.run(LONG);
    assert!(pair.is_silent());
}

/// IBTA 12.6.7: the message of a REJ, and whether its sender has a communication ID.
#[test]
fn a_rejection_names_what_it_rejects() {
    let rejection = |pair: &mut Pair, process: usize| {
        pair.settle();
        assert!(matches!(pair.event(1 - process), Event::Rejected { .. }));
        let messages = pair.messages(process);
        let Some(Message::Rej(rej)) = messages.last() else { panic!("no REJ") };
        (rej.message, rej.local_comm_id, rej.remote_comm_id)
    };
    let mut pair = Pair::quiet();
    let (active, passive) = pair.requested(11);
    pair.cms[1].reject(pair.now, passive, RejectReason::CONSUMER, &[], &[]).unwrap();
    assert_eq!(rejection(&mut pair, 1), (0, 0, active.0));
    let (active, passive) = pair.replied((21, 22));
    pair.cms[0].reject(pair.now, active, RejectReason::CONSUMER, &[], &[]).unwrap();
    assert_eq!(rejection(&mut pair, 0), (1, active.0, passive.0));
    let (active, passive) = pair.replied((31, 32));
    pair.cms[1].reject(pair.now, passive, RejectReason::CONSUMER, &[], &[]).unwrap();
    assert_eq!(rejection(&mut pair, 1), (2, passive.0, active.0));
}

#[test]
fn connections_are_many_in_both_directions() {
    let mut pair = Pair::quiet();
    let mut ids = Vec::new();
    for number in 0..10_000 {
        let from = number as usize % 2;
        let request = Request { ca_guid: from as u64, ..request(number) };
        ids.push((from, pair.cms[from].connect(pair.now, &address(from), &request).unwrap()));
        if number % 500 == 499 {
            exchange(&mut pair);
        }
    }
    exchange(&mut pair);
    let mut unique: Vec<_> = ids.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), ids.len());
    assert!(pair.cms.iter().all(|cm| cm.len() == 10_000));
    for (from, id) in ids {
        pair.cms[from].disconnect(pair.now, id, &[]).unwrap();
    }
    pair.run(LONG);
    for process in 0..2 {
        let mut events = std::mem::take(&mut pair.events[process]);
        assert_eq!(events.len(), 5_000, "of each process's own connections none is disconnected yet");
        for event in events.drain(..) {
            let Event::DisconnectRequest { id, .. } = event else { panic!("{event:?}") };
            pair.cms[process].disconnect(pair.now, id, &[]).unwrap();
        }
    }
    pair.run(LONG);
    for process in 0..2 {
        let ended = pair.events[process].iter().filter(|event| matches!(event, Event::TimewaitExit { .. }));
        assert_eq!(ended.count(), 10_000);
    }
}

/// Both processes accept what comes, until nothing comes.
fn exchange(pair: &mut Pair) {
    loop {
        pair.run(Duration::from_micros(100));
        if pair.is_silent() {
            return;
        }
        for process in 0..2 {
            for event in std::mem::take(&mut pair.events[process]) {
                match event {
                    Event::Request { id, request, .. } => {
                        let reply = Reply { ca_guid: process as u64, ..reply(request.qpn + 0x10_0000) };
                        pair.cms[process].accept(pair.now, id, &reply).unwrap();
                    }
                    Event::Reply { id, .. } => pair.cms[process].ready(id, &[]).unwrap(),
                    Event::Established { .. } => (),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

/// A process connects to itself, by any address.
#[test]
fn both_ends_can_be_in_one_process() {
    for local in ["10.0.0.1", "127.0.0.1", "fd00::1", "fe80::1"] {
        let local = local.parse().unwrap();
        connects_to_itself(weir_cm::Address { local, remote: local, device: 3 });
    }
}

fn connects_to_itself(here: weir_cm::Address) {
    let mut cm = weir_cm::Cm::new(weir_cm::Config::default());
    let now = weir_transport::Instant(0);
    let mut events = Vec::new();
    let mut deliver = |cm: &mut weir_cm::Cm| {
        while let Some((to, mad)) = cm.poll_transmit() {
            assert_eq!(to, here);
            cm.handle(now, &here, &mad);
        }
        events.extend(std::iter::from_fn(|| cm.poll_event()));
        events.pop().unwrap()
    };
    let active = cm.connect(now, &here, &request(1)).unwrap();
    let Event::Request { id: passive, .. } = deliver(&mut cm) else { panic!() };
    cm.accept(now, passive, &Reply { ca_guid: 0xa, ..reply(2) }).unwrap();
    assert!(matches!(deliver(&mut cm), Event::Reply { id, .. } if id == active));
    cm.ready(active, &[]).unwrap();
    assert!(matches!(deliver(&mut cm), Event::Established { id, .. } if id == passive));
    cm.disconnect(now, passive, &[]).unwrap();
    assert!(matches!(deliver(&mut cm), Event::DisconnectRequest { id, .. } if id == active));
    cm.disconnect(now, active, &[]).unwrap();
    assert!(matches!(deliver(&mut cm), Event::Disconnected { id, timed_out: false, .. } if id == passive));
}

#[test]
fn calls_that_do_not_fit_the_state_do_nothing() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.requested(11);
    let now = pair.now;
    let [own, peer] = &mut pair.cms;
    let wrong = Err(Error::WrongState);
    assert_eq!(own.accept(now, active, &reply(1)), wrong);
    assert_eq!(own.ready(active, &[]), wrong);
    assert_eq!(own.established(active), wrong);
    assert_eq!(own.disconnect(now, active, &[]), wrong);
    assert_eq!(own.delay(now, active, 20, &[]), wrong);
    assert_eq!(own.ignore(active), wrong);
    assert_eq!(peer.ready(passive, &[]), wrong);
    assert_eq!(peer.disconnect(now, passive, &[]), wrong);
    assert_eq!(peer.answer_service(now, passive, &Default::default()), wrong);
    let unknown = ConnectionId(5);
    assert_eq!(own.ready(unknown, &[]), Err(Error::UnknownId));
    assert_eq!(own.reject(now, unknown, RejectReason::CONSUMER, &[], &[]), Err(Error::UnknownId));
    own.forget(now, unknown);
    assert!(pair.is_silent());
    let (active, _) = pair.connected((21, 22));
    assert_eq!(pair.cms[0].reject(now, active, RejectReason::CONSUMER, &[], &[]), wrong);
}

#[test]
fn data_that_does_not_fit_is_an_error_and_changes_nothing() {
    let mut pair = Pair::quiet();
    let too_long = Err(Error::TooLong);
    let now = pair.now;
    let long = Request { private: vec![1; 93], ..request(1) };
    assert_eq!(pair.cms[0].connect(now, &address(0), &long), Err(Error::TooLong));
    assert!(pair.cms[0].is_empty());
    let (active, passive) = pair.requested(11);
    assert_eq!(pair.cms[1].accept(now, passive, &Reply { private: vec![1; 197], ..reply(2) }), too_long);
    assert_eq!(pair.cms[1].reject(now, passive, RejectReason::CONSUMER, &[0; 73], &[]), too_long);
    assert_eq!(pair.cms[1].reject(now, passive, RejectReason::CONSUMER, &[], &[0; 149]), too_long);
    assert_eq!(pair.cms[1].delay(now, passive, 20, &[0; 223]), too_long);
    pair.cms[1].accept(now, passive, &Reply { private: vec![1; 196], ..reply(2) }).unwrap();
    pair.settle();
    assert_eq!(pair.cms[0].ready(active, &[0; 225]), too_long);
    pair.cms[0].ready(active, &[0; 224]).unwrap();
    assert_eq!(pair.cms[0].disconnect(now, active, &[0; 221]), too_long);
    pair.cms[0].disconnect(now, active, &[0; 220]).unwrap();
    pair.settle();
    assert_eq!(pair.cms[1].disconnect(now, passive, &[0; 225]), too_long);
    pair.cms[1].disconnect(now, passive, &[0; 224]).unwrap();
    pair.settle();
    assert!(matches!(pair.event(0), Event::Reply { .. }));
    assert!(matches!(pair.event(0), Event::Disconnected { .. }));
}

#[test]
fn values_that_do_not_fit_are_the_greatest() {
    let mut pair = Pair::quiet();
    let all = Request {
        retry_count: 8,
        rnr_retry_count: 255,
        max_retries: 16,
        remote_response_timeout: 32,
        local_response_timeout: 33,
        ack_timeout: 34,
        ..request(1)
    };
    pair.cms[0].connect(pair.now, &address(0), &all).unwrap();
    pair.settle();
    let Event::Request { id, request, .. } = pair.event(1) else { panic!() };
    assert_eq!((request.retry_count, request.rnr_retry_count, request.max_retries), (7, 7, 15));
    let timeouts = (request.remote_response_timeout, request.local_response_timeout, request.ack_timeout);
    assert_eq!(timeouts, (31, 31, 31));
    let reply = Reply { rnr_retry_count: 8, target_ack_delay: 32, ..reply(2) };
    pair.cms[1].accept(pair.now, id, &reply).unwrap();
    pair.settle();
    let Event::Reply { reply, .. } = pair.event(0) else { panic!() };
    assert_eq!((reply.rnr_retry_count, reply.target_ack_delay), (7, 31));
}

#[test]
fn addresses_of_two_families_are_no_route() {
    let mut pair = Pair::quiet();
    let mixed = weir_cm::Address { remote: "fd00::1".parse().unwrap(), ..address(0) };
    assert_eq!(pair.cms[0].connect(pair.now, &mixed, &request(1)), Err(Error::Families));
    assert_eq!(pair.cms[0].resolve_service(pair.now, &mixed, &Default::default()), Err(Error::Families));
}
