//! Completion queues.

use super::{fi_addr_t, fi_wait_obj, fid, fid_wait};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// Which entries a completion queue has.
pub type fi_cq_format = c_uint;
/// The provider's choice.
pub const FI_CQ_FORMAT_UNSPEC: fi_cq_format = 0;
/// [`fi_cq_entry`].
pub const FI_CQ_FORMAT_CONTEXT: fi_cq_format = 1;
/// [`fi_cq_msg_entry`].
pub const FI_CQ_FORMAT_MSG: fi_cq_format = 2;
/// [`fi_cq_data_entry`].
pub const FI_CQ_FORMAT_DATA: fi_cq_format = 3;
/// [`fi_cq_tagged_entry`].
pub const FI_CQ_FORMAT_TAGGED: fi_cq_format = 4;

/// When `sread` returns.
pub type fi_cq_wait_cond = c_uint;
/// With any completion.
pub const FI_CQ_COND_NONE: fi_cq_wait_cond = 0;
/// With as many completions as the call's condition says (a `usize` in place of the pointer).
pub const FI_CQ_COND_THRESHOLD: fi_cq_wait_cond = 1;

/// A completion: its operation's context.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_cq_entry {
    pub op_context: *mut c_void,
}

/// A completion with its length.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_cq_msg_entry {
    pub op_context: *mut c_void,
    /// The kind of operation, and `FI_REMOTE_CQ_DATA`, `FI_MULTI_RECV`.
    pub flags: u64,
    /// Bytes received.
    pub len: usize,
}

/// A completion with immediate data.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_cq_data_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    /// Where the message begins in a buffer for several messages.
    pub buf: *mut c_void,
    /// Immediate data, if `flags` has `FI_REMOTE_CQ_DATA`.
    pub data: u64,
}

/// A completion with a tag.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_cq_tagged_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
}

/// A completion with an error. A program before version 1.5 has no `err_data_size`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_cq_err_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    /// Bytes of a truncated message that did not fit.
    pub olen: usize,
    /// Positive.
    pub err: c_int,
    /// What `strerror` takes.
    pub prov_errno: c_int,
    /// In: a buffer, if `err_data_size` is not 0. Otherwise out: the provider's memory.
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

/// Attributes of a completion queue.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_cq_attr {
    /// Least number of entries; 0: the provider's choice.
    pub size: usize,
    /// `FI_AFFINITY`, `FI_PEER`.
    pub flags: u64,
    pub format: fi_cq_format,
    pub wait_obj: fi_wait_obj,
    pub signaling_vector: c_int,
    pub wait_cond: fi_cq_wait_cond,
    pub wait_set: *mut fid_wait,
}

/// A completion queue.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fid_cq {
    pub fid: fid,
    pub ops: *mut fi_ops_cq,
}

/// Calls of a completion queue.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops_cq {
    /// Size of this table in bytes.
    pub size: usize,
    /// Buffer, entries that fit; returns the number of entries, or `-FI_EAGAIN`, or `-FI_EAVAIL`.
    pub read: Option<unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize>,
    /// As `read`, with the sources.
    pub readfrom: Option<unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize, *mut fi_addr_t) -> isize>,
    /// Returns 1, or `-FI_EAGAIN`.
    pub readerr: Option<unsafe extern "C" fn(*mut fid_cq, *mut fi_cq_err_entry, u64) -> isize>,
    /// As `read`, with a condition and a timeout in milliseconds.
    pub sread: Option<unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize, *const c_void, c_int) -> isize>,
    /// As `readfrom`, with a condition and a timeout in milliseconds.
    pub sreadfrom:
        Option<unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize, *mut fi_addr_t, *const c_void, c_int) -> isize>,
    /// Wakes a thread in `sread`.
    pub signal: Option<unsafe extern "C" fn(*mut fid_cq) -> c_int>,
    pub strerror: Option<unsafe extern "C" fn(*mut fid_cq, c_int, *const c_void, *mut c_char, usize) -> *const c_char>,
}
