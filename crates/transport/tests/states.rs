//! QP states: which posts and packets each accepts, draining, resetting.

use weir_transport::testing::{Node, Pair, Setup, write};
use weir_transport::*;

fn post_send(pair: &mut Pair) -> Result<(), PostError> {
    let wr = SendWr { wr_id: 1, op: write(0), flags: SendFlags::empty(), data: Data::Gather(&[]) };
    pair.nodes[0].qp.post_send(&wr)
}

fn post_recv(pair: &mut Pair) -> Result<(), PostError> {
    pair.nodes[0].qp.post_recv(&RecvWr { wr_id: 1, sges: &[] })
}

#[test]
fn posting_depends_on_the_state() {
    let setup = Setup::default();
    let mut pair = setup.unconnected();
    assert_eq!(post_recv(&mut pair), Err(PostError::State));
    assert_eq!(post_send(&mut pair), Err(PostError::State));
    for state in [QpState::Init, QpState::Rtr] {
        pair.modify_from(0, state, setup.attr(0));
        assert_eq!(post_recv(&mut pair), Ok(()));
        assert_eq!(post_send(&mut pair), Err(PostError::State));
    }
    for state in [QpState::Rts, QpState::Sqd, QpState::Error] {
        pair.modify_from(0, state, setup.attr(0));
        assert_eq!(post_recv(&mut pair), Ok(()));
        assert_eq!(post_send(&mut pair), Ok(()));
    }
}

#[test]
fn a_query_returns_the_attributes_that_were_set() {
    let setup = Setup::default();
    let pair = setup.pair();
    let attr = pair.nodes[0].qp.attr();
    let expected = QpAttr { qp_state: QpState::Rts, cur_qp_state: QpState::Rts, caps: setup.caps, ..setup.attr(0) };
    assert_eq!(attr, expected);
    assert_eq!((pair.nodes[0].qp.num(), pair.nodes[0].qp.caps()), (0x11, setup.caps));
}

#[test]
fn a_refused_modify_changes_nothing() {
    let setup = Setup::default();
    let mut pair = setup.pair();
    let before = pair.nodes[0].qp.attr();
    let Node { qp, host, .. } = &mut pair.nodes[0];
    let attr = QpAttr { qp_state: QpState::Rts, min_rnr_timer: weir_wire::RnrTimer::new(3), ..QpAttr::default() };
    let mask = AttrMask::STATE | AttrMask::MIN_RNR_TIMER | AttrMask::TIMEOUT;
    assert_eq!(qp.modify(pair.now, &attr, mask, host), Err(ModifyError::NotAllowed(AttrMask::TIMEOUT)));
    assert_eq!(qp.attr(), before);
    let mask = mask - AttrMask::TIMEOUT;
    assert_eq!(qp.modify(pair.now, &attr, mask, host), Ok(()));
    assert_eq!(qp.attr(), QpAttr { min_rnr_timer: attr.min_rnr_timer, ..before });
}

#[test]
fn communication_is_established_by_the_first_packet_in_rtr() {
    let setup = Setup::default();
    let mut pair = setup.unconnected();
    pair.connect(0, &setup);
    pair.post(1, write(0), 0, 10);
    // In INIT the packet is dropped.
    pair.modify_from(1, QpState::Init, setup.attr(1));
    pair.step();
    assert_eq!(pair.nodes[1].host.journal.len(), 0);
    pair.modify_from(1, QpState::Rtr, setup.attr(1));
    pair.post(2, write(0), 0, 10);
    pair.run_until_idle();
    assert_eq!(pair.nodes[1].host.events(), [QpEvent::CommunicationEstablished]);
    // In RTR the QP responds.
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn draining_finishes_only_work_that_was_begun() {
    let mut setup = Setup::default();
    setup.window.request_bytes = 4000;
    let mut pair = setup.pair();
    pair.post(1, write(0), 0, 100);
    pair.post(2, write(0), 0, 20_000);
    pair.post(3, write(0), 0, 100);
    pair.transmit();
    pair.modify_from(0, QpState::Sqd, QpAttr::default());
    let Node { qp, host, .. } = &mut pair.nodes[0];
    let notify = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    let refused = qp.modify(pair.now, &notify, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY, host);
    assert_eq!(refused, Err(ModifyError::NotAllowed(AttrMask::EN_SQD_ASYNC_NOTIFY)));
    assert!(qp.attr().sq_draining);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success), (2, Status::Success)]);
    assert!(!pair.nodes[0].qp.attr().sq_draining);
    assert_eq!(pair.nodes[0].host.events(), []);
    assert!(!pair.nodes[0].qp.has_to_send());
    pair.modify_from(0, QpState::Rts, QpAttr::default());
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send).last(), Some(&(3, Status::Success)));
}

