//! Attributes of a queue pair.

use crate::Access;
use bitflags::bitflags;
use thiserror::Error;
use weir_wire::{Psn, RnrTimer, Service};

/// `ibv_qp_state`, number for number (IBTA 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum QpState {
    #[default]
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqd = 4,
    Sqe = 5,
    Error = 6,
}

/// Path MTU, number for number as `ibv_mtu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u32)]
pub enum Mtu {
    M256 = 1,
    M512 = 2,
    #[default]
    M1024 = 3,
    M2048 = 4,
    M4096 = 5,
}

impl Mtu {
    /// Payload bytes per packet.
    pub const fn bytes(self) -> usize {
        128 << self as u32
    }

    /// From the number of `ibv_mtu`.
    pub const fn from_number(n: u32) -> Option<Mtu> {
        Some(match n {
            1 => Mtu::M256,
            2 => Mtu::M512,
            3 => Mtu::M1024,
            4 => Mtu::M2048,
            5 => Mtu::M4096,
            _ => return None,
        })
    }
}

/// `ibv_qp_cap`: capacities of the queues in work requests and SGEs; inline data in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QpCaps {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// The attributes with which a QP is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInit {
    /// Its number on the wire, 24 bits.
    pub qp_num: u32,
    /// RC, UC or UD.
    pub service: Service,
    /// Sizes of its queues, already within the adapter's limits.
    pub caps: QpCaps,
    /// Every send work request is signalled.
    pub sq_sig_all: bool,
}

/// The destination of a connection's packets: `ibv_ah_attr` and `ibv_global_route`. The protocol only stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AddressVector {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub is_global: bool,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub port_num: u8,
}

/// `ibv_qp_attr`. `modify` reads the fields that its mask names; `query` fills all fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    pub qp_state: QpState,
    pub cur_qp_state: QpState,
    pub path_mtu: Mtu,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: Psn,
    pub sq_psn: Psn,
    pub dest_qp_num: u32,
    pub access_flags: Access,
    pub caps: QpCaps,
    pub ah_attr: AddressVector,
    pub alt_ah_attr: AddressVector,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: bool,
    pub sq_draining: bool,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: RnrTimer,
    pub port_num: u8,
    /// Local ACK timeout: 4.096 µs · 2^n, 0 = infinite.
    pub timeout: u8,
    pub retry_cnt: u8,
    /// 7 = infinite.
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

bitflags! {
    /// `ibv_qp_attr_mask`, bit for bit.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AttrMask: u32 {
        const STATE = 1 << 0;
        const CUR_STATE = 1 << 1;
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        const ACCESS_FLAGS = 1 << 3;
        const PKEY_INDEX = 1 << 4;
        const PORT = 1 << 5;
        const QKEY = 1 << 6;
        const AV = 1 << 7;
        const PATH_MTU = 1 << 8;
        const TIMEOUT = 1 << 9;
        const RETRY_CNT = 1 << 10;
        const RNR_RETRY = 1 << 11;
        const RQ_PSN = 1 << 12;
        const MAX_QP_RD_ATOMIC = 1 << 13;
        const ALT_PATH = 1 << 14;
        const MIN_RNR_TIMER = 1 << 15;
        const SQ_PSN = 1 << 16;
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        const PATH_MIG_STATE = 1 << 18;
        const CAP = 1 << 19;
        const DEST_QPN = 1 << 20;
        const RATE_LIMIT = 1 << 25;
    }
}

/// Why a modify was refused. All variants are EINVAL; the text is for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ModifyError {
    #[error("no transition from {from:?} to {to:?}")]
    Transition { from: QpState, to: QpState },
    #[error("attributes {0:?} are required for this transition")]
    Missing(AttrMask),
    #[error("attributes {0:?} are not allowed in this transition")]
    NotAllowed(AttrMask),
    #[error("the current state is {0:?}, not the one in the caller's cur_qp_state")]
    CurrentState(QpState),
    #[error("the value of {0:?} is out of range")]
    Value(AttrMask),
    #[error("the value of {0:?} is above {1}, the limit of the adapter")]
    Limit(AttrMask, u8),
    #[error("{0:?}: RoCE has no path migration")]
    Migration(AttrMask),
}

impl Default for QpAttr {
    fn default() -> Self {
        QpAttr {
            qp_state: QpState::Reset,
            cur_qp_state: QpState::Reset,
            path_mtu: Mtu::M1024,
            path_mig_state: 0,
            qkey: 0,
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
            dest_qp_num: 0,
            access_flags: Access::empty(),
            caps: QpCaps::default(),
            ah_attr: AddressVector::default(),
            alt_ah_attr: AddressVector::default(),
            pkey_index: 0,
            alt_pkey_index: 0,
            en_sqd_async_notify: false,
            sq_draining: false,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: RnrTimer::new(0),
            port_num: 1,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            alt_port_num: 0,
            alt_timeout: 0,
            rate_limit: 0,
        }
    }
}
