//! Shared by tests of an opened adapter: two QPs of one process, connected over the loopback interface.

use std::net::IpAddr;
use std::sync::Arc;
use weir_device::{Context, Cq, Pd, Qp, QpCreate};
use weir_transport::{Access, AddressVector, AttrMask, Mtu, QpAttr, QpCaps, QpState, Service};

/// A small QP; all of its sends are signaled.
pub fn create(service: Service) -> QpCreate {
    let caps = QpCaps { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 0 };
    QpCreate { service, caps, sq_sig_all: true, cookie: 0 }
}

/// Opens the loopback device.
pub fn open() -> Arc<Context> {
    Context::open("weir_lo").expect("the loopback interface is there")
}

/// An RC QP and the CQ of all its completions.
pub struct End {
    pub qp: Arc<Qp>,
    pub cq: Arc<Cq>,
}

/// Two connected QPs, in RTS.
pub fn pair(pd: &Arc<Pd>, context: &Arc<Context>) -> [End; 2] {
    let make = || {
        let cq = context.create_cq(64, None, 0).unwrap();
        End { qp: pd.create_qp(&create(Service::Rc), &cq, &cq).unwrap(), cq }
    };
    let ends = [make(), make()];
    connect(context, &ends[0].qp, ends[1].qp.num());
    connect(context, &ends[1].qp, ends[0].qp.num());
    ends
}

/// The address of this machine.
pub fn to_self(context: &Context) -> AddressVector {
    let v4 = |gid: &Option<IpAddr>| matches!(gid, Some(IpAddr::V4(_)));
    let sgid_index = context.gids().iter().position(v4).expect("127.0.0.1 is there");
    let Some(Some(IpAddr::V4(address))) = context.gids().get(sgid_index).copied() else { unreachable!("just found") };
    AddressVector {
        dgid: address.to_ipv6_mapped().octets(),
        sgid_index: sgid_index as u8,
        hop_limit: 64,
        is_global: true,
        port_num: 1,
        ..AddressVector::default()
    }
}

/// Brings an RC QP to RTS, connected to another QP of this process.
pub fn connect(context: &Context, qp: &Qp, dest_qp_num: u32) {
    let rest = QpAttr { max_rd_atomic: 1, max_dest_rd_atomic: 1, timeout: 14, ..QpAttr::default() };
    connect_with(context, qp, dest_qp_num, &rest);
}

/// The same; the READ limits and timers are those of `rest`.
pub fn connect_with(context: &Context, qp: &Qp, dest_qp_num: u32, rest: &QpAttr) {
    let mut attr = QpAttr {
        qp_state: QpState::Init,
        access_flags: Access::REMOTE_WRITE | Access::REMOTE_READ,
        path_mtu: Mtu::M4096,
        dest_qp_num,
        ah_attr: to_self(context),
        retry_cnt: 7,
        rnr_retry: 7,
        ..*rest
    };
    use AttrMask as M;
    let init = M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    qp.modify(&attr, init).unwrap();
    attr.qp_state = QpState::Rtr;
    let responder = M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    qp.modify(&attr, M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | responder).unwrap();
    attr.qp_state = QpState::Rts;
    let requester = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
    qp.modify(&attr, M::STATE | requester).unwrap();
}
