//! Two connected QPs of an adapter, for tests.

use crate::adapter::Adapter;
use crate::objects::context::Context;
use crate::objects::cq::Cq;
use crate::objects::qp::{Qp, QpCreate};
use crate::{CompChannel, Pd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_transport::{
    AddressVector, AttrMask, Completion, Data, Mtu, PostError, Profile, QpAttr, QpCaps, QpState, RecvWr, SendFlags,
    SendOp, SendWr, Service,
};

/// An adapter for this test alone, and two connected QPs of it.
pub struct Bed {
    pub context: Arc<Context>,
    pub pd: Arc<Pd>,
    pub channel: Arc<CompChannel>,
    pub cq: Arc<Cq>,
    pub qps: [Arc<Qp>; 2],
}

impl Bed {
    /// `profile` differs between tests, so that each has its own adapter.
    pub fn new(profile: &Profile) -> Bed {
        let context = Context::open_as("weir_lo", profile).expect("the loopback interface is there");
        let pd = context.alloc_pd().unwrap();
        let channel = context.create_channel().unwrap();
        let cq = context.create_cq(64, Some(channel.clone()), 7).unwrap();
        let caps = QpCaps { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
        let create = QpCreate { service: Service::Rc, caps, sq_sig_all: true, cookie: 0 };
        let qps = [0, 1].map(|_| pd.create_qp(&create, &cq, &cq).unwrap());
        connect(&context, &qps[0], qps[1].num());
        connect(&context, &qps[1], qps[0].num());
        Bed { context, pd, channel, cq, qps }
    }

    /// The adapter.
    pub fn adapter(&self) -> &Arc<Adapter> {
        &self.context.adapter
    }

    /// Sends an empty message from the first QP to the second.
    pub fn send(&self) -> Result<(), PostError> {
        let data = Data::Inline(&[]);
        self.qps[0].post_send(&SendWr { wr_id: 1, op: SendOp::Send, flags: SendFlags::empty(), data })?;
        self.qps[0].doorbell();
        Ok(())
    }

    /// Posts a receive to the second QP.
    pub fn receive(&self, wr_id: u64) -> Result<(), PostError> {
        self.qps[1].post_recv(&RecvWr { wr_id, sges: &[] })?;
        self.qps[1].doorbell_receive();
        Ok(())
    }

    /// Polls until there are `count` completions.
    pub fn completions(&self, count: usize) -> Vec<Completion> {
        let mut found = Vec::new();
        let end = Instant::now() + Duration::from_secs(20);
        while found.len() < count {
            assert!(Instant::now() < end, "only {found:?}");
            self.cq.poll(16, |completion| found.push(*completion)).unwrap();
        }
        found
    }
}

fn connect(context: &Context, qp: &Qp, dest_qp_num: u32) {
    let gids = context.gids();
    let (index, address) = gids.iter().enumerate().find_map(|(index, gid)| gid.map(|gid| (index, gid))).unwrap();
    let dgid = match address {
        std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(v6) => v6.octets(),
    };
    let ah_attr =
        AddressVector { dgid, sgid_index: index as u8, is_global: true, port_num: 1, ..AddressVector::default() };
    let attr =
        |qp_state| QpAttr { qp_state, path_mtu: Mtu::M1024, dest_qp_num, ah_attr, timeout: 14, ..QpAttr::default() };
    use AttrMask as M;
    qp.modify(&attr(QpState::Init), M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS).unwrap();
    let responder = M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    qp.modify(&attr(QpState::Rtr), M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | responder).unwrap();
    let requester = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
    qp.modify(&attr(QpState::Rts), M::STATE | requester).unwrap();
}
