//! The attributes of QPs that librdmacm sets (INIT_QP_ATTR).

use super::id::{Id, QpType, UDP_QKEY};
use super::{EINVAL, Manager, Outcome, check_room, respond};
use crate::abi::{self, AddressVector, GlobalRoute, QpAttr};
use crate::address;

/// `enum ibv_qp_attr_mask`.
mod mask {
    pub const STATE: u32 = 1 << 0;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_COUNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const DEST_QPN: u32 = 1 << 20;
}

/// `enum ibv_qp_state`.
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;
const REMOTE_WRITE: u32 = 2;
const REMOTE_READ: u32 = 4;
const REMOTE_ATOMIC: u32 = 8;

impl Manager {
    pub(super) fn init_qp_attr(&mut self, file: u64, command: abi::InitQpAttr, room: usize) -> Outcome {
        check_room(room, size_of::<QpAttr>())?;
        if command.state > 6 {
            return Err(EINVAL);
        }
        let id = self.id(file, command.id)?;
        let attributes = attributes(id, command.state).ok_or(EINVAL)?;
        Ok(respond(command.response, &attributes, room))
    }
}

/// The attributes of a transition to a state; `None` if the id cannot say them.
fn attributes(id: &Id, state: u32) -> Option<QpAttr> {
    id.attached.as_ref()?;
    let mut attributes = QpAttr { state, mask: mask::STATE, port: 1, ..QpAttr::default() };
    let agreed = &id.agreed;
    if id.is_datagram() || id.connection.is_none() {
        attributes.mask |= mask::PKEY_INDEX | mask::PORT;
        if id.is_datagram() {
            attributes.qkey = if id.qkey == 0 { UDP_QKEY } else { id.qkey };
            attributes.mask |= mask::QKEY;
        } else {
            attributes.mask |= mask::ACCESS_FLAGS;
        }
        return Some(attributes);
    }
    match state {
        INIT => {
            attributes.mask |= mask::ACCESS_FLAGS | mask::PKEY_INDEX | mask::PORT;
            attributes.access = REMOTE_WRITE;
            if agreed.responder_resources > 0 {
                attributes.access |= REMOTE_READ | REMOTE_ATOMIC;
            }
        }
        RTR if agreed.known => {
            attributes.mask |= mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
            attributes.address = address_vector(id);
            attributes.path_mtu = agreed.path_mtu.into();
            attributes.dest_qp_num = agreed.qpn;
            attributes.rq_psn = id.psn;
            if matches!(id.qp_type, QpType::Rc | QpType::XrcTarget) {
                attributes.mask |= mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER;
                attributes.max_dest_rd_atomic = agreed.responder_resources;
            }
        }
        RTS if agreed.known => {
            attributes.mask |= mask::SQ_PSN;
            attributes.sq_psn = agreed.psn;
            if matches!(id.qp_type, QpType::Rc | QpType::XrcInitiator) {
                attributes.mask |= mask::RETRY_COUNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;
                attributes.retry_count = agreed.retry_count;
                attributes.rnr_retry = agreed.rnr_retry_count;
                attributes.max_rd_atomic = agreed.initiator_depth;
            }
            if id.qp_type != QpType::Uc {
                attributes.mask |= mask::TIMEOUT;
                attributes.timeout = id.ack_timeout.unwrap_or(agreed.timeout);
            }
        }
        _ => return None,
    }
    Some(attributes)
}

/// The way from an id to its peer.
pub(super) fn address_vector(id: &Id) -> AddressVector {
    const HOPS: u8 = 64;
    let Some((remote, attached)) = id.remote.zip(id.attached.as_ref()) else { return AddressVector::default() };
    AddressVector {
        grh: GlobalRoute {
            dgid: address::gid(remote.ip()),
            flow_label: id.agreed.flow_label,
            sgid_index: attached.gid_index,
            hop_limit: if id.agreed.hop_limit > 1 { id.agreed.hop_limit } else { HOPS },
            traffic_class: id.traffic_class.unwrap_or(id.agreed.traffic_class),
            reserved: 0,
        },
        sl: id.agreed.service_level,
        is_global: 1,
        port: 1,
        ..AddressVector::default()
    }
}
