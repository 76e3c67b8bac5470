//! Messages that are lost, that come again, and that come too late.

use std::time::Duration;
use weir_cm::testing::{Pair, address, reply, request};
use weir_cm::{ConnectionId, Error, Event, RejectReason, Reply, Request};
use weir_wire::cm::Message;
use weir_wire::mad::Mad;

/// All repetitions, of everything.
const LONG: Duration = Duration::from_secs(2000);
/// A REQ is repeated after the response timeout 20 and the ACK timeout 19.
const INTERVAL: Duration = Duration::from_nanos((4096 << 20) + (4096 << 19));

/// The last MAD of a process.
fn last(pair: &Pair, process: usize) -> Mad {
    pair.sent.iter().rfind(|(sender, _)| *sender == process).expect("the process sent something").1
}

/// Gives a process a MAD of its peer again, and returns its answers.
fn again(pair: &mut Pair, process: usize, mad: &Mad) -> Vec<Message> {
    pair.collect();
    pair.clear_sent();
    pair.cms[process].handle(pair.now, &address(process), mad);
    pair.collect();
    pair.messages(process)
}

#[test]
fn a_lost_req_is_repeated() {
    let mut pair = Pair::quiet();
    pair.lose[0] = 15;
    pair.cms[0].connect(pair.now, &address(0), &request(1)).unwrap();
    pair.run(INTERVAL * 15 - Duration::from_millis(1));
    assert!(pair.is_silent());
    assert_eq!(pair.messages(0).len(), 15);
    pair.run(Duration::from_millis(2));
    assert!(matches!(pair.event(1), Event::Request { .. }));
    assert!(pair.sent.windows(2).all(|pair| pair[0] == pair[1]), "all REQs are alike");
}

#[test]
fn a_peer_that_does_not_answer_is_unreachable() {
    let mut pair = Pair::quiet();
    pair.lose[0] = usize::MAX;
    let active = pair.cms[0].connect(pair.now, &address(0), &Request { max_retries: 3, ..request(1) }).unwrap();
    pair.run(INTERVAL * 4 - Duration::from_millis(1));
    assert!(pair.is_silent());
    pair.run(Duration::from_millis(2));
    assert_eq!(pair.event(0), Event::Unreachable { id: active });
    let messages = pair.messages(0);
    assert_eq!(messages.len(), 5);
    let Message::Rej(rej) = &messages[4] else { panic!("the process says that it gave up") };
    assert_eq!((rej.reason, rej.ari_len, &rej.ari[..8]), (RejectReason::TIMEOUT, 8, &0xa_u64.to_be_bytes()[..]));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id, rej.message), (active.0, 0, 2));
    pair.run(LONG);
    assert!(pair.is_silent());
}

/// The peer does not know the process's communication ID yet: it is found by its GUID and its own ID.
#[test]
fn a_peer_that_gives_up_ends_its_request() {
    let mut pair = Pair::quiet();
    pair.cms[0].connect(pair.now, &address(0), &Request { max_retries: 1, ..request(1) }).unwrap();
    pair.settle();
    let Event::Request { id: passive, .. } = pair.event(1) else { panic!() };
    pair.run(INTERVAL * 2);
    assert!(matches!(pair.event(0), Event::Unreachable { .. }));
    let reason = RejectReason::TIMEOUT;
    assert!(matches!(pair.event(1), Event::Rejected { id, reason: found, .. } if (id, found) == (passive, reason)));
    assert_eq!(pair.cms[1].accept(pair.now, passive, &reply(2)), Err(Error::WrongState));
}

#[test]
fn a_lost_rep_is_repeated_by_itself() {
    let mut pair = Pair::quiet();
    let (_, passive) = pair.requested(1);
    // The REQ is repeated too: it must not be, so that only the timer repeats the REP.
    pair.lose = [usize::MAX, 2];
    pair.cms[1].accept(pair.now, passive, &reply(2)).unwrap();
    pair.run(Duration::from_nanos(4096 << 20) * 2 + Duration::from_millis(1));
    assert!(matches!(pair.event(0), Event::Reply { .. }));
    assert_eq!(pair.messages(1).len(), 3);
}

