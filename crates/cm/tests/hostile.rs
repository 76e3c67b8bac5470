//! Senders that forge, flood, or do not keep to the protocol.

use std::net::IpAddr;
use std::time::Duration;
use weir_cm::testing::{Pair, address, reply, request};
use weir_cm::{Address, Cm, Config, ConnectionId, Event, RejectReason};
use weir_transport::Instant;
use weir_wire::cm::{Drep, Dreq, Message, Mra, Rej, Rep, Req, Rtu};

/// Every message that names the connection, with the right IDs and QP.
fn about(own: ConnectionId, peers: ConnectionId, own_qpn: u32) -> Vec<Message> {
    let (local_comm_id, remote_comm_id) = (peers.0, own.0);
    let mut messages: Vec<Message> = vec![
        Rep { local_comm_id, remote_comm_id, ..Rep::default() }.into(),
        Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }.into(),
        Dreq { local_comm_id, remote_comm_id, remote_qpn: own_qpn, ..Dreq::default() }.into(),
        Drep { local_comm_id, remote_comm_id, ..Drep::default() }.into(),
    ];
    for message in 0..3 {
        messages.push(Mra { local_comm_id, remote_comm_id, message, service_timeout: 20, ..Mra::default() }.into());
        for reason in [RejectReason::CONSUMER, RejectReason::STALE_CONNECTION, RejectReason::TIMEOUT] {
            let mut rej = Rej { local_comm_id, remote_comm_id, message, reason, ..Rej::default() };
            messages.push(rej.clone().into());
            // With the GUID of either side.
            (rej.ari_len, rej.ari[7]) = (8, 0xa + u8::from(own_qpn == 1));
            messages.push(rej.into());
        }
    }
    messages
}

/// Pairs with a connection in every state, its IDs, and the process to attack.
fn states() -> Vec<(Pair, usize, ConnectionId, ConnectionId, u32)> {
    let mut states = Vec::new();
    for process in [0, 1] {
        for state in 0..6 {
            let mut pair = Pair::quiet();
            let (active, passive) = match state {
                0 => pair.requested(1),
                1 => {
                    let (active, passive) = pair.requested(1);
                    pair.cms[1].delay(pair.now, passive, 20, &[]).unwrap();
                    pair.settle();
                    (active, passive)
                }
                2 => pair.replied((1, 2)),
                3 => pair.connected((1, 2)),
                _ => {
                    let (active, passive) = pair.connected((1, 2));
                    pair.cms[0].disconnect(pair.now, active, &[]).unwrap();
                    pair.settle();
                    if state == 5 {
                        pair.cms[1].disconnect(pair.now, passive, &[]).unwrap();
                        pair.settle();
                    }
                    (active, passive)
                }
            };
            pair.events.iter_mut().for_each(|events| events.clear());
            match process {
                0 => states.push((pair, 0, active, passive, 1)),
                _ => states.push((pair, 1, passive, active, 2)),
            }
        }
    }
    states
}

#[test]
fn messages_of_other_senders_do_nothing_to_a_connection() {
    let right = address(0);
    let other: IpAddr = "10.0.0.66".parse().unwrap();
    for (mut pair, process, own, peers, qpn) in states() {
        let right = if process == 0 { right } else { address(1) };
        let forged =
            [Address { remote: other, ..right }, Address { local: other, ..right }, Address { device: 1, ..right }];
        let before = (pair.cms[process].len(), pair.cms[process].poll_timeout());
        for from in forged {
            for message in about(own, peers, qpn) {
                pair.cms[process].handle(pair.now, &from, &message.emit(0, 0));
                assert_eq!(pair.cms[process].poll_event(), None, "{message:?}");
                while let Some((to, _)) = pair.cms[process].poll_transmit() {
                    assert_eq!(to, from, "only the sender itself gets an answer");
                }
            }
        }
        assert_eq!((pair.cms[process].len(), pair.cms[process].poll_timeout()), before);
    }
}

