//! Work requests.

use super::{ibv_ah, ibv_mw, ibv_mw_bind_info};
use std::ffi::{c_int, c_uint, c_void};

pub const IBV_WR_RDMA_WRITE: c_int = 0;
pub const IBV_WR_RDMA_WRITE_WITH_IMM: c_int = 1;
pub const IBV_WR_SEND: c_int = 2;
pub const IBV_WR_SEND_WITH_IMM: c_int = 3;
pub const IBV_WR_RDMA_READ: c_int = 4;
pub const IBV_WR_ATOMIC_CMP_AND_SWP: c_int = 5;
pub const IBV_WR_ATOMIC_FETCH_AND_ADD: c_int = 6;
pub const IBV_WR_LOCAL_INV: c_int = 7;
pub const IBV_WR_BIND_MW: c_int = 8;
pub const IBV_WR_SEND_WITH_INV: c_int = 9;
pub const IBV_WR_TSO: c_int = 10;
pub const IBV_FLUSH_GLOBAL: u8 = 1;
pub const IBV_FLUSH_PERSISTENT: u8 = 2;
pub const IBV_FLUSH_RANGE: u8 = 0;
pub const IBV_FLUSH_MR: u8 = 1;
pub const IBV_WR_FLUSH: c_int = 14;
pub const IBV_WR_ATOMIC_WRITE: c_int = 15;
pub const IBV_SEND_FENCE: c_uint = 1;
pub const IBV_SEND_SIGNALED: c_uint = 2;
pub const IBV_SEND_SOLICITED: c_uint = 4;
pub const IBV_SEND_INLINE: c_uint = 8;
pub const IBV_SEND_IP_CSUM: c_uint = 16;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
pub struct ibv_data_buf {
    pub addr: *mut c_void,
    pub length: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_wr_rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_wr_atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_wr_ud {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_send_wr_target {
    pub rdma: ibv_wr_rdma,
    pub atomic: ibv_wr_atomic,
    pub ud: ibv_wr_ud,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_wr_xrc {
    pub remote_srqn: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_wr_bind_mw {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_wr_tso {
    pub hdr: *mut c_void,
    pub hdr_sz: u16,
    pub mss: u16,
}

/// The last union of [`ibv_send_wr`], which has no name in C.
#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_send_wr_extra {
    pub bind_mw: ibv_wr_bind_mw,
    pub tso: ibv_wr_tso,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    /// Immediate data in network byte order; in the header a union with `invalidate_rkey`.
    pub imm_data: u32,
    pub wr: ibv_send_wr_target,
    pub qp_type: ibv_wr_xrc,
    pub extra: ibv_send_wr_extra,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}
