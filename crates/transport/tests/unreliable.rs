//! UC and UD: a lost packet costs its own message and no other.

use weir_transport::testing::{Fate, Faults, NETWORK_HEADER, Pair, QKEY, Rng, Setup, good, remote, sge, write};
use weir_transport::*;
use weir_wire::{Bth, Deth, Opcode, Operation};

const UC: Unreliable = Unreliable(Service::Uc);
const UD: Unreliable = Unreliable(Service::Ud);

struct Unreliable(Service);

impl Unreliable {
    fn setup(&self) -> Setup {
        Setup { service: self.0, ..Setup::default() }
    }
    fn pair(&self) -> Pair {
        self.setup().pair()
    }
}

fn write_imm(at: usize, imm: u32) -> SendOp {
    let (remote_addr, rkey) = remote(at);
    SendOp::WriteImm { remote_addr, rkey, imm }
}

#[test]
fn uc_transfers_messages_of_every_length_without_acks() {
    for len in [0, 1, 1023, 1024, 1025, 5000, 100_000] {
        let mut pair = UC.pair();
        pair.post_recv(10, 200_000, len);
        pair.post_recv(11, 0, 0);
        pair.post_recv(12, 400_000, len + 7);
        pair.post(1, SendOp::Send, 1000, len);
        pair.post(2, write_imm(600_000, 0x55), 2000, len);
        pair.post(3, SendOp::SendImm { imm: 0x66 }, 3000, len);
        pair.post(4, write(800_000), 4000, len);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good(1..=4));
        assert_eq!(pair.outcomes(1, Queue::Receive), good(10..=12));
        for (at, from) in [(200_000, 1000), (600_000, 2000), (400_000, 3000), (800_000, 4000)] {
            assert_eq!(pair.memory(1, at, len), pair.memory(0, from, len), "{len} bytes");
        }
        let received = pair.completions(1, Queue::Receive);
        assert_eq!((received[1].opcode, received[1].imm), (WcOpcode::RecvRdmaWithImm, 0x55));
        assert_eq!(received[1].byte_len as usize, len);
        assert_eq!(pair.wire.count(|sent| sent.from == 1 || sent.headers.bth.ack_req), 0);
        assert!(pair.canaries_live());
    }
}

#[test]
fn a_message_with_a_gap_is_dropped_and_its_receive_serves_the_next() {
    for lost in [Operation::SendFirst, Operation::SendMiddle, Operation::SendLast] {
        let mut pair = UC.pair();
        let mut dropped = false;
        pair.wire.rule = Some(Box::new(move |_, packet| {
            let hit = !dropped && packet.headers.bth.opcode.operation() == Some(lost);
            dropped |= hit;
            if hit { Fate::Drop } else { Fate::Pass }
        }));
        pair.post_recv(10, 200_000, 5000);
        pair.post_recv(11, 300_000, 5000);
        for wr_id in 0..3 {
            pair.post(wr_id, SendOp::SendImm { imm: wr_id as u32 }, wr_id as usize * 5000, 3000);
        }
        // The messages end in SendLastImm, so that the case SendLast loses no packet.
        let lost_none = lost == Operation::SendLast;
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good(0..3), "sends complete in any case");
        assert_eq!(pair.outcomes(1, Queue::Receive), good([10, 11]));
        let imms: Vec<u32> = pair.completions(1, Queue::Receive).iter().map(|c| c.imm).collect();
        assert_eq!(imms, if lost_none { [0, 1] } else { [1, 2] }, "{lost:?}");
        let first = imms[0] as usize * 5000;
        assert_eq!(pair.memory(1, 200_000, 3000), pair.memory(0, first, 3000));
    }
}

/// Whether node 1 has a receive for a packet, `after` packets after the last one.
fn has_receive(pair: &mut Pair, service: Service, operation: Operation, after: u32) -> Option<bool> {
    let node = &mut pair.nodes[1];
    let psn = node.qp.attr().rq_psn.plus(after);
    node.qp.has_receive_for(&Bth::new(Opcode::new(service, operation), 0x12, psn), &mut node.host)
}

