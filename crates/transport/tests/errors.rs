//! Every completion status in its case: the peer's view, and the work requests that are flushed.

use weir_transport::testing::{Fate, Node, Pair, Setup, Staging, read, remote, sge, write};
use weir_transport::*;
use weir_wire::{Bth, Headers, NakCode, Opcode, Operation, Packet, Syndrome};

/// Posts a valid WRITE, a bad request and a valid WRITE, and a receive on node 0. Checks that the first succeeds, the
/// second fails with `status`, the rest is flushed, the peer sends the NAK `code` and raises `event`.
fn refused(setup: &Setup, op: SendOp, len: usize, status: Status, code: NakCode, event: QpEvent) -> Pair {
    let mut pair = setup.pair();
    pair.post(1, write(0), 0, 100);
    pair.post(2, op, 0, len);
    pair.post(3, write(0), 0, 100);
    pair.nodes[0].qp.post_recv(&RecvWr { wr_id: 7, sges: &[] }).unwrap();
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success), (2, status), (3, Status::WrFlushed)]);
    assert_eq!(pair.outcomes(0, Queue::Receive), [(7, Status::WrFlushed)]);
    assert_eq!(pair.wire.nak_codes(), [code]);
    assert_eq!(pair.nodes[1].host.events(), [event]);
    for node in &pair.nodes {
        assert_eq!(node.qp.state(), QpState::Error);
        assert_eq!(node.qp.in_flight(), InFlight::default());
    }
    assert!(pair.canaries_live());
    pair
}

#[test]
fn a_lost_nak_is_sent_again() {
    for lost in 1..=3 {
        let mut pair = Setup::default().pair();
        let mut left = lost;
        pair.wire.rule = Some(Box::new(move |from, _| {
            // All packets of node 1: ACKs of earlier requests, and the NAK.
            left -= i32::from(from == 1);
            if from == 1 && left >= 0 { Fate::Drop } else { Fate::Pass }
        }));
        let (remote_addr, _) = remote(0);
        pair.post(1, write(0), 0, 100);
        pair.post(2, SendOp::Read { remote_addr, rkey: 0x777 }, 0, 3000);
        pair.post(3, write(0), 0, 100);
        pair.run_until_idle();
        let ended = [(1, Status::Success), (2, Status::RemoteAccess), (3, Status::WrFlushed)];
        assert_eq!(pair.outcomes(0, Queue::Send), ended, "{lost} lost");
        assert_eq!(pair.nodes[1].host.events(), [QpEvent::AccessError]);
        assert_eq!(pair.wire.nak_codes().len(), lost as usize + 1);
    }
}

#[test]
fn a_qp_that_its_owner_moved_to_error_sends_no_nak() {
    let mut pair = Setup { retry_cnt: 1, ..Setup::default() }.pair();
    pair.modify_from(1, QpState::Error, QpAttr::default());
    pair.post(1, write(0), 0, 100);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RetryExceeded)]);
    assert_eq!(pair.wire.count(|s| s.from == 1), 0);
}

#[test]
fn a_wrong_rkey_address_or_permission_is_a_remote_access_error() {
    let setup = Setup::default();
    let (addr, rkey) = remote(0);
    let cases = [
        SendOp::Write { remote_addr: addr, rkey: 0x777 },
        SendOp::Write { remote_addr: addr - 1, rkey },
        SendOp::Write { remote_addr: addr + (1 << 20) - 2999, rkey },
        SendOp::Write { remote_addr: u64::MAX - 100, rkey },
        SendOp::WriteImm { remote_addr: addr, rkey: 0x777, imm: 0 },
        SendOp::Read { remote_addr: addr, rkey: 0x777 },
        SendOp::Read { remote_addr: addr + (1 << 20) - 2999, rkey },
    ];
    for op in cases {
        let mut pair = setup.pair();
        pair.post_recv(9, 0, 100);
        pair.post(2, op, 0, 3000);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(2, Status::RemoteAccess)], "{op:?}");
        assert_eq!(pair.outcomes(1, Queue::Receive), [(9, Status::WrFlushed)], "{op:?}");
        if !matches!(op, SendOp::WriteImm { .. }) {
            refused(&setup, op, 3000, Status::RemoteAccess, NakCode::RemoteAccess, QpEvent::AccessError);
        }
    }
    let atomic = SendOp::FetchAdd { remote_addr: addr, rkey: 0x777, add: 1 };
    refused(&setup, atomic, 8, Status::RemoteAccess, NakCode::RemoteAccess, QpEvent::AccessError);
}