#[test]
fn a_reply_that_nothing_answers_ends_the_connection() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.replied((1, 2));
    pair.run(LONG);
    assert_eq!(pair.event(1), Event::Unreachable { id: passive });
    let reason = RejectReason::TIMEOUT;
    assert!(matches!(pair.event(0), Event::Rejected { id, reason: found, .. } if (id, found) == (active, reason)));
    assert_eq!(pair.cms[0].ready(active, &[]), Err(Error::WrongState));
}

#[test]
fn a_repeated_req_gets_the_rep_again() {
    let mut pair = Pair::quiet();
    let (_, passive) = pair.requested(1);
    let req = last(&pair, 0);
    assert!(again(&mut pair, 1, &req).is_empty(), "the program has not answered yet");
    pair.lose[1] = 1;
    pair.cms[1].accept(pair.now, passive, &reply(2)).unwrap();
    pair.collect();
    let rep = last(&pair, 1);
    again(&mut pair, 1, &req);
    assert_eq!(last(&pair, 1), rep);
    pair.settle();
    assert!(matches!(pair.event(0), Event::Reply { .. }));
    assert!(pair.is_silent());
}

#[test]
fn a_repeated_rep_gets_the_rtu_again() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.replied((1, 2));
    let rep = last(&pair, 1);
    assert!(again(&mut pair, 0, &rep).is_empty(), "the program has not answered yet");
    pair.lose[0] = 1;
    pair.cms[0].ready(active, b"go").unwrap();
    pair.collect();
    let rtu = last(&pair, 0);
    again(&mut pair, 0, &rep);
    assert_eq!(last(&pair, 0), rtu);
    pair.settle();
    assert!(matches!(pair.event(1), Event::Established { id, private } if id == passive && private[..2] == *b"go"));
    assert!(again(&mut pair, 1, &rtu).is_empty());
    assert!(pair.is_silent(), "an RTU establishes once");
}

#[test]
fn a_lost_rtu_comes_after_the_rep_again() {
    let mut pair = Pair::quiet();
    let (active, _) = pair.replied((1, 2));
    pair.lose[0] = 5;
    pair.cms[0].ready(active, &[]).unwrap();
    pair.run(Duration::from_nanos(4096 << 20) * 6);
    assert!(matches!(pair.event(1), Event::Established { .. }));
    assert_eq!(pair.messages(0).len(), 1 + 6);
}

#[test]
fn a_dreq_establishes_a_connection_enough_to_end_it() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.replied((1, 2));
    pair.lose[0] = 1;
    pair.cms[0].ready(active, &[]).unwrap();
    pair.cms[0].disconnect(pair.now, active, &[]).unwrap();
    pair.settle();
    assert!(matches!(pair.event(1), Event::DisconnectRequest { .. }));
    pair.cms[1].disconnect(pair.now, passive, &[]).unwrap();
    pair.settle();
    assert!(matches!(pair.event(0), Event::Disconnected { timed_out: false, .. }));
}

#[test]
fn a_repeated_dreq_in_timewait_gets_the_drep_again() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.connected((1, 2));
    pair.cms[0].disconnect(pair.now, active, &[]).unwrap();
    pair.settle();
    let dreq = last(&pair, 0);
    assert!(again(&mut pair, 1, &dreq).is_empty(), "the program has not answered yet");
    pair.lose[1] = 1;
    pair.cms[1].disconnect(pair.now, passive, b"bye").unwrap();
    pair.collect();
    let drep = last(&pair, 1);
    again(&mut pair, 1, &dreq);
    assert_eq!(last(&pair, 1), drep);
    assert!(matches!(pair.event(1), Event::DisconnectRequest { .. }));
    pair.settle();
    assert!(matches!(pair.event(0), Event::Disconnected { timed_out: false, .. }));
    assert!(again(&mut pair, 0, &drep).is_empty());
    assert!(pair.is_silent(), "a DREP disconnects once");
}

#[test]
fn a_dreq_for_an_unknown_connection_gets_a_drep() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.connected((1, 2));
    pair.cms[0].disconnect(pair.now, active, &[]).unwrap();
    pair.collect();
    let dreq = last(&pair, 0);
    pair.cms[1].forget(pair.now, passive);
    pair.run(Duration::from_secs(10));
    assert!(pair.cms[1].is_empty());
    let [Message::Drep(drep)] = &again(&mut pair, 1, &dreq)[..] else { panic!() };
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (passive.0, active.0));
}