#[test]
fn a_uc_packet_that_is_dropped_in_any_case_lacks_no_receive() {
    let mut pair = UC.pair();
    let last = |pair: &mut Pair, after| has_receive(pair, Service::Uc, Operation::WriteLastImm, after);
    assert_eq!(last(&mut pair, 0), None, "its message has not begun");
    pair.wire.rule = Some(Box::new(|_, packet| {
        let last = packet.headers.bth.opcode.operation() == Some(Operation::WriteLastImm);
        if last { Fate::Drop } else { Fate::Pass }
    }));
    pair.post(1, write_imm(0, 7), 0, 3000);
    pair.run_until_idle();
    assert_eq!(last(&mut pair, 0), Some(false), "its message is complete but for it");
    assert_eq!(last(&mut pair, 1), None, "a packet before it is missing");
    let mut attr = Setup::default().attr(1);
    attr.access_flags = Access::LOCAL_WRITE;
    let node = &mut pair.nodes[1];
    node.qp.modify(pair.now, &attr, AttrMask::ACCESS_FLAGS, &mut node.host).expect("allowed in RTS");
    assert_eq!(last(&mut pair, 0), None, "the QP does not allow it");
}

#[test]
fn a_uc_packet_lacks_a_receive_only_where_its_message_takes_one() {
    let mut pair = UC.pair();
    let has = |pair: &mut Pair, service, operation| has_receive(pair, service, operation, 0);
    use Operation as O;
    let takes = [O::SendFirst, O::SendOnly, O::SendOnlyImm, O::WriteOnlyImm];
    let others = [O::SendMiddle, O::SendLast, O::SendLastImm, O::WriteFirst, O::WriteOnly, O::WriteLast];
    assert!(takes.iter().all(|operation| has(&mut pair, Service::Uc, *operation) == Some(false)));
    assert!(others.iter().all(|operation| has(&mut pair, Service::Uc, *operation).is_none()));
    assert_eq!(has(&mut pair, Service::Rc, O::SendOnly), None, "of another service");
    pair.post_recv(10, 200_000, 100);
    assert!(takes.iter().all(|operation| has(&mut pair, Service::Uc, *operation) == Some(true)));
}

#[test]
fn a_uc_responder_drops_invalid_requests_without_a_reply() {
    let mut pair = UC.pair();
    let (remote_addr, rkey) = remote(0);
    // No receive; a receive that is too short; an invalid rkey; an operation that is not allowed.
    pair.post(1, SendOp::Send, 0, 100);
    pair.run_until_idle();
    pair.post_recv(10, 300_000, 50);
    pair.post(2, SendOp::Send, 0, 100);
    pair.post(3, SendOp::Write { remote_addr, rkey: rkey + 1 }, 0, 3000);
    pair.run_until_idle();
    let mut attr = Setup::default().attr(1);
    attr.access_flags = Access::LOCAL_WRITE;
    let node = &mut pair.nodes[1];
    node.qp.modify(pair.now, &attr, AttrMask::ACCESS_FLAGS, &mut node.host).expect("allowed in RTS");
    let before = pair.memory(1, 0, 8192);
    pair.post(4, write(0), 8192, 3000);
    pair.post(5, SendOp::Send, 0, 50);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good(1..=5));
    assert_eq!(pair.outcomes(1, Queue::Receive), good([10]));
    assert_eq!(pair.memory(1, 0, 8192), before);
    assert_eq!(pair.nodes[1].host.events(), []);
    assert_eq!(pair.nodes[1].qp.state(), QpState::Rts);
}

#[test]
fn a_receive_with_an_invalid_lkey_moves_the_uc_receiver_to_error() {
    let mut pair = UC.pair();
    let bad = Sge { lkey: 1, ..sge(0, 100) };
    pair.nodes[1].qp.post_recv(&RecvWr { wr_id: 10, sges: &[bad] }).expect("room in the receive queue");
    pair.post_recv(11, 0, 100);
    pair.post(1, SendOp::Send, 0, 100);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(1, Queue::Receive), [(10, Status::LocalProtection), (11, Status::WrFlushed)]);
    assert_eq!(pair.nodes[1].qp.state(), QpState::Error);
    assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
    assert_eq!(pair.wire.count(|sent| sent.from == 1), 0);
}