#[test]
fn a_zero_length_write_or_read_needs_no_key() {
    for op in [SendOp::Write { remote_addr: 1, rkey: 0x777 }, SendOp::Read { remote_addr: 1, rkey: 0x777 }] {
        let mut pair = Setup::default().pair();
        pair.post(1, op, 0, 0);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)]);
    }
}

#[test]
fn a_request_that_the_qp_does_not_allow_is_an_invalid_request() {
    let (remote_addr, rkey) = remote(4);
    let unaligned = SendOp::FetchAdd { remote_addr, rkey, add: 1 };
    let invalid = (Status::RemoteInvalidRequest, NakCode::InvalidRequest, QpEvent::RequestError);
    refused(&Setup::default(), unaligned, 8, invalid.0, invalid.1, invalid.2);
    // The QP does not allow it, although the region does.
    let closed = Setup { access: Access::LOCAL_WRITE | Access::REMOTE_WRITE, ..Setup::default() };
    let (remote_addr, rkey) = remote(0);
    refused(&closed, read(0), 10, invalid.0, invalid.1, invalid.2);
    refused(&closed, SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 8, invalid.0, invalid.1, invalid.2);
    // No resources for READs.
    let none = Setup { max_dest_rd_atomic: 0, ..Setup::default() };
    refused(&none, read(0), 10, invalid.0, invalid.1, invalid.2);
}

#[test]
fn a_read_without_a_resource_is_an_invalid_request() {
    let mut setup = Setup { max_rd_atomic: 4, max_dest_rd_atomic: 2, ..Setup::default() };
    setup.window.read_bytes = 1 << 20;
    let mut pair = setup.pair();
    for wr_id in 0..4 {
        pair.post(wr_id, read(0), 0, 1000);
    }
    pair.run_until_idle();
    // The third READ came before the first was answered.
    assert_eq!(
        pair.outcomes(0, Queue::Send),
        [(0, Status::Success), (1, Status::Success), (2, Status::RemoteInvalidRequest), (3, Status::WrFlushed)]
    );
}

#[test]
fn a_message_longer_than_its_receive_is_an_invalid_request() {
    for len in [1001, 3000] {
        let mut pair = Setup::default().pair();
        pair.post_recv(8, 300_000, 1000);
        pair.post_recv(9, 300_000, 1000);
        let before = pair.memory(1, 300_000, 4000);
        pair.post(1, SendOp::Send, 0, len);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RemoteInvalidRequest)]);
        assert_eq!(pair.outcomes(1, Queue::Receive), [(8, Status::LocalLength), (9, Status::WrFlushed)]);
        assert_eq!(pair.wire.nak_codes(), [NakCode::InvalidRequest]);
        assert_eq!(pair.memory(1, 301_000, 3000), before[1000..]);
    }
}

#[test]
fn a_receive_without_write_access_is_a_remote_operation_error() {
    let mut pair = Setup::default().pair();
    let bad = Sge { lkey: 0x777, ..sge(0, 1000) };
    pair.nodes[1].qp.post_recv(&RecvWr { wr_id: 8, sges: &[bad] }).unwrap();
    pair.post(1, SendOp::Send, 0, 1000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RemoteOperation)]);
    assert_eq!(pair.outcomes(1, Queue::Receive), [(8, Status::LocalProtection)]);
    assert_eq!(pair.nodes[1].host.events(), [QpEvent::Fatal]);
}

#[test]
fn unmapped_memory_of_the_responder_is_a_remote_operation_error() {
    for op in [write(0), read(0)] {
        let mut pair = Setup::default().pair();
        pair.nodes[1].host.memory.borrow_mut().regions()[0].mapped = false;
        pair.post(1, op, 0, 3000);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RemoteOperation)]);
    }
}

#[test]
fn memory_that_is_unmapped_during_a_response_is_a_remote_operation_error() {
    let mut pair = Setup { burst: 1, ..Setup::default() }.pair();
    pair.post(1, read(0), 0, 5000);
    pair.post(2, write(0), 0, 10);
    let memory = pair.nodes[1].host.memory.clone();
    let mut responses = 0;
    pair.wire.rule = Some(Box::new(move |from, _| {
        responses += from;
        memory.borrow_mut().regions()[0].mapped = responses < 2;
        Fate::Pass
    }));
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RemoteOperation), (2, Status::WrFlushed)]);
    assert_eq!(pair.wire.nak_codes(), [NakCode::RemoteOperational]);
    assert_eq!(pair.nodes[1].qp.state(), QpState::Error);
}