#[test]
fn a_dreq_that_nothing_answers_ends_the_connection() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.connected((1, 2));
    for (process, id) in [(0, active), (1, passive)] {
        pair.lose = [usize::MAX; 2];
        pair.clear_sent();
        pair.cms[process].disconnect(pair.now, id, &[]).unwrap();
        pair.run(LONG);
        assert!(matches!(pair.event(process), Event::Disconnected { timed_out: true, .. }));
        assert_eq!(pair.event(process), Event::TimewaitExit { id });
        assert_eq!(pair.messages(process).len(), 16);
    }
}

/// IBTA 12.9: an MRA makes the peer wait, and its repetitions get the MRA again.
#[test]
fn a_delayed_request_waits() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.requested(1);
    let req = last(&pair, 0);
    // 68.7 s.
    pair.cms[1].delay(pair.now, passive, 24, b"soon").unwrap();
    pair.settle();
    let Event::Delayed { id, service_timeout, private } = pair.event(0) else { panic!() };
    assert_eq!((id, service_timeout, &private[..4]), (active, 24, &b"soon"[..]));
    pair.clear_sent();
    pair.run(Duration::from_secs(67));
    assert!(pair.sent.is_empty() && pair.is_silent());
    assert!(matches!(again(&mut pair, 1, &req)[..], [Message::Mra(_)]));
    pair.cms[1].accept(pair.now, passive, &reply(2)).unwrap();
    pair.settle();
    assert!(matches!(pair.event(0), Event::Reply { .. }));
}

#[test]
fn a_delay_ends() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.requested(1);
    pair.cms[1].delay(pair.now, passive, 24, &[]).unwrap();
    pair.settle();
    assert!(matches!(pair.event(0), Event::Delayed { .. }));
    // The REQ is repeated, and delayed again, until its repetitions are used up.
    pair.run(LONG);
    let delays = pair.events[0].iter().filter(|event| matches!(event, Event::Delayed { .. })).count();
    assert_eq!(delays, 15);
    assert!(matches!(pair.events[0].back(), Some(Event::Unreachable { id }) if *id == active));
    assert!(matches!(pair.events[1].back(), Some(Event::Rejected { reason: RejectReason::TIMEOUT, .. })));
}

#[test]
fn a_delay_can_wait_for_the_first_repetition() {
    let mut pair = Pair::quiet();
    let (_, passive) = pair.requested(1);
    let req = last(&pair, 0);
    pair.clear_sent();
    pair.cms[1].delay_duplicates(pair.now, passive, 20, &[]).unwrap();
    pair.settle();
    assert!(pair.sent.is_empty());
    let [Message::Mra(mra)] = &again(&mut pair, 1, &req)[..] else { panic!() };
    assert_eq!((mra.message, mra.service_timeout, mra.local_comm_id), (0, 20, passive.0));
    pair.settle();
    assert!(matches!(pair.event(0), Event::Delayed { .. }));
    pair.cms[1].accept(pair.now, passive, &reply(2)).unwrap();
    pair.settle();
    assert!(matches!(pair.event(0), Event::Reply { .. }));
}

#[test]
fn the_active_side_delays_its_rtu() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.replied((1, 2));
    let rep = last(&pair, 1);
    pair.cms[0].delay(pair.now, active, 24, &[]).unwrap();
    pair.settle();
    assert!(matches!(pair.event(1), Event::Delayed { id, service_timeout: 24, .. } if id == passive));
    assert!(matches!(again(&mut pair, 0, &rep)[..], [Message::Mra(_)]));
    pair.clear_sent();
    pair.run(Duration::from_secs(67));
    assert!(pair.sent.is_empty() && pair.is_silent());
    pair.cms[0].ready(active, &[]).unwrap();
    pair.settle();
    assert!(matches!(pair.event(1), Event::Established { .. }));
}