#[test]
fn a_send_that_fails_leads_to_sqe_and_back() {
    for service in [UC, UD] {
        let mut pair = service.pair();
        let bad = Sge { lkey: 1, ..sge(0, 100) };
        let to = pair.target(0);
        pair.post(1, SendOp::Send, 0, 8);
        let wr = SendWr { wr_id: 2, op: SendOp::Send, flags: SendFlags::empty(), data: Data::Gather(&[bad]) };
        pair.nodes[0].qp.post_send_to(&wr, to).expect("room in the send queue");
        pair.post(3, SendOp::Send, 0, 8);
        pair.run_until_idle();
        let failed = [(1, Status::Success), (2, Status::LocalProtection), (3, Status::WrFlushed)];
        assert_eq!(pair.outcomes(0, Queue::Send), failed);
        assert_eq!(pair.nodes[0].qp.state(), QpState::Sqe);
        pair.post(4, SendOp::Send, 0, 8);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send)[3], (4, Status::WrFlushed), "posted in SQE");
        // It still receives in SQE.
        let node = &mut pair.nodes[0];
        node.qp.post_recv(&RecvWr { wr_id: 20, sges: &[sge(500_000, 100)] }).expect("room in the receive queue");
        pair.post_as(1, 30, SendOp::Send, 0, 8, SendFlags::empty());
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Receive), good([20]));
        // After the modify to RTS it sends again, with the PSN that its peer expects.
        pair.modify_from(0, QpState::Rts, QpAttr::default());
        pair.post_recv(10, 200_000, 200);
        pair.post(5, SendOp::Send, 0, 8);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send)[4], (5, Status::Success));
        assert_eq!(pair.outcomes(1, Queue::Receive), good([10]));
    }
}

#[test]
fn sqd_finishes_the_messages_that_were_begun() {
    let mut pair = Setup { burst: 2, ..UC.setup() }.pair();
    let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    pair.post_recv(10, 200_000, 9000);
    pair.post(1, SendOp::Send, 0, 9000);
    pair.post(2, SendOp::Send, 0, 9000);
    let node = &mut pair.nodes[0];
    // After one poll, two packets of the first message have left.
    let mut egress = weir_transport::testing::Staging::new(node.host.memory.clone(), 2);
    let limits = Limits { request_bytes: 0, read_bytes: 0 };
    node.qp.poll_transmit(pair.now, limits, &mut node.host, &mut egress);
    node.qp.modify(pair.now, &attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY, &mut node.host).expect("to SQD");
    assert_eq!(node.host.events(), []);
    for bytes in egress.packets {
        pair.wire.send(pair.now, 0, bytes);
    }
    pair.run_until_idle();
    assert_eq!(pair.nodes[0].host.events(), [QpEvent::SendQueueDrained]);
    assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
    pair.modify_from(0, QpState::Rts, QpAttr::default());
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good([1, 2]));
    assert_eq!(pair.outcomes(1, Queue::Receive), good([10]));
}

#[test]
fn services_refuse_unsupported_operations() {
    let wr = |op| SendWr { wr_id: 1, op, flags: SendFlags::empty(), data: Data::Gather(&[]) };
    let (remote_addr, rkey) = remote(0);
    let mut uc = UC.pair();
    let datagram = UD.pair().target(0);
    for op in [SendOp::Read { remote_addr, rkey }, SendOp::FetchAdd { remote_addr, rkey, add: 1 }] {
        assert_eq!(uc.nodes[0].qp.post_send(&wr(op)), Err(PostError::Operation));
    }
    assert_eq!(uc.nodes[0].qp.post_send_to(&wr(SendOp::Send), datagram), Err(PostError::Operation));
    let mut ud = UD.pair();
    assert_eq!(ud.nodes[0].qp.post_send_to(&wr(write(0)), datagram), Err(PostError::Operation));
    assert_eq!(ud.nodes[0].qp.post_send(&wr(SendOp::Send)), Err(PostError::Operation));
    let mut rc = Setup::default().pair();
    assert_eq!(rc.nodes[0].qp.post_send_to(&wr(SendOp::Send), Target::Srq(1)), Err(PostError::Operation));
}