#[test]
fn messages_with_another_id_of_the_peer_do_nothing_once_that_is_known() {
    for (mut pair, process, own, peers, qpn) in states() {
        let passive_or_replied = process == 1 || pair.cms[0].poll_timeout().is_none();
        if !passive_or_replied {
            continue;
        }
        let before = pair.cms[process].poll_timeout();
        for message in about(own, ConnectionId(peers.0 ^ 1), qpn) {
            pair.cms[process].handle(pair.now, &address(process), &message.emit(0, 0));
            assert_eq!(pair.cms[process].poll_event(), None, "{message:?}");
        }
        assert_eq!(pair.cms[process].poll_timeout(), before);
    }
}

#[test]
fn a_disconnection_of_another_qp_does_nothing() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.connected((1, 2));
    pair.inject(1, Dreq { local_comm_id: active.0, remote_comm_id: passive.0, remote_qpn: 3, ..Dreq::default() });
    assert!(pair.is_silent() && pair.sent.is_empty());
}

#[test]
fn messages_that_do_not_fit_the_state_only_end_the_connection() {
    for number in 0..states().len() {
        let (_, _, own, peers, qpn) = states().remove(number);
        for message in about(own, peers, qpn) {
            let (mut pair, process, ..) = states().remove(number);
            pair.inject(process, message);
            pair.run(Duration::from_secs(2000));
            pair.cms[process].forget(pair.now, own);
            pair.cms[1 - process].forget(pair.now, peers);
            // A REQ that is repeated after a forged REJ is another request.
            for process in 0..2 {
                for event in std::mem::take(&mut pair.events[process]) {
                    pair.cms[process].forget(pair.now, event.id());
                }
            }
            pair.run(Duration::from_secs(2000));
            assert!(pair.cms.iter().all(|cm| cm.is_empty()));
        }
    }
}

fn req(from: &Address, local_comm_id: u32, qpn: u32) -> Req {
    let mut req = Req { local_comm_id, qpn, ca_guid: 0xa, max_cm_retries: 15, ..Req::default() };
    (req.remote_response_timeout, req.local_response_timeout, req.primary.ack_timeout) = (20, 20, 19);
    (req.primary.local_gid, req.primary.remote_gid) = (from.remote_gid(), from.local_gid());
    req
}

fn peer(number: u8) -> Address {
    Address { remote: [10, 0, 1, number].into(), ..address(1) }
}

#[test]
fn a_request_must_come_from_its_gid() {
    let mut cm = Cm::new(Config::default());
    let from = address(1);
    let right = req(&from, 1, 1);
    for wrong in ["::ffff:10.0.0.66", "fd00::1", "::10.0.0.1", "::"] {
        for local in [true, false] {
            let mut req = right.clone();
            *(if local { &mut req.primary.local_gid } else { &mut req.primary.remote_gid }) = wrong.parse().unwrap();
            cm.handle(Instant(0), &from, &Message::from(req).emit(0, 0));
            let (to, mad) = cm.poll_transmit().unwrap();
            let (_, Message::Rej(rej)) = Message::parse(&mad).unwrap() else { panic!() };
            assert_eq!((to, rej.reason), (from, RejectReason::INVALID_GID));
            assert!(cm.is_empty());
        }
    }
    cm.handle(Instant(0), &from, &Message::from(right).emit(0, 0));
    assert!(matches!(cm.poll_event(), Some(Event::Request { .. })));
}

#[test]
fn requests_for_unknown_transports_are_rejected() {
    let mut pair = Pair::quiet();
    for (transport_service, extended_transport) in [(2, 0), (3, 0), (3, 2)] {
        let req = Req { transport_service, extended_transport, ..req(&address(1), 1, 1) };
        pair.clear_sent();
        pair.inject(1, req);
        let [Message::Rej(rej)] = &pair.messages(1)[..] else { panic!() };
        assert_eq!((rej.reason, rej.message, rej.remote_comm_id), (RejectReason::INVALID_TRANSPORT, 0, 1));
    }
    assert!(pair.is_silent() && pair.cms[1].is_empty());
}

