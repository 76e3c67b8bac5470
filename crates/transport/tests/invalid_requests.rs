//! Requests that a correct peer does not send: wrong lengths, wrong order, opcodes that do not exist.

use weir_transport::testing::{Fate, Node, Pair, Setup, read, remote};
use weir_transport::*;
use weir_wire::{Bth, Destination, Headers, NakCode, Opcode, Operation, Packet, Placement, Reth, frame};

/// Passes to node 1 a request that a correct requester does not send.
fn request(pair: &mut Pair, psn: u32, operation: Operation, len: usize, dma_len: u32) {
    request_at(pair, psn, operation, len, dma_len, None);
}

/// As `request`, in a frame if it has a placement.
fn request_at(pair: &mut Pair, psn: u32, operation: Operation, len: usize, dma_len: u32, placement: Option<Placement>) {
    let opcode = Opcode::new(Service::Rc, operation);
    let mut headers = Headers::new(Bth::new(opcode, 0x12, Psn::new(0x10_0000 + psn)));
    let (va, rkey) = remote(0);
    headers.put(Reth { va: va.into(), rkey: rkey.into(), dma_len: dma_len.into() });
    headers.put(weir_wire::Ieth { rkey: 1.into() });
    headers.put(weir_wire::Feth { flags: 1.into() });
    let Node { qp, host, .. } = &mut pair.nodes[1];
    qp.handle_packet(pair.now, &Packet { headers, payload: &vec![1; len], icrc: 0, placement }, host);
}

#[test]
fn requests_of_wrong_length_or_order_are_invalid() {
    use Operation as O;
    let cases: &[&[(Operation, usize, u32)]] = &[
        &[(O::WriteFirst, 1023, 3000)],
        &[(O::WriteFirst, 1025, 3000)],
        &[(O::WriteOnly, 1025, 1025)],
        &[(O::WriteOnly, 10, 11)],
        &[(O::WriteOnly, 11, 10)],
        &[(O::WriteFirst, 1024, 1024)],
        &[(O::WriteFirst, 1024, 3000), (O::WriteLast, 10, 0)],
        &[(O::WriteFirst, 1024, 3000), (O::WriteMiddle, 1024, 0), (O::WriteMiddle, 1024, 0)],
        &[(O::WriteFirst, 1024, 1100), (O::WriteLast, 77, 0)],
        &[(O::SendFirst, 10, 0)],
        &[(O::SendFirst, 1024, 0), (O::SendLast, 0, 0)],
        &[(O::SendFirst, 1024, 0), (O::SendMiddle, 1000, 0)],
        &[(O::SendMiddle, 1024, 0)],
        &[(O::SendLast, 10, 0)],
        &[(O::WriteMiddle, 1024, 0)],
        &[(O::SendFirst, 1024, 0), (O::WriteLast, 10, 0)],
        &[(O::SendFirst, 1024, 0), (O::SendOnly, 10, 0)],
        &[(O::SendFirst, 1024, 0), (O::ReadRequest, 0, 10)],
        &[(O::WriteFirst, 1024, 3000), (O::SendMiddle, 1024, 0)],
        &[(O::WriteFirst, 1024, 3000), (O::WriteFirst, 1024, 3000)],
        &[(O::ReadRequest, 0, (1 << 31) + 1)],
        &[(O::ReadRequest, 4, 10)],
        &[(O::SendLastInv, 10, 0)],
        &[(O::Flush, 4, 10)],
        &[(O::Flush, 0, (1 << 31) + 1)],
        &[(O::AtomicWrite, 4, 8)],
        &[(O::AtomicWrite, 8, 16)],
    ];
    for case in cases {
        let mut pair = Setup::default().pair();
        pair.post_recv(8, 300_000, 10_000);
        for (psn, &(operation, len, dma_len)) in case.iter().enumerate() {
            assert_eq!(pair.nodes[1].qp.state(), QpState::Rts, "{case:?}");
            request(&mut pair, psn as u32, operation, len, dma_len);
        }
        assert_eq!(pair.nodes[1].qp.state(), QpState::Error, "{case:?}");
        assert_eq!(pair.nodes[1].host.events(), [QpEvent::RequestError]);
        assert_eq!(pair.outcomes(1, Queue::Receive), [(8, Status::WrFlushed)]);
        pair.transmit();
        assert_eq!(pair.wire.nak_codes(), [NakCode::InvalidRequest], "{case:?}");
        assert_eq!(pair.wire.log[0].headers.bth.psn, Psn::new(0x10_0000 + case.len() as u32 - 1));
        assert!(pair.canaries_live());
    }
}