#[test]
fn a_local_buffer_without_access_is_a_local_protection_error() {
    let bad_key = Sge { lkey: 0x777, ..sge(0, 10) };
    let beyond = sge((1 << 20) - 5, 10);
    for (op, sges) in [
        (write(0), vec![bad_key]),
        (SendOp::Send, vec![sge(0, 4000), beyond]),
        (read(0), vec![bad_key]),
        (read(0), vec![beyond]),
    ] {
        let mut pair = Setup::default().pair();
        pair.post_recv(9, 0, 8000);
        pair.post(1, write(0), 0, 3000);
        let wr = SendWr { wr_id: 2, op, flags: SendFlags::empty(), data: Data::Gather(&sges) };
        pair.nodes[0].qp.post_send(&wr).unwrap();
        pair.post(3, write(0), 0, 3000);
        pair.run_until_idle();
        // Earlier work requests complete first, later ones are flushed; errors complete even if not signalled.
        assert_eq!(
            pair.outcomes(0, Queue::Send),
            [(1, Status::Success), (2, Status::LocalProtection), (3, Status::WrFlushed)]
        );
        // No packet of the failed work request was sent.
        assert_eq!(pair.wire.count(|s| s.from == 0), 3);
    }
}

#[test]
fn local_memory_that_is_unmapped_meanwhile_is_a_local_protection_error() {
    // In a WRITE: its middle cannot be read.
    let mut pair = Setup { burst: 1, ..Setup::default() }.pair();
    pair.post(1, write(0), 0, 100);
    pair.post(2, write(0), 0, 5000);
    let memory = pair.nodes[0].host.memory.clone();
    let mut sent = 0;
    pair.wire.rule = Some(Box::new(move |from, _| {
        sent += usize::from(from == 0);
        memory.borrow_mut().regions()[0].mapped = sent < 3;
        Fate::Pass
    }));
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success), (2, Status::LocalProtection)]);

    // In a READ: its response cannot be written.
    let mut pair = Setup::default().pair();
    pair.post(1, read(0), 0, 5000);
    pair.transmit();
    pair.nodes[0].host.memory.borrow_mut().regions()[0].mapped = false;
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::LocalProtection)]);
}

#[test]
fn a_read_with_max_rd_atomic_0_is_a_qp_operation_error() {
    let mut pair = Setup { max_rd_atomic: 0, ..Setup::default() }.pair();
    pair.post(1, write(0), 0, 100);
    pair.post(2, read(0), 0, 100);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success), (2, Status::LocalQpOperation)]);
}

#[test]
fn a_response_of_wrong_length_or_opcode_is_a_bad_response() {
    let first = Psn::new(0x10_0000);
    let aeth = weir_wire::Aeth::new(31, 1);
    for (operation, len) in [
        (Operation::ReadResponseFirst, 1023),
        (Operation::ReadResponseFirst, 1025),
        (Operation::ReadResponseOnly, 1024),
        (Operation::ReadResponseLast, 1024),
        (Operation::AtomicAcknowledge, 0),
    ] {
        let mut pair = Setup::default().pair();
        pair.post(1, read(0), 0, 3000);
        pair.transmit();
        let mut headers = Headers::new(Bth::new(Opcode::new(Service::Rc, operation), 0x11, first));
        headers.put(aeth);
        headers.put(weir_wire::AtomicAckEth { original: 1.into() });
        let Node { qp, host, .. } = &mut pair.nodes[0];
        qp.handle_packet(pair.now, &Packet { headers, payload: &vec![1; len], icrc: 0, placement: None }, host);
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::BadResponse)], "{operation:?} {len}");
    }
}

#[test]
fn the_error_state_flushes_what_is_posted_later() {
    let mut pair = Setup::default().pair();
    pair.modify_from(0, QpState::Error, QpAttr::default());
    pair.post_as(0, 1, write(0), 0, 10, SendFlags::empty());
    pair.nodes[0].qp.post_recv(&RecvWr { wr_id: 2, sges: &[] }).unwrap();
    assert_eq!(pair.outcomes(0, Queue::Send), []);
    assert!(pair.nodes[0].qp.has_to_send());
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::WrFlushed)]);
    assert_eq!(pair.outcomes(0, Queue::Receive), [(2, Status::WrFlushed)]);
    assert!(!pair.nodes[0].qp.has_to_send());
    assert_eq!(pair.wire.log.len(), 0);
}