#[test]
fn a_datagram_comes_with_its_network_header_and_its_sender() {
    let mut pair = UD.pair();
    for len in [0, 1, 1000, 1024] {
        pair.post_recv(10, 200_000, 40 + len);
        pair.post(1, SendOp::SendImm { imm: 0x77 }, 500, len);
        pair.run_until_idle();
        let received = *pair.completions(1, Queue::Receive).last().expect("one arrived");
        let reported = (received.byte_len as usize, received.src_qp, received.imm, received.flags);
        assert_eq!(reported, (40 + len, 0x11, 0x77, WcFlags::GRH | WcFlags::WITH_IMM));
        assert_eq!(received.network, Network::Ipv6, "{NETWORK_HEADER:x?} begins with version 6");
        assert_eq!(pair.memory(1, 200_000, 40), NETWORK_HEADER);
        assert_eq!(pair.memory(1, 200_040, len), pair.memory(0, 500, len));
    }
    assert!(pair.wire.log.iter().all(|sent| sent.headers.get::<Deth>().is_some_and(|deth| deth.src_qp.get() == 0x11)));
}

#[test]
fn a_datagram_longer_than_the_mtu_fails_at_its_sender() {
    let mut pair = UD.pair();
    pair.post_recv(10, 200_000, 4000);
    pair.post(1, SendOp::Send, 0, 1025);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::LocalLength)]);
    assert_eq!(pair.nodes[0].qp.state(), QpState::Sqe);
    assert_eq!(pair.wire.count(|_| true), 0);
}

#[test]
fn a_datagram_needs_the_right_q_key() {
    let mut pair = UD.pair();
    let Target::Datagram(to) = pair.target(0) else { panic!("UD") };
    pair.post_recv(10, 200_000, 100);
    let send = |pair: &mut Pair, wr_id, to| {
        let data = Data::Gather(&[]);
        let wr = SendWr { wr_id, op: SendOp::SendImm { imm: wr_id as u32 }, flags: SendFlags::SIGNALED, data };
        pair.nodes[0].qp.post_send_to(&wr, Target::Datagram(to)).expect("room in the send queue");
        pair.run_until_idle();
    };
    send(&mut pair, 1, Datagram { qkey: QKEY ^ 1, ..to });
    assert_eq!(pair.outcomes(1, Queue::Receive), []);
    // The high bit selects the sender's own Q_Key, which is the right one here.
    send(&mut pair, 2, Datagram { qkey: 0x8000_0000, ..to });
    assert_eq!(pair.outcomes(1, Queue::Receive), good([10]));
    assert_eq!(pair.outcomes(0, Queue::Send), good([1, 2]));
    // A receive that is too short, or missing, costs the datagram.
    pair.post_recv(11, 200_000, 39);
    send(&mut pair, 3, to);
    assert_eq!(pair.outcomes(1, Queue::Receive), good([10]));
    assert_eq!(pair.nodes[1].qp.state(), QpState::Rts);
}

