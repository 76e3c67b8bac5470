//! Waits for a page that do not end normally: invalid memory, QPs that are drained, fail or are reset meanwhile.

mod page_fault_setup;

use page_fault_setup::*;
use std::time::Duration;
use weir_transport::testing::{Pair, Setup, address, good, remote};
use weir_transport::*;

#[test]
fn a_failed_fault_is_an_error_of_the_side_that_owns_the_memory() {
    for (op, len) in every_operation() {
        // Outgoing data, or the destination buffer of the response.
        let mut pair = pair(MS);
        warm(&mut pair, 1);
        pair.post_recv(10, REMOTE_OFFSET, 5000);
        pair.paging(0).unmap(address(1000), 5000);
        pair.post(1, op, 1000, len);
        pair.post(2, write(), 50_000, 100);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::LocalProtection), (2, Status::WrFlushed)], "{op:?}");
        assert_eq!(pair.wire.log.len(), 0);

        // The memory at the peer.
        let mut pair = self::pair(MS);
        warm(&mut pair, 0);
        pair.post_recv(10, REMOTE_OFFSET, 5000);
        pair.paging(1).unmap(address(REMOTE_OFFSET), 5000);
        pair.post(1, op, 1000, len);
        pair.post(2, write(), 50_000, 100);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RemoteOperation), (2, Status::WrFlushed)], "{op:?}");
        let receive = match op {
            SendOp::Send | SendOp::SendImm { .. } => Status::LocalProtection,
            _ => Status::WrFlushed,
        };
        assert_eq!(pair.outcomes(1, Queue::Receive), [(10, receive)], "{op:?}");
        assert_eq!(pair.nodes[1].host.events(), [QpEvent::Fatal], "{op:?}");
        assert_eq!(writes(&pair, 1), 0);
    }
}

#[test]
fn a_response_that_fails_in_the_error_state_only_sends_a_nak() {
    let mut pair = late_pair(MS);
    warm(&mut pair, 0);
    pair.paging(1).unmap(address(REMOTE_OFFSET), 5000);
    let (remote_addr, rkey) = remote(0);
    // Both arrive before the response to the READ leaves; the WRITE has an invalid rkey.
    pair.post(1, read(), 0, 1000);
    pair.post(2, SendOp::Write { remote_addr, rkey: rkey ^ 1 }, 0, 100);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RemoteOperation), (2, Status::WrFlushed)]);
    assert_eq!(pair.nodes[1].host.events(), [QpEvent::AccessError]);
}

#[test]
fn a_qp_that_waits_can_be_drained() {
    // The first packets of a message have left: the QP sends the rest. Work requests that were not begun stay queued.
    let mut pair = pair(MS);
    warm(&mut pair, 1);
    pair.paging(0).prefetch(address(0), 2048, true);
    pair.run_until_idle();
    pair.post(1, write(), 0, 5000);
    pair.post(2, write(), 0, 5000);
    pair.transmit();
    assert_eq!(pair.nodes[0].qp.requester_state(), RequesterState::PageFault);
    pair.modify_from(0, QpState::Sqd, QpAttr { en_sqd_async_notify: true, ..QpAttr::default() });
    assert!(pair.nodes[0].qp.attr().sq_draining);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
    assert!(!pair.nodes[0].qp.attr().sq_draining);
    pair.modify_from(0, QpState::Rts, QpAttr::default());
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good(1..=2));

    // No packet has left: the QP is drained at once.
    let mut pair = self::pair(MS);
    pair.post(1, write(), 0, 5000);
    pair.transmit();
    pair.modify_from(0, QpState::Sqd, QpAttr::default());
    assert!(!pair.nodes[0].qp.attr().sq_draining);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), []);
    pair.modify_from(0, QpState::Rts, QpAttr::default());
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
}

/// QPs in each of the four ways to wait for a page.
fn waiting() -> Vec<(&'static str, usize, Pair)> {
    let packet = {
        let mut pair = pair(MS);
        pair.post(1, write(), 0, 5000);
        pair.transmit();
        assert_eq!(pair.nodes[0].qp.requester_state(), RequesterState::PageFault);
        ("outgoing data", 0, pair)
    };
    let response = {
        let mut pair = pair(MS);
        warm(&mut pair, 1);
        pair.post(1, read(), 0, 5000);
        assert!(pair.run_until(|pair| pair.wire.count(|sent| sent.from == 0) > 0));
        pair.paging(0).invalidate(address(0), 5000, Duration::ZERO);
        assert!(pair.run_until(|pair| pair.held(0, Side::Requester) == 5));
        ("a response", 0, pair)
    };
    let request = {
        let mut pair = pair(MS);
        warm(&mut pair, 0);
        pair.post_recv(10, REMOTE_OFFSET, 5000);
        pair.post(1, SendOp::Send, 0, 5000);
        assert!(pair.run_until(|pair| pair.held(1, Side::Responder) == 5));
        assert_eq!(pair.nodes[1].qp.responder_state(), ResponderState::PageFault);
        ("a request", 1, pair)
    };
    let responding = {
        let mut pair = pair(MS);
        warm(&mut pair, 0);
        pair.post_recv(10, REMOTE_OFFSET, 5000);
        pair.post(1, read(), 0, 5000);
        assert!(pair.run_until(|pair| pair.nodes[1].qp.responder_state() == ResponderState::PageFault));
        ("a READ to answer", 1, pair)
    };
    vec![packet, response, request, responding]
}

