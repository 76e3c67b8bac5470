//! XRC: a message belongs to one SRQ, and a memory access to the protection domain that its own request names.

use weir_transport::testing::{Node, Pair, Region, SRQ, Setup, address, remote, sge};
use weir_transport::*;
use weir_wire::{Bth, Headers, NakCode, Opcode, Operation, Packet, Reth, XrcEth};

/// A second shared receive queue.
const OTHER: u32 = SRQ + 1;

fn setup() -> Setup {
    Setup { service: Service::Xrc, ..Setup::default() }
}

/// Passes to node 1 a request that names an SRQ.
fn request(pair: &mut Pair, psn: u32, operation: Operation, srq: u32, dma_len: u32) {
    let bth = Bth::new(Opcode::new(Service::Xrc, operation), 0x12, Psn::new(0x10_0000 + psn));
    let mut headers = Headers::new(bth);
    headers.put(XrcEth { srq: srq.into() });
    let (va, rkey) = remote(0);
    headers.put(Reth { va: va.into(), rkey: rkey.into(), dma_len: dma_len.into() });
    let Node { qp, host, .. } = &mut pair.nodes[1];
    qp.handle_packet(pair.now, &Packet { headers, payload: &[7; 1024], icrc: 0, placement: None }, host);
}

#[test]
fn a_message_that_changes_its_queue_is_an_invalid_request() {
    use Operation as O;
    for (first, next) in [
        (O::SendFirst, O::SendLast),
        (O::SendFirst, O::SendMiddle),
        (O::WriteFirst, O::WriteLastImm),
        (O::WriteFirst, O::WriteLast),
    ] {
        for srq in [OTHER, SRQ + 9] {
            let mut pair = setup().pair();
            pair.post_srq_recv(SRQ, 10, 200_000, 5000);
            pair.post_srq_recv(OTHER, 20, 300_000, 5000);
            request(&mut pair, 0, first, SRQ, 2048);
            request(&mut pair, 1, next, srq, 0);
            pair.transmit();
            assert_eq!(pair.wire.nak_codes(), [NakCode::InvalidRequest], "{first:?} {next:?} {srq:#x}");
            assert_eq!(pair.nodes[1].qp.state(), QpState::Error);
            let flushed = if first == O::SendFirst { vec![(10, Status::WrFlushed)] } else { vec![] };
            assert_eq!(pair.outcomes(1, Queue::Receive), flushed);
            assert_eq!(pair.nodes[1].host.srqs.borrow()[&OTHER].len(), 1, "the other queue keeps its receive");
        }
    }
}

#[test]
fn each_message_may_name_another_queue() {
    let mut pair = setup().pair();
    pair.post_srq_recv(SRQ, 10, 200_000, 5000);
    pair.post_srq_recv(OTHER, 20, 300_000, 5000);
    for (psn, srq) in [(0, SRQ), (2, OTHER)] {
        request(&mut pair, psn, Operation::SendFirst, srq, 0);
        request(&mut pair, psn + 1, Operation::SendLast, srq, 0);
    }
    assert_eq!(pair.outcomes(1, Queue::Receive), [(10, Status::Success), (20, Status::Success)]);
}

#[test]
fn a_read_is_answered_within_the_protection_domain_of_its_own_queue() {
    const OTHERS_KEY: u32 = 0x4321;
    let mut pair = setup().pair();
    let (remote_addr, rkey) = remote(0);
    {
        // Each protection domain has its own key for the same memory.
        let mut memory = pair.nodes[1].host.memory.borrow_mut();
        let own = memory.regions()[0];
        memory.regions().push(Region { key: OTHERS_KEY, ..own });
        memory.owners.extend([(rkey, SRQ), (OTHERS_KEY, OTHER)]);
    }
    let sges = vec![Sge { addr: address(300_000), length: 100, lkey: OTHERS_KEY }];
    pair.nodes[1].host.srqs.borrow_mut().entry(OTHER).or_default().push_back((20, sges));
    pair.nodes[1].host.srqs.borrow_mut().entry(SRQ).or_default();
    let post = |pair: &mut Pair, wr_id, op, at, len, srq| {
        let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, data: Data::Gather(&[sge(at, len)]) };
        pair.nodes[0].qp.post_send_to(&wr, Target::Srq(srq)).expect("room in the send queue");
    };
    // All of them arrive before the first response leaves.
    post(&mut pair, 1, SendOp::Read { remote_addr, rkey }, 500_000, 5000, SRQ);
    post(&mut pair, 2, SendOp::Send, 0, 100, OTHER);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(pair.outcomes(1, Queue::Receive), [(20, Status::Success)]);
    assert_eq!(pair.memory(0, 500_000, 5000), pair.memory(1, 0, 5000));
    // Naming the other protection domain's SRQ gives no access by this key.
    post(&mut pair, 3, SendOp::Read { remote_addr, rkey }, 500_000, 5000, OTHER);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send)[2], (3, Status::RemoteAccess));
}