/// Messages without a lost packet arrive complete and in order; all others do not arrive.
#[test]
fn loss_costs_only_the_messages_that_were_hit() {
    let mut rng = Rng(42);
    for (service, seed) in (0..40).flat_map(|seed| [(UC, seed), (UD, seed)]) {
        let ud = service.0 == Service::Ud;
        let faults = Faults { loss: 0.1, corruption: 0.05, ..Faults::default() };
        let mut pair = Setup { faults, seed, burst: 1 + seed as usize % 7, mtu: Mtu::M256, ..service.setup() }.pair();
        let lengths: Vec<usize> = (0..60).map(|_| rng.below(if ud { 257 } else { 3000 }) as usize).collect();
        for (k, len) in lengths.iter().enumerate() {
            pair.post_recv(k as u64, k * 4096, 4096);
            pair.post(k as u64, SendOp::SendImm { imm: k as u32 }, k * 4096, *len);
        }
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good(0..60));
        let received = pair.completions(1, Queue::Receive);
        let hit: Vec<usize> = lost_messages(&pair);
        let came: Vec<usize> = received.iter().map(|c| c.imm as usize).collect();
        let expected: Vec<usize> = (0..60).filter(|k| !hit.contains(k)).collect();
        assert_eq!(came, expected, "{:?} seed {seed}", service.0);
        for (slot, completion) in received.iter().enumerate() {
            let (k, header) = (completion.imm as usize, if ud { 40 } else { 0 });
            assert_eq!((completion.wr_id, completion.byte_len as usize), (slot as u64, header + lengths[k]));
            let arrived = pair.memory(1, slot * 4096 + header, lengths[k]);
            assert_eq!(arrived, pair.memory(0, k * 4096, lengths[k]));
        }
        assert!(pair.canaries_live());
    }
}

/// The messages of which a packet was lost on the wire.
fn lost_messages(pair: &Pair) -> Vec<usize> {
    let mut message = 0;
    let mut hit = Vec::new();
    for sent in &pair.wire.log {
        if sent.lost && hit.last() != Some(&message) {
            hit.push(message);
        }
        message += usize::from(sent.headers.bth.opcode.ends_message());
    }
    hit
}

/// Duplicated and reordered packets may cost messages, but never mix them.
#[test]
fn reordering_never_mixes_messages() {
    for seed in 0..60 {
        let faults = Faults { reordering: 0.2, duplication: 0.1, loss: 0.05, corruption: 0.0 };
        let mut pair = Setup { faults, seed, mtu: Mtu::M256, ..UC.setup() }.pair();
        for k in 0..50u64 {
            let len = 1 + (k as usize * 397) % 2000;
            pair.fill(0, k as usize * 4096, &vec![k as u8; len]);
            pair.post(k, SendOp::SendImm { imm: k as u32 }, k as usize * 4096, len);
        }
        for k in 0..64 {
            pair.post_recv(k, k as usize * 4096, 4096);
        }
        pair.run_until_idle();
        for completion in pair.completions(1, Queue::Receive) {
            let k = u64::from(completion.imm);
            let len = 1 + (k as usize * 397) % 2000;
            assert_eq!(completion.status, Status::Success);
            if completion.byte_len as usize == len {
                let bytes = pair.memory(1, completion.wr_id as usize * 4096, len);
                assert!(bytes.iter().all(|byte| *byte == k as u8), "seed {seed}: message {k} is mixed");
            } else {
                panic!("seed {seed}: message {k} has {} bytes, not {len}", completion.byte_len);
            }
        }
        assert!(pair.canaries_live());
    }
}

#[test]
fn a_message_that_is_too_long_for_its_receive() {
    for service in [Service::Uc, Service::Ud] {
        // In the QP's own receive queue the receive stays for the next message.
        let mut pair = Setup { service, ..Setup::default() }.pair();
        pair.post_recv(10, 200_000, 100);
        pair.post(1, SendOp::Send, 0, 101);
        pair.post(2, SendOp::Send, 0, 50);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(1, Queue::Receive), good([10]), "{service:?}");

        // A receive that was taken from a shared queue cannot be returned.
        let mut pair = Setup { service, srq: true, ..Setup::default() }.pair();
        pair.post_srq_recv(0, 10, 200_000, 100);
        pair.post_srq_recv(0, 11, 200_000, 100);
        let before = pair.memory(1, 200_000, 200);
        pair.post(1, SendOp::Send, 0, 101);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(1, Queue::Receive), [(10, Status::LocalLength)], "{service:?}");
        assert_eq!(pair.memory(1, 200_000, 200), before);
        pair.post(2, SendOp::Send, 0, 50);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(1, Queue::Receive)[1], (11, Status::Success));
        assert_eq!(pair.nodes[1].qp.state(), QpState::Rts);
        assert_eq!(pair.outcomes(0, Queue::Send), good(1..=2));
    }
}
