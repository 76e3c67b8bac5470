//! Operations as structures: the arguments of the calls with names that end with `msg`.

use super::{fi_addr_t, fi_collective_op, fi_datatype, fi_ioc, fi_op, fi_rma_ioc};
use libc::iovec;
use std::ffi::c_void;

/// A message, or a receive.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_msg {
    pub msg_iov: *const iovec,
    /// For each buffer the descriptor of its memory region; null without `FI_MR_LOCAL`.
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub context: *mut c_void,
    /// Immediate data, with `FI_REMOTE_CQ_DATA`.
    pub data: u64,
}

/// A tagged message, or a tagged receive.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_msg_tagged {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub tag: u64,
    /// Bits of the tag that a receive does not compare.
    pub ignore: u64,
    pub context: *mut c_void,
    pub data: u64,
}

/// A buffer in a peer's memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_rma_iov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

/// A READ or a WRITE.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_msg_rma {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub rma_iov: *const fi_rma_iov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_msg_atomic {
    pub msg_iov: *const fi_ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub rma_iov: *const fi_rma_ioc,
    pub rma_iov_count: usize,
    pub datatype: fi_datatype,
    pub op: fi_op,
    pub context: *mut c_void,
    pub data: u64,
}

/// Where the values go that an atomic operation fetches.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_msg_fetch {
    pub msg_iov: *mut fi_ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
}

/// The values that an atomic operation compares with.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_msg_compare {
    pub msg_iov: *const fi_ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
}

/// A collective operation.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_msg_collective {
    pub msg_iov: *const fi_ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub coll_addr: fi_addr_t,
    pub root_addr: fi_addr_t,
    pub coll: fi_collective_op,
    pub datatype: fi_datatype,
    pub op: fi_op,
    pub context: *mut c_void,
}
