//! When the requester requests ACKs, and when the responder sends them.

use std::time::Duration;
use weir_transport::testing::{Fate, Pair, SRQ, Setup, remote, write};
use weir_transport::*;
use weir_wire::Aeth;
use weir_wire::Operation;

/// PSNs acknowledged so far by node 1, relative to the first.
fn acks(pair: &Pair) -> Vec<i32> {
    let acks = pair.wire.log.iter().filter(|s| s.headers.bth.opcode.operation() == Some(Operation::Acknowledge));
    acks.map(|s| s.headers.bth.psn.since(Psn::new(0x10_0000))).collect()
}

/// Sends, and delivers the packets in flight; time advances by the wire's latency only.
fn exchange(pair: &mut Pair) {
    pair.transmit();
    pair.now = pair.now + pair.wire.latency;
    while let Some((from, bytes)) = pair.wire.receive(pair.now) {
        pair.deliver(1 - from, &bytes);
    }
}

/// Node 1 answers `messages` messages in a row, each before the next one arrives. Clears the wire's log afterwards.
fn answered(mut pair: Pair, messages: u64) -> Pair {
    for wr_id in 100..100 + messages {
        pair.post(wr_id, write(0), 0, 64);
        exchange(&mut pair);
        pair.post_as(1, wr_id, write(0), 0, 64, SendFlags::SIGNALED);
        exchange(&mut pair);
    }
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send).len(), messages as usize);
    pair.wire.log.clear();
    pair
}

/// A pair where node 1 has answered enough messages, so that its ACKs wait for answers.
fn replying(setup: Setup) -> Pair {
    answered(setup.pair(), REPLIES_BEFORE_DELAY)
}

/// The number of answers in a row from which on ACKs wait.
const REPLIES_BEFORE_DELAY: u64 = 8;

#[test]
fn an_ack_leaves_at_once_if_no_answer_is_expected() {
    for replies in [0, 1, REPLIES_BEFORE_DELAY - 1] {
        let mut pair = answered(Setup::default().pair(), replies);
        pair.post(1, write(0), 0, 64);
        exchange(&mut pair);
        assert!(pair.nodes[1].qp.has_to_send() && !pair.nodes[1].qp.has_waiting_ack(), "{replies}");
        exchange(&mut pair);
        assert_eq!(acks(&pair), [replies as i32]);
        assert_eq!(pair.outcomes(0, Queue::Send).last(), Some(&(1, Status::Success)));
    }
}

#[test]
fn one_late_reply_ends_the_waiting_of_acks() {
    // Ways: the ACK's deadline expires, a poll ends its delay, the next message arrives, or the reply is late.
    for way in 0..4 {
        let mut pair = replying(Setup::default());
        pair.post(1, write(0), 0, 64);
        exchange(&mut pair);
        assert!(pair.nodes[1].qp.has_waiting_ack());
        match way {
            0 => pair.run_until_idle(),
            1 => pair.nodes[1].qp.end_ack_delay(),
            2 => {
                pair.post(2, write(0), 0, 64);
                exchange(&mut pair);
            }
            _ => {
                pair.now = pair.now + Tuning::default().ack_delay + Duration::from_nanos(1);
                pair.post_as(1, 3, write(0), 0, 64, SendFlags::SIGNALED);
            }
        }
        exchange(&mut pair);
        pair.run_until_idle();
        pair.post(4, write(0), 0, 64);
        exchange(&mut pair);
        assert!(pair.nodes[1].qp.has_to_send() && !pair.nodes[1].qp.has_waiting_ack(), "{way}");
    }
}

#[test]
fn a_send_posted_before_the_message_is_not_an_answer() {
    let mut pair = Setup::default().pair();
    for wr_id in 0..2 * REPLIES_BEFORE_DELAY {
        pair.post(wr_id, write(0), 0, 64);
        pair.transmit();
        pair.post_as(1, wr_id, write(0), 0, 64, SendFlags::SIGNALED);
        pair.now = pair.now + pair.wire.latency;
        while let Some((from, bytes)) = pair.wire.receive(pair.now) {
            pair.deliver(1 - from, &bytes);
        }
        assert!(!pair.nodes[1].qp.has_waiting_ack());
        pair.run_until_idle();
    }
}