#[test]
fn the_nak_follows_earlier_responses_even_in_the_error_state() {
    let mut pair = Setup::default().pair();
    pair.post(1, read(0), 100_000, 100_000);
    pair.post(2, SendOp::Write { remote_addr: 0, rkey: 0 }, 0, 10);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success), (2, Status::RemoteAccess)]);
    assert_eq!(pair.memory(0, 100_000, 100_000), pair.memory(1, 0, 100_000));
}

#[test]
fn ghost_responses_are_ignored() {
    let mut pair = Setup::default().pair();
    pair.post(1, write(0), 0, 10);
    pair.run_until_idle();
    let ack = *pair.wire.log.last().unwrap();
    pair.post(2, write(0), 0, 10);
    pair.transmit();
    for ahead in [-5i32, 0, 2, 100] {
        for syndrome in
            [Syndrome::ACK_UNLIMITED, Syndrome::Nak(NakCode::RemoteAccess), Syndrome::Nak(NakCode::PsnSequence)]
        {
            let mut headers = ack.headers;
            headers.bth.psn = Psn::new((headers.bth.psn.get() as i32 + ahead) as u32);
            headers.put(weir_wire::Aeth::new(syndrome.to_byte(), 0));
            let Node { qp, host, .. } = &mut pair.nodes[0];
            qp.handle_packet(pair.now, &Packet { headers, payload: &[], icrc: 0, placement: None }, host);
        }
    }
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)]);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn a_full_egress_loses_nothing() {
    let mut pair = Setup::default().pair();
    pair.post(1, write(0), 0, 10);
    let node = &mut pair.nodes[0];
    let mut full = Staging::new(node.host.memory.clone(), 0);
    let limits = Limits { request_bytes: 10_000, read_bytes: 10_000 };
    assert_eq!(node.qp.poll_transmit(pair.now, limits, &mut node.host, &mut full), Progress::Full);
    assert!(node.qp.has_to_send() && node.qp.poll_timeout().is_none());
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)]);
}

#[test]
fn the_ending_of_a_qp_is_returned_once() {
    let dead = |_: usize, _: &Packet<'_>| Fate::Drop;
    let mut pair = Setup { retry_cnt: 2, ..Setup::default() }.pair();
    pair.wire.rule = Some(Box::new(dead));
    pair.post(1, write(0), 0, 100);
    pair.post(2, write(0), 0, 100);
    pair.run_until_idle();
    let ending = pair.nodes[0].qp.take_ending().expect("it ended");
    assert_eq!((ending.side, ending.status, ending.tries), (Side::Requester, Status::RetryExceeded, Some(3)));
    assert_eq!((ending.psn, ending.is_ack_timeout()), (Psn::new(0x10_0000), true));
    assert_eq!(pair.wire.count(|sent| sent.headers.bth.psn == ending.psn), 3, "it was sent `tries` times");
    assert_eq!(pair.nodes[0].qp.take_ending(), None);

    let mut pair = Setup { rnr_retry: 1, min_rnr_timer: 1, ..Setup::default() }.pair();
    pair.post(1, SendOp::Send, 0, 100);
    pair.run_until_idle();
    let ending = pair.nodes[0].qp.take_ending().expect("it ended");
    assert_eq!((ending.status, ending.tries), (Status::RnrRetryExceeded, Some(2)));
    assert_eq!(pair.wire.count(|sent| sent.from == 0), 2);

    let mut pair = Setup::default().pair();
    pair.post(1, SendOp::Read { remote_addr: 0, rkey: 1 }, 0, 100);
    pair.run_until_idle();
    let [requester, responder] = [0, 1].map(|node| pair.nodes[node].qp.take_ending().expect("both ended"));
    assert_eq!((requester.status, requester.tries), (Status::RemoteAccess, None));
    assert_eq!((responder.side, responder.status), (Side::Responder, Status::RemoteAccess));
    assert_eq!(requester.psn, responder.psn);

    // A QP that its owner moves to the error state has no ending.
    let mut pair = Setup::default().pair();
    pair.modify_from(0, QpState::Error, QpAttr::default());
    assert_eq!(pair.nodes[0].qp.take_ending(), None);
}
