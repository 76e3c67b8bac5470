//! A QP that is connected to itself.

use crate::rdma::adapter::Adapter;
use crate::rdma::errno::{Errno, check, check_object};
use crate::rdma::queue_pair::{QueuePair, Queues};
use crate::rdma::region::{IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE};
use std::net::IpAddr;
use std::sync::Arc;
use weir_abi::*;

/// READs and atomics at a time, if the device allows so many.
const MAX_READS: u8 = 16;

/// An RC QP that is its own peer: what it sends arrives in its own receive queue.
pub struct SelfConnection {
    adapter: Arc<Adapter>,
    qp: QueuePair,
}

impl SelfConnection {
    /// A QP in the state RTS, on the adapter's own port.
    pub fn new(adapter: &Arc<Adapter>, queues: &Queues) -> Result<SelfConnection, Errno> {
        let address = route_to_self(adapter)?;
        let mut init = queues.init(adapter)?;
        // SAFETY: the PD and the CQs exist as long as the QP.
        let raw = check_object(unsafe { (adapter.libraries.ibv_create_qp)(adapter.pd, &mut init) })?;
        // SAFETY: the new QP, which is destroyed when this is dropped.
        let qp = unsafe { QueuePair::new(raw, queues, init.cap) };
        let connection = SelfConnection { adapter: adapter.clone(), qp };
        connection.establish(address)?;
        Ok(connection)
    }

    /// The QP, for posting.
    #[inline]
    pub fn qp(&self) -> &QueuePair {
        &self.qp
    }

    pub fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    /// INIT, RTR, RTS (IBTA 10.3.1).
    fn establish(&self, address: ibv_ah_attr) -> Result<(), Errno> {
        let device = self.adapter.attributes();
        let atomic = if device.atomics { IBV_ACCESS_REMOTE_ATOMIC } else { 0 };
        let mut attributes = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: device.port_num,
            qp_access_flags: (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | atomic) as u32,
            path_mtu: device.mtu_code,
            dest_qp_num: self.qp.number(),
            max_dest_rd_atomic: device.max_responder_resources.min(MAX_READS),
            // 0.64 ms, if the receive queue is empty (IBTA 9.7.5.2.8).
            min_rnr_timer: 12,
            ah_attr: address,
            // 67 ms: 4.096 µs · 2^14 (IBTA 9.7.6.1.3).
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: device.max_initiator_depth.min(MAX_READS),
            ..Default::default()
        };
        let init = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.qp.modify(attributes, IBV_QP_STATE | init)?;
        attributes.qp_state = IBV_QPS_RTR;
        let rtr = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        let rtr = rtr | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        self.qp.modify(attributes, IBV_QP_STATE | rtr)?;
        attributes.qp_state = IBV_QPS_RTS;
        let rts = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
        self.qp.modify(attributes, IBV_QP_STATE | rts)
    }
}

impl Drop for SelfConnection {
    fn drop(&mut self) {
        // SAFETY: the QP exists. Its CQs are dropped after this.
        unsafe { (self.adapter.libraries.ibv_destroy_qp)(self.qp.raw) };
    }
}

/// The way from the adapter's port to itself.
fn route_to_self(adapter: &Adapter) -> Result<ibv_ah_attr, Errno> {
    let device = adapter.attributes();
    let mut address = ibv_ah_attr { dlid: device.lid, port_num: device.port_num, ..Default::default() };
    if device.ethernet {
        let entry = own_gid(adapter)?;
        address.is_global = 1;
        address.grh.dgid = entry.gid;
        address.grh.sgid_index = u8::try_from(entry.gid_index).map_err(|_| Errno(libc::EADDRNOTAVAIL))?;
        address.grh.hop_limit = 64;
    }
    Ok(address)
}

/// The port's GID of the adapter's address: of RoCE v2 if there is one. EADDRNOTAVAIL: the port has none.
fn own_gid(adapter: &Adapter) -> Result<ibv_gid_entry, Errno> {
    let wanted = match adapter.address() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let port = adapter.attributes().port_num.into();
    let mut found = None;
    for index in 0..adapter.attributes().gid_table_length {
        let mut entry = ibv_gid_entry::default();
        // SAFETY: the device is open, and the library is told the structure's size.
        let queried = check(unsafe {
            let size = size_of::<ibv_gid_entry>();
            (adapter.libraries._ibv_query_gid_ex)(adapter.context, port, index, &mut entry, 0, size)
        });
        // An empty entry is an error: ENODATA.
        if queried.is_err() || entry.gid.raw != wanted {
            continue;
        }
        if entry.gid_type == IBV_GID_TYPE_ROCE_V2 {
            return Ok(entry);
        }
        found.get_or_insert(entry);
    }
    found.ok_or(Errno(libc::EADDRNOTAVAIL))
}