#[test]
fn the_drained_event_comes_once_if_asked_for() {
    for busy in [false, true] {
        let mut pair = Setup::default().pair();
        if busy {
            pair.post(1, write(0), 0, 5000);
            pair.transmit();
        }
        let Node { qp, host, .. } = &mut pair.nodes[0];
        let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
        qp.modify(pair.now, &attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY, host).unwrap();
        assert_eq!(host.events().is_empty(), busy);
        pair.run_until_idle();
        assert_eq!(pair.nodes[0].host.events(), [QpEvent::SendQueueDrained]);
    }
}

#[test]
fn reset_discards_everything_and_the_qp_can_be_connected_again() {
    let setup = Setup::default();
    let mut pair = setup.pair();
    pair.post(1, write(0), 0, 5000);
    pair.run_until_idle();
    pair.post(2, write(0), 0, 5000);
    pair.post_recv(3, 0, 10);
    pair.transmit();
    for node in 0..2 {
        pair.modify_from(node, QpState::Reset, QpAttr::default());
        let qp = &pair.nodes[node].qp;
        assert_eq!(qp.attr(), QpAttr { caps: setup.caps, ..QpAttr::default() });
        assert!(!qp.has_to_send() && qp.poll_timeout().is_none());
        assert_eq!(qp.in_flight(), InFlight::default());
    }
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)]);
    assert_eq!(pair.outcomes(1, Queue::Receive), []);
    let again = Setup { psn: [0x70_0000, 0x71_0000], ..setup };
    for node in 0..2 {
        pair.connect(node, &again);
    }
    pair.post(4, write(0), 0, 5000);
    pair.run_until_idle();
    let last = *pair.completions(0, Queue::Send).last().unwrap();
    // The counters start again.
    assert_eq!((last.wr_id, last.status, last.retired), (4, Status::Success, 1));
}

#[test]
fn modify_to_error_flushes_in_order_and_a_closed_qp_stays_silent() {
    let mut pair = Setup::default().pair();
    for wr_id in 1..=3 {
        pair.post_as(0, wr_id, write(0), 0, 3000, SendFlags::empty());
    }
    pair.transmit();
    for wr_id in 11..=12 {
        pair.nodes[0].qp.post_recv(&RecvWr { wr_id, sges: &[] }).unwrap();
    }
    pair.modify_from(0, QpState::Error, QpAttr::default());
    assert_eq!(pair.outcomes(0, Queue::Send), [1, 2, 3].map(|id| (id, Status::WrFlushed)));
    assert_eq!(pair.outcomes(0, Queue::Receive), [11, 12].map(|id| (id, Status::WrFlushed)));
    let retired: Vec<u32> = pair.completions(0, Queue::Send).iter().map(|c| c.retired).collect();
    assert_eq!(retired, [1, 2, 3]);
    pair.post_as(1, 1, write(0), 0, 10, SendFlags::SIGNALED);
    let before = pair.wire.count(|s| s.from == 0);
    pair.run_until_idle();
    assert_eq!(pair.wire.count(|s| s.from == 0), before);
    assert_eq!(pair.outcomes(1, Queue::Send), [(1, Status::RetryExceeded)]);
}
