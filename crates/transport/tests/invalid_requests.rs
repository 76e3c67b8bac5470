//! Requests that a correct peer does not send: wrong lengths, wrong order, opcodes that do not exist.

use weir_transport::testing::{Node, Pair, Setup, read, remote};
use weir_transport::*;
use weir_wire::{Bth, Headers, NakCode, Opcode, Operation, Packet, Reth};

/// Passes to node 1 a request that a correct requester does not send.
fn request(pair: &mut Pair, psn: u32, operation: Operation, len: usize, dma_len: u32) {
    let opcode = Opcode::new(Service::Rc, operation);
    let mut headers = Headers::new(Bth::new(opcode, 0x12, Psn::new(0x10_0000 + psn)));
    let (va, rkey) = remote(0);
    headers.put(Reth { va: va.into(), rkey: rkey.into(), dma_len: dma_len.into() });
    headers.put(weir_wire::Ieth { rkey: 1.into() });
    headers.put(weir_wire::Feth { flags: 1.into() });
    let Node { qp, host, .. } = &mut pair.nodes[1];
    qp.handle_packet(pair.now, &Packet { headers, payload: &vec![1; len], icrc: 0 }, host);
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
        &[(O::Flush, 0, 10)],
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