#[test]
fn the_ack_waits_for_an_answer_until_its_deadline() {
    let mut pair = replying(Setup::default());
    pair.post(1, write(0), 0, 64);
    exchange(&mut pair);
    assert!(pair.nodes[1].qp.has_waiting_ack() && !pair.nodes[1].qp.has_to_send());
    assert_eq!(pair.nodes[1].qp.poll_timeout(), Some(pair.now + Duration::from_micros(200)));
    exchange(&mut pair);
    assert_eq!(acks(&pair), []);
    pair.run_until_idle();
    assert_eq!(acks(&pair), [REPLIES_BEFORE_DELAY as i32]);
    assert_eq!(pair.outcomes(0, Queue::Send).last(), Some(&(1, Status::Success)));
}

#[test]
fn an_xrc_target_acknowledges_at_once() {
    let mut pair = Setup { service: Service::Xrc, ..Setup::default() }.pair();
    pair.post_srq_recv(SRQ, 10, 200_000, 64);
    pair.post(1, write(0), 0, 64);
    exchange(&mut pair);
    assert!(pair.nodes[1].qp.has_to_send() && !pair.nodes[1].qp.has_waiting_ack());
    exchange(&mut pair);
    assert_eq!(acks(&pair), [0]);
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)]);
}

#[test]
fn an_ack_whose_delay_is_ended_leaves_at_once() {
    let mut pair = replying(Setup::default());
    pair.post(1, write(0), 0, 64);
    exchange(&mut pair);
    pair.nodes[1].qp.end_ack_delay();
    assert!(pair.nodes[1].qp.has_to_send() && !pair.nodes[1].qp.has_waiting_ack());
    exchange(&mut pair);
    assert_eq!(acks(&pair), [REPLIES_BEFORE_DELAY as i32]);
}

/// A program that has seen its message ends the connection: the message was delivered, and its sender must see so.
#[test]
fn an_ack_that_waits_leaves_a_qp_that_enters_the_error_state() {
    let mut pair = replying(Setup::default());
    pair.post(1, write(0), 0, 64);
    exchange(&mut pair);
    assert!(pair.nodes[1].qp.has_waiting_ack());
    pair.modify_from(1, QpState::Error, QpAttr::default());
    pair.run_until_idle();
    assert_eq!(acks(&pair), [REPLIES_BEFORE_DELAY as i32]);
    assert_eq!(pair.outcomes(0, Queue::Send).last(), Some(&(1, Status::Success)));
}

#[test]
fn a_waiting_ack_leaves_with_requests() {
    for (first, len) in [(false, 64), (false, 2048), (false, 0), (false, 2049), (true, 64), (true, 2048)] {
        let mut pair = replying(Setup::default());
        pair.nodes[1].qp.set_acks_first(first);
        pair.post(1, write(0), 0, 64);
        exchange(&mut pair);
        assert!(pair.nodes[1].qp.has_waiting_ack());
        pair.post_as(1, 2, write(0), 0, len, SendFlags::SIGNALED);
        exchange(&mut pair);
        let sent = pair.wire.log.iter().filter(|s| s.from == 1).filter_map(|s| s.headers.bth.opcode.operation());
        let at = sent.clone().position(|operation| operation == Operation::Acknowledge);
        // Last, even in a burst of its own: the peer's program may stop polling as soon as it sees its completion.
        assert_eq!(at, Some(if first { 0 } else { sent.count() - 1 }), "{first} {len}");
    }
}

#[test]
fn two_single_packet_messages_are_acknowledged_together_at_once() {
    let mut pair = Setup::default().pair();
    for wr_id in 1..=5 {
        pair.post(wr_id, write(0), 0, 64);
    }
    exchange(&mut pair);
    assert!(pair.nodes[1].qp.has_to_send());
    exchange(&mut pair);
    assert_eq!(acks(&pair), [4]);
    assert_eq!(pair.outcomes(0, Queue::Send).len(), 5);
}

#[test]
fn a_read_response_acknowledges_earlier_requests() {
    let mut pair = Setup::default().pair();
    let (remote_addr, rkey) = remote(0);
    pair.post(1, write(0), 0, 64);
    pair.post(2, write(0), 0, 3000);
    pair.post(3, SendOp::Read { remote_addr, rkey }, 0, 3000);
    pair.post(4, SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 0, 8);
    pair.run_until_idle();
    assert_eq!(acks(&pair), []);
    assert_eq!(pair.outcomes(0, Queue::Send).len(), 4);
}