#[test]
fn a_qp_that_waits_can_go_to_error() {
    for (what, node, mut pair) in waiting() {
        let journal = pair.nodes[node].host.journal.len();
        pair.modify_from(node, QpState::Error, QpAttr::default());
        let queue = if node == 0 { Queue::Send } else { Queue::Receive };
        let flushed = if node == 0 { 1 } else { 10 };
        assert_eq!(pair.outcomes(node, queue), [(flushed, Status::WrFlushed)], "{what}");
        assert_eq!(pair.nodes[0].qp.requester_state() == RequesterState::Halted, node == 0);
        assert_eq!(pair.nodes[1].qp.responder_state() == ResponderState::Halted, node == 1);
        // The page becomes present, and held packets are passed in again: neither has an effect.
        pair.run_until_idle();
        assert_eq!(pair.nodes[node].host.journal.len(), journal + 1, "{what}");
        assert_eq!(pair.held(node, if node == 0 { Side::Requester } else { Side::Responder }), 0);
        let qp = &pair.nodes[node].qp;
        assert!(!qp.has_to_send() && qp.poll_timeout().is_none(), "{what}");
    }
}

#[test]
fn owed_acks_are_not_sent_in_the_error_state() {
    let mut pair = late_pair(MS);
    warm(&mut pair, 0);
    pair.paging(1).prefetch(address(0), 1000, true);
    pair.run_until_idle();
    let (remote_addr, rkey) = remote(0);
    // The WRITE is executed; the response to the READ before it waits, which delays the WRITE's ACK.
    pair.post(1, read(), 0, 1000);
    pair.post(2, SendOp::Write { remote_addr, rkey }, 0, 1000);
    assert!(pair.run_until(|pair| pair.nodes[1].qp.responder_state() == ResponderState::PageFault));
    assert_eq!(writes(&pair, 1), 1);
    pair.modify_from(1, QpState::Error, QpAttr::default());
    pair.run_until_idle();
    assert_eq!(pair.wire.count(|sent| sent.from == 1), 0);
}

#[test]
fn a_qp_that_waits_can_be_reset_and_used_again() {
    for (what, _, mut pair) in waiting() {
        for node in 0..2 {
            pair.modify_from(node, QpState::Reset, QpAttr::default());
        }
        assert_eq!(pair.nodes[0].qp.requester_state(), RequesterState::Idle, "{what}");
        assert_eq!(pair.nodes[1].qp.responder_state(), ResponderState::Ready, "{what}");
        pair.run_until_idle();
        let before = [pair.outcomes(0, Queue::Send), pair.outcomes(1, Queue::Receive)];
        assert_eq!(before, [[], []], "{what}");
        for node in 0..2 {
            pair.connect(node, &setup(MS));
        }
        pair.post_recv(20, REMOTE_OFFSET, 5000);
        pair.post(2, SendOp::Send, 30_000, 5000);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good([2]), "{what}");
        assert_eq!(pair.outcomes(1, Queue::Receive), good([20]), "{what}");
        assert!(pair.memory(1, REMOTE_OFFSET, 5000) == pair.memory(0, 30_000, 5000));
    }
}

#[test]
fn an_early_or_wrong_page_resolved_changes_nothing() {
    for side in [Side::Requester, Side::Responder] {
        for (what, node, mut pair) in waiting() {
            // Too early, or for the other side: the QP waits again.
            pair.nodes[node].qp.page_resolved(pair.now, side);
            pair.run_until_idle();
            assert_eq!(pair.outcomes(0, Queue::Send), good([1]), "{what}");
            assert_eq!(naks(&pair), 0, "{what}");
        }
    }
}

#[test]
fn a_failed_fault_moves_an_unreliable_receiver_to_error() {
    for service in [Service::Uc, Service::Ud] {
        let mut pair = Setup { service, ..setup(MS) }.pair();
        warm(&mut pair, 0);
        pair.paging(1).unmap(address(REMOTE_OFFSET), 1000);
        pair.post_recv(10, REMOTE_OFFSET, 1000);
        pair.post(1, SendOp::Send, 0, 500);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(1, Queue::Receive), [(10, Status::LocalProtection)], "{service:?}");
        assert_eq!(pair.nodes[1].qp.state(), QpState::Error);
    }
}