#[test]
fn a_request_with_an_alternate_path_is_accepted_without_it() {
    let mut pair = Pair::quiet();
    let mut with_alternate = req(&address(1), 1, 1);
    with_alternate.alternate = with_alternate.primary.clone();
    pair.inject(1, with_alternate);
    let Event::Request { id, .. } = pair.event(1) else { panic!() };
    pair.cms[1].accept(pair.now, id, &reply(2)).unwrap();
    pair.collect();
    assert!(matches!(&pair.messages(1)[..], [Message::Rep(rep)] if rep.failover == 1));
}

#[test]
fn what_a_flood_of_requests_leaves_is_bounded() {
    let mut cm = Cm::new(Config { max_half_open: 100, max_half_open_per_peer: 30, ..Config::default() });
    let mut ids = Vec::new();
    for number in 0..10_000 {
        for peer in [peer(1), peer(2), peer(3), peer(4), peer(5)] {
            cm.handle(Instant(0), &peer, &Message::from(req(&peer, number, number)).emit(0, 0));
        }
    }
    assert_eq!(cm.len(), 100);
    while let Some(event) = cm.poll_event() {
        ids.push(event.id());
    }
    assert_eq!(ids.len(), 100);
    assert_eq!(cm.poll_transmit(), None, "requests without room are dropped: their senders repeat them");
    // They count until the program forgets them, also if their senders reject them.
    for number in 0..100 {
        for peer in [peer(1), peer(2), peer(3), peer(4), peer(5)] {
            let mut rej = Rej { local_comm_id: number, reason: RejectReason::TIMEOUT, ari_len: 8, ..Rej::default() };
            rej.ari[7] = 0xa;
            cm.handle(Instant(0), &peer, &Message::from(rej).emit(0, 0));
        }
    }
    assert_eq!(std::iter::from_fn(|| cm.poll_event()).count(), 100);
    cm.handle(Instant(0), &peer(9), &Message::from(req(&peer(9), 1, 1)).emit(0, 0));
    assert_eq!(cm.poll_event(), None);
    // The program rejects one: there is room for another, of the peer with less than its share.
    cm.forget(Instant(0), ids[99]);
    cm.handle(Instant(0), &peer(9), &Message::from(req(&peer(9), 1, 1)).emit(0, 0));
    assert!(matches!(cm.poll_event(), Some(Event::Request { .. })));
}

#[test]
fn established_connections_leave_room_for_requests() {
    let mut pair = Pair::new(1, Default::default(), Config { max_half_open: 2, ..Config::default() });
    for number in 0..100 {
        pair.connected((number, number + 1000));
    }
    assert_eq!(pair.cms[1].len(), 100);
}

#[test]
fn requests_of_a_flood_end_by_themselves() {
    let mut cm = Cm::new(Config::default());
    let mut ids = Vec::new();
    for number in 0..50 {
        cm.handle(Instant(0), &peer(1), &Message::from(req(&peer(1), number, number)).emit(0, 0));
        ids.push(cm.poll_event().unwrap().id());
    }
    cm.handle_timeout(Instant(0) + Duration::from_secs(104));
    for _ in &ids {
        assert!(matches!(cm.poll_event(), Some(Event::Rejected { reason: RejectReason::TIMEOUT, .. })));
    }
    ids.iter().for_each(|id| cm.forget(Instant(0), *id));
    assert!(cm.is_empty() && cm.poll_transmit().is_none());
}

