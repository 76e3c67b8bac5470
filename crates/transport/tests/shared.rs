//! Shared receive queues of RC, UC, UD and XRC.

use weir_transport::testing::{Fate, Faults, Pair, SRQ, Setup, good, remote};
use weir_transport::*;
use weir_wire::{Aeth, NakCode, Operation, Syndrome, XrcEth};

fn setup(service: Service) -> Setup {
    Setup { service, srq: service != Service::Xrc, ..Setup::default() }
}

/// The shared receive queue of a service.
fn queue(service: Service) -> u32 {
    if service == Service::Xrc { SRQ } else { 0 }
}

#[test]
fn every_service_takes_receives_in_order() {
    for service in [Service::Rc, Service::Uc, Service::Ud, Service::Xrc] {
        let mut pair = setup(service).pair();
        for k in 0..4 {
            pair.post_srq_recv(queue(service), 10 + k, 200_000 + k as usize * 5000, 5000);
        }
        let len = if service == Service::Ud { 1000 } else { 4500 };
        for k in 0..3 {
            pair.post(k, SendOp::Send, k as usize * 5000, len);
        }
        if service != Service::Ud {
            let (remote_addr, rkey) = remote(500_000);
            pair.post(3, SendOp::WriteImm { remote_addr, rkey, imm: 5 }, 0, 3000);
        } else {
            pair.post(3, SendOp::SendImm { imm: 5 }, 0, 100);
        }
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good(0..4), "{service:?}");
        assert_eq!(pair.outcomes(1, Queue::Receive), good(10..14));
        let header = if service == Service::Ud { 40 } else { 0 };
        for k in 0..3 {
            let arrived = pair.memory(1, 200_000 + k * 5000 + header, len);
            assert_eq!(arrived, pair.memory(0, k * 5000, len), "{service:?} {k}");
        }
        assert_eq!(pair.completions(1, Queue::Receive)[3].imm, 5);
        assert!(pair.nodes[1].host.srqs.borrow()[&queue(service)].is_empty());
        assert!(pair.canaries_live());
    }
}

#[test]
fn an_empty_srq_causes_an_rnr_nak() {
    for service in [Service::Rc, Service::Xrc] {
        let mut pair = Setup { rnr_retry: 2, min_rnr_timer: 1, ..setup(service) }.pair();
        pair.nodes[1].host.srqs.borrow_mut().entry(queue(service)).or_default();
        pair.post(1, SendOp::Send, 0, 3000);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RnrRetryExceeded)]);

        let mut pair = Setup { min_rnr_timer: 20, ..setup(service) }.pair();
        pair.nodes[1].host.srqs.borrow_mut().entry(queue(service)).or_default();
        pair.post(1, SendOp::Send, 0, 3000);
        assert!(pair.run_until(|pair| pair.nodes[0].qp.requester_state() == RequesterState::WaitReceiver));
        pair.post_srq_recv(queue(service), 10, 200_000, 3000);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
        assert_eq!(pair.memory(1, 200_000, 3000), pair.memory(0, 0, 3000));
    }
}

#[test]
fn the_error_state_ends_with_the_last_receive() {
    let mut pair = setup(Service::Rc).pair();
    pair.post_srq_recv(0, 10, 200_000, 5000);
    pair.post_srq_recv(0, 11, 300_000, 5000);
    let (mut count, last) = (0, 2);
    pair.wire.rule = Some(Box::new(move |from, _| {
        count += usize::from(from == 0);
        if from == 0 && count > last { Fate::Drop } else { Fate::Pass }
    }));
    pair.post(1, SendOp::Send, 0, 5000);
    pair.run_until(|pair| pair.nodes[1].qp.responder_state() == ResponderState::InSend);
    pair.modify_from(1, QpState::Error, QpAttr::default());
    // The receive that a message had taken is flushed; the other one stays in the queue.
    assert_eq!(pair.outcomes(1, Queue::Receive), [(10, Status::WrFlushed)]);
    assert_eq!(pair.nodes[1].host.events().last(), Some(&QpEvent::LastWqeReached));
    assert_eq!(pair.nodes[1].host.srqs.borrow()[&0].len(), 1);
    pair.modify_from(1, QpState::Error, QpAttr::default());
    pair.transmit();
    let reported = pair.nodes[1].host.events().iter().filter(|event| **event == QpEvent::LastWqeReached).count();
    assert_eq!(reported, 1);
}

#[test]
fn a_qp_with_an_srq_refuses_posted_receives() {
    let mut pair = setup(Service::Rc).pair();
    let wr = RecvWr { wr_id: 1, sges: &[] };
    assert_eq!(pair.nodes[1].qp.post_recv(&wr), Err(PostError::Operation));
}