#[test]
fn an_obsolete_nak_becomes_an_ack() {
    let mut pair = Setup::default().pair();
    pair.post(1, write(0), 0, 64);
    pair.post(2, write(0), 0, 3000);
    // The second message's first packet is delayed: there is a gap for a moment.
    let mut count = 0;
    pair.wire.rule = Some(Box::new(move |_, _| {
        count += 1;
        match count {
            2 => Fate::Delay(Duration::from_nanos(1)),
            4 => Fate::Drop,
            _ => Fate::Pass,
        }
    }));
    pair.transmit();
    pair.now = pair.now + pair.wire.latency + Duration::from_nanos(1);
    while let Some((from, bytes)) = pair.wire.receive(pair.now) {
        pair.deliver(1 - from, &bytes);
    }
    pair.transmit();
    assert_eq!(acks(&pair), [1]);
    let syndrome = pair.wire.log.last().unwrap().headers.get::<Aeth>().unwrap().syndrome();
    assert_eq!(syndrome, 31);
}

#[test]
fn a_long_message_requests_acks_inside_and_at_its_end() {
    let setup = Setup { tuning: Tuning { ack_every: 4, ..Tuning::default() }, ..Setup::default() };
    let mut pair = setup.pair();
    pair.post(1, write(0), 0, 10 * 1024);
    pair.transmit();
    let asked: Vec<bool> = pair.wire.log.iter().map(|s| s.headers.bth.ack_req).collect();
    assert_eq!(asked, [false, false, false, true, false, false, false, true, false, true]);
    exchange(&mut pair);
    exchange(&mut pair);
    assert_eq!(acks(&pair), [9]);
}

#[test]
fn a_message_longer_than_the_window_is_never_stuck() {
    for window in [0, 1, 600, 1536, 1537, 5000, 20_000] {
        let tuning = Tuning { ack_every: 1000, ..Tuning::default() };
        let mut setup = Setup { timeout: 0, tuning, ..Setup::default() };
        setup.window.request_bytes = window;
        let mut pair = setup.pair();
        pair.post(1, write(0), 0, 100_000);
        // No timeout can help.
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)], "window {window}");
        assert_eq!(pair.memory(1, 0, 100_000), pair.memory(0, 0, 100_000));
        let largest = window.max(1536) + 1536;
        assert!(pair.wire.count(|s| s.from == 1) >= 98 * 1536 / largest);
    }
}

#[test]
fn a_window_that_shrinks_inside_a_message_does_not_block() {
    let mut setup = Setup { timeout: 0, ..Setup::default() };
    setup.tuning.ack_every = 1000;
    let mut pair = setup.pair();
    pair.post(1, write(0), 0, 20_000);
    let mut first = weir_transport::testing::Staging::new(pair.nodes[0].host.memory.clone(), 3);
    let poll = |pair: &mut Pair, staging: &mut weir_transport::testing::Staging, request_bytes| {
        let limits = Limits { request_bytes, read_bytes: 0 };
        let node = &mut pair.nodes[0];
        node.qp.poll_transmit(pair.now, limits, &mut node.host, staging)
    };
    assert_eq!(poll(&mut pair, &mut first, 100_000), Progress::Full);
    let mut rest = weir_transport::testing::Staging { packets: Vec::new(), room: 100, ..first };
    assert_eq!(poll(&mut pair, &mut rest, 0), Progress::Limited);
    // None of the three has requested an ACK, so a fourth packet leaves and requests one.
    assert_eq!(rest.packets.len(), 1);
    assert!(weir_wire::Packet::parse(&rest.packets[0]).unwrap().headers.bth.ack_req);
    assert_eq!(poll(&mut pair, &mut rest, 0), Progress::Limited);
    assert_eq!(rest.packets.len(), 1);
}

#[test]
fn the_limit_of_requests_is_kept() {
    let mut setup = Setup::default();
    setup.window.request_bytes = 10_000;
    let mut pair = setup.pair();
    pair.post(1, write(0), 0, 300_000);
    let mut most = 0;
    pair.run_until(|pair| {
        most = most.max(pair.nodes[0].qp.in_flight().request_bytes);
        false
    });
    assert!((8000..=10_000).contains(&most), "{most}");
}

#[test]
fn a_lost_ack_is_sent_again_for_the_duplicate() {
    let mut pair = Setup::default().pair();
    let mut lost = 0;
    pair.wire.rule = Some(Box::new(move |from, _| {
        lost += from;
        if from == 1 && lost <= 2 { Fate::Drop } else { Fate::Pass }
    }));
    pair.post_recv(1, 50_000, 3000);
    pair.post(1, SendOp::Send, 0, 3000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)]);
    assert_eq!(pair.outcomes(1, Queue::Receive), [(1, Status::Success)]);
    assert_eq!(acks(&pair), [2, 2, 2]);
    // The message was sent once, and retransmitted for each timeout.
    assert_eq!(pair.wire.count(|s| s.from == 0), 9);
}
