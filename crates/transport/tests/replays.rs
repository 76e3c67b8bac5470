//! Duplicate READs and atomics: with and without a responder resource.

use weir_transport::testing::{Fate, Node, Pair, Region, Setup, Staging, remote};
use weir_transport::*;
use weir_wire::{AtomicEth, Bth, Headers, Opcode, Operation, Packet, Reth};

/// Passes a request to node 1.
fn request(pair: &mut Pair, psn: Psn, operation: Operation, dma_len: u32) {
    let mut headers = Headers::new(Bth::new(Opcode::new(Service::Rc, operation), 0x12, psn));
    let (va, rkey) = remote(0);
    headers.put(Reth { va: va.into(), rkey: rkey.into(), dma_len: dma_len.into() });
    headers.put(AtomicEth { va: va.into(), rkey: rkey.into(), swap_or_add: 5.into(), compare: 0.into() });
    let Node { qp, host, .. } = &mut pair.nodes[1];
    qp.handle_packet(pair.now, &Packet { headers, payload: &[], icrc: 0, placement: None }, host);
}

/// The operation of the next packet that node 1 sends.
fn next_response(pair: &mut Pair) -> Operation {
    let Node { qp, host, .. } = &mut pair.nodes[1];
    let mut staging = Staging::new(host.memory.clone(), 1);
    qp.poll_transmit(pair.now, Limits { request_bytes: 0, read_bytes: 0 }, host, &mut staging);
    let packet = Packet::parse(&staging.packets[0]).expect("a packet");
    packet.headers.bth.opcode.operation().expect("a known one")
}

#[test]
fn an_atomic_one_psn_wrap_ago_is_forgotten() {
    let mut pair = Setup { mtu: Mtu::M256, ..Setup::default() }.pair();
    {
        // Long enough for READs that use half of all PSNs each; their responses do not all leave.
        let mut memory = pair.nodes[1].host.memory.borrow_mut();
        let own = memory.regions()[0];
        memory.regions()[0] = Region { len: 1 << 32, ..own };
    }
    let first = Psn::new(0x10_0000);
    request(&mut pair, first, Operation::FetchAdd, 0);
    assert_eq!(next_response(&mut pair), Operation::AtomicAcknowledge);
    // A duplicate is answered with the old value.
    request(&mut pair, first, Operation::FetchAdd, 0);
    assert_eq!(next_response(&mut pair), Operation::AtomicAcknowledge);
    for half in 0..2 {
        request(&mut pair, first.plus(1 + (half << 23)), Operation::ReadRequest, 1 << 31);
    }
    assert_eq!(pair.nodes[1].qp.attr().rq_psn, first.plus(1), "all PSNs were used once");
    // The same PSN now belongs to the second READ.
    request(&mut pair, first, Operation::FetchAdd, 0);
    assert_eq!(next_response(&mut pair), Operation::ReadResponseFirst, "the atomic's old response is not sent again");
}

#[test]
fn an_atomic_is_executed_once_if_the_number_of_resources_changes() {
    for resources in [1, 4, 16] {
        let mut pair = Setup::default().pair();
        pair.fill(1, 0, &7u64.to_ne_bytes());
        let (remote_addr, rkey) = remote(0);
        let mut lost = false;
        pair.wire.rule = Some(Box::new(move |_, packet| {
            let response = packet.headers.bth.opcode.operation() == Some(Operation::AtomicAcknowledge);
            if response && !std::mem::replace(&mut lost, true) { Fate::Drop } else { Fate::Pass }
        }));
        pair.post(1, SendOp::FetchAdd { remote_addr, rkey, add: 3 }, 64, 8);
        assert!(pair.run_until(|pair| pair.wire.count(|sent| sent.from == 1) == 1));
        pair.modify_from(1, QpState::Sqd, QpAttr::default());
        let attr = QpAttr { max_dest_rd_atomic: resources, ..QpAttr::default() };
        let Node { qp, host, .. } = &mut pair.nodes[1];
        qp.modify(pair.now, &attr, AttrMask::MAX_DEST_RD_ATOMIC, host).expect("allowed in SQD");
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)], "{resources} resources");
        assert_eq!(pair.memory(0, 64, 8), 7u64.to_ne_bytes());
        assert_eq!(pair.memory(1, 0, 8), 10u64.to_ne_bytes());
    }
}
