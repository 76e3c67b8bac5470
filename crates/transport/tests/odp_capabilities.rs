//! Adapters that have ODP for some operations only: where a page is missing the others fail, as with memory that is not
//! mapped, and where all pages are present they work.

#[allow(dead_code, reason = "other tests use the rest")]
mod page_fault_setup;

use page_fault_setup::*;
use std::time::Duration;
use weir_transport::testing::{Pair, SRQ, Setup, good, remote};
use weir_transport::*;

/// `vendor_err` of an operation without ODP.
const NO_ODP: u32 = 0x109;

/// The ideal adapter without these operations of any service.
fn without(operations: OdpOps) -> Profile {
    let ideal = Profile::ideal();
    let [rc, uc, ud, xrc] = [ideal.device.odp.rc, ideal.device.odp.uc, ideal.device.odp.ud, ideal.device.odp.xrc]
        .map(|all| all - operations);
    Profile { device: DeviceAttributes { odp: OdpCaps { implicit: true, rc, uc, ud, xrc }, ..ideal.device }, ..ideal }
}

fn lacks(service: Service, operations: OdpOps) -> Pair {
    Setup { service, profile: without(operations), ..setup(MS) }.pair()
}

fn ended(pair: &Pair, node: usize, queue: Queue) -> Vec<(u64, Status, u32)> {
    pair.completions(node, queue).iter().map(|done| (done.wr_id, done.status, done.vendor_err)).collect()
}

/// What the requester needs for an operation, and what the responder.
fn needs(op: &SendOp) -> (OdpOps, OdpOps) {
    match op {
        SendOp::Send | SendOp::SendImm { .. } => (OdpOps::SEND, OdpOps::RECV),
        SendOp::Read { .. } => (OdpOps::READ, OdpOps::READ),
        SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => (OdpOps::ATOMIC, OdpOps::ATOMIC),
        SendOp::AtomicWrite { .. } => (OdpOps::ATOMIC_WRITE, OdpOps::ATOMIC_WRITE),
        _ => (OdpOps::WRITE, OdpOps::WRITE),
    }
}

#[test]
fn an_operation_without_odp_fails_on_the_side_whose_page_is_missing() {
    for (op, len) in every_operation() {
        let (here, there) = needs(&op);
        let mut pair = lacks(Service::Rc, here);
        warm(&mut pair, 1);
        pair.post_recv(10, REMOTE_OFFSET, 5000);
        pair.post(1, op, 1000, len);
        pair.run_until_idle();
        assert_eq!(ended(&pair, 0, Queue::Send), [(1, Status::LocalProtection, NO_ODP)], "{op:?}");
        assert_eq!(pair.wire.log.len(), 0, "{op:?}");
        let why = pair.nodes[0].qp.take_ending().and_then(|ending| ending.why).expect("the log says why");
        assert!(why.contains("odp_caps"), "{why}");

        let mut pair = lacks(Service::Rc, there);
        warm(&mut pair, 0);
        pair.post_recv(10, REMOTE_OFFSET, 5000);
        pair.post(1, op, 1000, len);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RemoteOperation)], "{op:?}");
        let (status, vendor) = match op {
            SendOp::Send | SendOp::SendImm { .. } => (Status::LocalProtection, NO_ODP),
            _ => (Status::WrFlushed, 0),
        };
        assert_eq!(ended(&pair, 1, Queue::Receive), [(10, status, vendor)], "{op:?}");
        assert_eq!(pair.nodes[1].host.events(), [QpEvent::Fatal], "{op:?}");
        let why = pair.nodes[1].qp.take_ending().and_then(|ending| ending.why).expect("the log says why");
        assert!(why.contains("odp_caps"), "{why}");
        assert!(pair.canaries_live());
    }
}

#[test]
fn operations_without_odp_work_where_all_pages_are_present() {
    for service in [Service::Rc, Service::Xrc] {
        let mut pair = lacks(service, OdpOps::all());
        warm(&mut pair, 0);
        warm(&mut pair, 1);
        for (k, (op, len)) in every_operation().into_iter().enumerate() {
            match service {
                Service::Xrc => pair.post_srq_recv(SRQ, 10, REMOTE_OFFSET, 5000),
                _ => pair.post_recv(10, REMOTE_OFFSET, 5000),
            }
            pair.post(k as u64, op, 1000, len);
        }
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good(0..8), "{service:?}");
    }
}

#[test]
fn other_operations_wait_for_their_pages() {
    for (op, len) in every_operation() {
        let (here, there) = needs(&op);
        let mut pair = lacks(Service::Rc, OdpOps::all() - here - there);
        pair.post_recv(10, REMOTE_OFFSET, 5000);
        pair.post(1, op, 1000, len);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good([1]), "{op:?}");
        assert!(pair.paging(0).counts.met > 0 && pair.paging(1).counts.met > 0, "{op:?}");
    }
}