#[test]
fn answers_without_a_connection_do_not_pile_up() {
    let mut cm = Cm::new(Config::default());
    for number in 0..100_000 {
        let rep = Rep { local_comm_id: number, remote_comm_id: number, ..Rep::default() };
        cm.handle(Instant(0), &peer(1), &Message::from(rep).emit(0, 0));
        let dreq = Dreq { local_comm_id: number, remote_comm_id: number, ..Dreq::default() };
        cm.handle(Instant(0), &peer(1), &Message::from(dreq).emit(0, 0));
    }
    assert!(std::iter::from_fn(|| cm.poll_transmit()).count() <= 256);
}

#[test]
fn ids_come_again_only_after_all_others() {
    let mut cm = Cm::new(Config { id_prefix: 0x00ab_cd00, id_bits: 8, seed: 5, ..Config::default() });
    let mut last_use = std::collections::HashMap::new();
    let mut kept = Vec::new();
    for round in 0..2000_usize {
        let id = cm.connect(Instant(0), &address(0), &request(1)).unwrap();
        assert_eq!(id.0 & !0xff, 0x00ab_cd00, "the prefix is the process's");
        if let Some(before) = last_use.insert(id, round) {
            assert!(round - before > 200, "{id:?} came again after {}", round - before);
        }
        match round % 40 {
            0 => kept.push(id),
            _ => cm.forget(Instant(0), id),
        }
    }
    assert_eq!(kept.len(), 50);
}

#[test]
fn ids_do_not_count_up() {
    let mut cm = Cm::new(Config { seed: 0x1234_5678_9abc_def0, ..Config::default() });
    let ids: Vec<u32> = (0..100).map(|_| cm.connect(Instant(0), &address(0), &request(1)).unwrap().0).collect();
    let mut steps: Vec<u32> = ids.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    steps.sort_unstable();
    steps.dedup();
    assert!(steps.len() > 90, "{steps:?}");
}

/// Another address of the process is another connection: the peer's QP cannot have both.
#[test]
fn a_request_for_another_address_is_no_repetition() {
    let mut pair = Pair::quiet();
    let (active, _) = pair.connected((1, 2));
    let from = Address { local: "10.0.0.9".parse().unwrap(), ..address(1) };
    pair.cms[1].handle(pair.now, &from, &Message::from(req(&from, active.0, 1)).emit(0, 0));
    let (to, mad) = pair.cms[1].poll_transmit().unwrap();
    let (_, Message::Rej(rej)) = Message::parse(&mad).unwrap() else { panic!() };
    assert_eq!((to, rej.reason), (from, RejectReason::STALE_CONNECTION));
    pair.settle();
    assert!(matches!(pair.event(0), Event::DisconnectRequest { id, .. } if id == active));
}

#[test]
fn ids_can_all_be_in_use() {
    let mut cm = Cm::new(Config { id_prefix: 0x100, id_bits: 4, ..Config::default() });
    let ids: Vec<_> = std::iter::from_fn(|| cm.connect(Instant(0), &address(0), &request(1)).ok()).collect();
    assert_eq!(ids.len(), 14);
    assert_eq!(cm.connect(Instant(0), &address(0), &request(1)), Err(weir_cm::Error::NoIds));
    cm.handle(Instant(0), &address(1), &Message::from(req(&address(1), 1, 1)).emit(0, 0));
    assert_eq!(cm.poll_event(), None);
    cm.forget(Instant(0), ids[3]);
    cm.connect(Instant(0), &address(0), &request(1)).unwrap();
}

/// The program's own limits count for what it accepts.
#[test]
fn accepted_requests_leave_room_for_others() {
    let mut cm = Cm::new(Config { max_half_open: 4, max_half_open_per_peer: 2, ..Config::default() });
    for number in 0..100 {
        cm.handle(Instant(0), &peer(1), &Message::from(req(&peer(1), number, number)).emit(0, 0));
        let Some(Event::Request { id, .. }) = cm.poll_event() else { panic!("no request {number}") };
        cm.accept(Instant(0), id, &reply(number + 1000)).unwrap();
    }
    assert_eq!(cm.len(), 100);
}