#[test]
fn a_request_that_the_program_does_not_answer_ends_when_its_peer_is_gone() {
    let mut pair = Pair::quiet();
    pair.lose[1] = usize::MAX;
    pair.cms[0].connect(pair.now, &address(0), &request(1)).unwrap();
    pair.settle();
    let Event::Request { id: passive, .. } = pair.event(1) else { panic!() };
    // The peer is killed.
    pair.cms[0] = weir_cm::Cm::new(weir_cm::Config::default());
    pair.run(INTERVAL * 16 - Duration::from_secs(2));
    assert!(pair.is_silent());
    pair.run(Duration::from_secs(2));
    assert!(matches!(pair.event(1), Event::Rejected { id, reason: RejectReason::TIMEOUT, .. } if id == passive));
    pair.cms[1].forget(pair.now, passive);
    assert!(pair.cms[1].is_empty());
}

#[test]
fn a_repeated_req_in_timewait_is_stale() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.requested(1);
    let req = last(&pair, 0);
    pair.cms[1].accept(pair.now, passive, &reply(2)).unwrap();
    pair.settle();
    pair.cms[0].ready(active, &[]).unwrap();
    pair.settle();
    assert!(again(&mut pair, 1, &req).is_empty(), "the connection is established");
    pair.cms[1].disconnect(pair.now, passive, &[]).unwrap();
    pair.cms[0].disconnect(pair.now, active, &[]).unwrap();
    pair.settle();
    let [Message::Rej(rej)] = &again(&mut pair, 1, &req)[..] else { panic!() };
    assert_eq!((rej.reason, rej.remote_comm_id), (RejectReason::STALE_CONNECTION, active.0));
}

#[test]
fn a_rep_for_a_connection_that_is_given_up_is_rejected() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.replied((1, 2));
    let rep = last(&pair, 1);
    pair.cms[0].forget(pair.now, active);
    let [Message::Rej(rej)] = &again(&mut pair, 0, &rep)[..] else { panic!() };
    assert_eq!((rej.reason, rej.message), (RejectReason::INVALID_COMM_ID, 1));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (active.0, passive.0));
    pair.settle();
    assert!(matches!(pair.event(1), Event::Rejected { id, .. } if id == passive));
    assert!(pair.is_silent());
}

/// A process was killed, and another has its QP number: the old connection is in the way (IBTA 12.9.8.3.1).
#[test]
fn a_qp_of_a_connection_that_its_peer_forgot_makes_that_stale() {
    for accepted in [true, false] {
        let mut pair = Pair::quiet();
        let (_, passive) = if accepted { pair.connected((1, 2)) } else { pair.requested(1) };
        pair.cms[0] = weir_cm::Cm::new(weir_cm::Config { seed: 99, ..weir_cm::Config::default() });
        let active = pair.cms[0].connect(pair.now, &address(0), &request(1)).unwrap();
        pair.settle();
        let Event::Rejected { id, reason, .. } = pair.event(0) else { panic!() };
        assert_eq!((id, reason), (active, RejectReason::STALE_CONNECTION));
        let event = pair.event(1);
        match accepted {
            true => assert!(matches!(event, Event::Disconnected { id, timed_out: false, .. } if id == passive)),
            false => assert!(
                matches!(event, Event::Rejected { id, reason: RejectReason::STALE_CONNECTION, .. } if id == passive)
            ),
        }
        pair.run(Duration::from_secs(10));
        pair.events.iter_mut().for_each(|events| events.clear());
        pair.connected((1, 2));
    }
}

#[test]
fn a_communication_id_with_another_qp_makes_the_connection_stale_too() {
    let mut pair = Pair::quiet();
    let (_, passive) = pair.connected((1, 2));
    // The peer starts again with the same seed.
    pair.cms[0] = Pair::quiet().cms.into_iter().next().unwrap();
    pair.cms[0].connect(pair.now, &address(0), &request(7)).unwrap();
    pair.settle();
    assert!(matches!(pair.event(0), Event::Rejected { reason: RejectReason::STALE_CONNECTION, .. }));
    assert!(matches!(pair.event(1), Event::Disconnected { id, .. } if id == passive));
}