#[test]
fn receives_of_a_shared_queue_have_a_capability_of_their_own() {
    for (service, missing, sent) in [
        (Service::Rc, OdpOps::SRQ_RECV, Status::RemoteOperation),
        (Service::Rc, OdpOps::RECV, Status::Success),
        (Service::Xrc, OdpOps::SRQ_RECV, Status::RemoteOperation),
    ] {
        let mut pair = Setup { service, srq: true, profile: without(missing), ..setup(MS) }.pair();
        let srq = if service == Service::Xrc { SRQ } else { 0 };
        pair.post_srq_recv(srq, 10, REMOTE_OFFSET, 5000);
        pair.post(1, SendOp::Send, 1000, 5000);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, sent)], "{service:?} {missing:?}");
        let received = if sent == Status::Success { Status::Success } else { Status::LocalProtection };
        assert_eq!(pair.outcomes(1, Queue::Receive), [(10, received)], "{service:?} {missing:?}");
    }
}

#[test]
fn an_xrc_send_without_odp_fails() {
    let mut pair = lacks(Service::Xrc, OdpOps::SEND);
    pair.post_srq_recv(SRQ, 10, REMOTE_OFFSET, 5000);
    pair.post(1, SendOp::Send, 1000, 5000);
    pair.run_until_idle();
    assert_eq!(ended(&pair, 0, Queue::Send), [(1, Status::LocalProtection, NO_ODP)]);
}

#[test]
fn unreliable_services_fail_locally() {
    for service in [Service::Uc, Service::Ud] {
        // The sender: its send queue stops.
        let mut pair = lacks(service, OdpOps::SEND);
        pair.post(1, SendOp::Send, 1000, 500);
        pair.run_until_idle();
        assert_eq!(ended(&pair, 0, Queue::Send), [(1, Status::LocalProtection, NO_ODP)], "{service:?}");
        assert_eq!(pair.nodes[0].qp.state(), QpState::Sqe, "{service:?}");

        // The receiver: its QP fails, and the sender learns nothing.
        let mut pair = lacks(service, OdpOps::RECV);
        pair.post_recv(10, REMOTE_OFFSET, 5000);
        pair.post(1, SendOp::Send, 1000, 500);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good([1]), "{service:?}");
        assert_eq!(ended(&pair, 1, Queue::Receive), [(10, Status::LocalProtection, NO_ODP)], "{service:?}");
        assert_eq!(pair.nodes[1].qp.state(), QpState::Error, "{service:?}");
    }
}

#[test]
fn a_uc_write_without_odp_is_lost() {
    let mut pair = lacks(Service::Uc, OdpOps::WRITE);
    warm(&mut pair, 0);
    let before = pair.memory(1, REMOTE_OFFSET, 500);
    pair.post(1, write(), 1000, 500);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
    assert_eq!((pair.nodes[1].qp.state(), pair.memory(1, REMOTE_OFFSET, 500)), (QpState::Rts, before));
}

#[test]
fn an_adapter_that_sends_rnr_naks_and_drops_responses_fails_such_operations_too() {
    let odd = |operations| {
        let page_faults = PageFaults {
            requester: RequesterFaults::Discard { retransmit: Delay::exactly(Duration::from_micros(500)) },
            responder: ResponderFaults::RnrNak { read_after: Duration::from_micros(100) },
            ..Profile::ideal().page_faults
        };
        Setup { profile: Profile { page_faults, ..without(operations) }, ..setup(MS) }.pair()
    };
    let (remote_addr, rkey) = remote(REMOTE_OFFSET);
    let atomic = SendOp::FetchAdd { remote_addr, rkey, add: 3 };
    // The response of an atomic, or of a READ, meets a missing page.
    for (op, missing) in [(atomic, OdpOps::ATOMIC), (read(), OdpOps::READ)] {
        let mut pair = odd(missing);
        warm(&mut pair, 1);
        pair.post(1, op, 1000, 8);
        pair.run_until_idle();
        assert_eq!(ended(&pair, 0, Queue::Send), [(1, Status::LocalProtection, NO_ODP)], "{op:?}");
    }
    // The responder sends a NAK, and no RNR NAK before it.
    for (op, missing) in [(atomic, OdpOps::ATOMIC), (read(), OdpOps::READ), (write(), OdpOps::WRITE)] {
        let mut pair = odd(missing);
        warm(&mut pair, 0);
        pair.post(1, op, 1000, 8);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RemoteOperation)], "{op:?}");
        assert_eq!(naks(&pair), 1, "{op:?}");
    }
}