#[test]
fn xrc_does_what_rc_does() {
    let faults = Faults { loss: 0.05, duplication: 0.05, reordering: 0.05, corruption: 0.02 };
    for seed in 0..30 {
        let mut pair = Setup { faults, seed, mtu: Mtu::M256, ..setup(Service::Xrc) }.pair();
        let (remote_addr, rkey) = remote(600_000);
        for k in 0..10 {
            pair.post_srq_recv(SRQ, 10 + k, 200_000 + k as usize * 4000, 4000);
            pair.post(k * 4, SendOp::Send, k as usize * 4000, 3000);
            pair.post(k * 4 + 1, SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 500_000, 8);
            let (read_addr, _) = remote(k as usize * 4000);
            pair.post(k * 4 + 2, SendOp::Read { remote_addr: read_addr, rkey }, 700_000 + k as usize * 4000, 3000);
            let (write_addr, _) = remote(800_000 + k as usize * 4000);
            pair.post(k * 4 + 3, SendOp::Write { remote_addr: write_addr, rkey }, k as usize * 4000, 3000);
        }
        pair.fill(1, 600_000, &0u64.to_ne_bytes());
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good(0..40), "seed {seed}");
        assert_eq!(pair.outcomes(1, Queue::Receive), good(10..20));
        assert_eq!(pair.memory(1, 600_000, 8), 10u64.to_ne_bytes());
        for k in 0..10 {
            let sent = pair.memory(0, k * 4000, 3000);
            assert_eq!(pair.memory(1, 200_000 + k * 4000, 3000), sent);
            assert_eq!(pair.memory(1, 800_000 + k * 4000, 3000), sent);
            assert_eq!(pair.memory(0, 700_000 + k * 4000, 3000), pair.memory(1, k * 4000, 3000));
        }
        assert!(pair.canaries_live());
        let requests = pair.wire.log.iter().filter(|sent| sent.from == 0);
        assert!(requests.clone().count() > 0 && requests.clone().all(|sent| sent.headers.get::<XrcEth>().is_some()));
    }
}

/// Two connections, one RC and one XRC, share one queue.
#[test]
fn rc_and_xrc_share_one_queue() {
    let mut rc = setup(Service::Rc).pair();
    let mut xrc = setup(Service::Xrc).pair();
    let srqs = xrc.nodes[1].host.srqs.clone();
    rc.nodes[1].host.srqs = srqs.clone();
    rc.nodes[1].host.srq = SRQ;
    for k in 0..20 {
        xrc.post_srq_recv(SRQ, k, 200_000 + k as usize * 4000, 4000);
    }
    for k in 0..10 {
        rc.post(k, SendOp::Send, 0, 3000);
        xrc.post(k, SendOp::Send, 0, 3000);
    }
    while rc.step() | xrc.step() {}
    let of = |pair: &Pair| pair.outcomes(1, Queue::Receive).iter().map(|(id, _)| *id).collect::<Vec<_>>();
    let mut all = [of(&rc), of(&xrc)].concat();
    assert!(of(&rc).is_sorted() && of(&xrc).is_sorted());
    all.sort_unstable();
    assert_eq!(all, (0..20).collect::<Vec<_>>());
    assert_eq!((rc.outcomes(0, Queue::Send), xrc.outcomes(0, Queue::Send)), (good(0..10), good(0..10)));
}

#[test]
fn a_queue_that_does_not_exist_is_an_invalid_request() {
    let mut pair = setup(Service::Xrc).pair();
    pair.post(1, SendOp::Send, 0, 100);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RemoteInvalidRequest)]);
    let nak = |byte| Syndrome::from_byte(byte) == Syndrome::Nak(NakCode::InvalidRequest);
    assert_eq!(pair.wire.count(|sent| sent.headers.get::<Aeth>().is_some_and(|aeth| nak(aeth.syndrome()))), 1);
}

#[test]
fn both_ends_of_xrc_accept_the_attributes_of_both() {
    let setup = setup(Service::Xrc);
    let mut pair = setup.unconnected();
    let rtr = AttrMask::AV
        | AttrMask::PATH_MTU
        | AttrMask::DEST_QPN
        | AttrMask::RQ_PSN
        | AttrMask::MAX_DEST_RD_ATOMIC
        | AttrMask::MIN_RNR_TIMER;
    let rts =
        AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::SQ_PSN | AttrMask::MAX_QP_RD_ATOMIC;
    for node in 0..2 {
        pair.modify_from(node, QpState::Init, setup.attr(node));
        for (qp_state, mask) in [(QpState::Rtr, rtr), (QpState::Rts, rts)] {
            let attr = QpAttr { qp_state, ..setup.attr(node) };
            let testing = &mut pair.nodes[node];
            testing.qp.modify(pair.now, &attr, mask | AttrMask::STATE, &mut testing.host).expect("taken");
        }
    }
    pair.post_srq_recv(SRQ, 10, 0, 100);
    pair.post(1, SendOp::Send, 0, 100);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(1, Queue::Receive), good([10]));
}

#[test]
fn the_two_ends_of_xrc_have_one_direction() {
    let mut pair = setup(Service::Xrc).pair();
    let wr = SendWr { wr_id: 1, op: SendOp::Send, flags: SendFlags::empty(), data: Data::Gather(&[]) };
    assert_eq!(pair.nodes[1].qp.post_send_to(&wr, Target::Srq(SRQ)), Err(PostError::Operation));
    assert_eq!(pair.nodes[0].qp.post_send(&wr), Err(PostError::Operation), "no SRQ is named");
    assert_eq!(pair.nodes[1].qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }), Err(PostError::Operation));
    assert_eq!(pair.wire.count(|sent| sent.headers.bth.opcode.operation() == Some(Operation::SendOnly)), 0);
}