#[test]
fn a_reply_with_the_qp_of_another_connection_is_stale() {
    let mut pair = Pair::quiet();
    let (old, _) = pair.connected((1, 2));
    let config = weir_cm::Config { id_prefix: 2 << 20, id_bits: 20, seed: 99, ..weir_cm::Config::default() };
    pair.cms[1] = weir_cm::Cm::new(config);
    let (active, passive) = pair.requested(3);
    pair.cms[1].accept(pair.now, passive, &reply(2)).unwrap();
    pair.settle();
    for (process, id) in [(0, active), (1, passive)] {
        let reason = RejectReason::STALE_CONNECTION;
        assert!(
            matches!(pair.event(process), Event::Rejected { id: found, reason: why, .. } if (found, why) == (id, reason))
        );
    }
    assert!(matches!(pair.event(0), Event::Disconnected { id, .. } if id == old));
    pair.run(Duration::from_secs(10));
    pair.events.iter_mut().for_each(|events| events.clear());
    pair.connected((3, 2));
}

/// The passive process forgot its end: it says so to the active side's DREQ, and to its repeated messages.
#[test]
fn a_rejected_disconnection_is_a_disconnection() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.connected((1, 2));
    pair.lose[0] = 1;
    pair.cms[0].disconnect(pair.now, active, &[]).unwrap();
    pair.collect();
    let rej = weir_wire::cm::Rej {
        local_comm_id: passive.0,
        remote_comm_id: active.0,
        message: 2,
        reason: RejectReason::CONSUMER,
        ..Default::default()
    };
    pair.inject(0, rej);
    assert!(matches!(pair.event(0), Event::Disconnected { timed_out: false, .. }));
}

#[test]
fn exponents_of_a_peer_are_bounded() {
    let mut pair = Pair::quiet();
    let request = Request { local_response_timeout: 31, ack_timeout: 31, max_retries: 1, ..request(1) };
    pair.cms[0].connect(pair.now, &address(0), &request).unwrap();
    pair.settle();
    let Event::Request { id: passive, .. } = pair.event(1) else { panic!() };
    pair.lose = [usize::MAX; 2];
    pair.cms[1].accept(pair.now, passive, &Reply { target_ack_delay: 31, ..reply(2) }).unwrap();
    // Twice 69 s.
    pair.run(Duration::from_secs(138));
    assert!(matches!(pair.event(1), Event::Unreachable { .. }));
}

#[test]
fn a_process_that_ends_repeats_its_dreps_and_dreqs() {
    let mut pair = Pair::quiet();
    let (active, passive) = pair.connected((1, 2));
    let (_, other) = pair.connected((3, 4));
    let (third, left) = pair.connected((5, 6));
    pair.cms[0].disconnect(pair.now, active, b"").unwrap();
    pair.collect();
    pair.lose[1] = 1;
    pair.run(Duration::from_millis(1));
    pair.cms[1].disconnect(pair.now, passive, b"").unwrap();
    pair.collect();
    pair.lose[1] = 1;
    pair.cms[1].forget(pair.now, passive);
    pair.cms[1].forget(pair.now, left);
    pair.collect();
    pair.run(Duration::from_millis(1));
    assert!(pair.events[0].is_empty(), "the DREP and the DREQ are lost");
    pair.clear_sent();
    pair.cms[1].repeat_ends();
    pair.collect();
    let sent = pair.messages(1);
    let count = |id: ConnectionId| {
        let is_of = |message: &&Message| match message {
            Message::Drep(drep) => drep.local_comm_id == passive.0 && id == passive,
            Message::Dreq(dreq) => dreq.local_comm_id == left.0 && id == left,
            _ => false,
        };
        sent.iter().filter(is_of).count()
    };
    assert_eq!((count(passive), count(left), sent.len()), (2, 2, 4), "not of {other:?}");
    pair.run(Duration::from_millis(1));
    let events: Vec<Event> = std::iter::from_fn(|| pair.events[0].pop_front()).collect();
    let is_disconnected =
        |event: &Event| matches!(event, Event::Disconnected { id, timed_out: false, .. } if *id == active);
    let is_asked = |event: &Event| matches!(event, Event::DisconnectRequest { id, .. } if *id == third);
    assert_eq!(events.len(), 2);
    assert!(events.iter().any(is_disconnected) && events.iter().any(is_asked));
}