/// Runs three messages of three frames over a wire that changes the placement of one frame of the second message.
/// Returns the NAKs, and the completions of the requester (RC) or of the responder (UC).
fn misplaced(service: Service, op: SendOp, at: u32, change: fn(&mut Placement)) -> (Vec<NakCode>, Vec<Status>) {
    let mut pair = Setup { service, frames: true, ..Setup::default() }.pair();
    pair.wire.rule = Some(Box::new(move |_, packet| {
        let second_message = Psn::new(0x10_0000).plus(3);
        let Some(mut placement) = packet.placement else { return Fate::Pass };
        if packet.headers.bth.psn != second_message.plus(at) {
            return Fate::Pass;
        }
        change(&mut placement);
        let mut bytes = vec![0; frame::HEADER_LEN];
        frame::emit(&packet.headers, &placement, &mut bytes);
        bytes.extend(packet.payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        Fate::Forge(bytes)
    }));
    for message in 0..3 {
        pair.post_recv(message, 100_000 + message as usize * 4000, 4000);
        pair.post(message, op, message as usize * 4000, 3000);
    }
    pair.run_until_idle();
    let (node, queue) = if service == Service::Uc { (1, Queue::Receive) } else { (0, Queue::Send) };
    let done = pair.outcomes(node, queue).into_iter().map(|(_, status)| status).collect();
    assert!(pair.canaries_live());
    (pair.wire.nak_codes(), done)
}

#[test]
fn a_frame_whose_placement_does_not_follow_from_earlier_frames_is_an_error() {
    type Change = fn(&mut Placement);
    let address: Change = |placement| {
        let Destination::Memory { address, .. } = &mut placement.destination else { panic!("a WRITE") };
        *address += 8;
    };
    let key: Change = |placement| {
        let Destination::Memory { rkey, .. } = &mut placement.destination else { panic!("a WRITE") };
        *rkey ^= 1;
    };
    let number: Change = |placement| {
        let Destination::Message { number } = &mut placement.destination else { panic!("no WRITE") };
        *number += 1;
    };
    let earlier: Change = |placement| placement.offset -= 4;
    let longer: Change = |placement| placement.length += 4;
    let shorter: Change = |placement| placement.length -= 952;
    let (remote_addr, rkey) = remote(200_000);
    let write = SendOp::WriteImm { remote_addr, rkey, imm: 1 };
    let send = SendOp::SendImm { imm: 1 };
    use Status::{BadResponse, RemoteInvalidRequest, Success, WrFlushed};
    let cases = [
        (write, 1, address),
        (write, 2, key),
        (write, 1, earlier),
        (write, 1, longer),
        (write, 2, longer),
        (send, 0, longer),
        (send, 1, longer),
        (send, 2, earlier),
        (send, 1, shorter),
        (send, 2, longer),
    ];
    for (op, at, change) in cases {
        let refused = (vec![NakCode::InvalidRequest], vec![Success, RemoteInvalidRequest, WrFlushed]);
        assert_eq!(misplaced(Service::Rc, op, at, change), refused, "{op:?} {at}");
        assert_eq!(misplaced(Service::Uc, op, at, change), (vec![], vec![Success; 2]), "UC drops it: {op:?} {at}");
    }
    for at in 0..3 {
        let refused = (vec![NakCode::InvalidRequest], vec![Success, RemoteInvalidRequest, WrFlushed]);
        assert_eq!(misplaced(Service::Rc, send, at, number), refused, "{at}");
        assert_eq!(misplaced(Service::Uc, send, at, number), (vec![], vec![Success; 3]), "UC does not count lost ones");
    }
    for (at, change) in [(0, number), (1, earlier), (1, longer), (2, number), (2, longer)] {
        assert_eq!(misplaced(Service::Rc, read(200_000), at, change), (vec![], vec![Success, BadResponse, WrFlushed]));
    }
}

/// The placement of a SEND's frame in the first message.
fn of_send(offset: u32, length: u32) -> Placement {
    Placement { destination: Destination::Message { number: 0 }, offset, length }
}

#[test]
fn the_frames_of_a_send_state_one_length_and_the_message_has_it() {
    use Operation as O;
    type Request = (Operation, usize, Option<Placement>);
    let cases: &[(bool, &[Request])] = &[
        (true, &[(O::SendFirst, 1024, Some(of_send(0, 2000))), (O::SendLast, 976, Some(of_send(1024, 2000)))]),
        // The sender may change between frames and RoCE packets.
        (true, &[(O::SendFirst, 1024, Some(of_send(0, 2000))), (O::SendLast, 976, None)]),
        (true, &[(O::SendFirst, 1024, None), (O::SendLast, 976, Some(of_send(1024, 2000)))]),
        (false, &[(O::SendFirst, 1024, Some(of_send(0, 2000))), (O::SendLast, 977, None)]),
        (false, &[(O::SendFirst, 1024, Some(of_send(0, 2000))), (O::SendLast, 975, None)]),
        (false, &[(O::SendFirst, 1024, None), (O::SendLast, 976, Some(of_send(1024, 2001)))]),
        (false, &[(O::SendFirst, 1024, Some(of_send(0, 1024)))]),
        (false, &[(O::SendFirst, 1024, Some(of_send(0, 1 << 31 | 1)))]),
        (false, &[(O::SendOnly, 1000, Some(of_send(0, 1001)))]),
        // The length changes in the middle of the message, or the message goes on beyond it.
        (false, &[(O::SendFirst, 1024, Some(of_send(0, 3000))), (O::SendMiddle, 1024, Some(of_send(1024, 3001)))]),
        (false, &[(O::SendFirst, 1024, Some(of_send(0, 2048))), (O::SendMiddle, 1024, None)]),
    ];
    for (good, case) in cases {
        let mut pair = Setup::default().pair();
        pair.post_recv(8, 300_000, 10_000);
        for (psn, &(operation, len, placement)) in case.iter().enumerate() {
            assert_eq!(pair.nodes[1].qp.state(), QpState::Rts, "{case:?}");
            request_at(&mut pair, psn as u32, operation, len, 0, placement);
        }
        let status = if *good { Status::Success } else { Status::WrFlushed };
        assert_eq!(pair.outcomes(1, Queue::Receive), [(8, status)], "{case:?}");
        pair.transmit();
        assert_eq!(pair.wire.nak_codes().is_empty(), *good, "{case:?}");
    }
}

#[test]
fn an_atomic_write_in_a_frame_belongs_to_its_own_address() {
    let (address, rkey) = remote(0);
    let right = Placement { destination: Destination::Memory { address, rkey }, offset: 0, length: 8 };
    let elsewhere = Destination::Memory { address: address + 8, rkey };
    let keyless = Destination::Memory { address, rkey: rkey ^ 1 };
    let wrong = [
        Placement { destination: elsewhere, ..right },
        Placement { destination: keyless, ..right },
        Placement { destination: Destination::Message { number: 0 }, ..right },
        Placement { offset: 8, ..right },
        Placement { length: 16, ..right },
    ];
    for (placement, good) in [(right, true)].into_iter().chain(wrong.map(|placement| (placement, false))) {
        let mut pair = Setup::default().pair();
        let before = pair.memory(1, 0, 16);
        request_at(&mut pair, 0, Operation::AtomicWrite, 8, 8, Some(placement));
        assert_eq!(pair.nodes[1].qp.state(), if good { QpState::Rts } else { QpState::Error }, "{placement:?}");
        assert_eq!(pair.memory(1, 0, 8) == [1; 8], good, "{placement:?}");
        assert_eq!(pair.memory(1, 8, 8), before[8..], "{placement:?}");
    }
}

#[test]
fn a_framed_response_to_an_atomic_write_belongs_to_its_message() {
    let (remote_addr, rkey) = remote(200_000);
    let number = Destination::Message { number: 1 };
    let right = Placement { destination: number, offset: 0, length: 0 };
    let wrong = [
        Placement { destination: Destination::Message { number: 0 }, ..right },
        Placement { destination: Destination::Memory { address: 0, rkey: 1 }, ..right },
        Placement { offset: 4, ..right },
        Placement { length: 8, ..right },
    ];
    for (placement, good) in [(right, true)].into_iter().chain(wrong.map(|placement| (placement, false))) {
        let mut pair = Setup::default().pair();
        pair.post(0, SendOp::Send, 0, 10);
        pair.post(1, SendOp::AtomicWrite { remote_addr, rkey }, 0, 8);
        pair.transmit();
        let opcode = Opcode::new(Service::Rc, Operation::ReadResponseOnly);
        let mut headers = Headers::new(Bth::new(opcode, 0x11, Psn::new(0x10_0001)));
        headers.put(weir_wire::Aeth::new(0x1f, 2));
        let Node { qp, host, .. } = &mut pair.nodes[0];
        qp.handle_packet(pair.now, &Packet { headers, payload: &[], icrc: 0, placement: Some(placement) }, host);
        let status = if good { Status::Success } else { Status::BadResponse };
        assert_eq!(pair.outcomes(0, Queue::Send), [(0, Status::Success), (1, status)], "{placement:?}");
    }
}

#[test]
fn an_application_that_modifies_to_error_after_an_error_does_not_hide_it_from_the_peer() {
    let mut pair = Setup::default().pair();
    request(&mut pair, 0, Operation::SendMiddle, 1024, 0);
    pair.modify_from(1, QpState::Error, QpAttr::default());
    pair.transmit();
    assert_eq!(pair.wire.nak_codes(), [NakCode::InvalidRequest]);
    // A QP without an error of its own sends nothing more.
    let mut pair = Setup::default().pair();
    pair.post(1, read(0), 0, 1000);
    pair.run_until(|pair| pair.nodes[1].qp.has_to_send());
    pair.modify_from(1, QpState::Error, QpAttr::default());
    pair.transmit();
    assert_eq!(pair.wire.count(|s| s.from == 1), 0);
}

/// Passes to node 1 a packet with any opcode, parsed from bytes like a received packet.
fn raw(pair: &mut Pair, psn: u32, opcode: Opcode) -> bool {
    let mut bytes = vec![0; 64];
    Headers::new(Bth::new(opcode, 0x12, Psn::new(0x10_0000 + psn))).emit(&mut bytes);
    let Ok(packet) = Packet::parse(&bytes) else { return false };
    let Node { qp, host, .. } = &mut pair.nodes[1];
    qp.handle_packet(pair.now, &packet, host);
    true
}

#[test]
fn a_reserved_opcode_is_an_invalid_request_in_psn_order() {
    for low in [0x15, 0x18, 0x19, 0x1a, 0x1b, 0x1e, 0x1f] {
        for (service, base) in [(Service::Rc, 0), (Service::Xrc, 0xa0)] {
            let mut pair = Setup { service, ..Setup::default() }.pair();
            // An earlier packet is missing: the sequence NAK comes first.
            assert!(raw(&mut pair, 1, Opcode(base | low)));
            pair.transmit();
            assert_eq!(pair.wire.nak_codes(), [NakCode::PsnSequence]);
            assert_eq!(pair.nodes[1].qp.state(), QpState::Rts);
            raw(&mut pair, 0, Opcode(base | low));
            pair.transmit();
            assert_eq!(pair.wire.nak_codes(), [NakCode::PsnSequence, NakCode::InvalidRequest], "{service:?} {low:#x}");
            assert_eq!(pair.wire.log.last().expect("the NAK").headers.bth.psn, Psn::new(0x10_0000));
            assert_eq!(pair.nodes[1].host.events(), [QpEvent::RequestError]);
        }
    }
}

#[test]
fn an_opcode_of_another_service_is_dropped() {
    for opcode in (0x20..=0xff).map(Opcode) {
        let mut pair = Setup::default().pair();
        raw(&mut pair, 0, opcode);
        pair.transmit();
        assert_eq!((pair.wire.nak_codes(), pair.nodes[1].qp.state()), (vec![], QpState::Rts), "{opcode:?}");
    }
}
