//! Event queues.

use super::{fi_wait_obj, fid, fid_t, fid_wait};
use std::ffi::{c_char, c_int, c_void};

/// Events: of a provider.
pub const FI_NOTIFY: u32 = 0;
/// A connection request (`fi_eq_cm_entry`).
pub const FI_CONNREQ: u32 = 1;
/// A connection is established (`fi_eq_cm_entry`).
pub const FI_CONNECTED: u32 = 2;
/// A connection has ended (`fi_eq_cm_entry`).
pub const FI_SHUTDOWN: u32 = 3;
/// A memory region is registered ([`fi_eq_entry`]).
pub const FI_MR_COMPLETE: u32 = 4;
/// An insertion is finished ([`fi_eq_entry`]: `data` is the number of inserted addresses).
pub const FI_AV_COMPLETE: u32 = 5;
/// A group is joined ([`fi_eq_entry`]).
pub const FI_JOIN_COMPLETE: u32 = 6;

/// Attributes of an event queue.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_eq_attr {
    /// Least number of entries; 0: the provider's choice.
    pub size: usize,
    /// `FI_WRITE`: the program writes events; `FI_AFFINITY`.
    pub flags: u64,
    pub wait_obj: fi_wait_obj,
    pub signaling_vector: c_int,
    pub wait_set: *mut fid_wait,
}

/// An event of an asynchronous call.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_eq_entry {
    pub fid: fid_t,
    pub context: *mut c_void,
    pub data: u64,
}

/// An error. A program before version 1.5 has no `err_data_size`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_eq_err_entry {
    pub fid: fid_t,
    pub context: *mut c_void,
    pub data: u64,
    /// Positive.
    pub err: c_int,
    /// What `strerror` takes.
    pub prov_errno: c_int,
    /// In: a buffer, if `err_data_size` is not 0. Otherwise out: the provider's memory.
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

/// An event queue.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fid_eq {
    pub fid: fid,
    pub ops: *mut fi_ops_eq,
}

/// Calls of an event queue.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops_eq {
    /// Size of this table in bytes.
    pub size: usize,
    /// Where the event and its entry go, size of the buffer, flags (`FI_PEEK`); returns the entry's size, or
    /// `-FI_EAGAIN`, or `-FI_EAVAIL`.
    pub read: Option<unsafe extern "C" fn(*mut fid_eq, *mut u32, *mut c_void, usize, u64) -> isize>,
    pub readerr: Option<unsafe extern "C" fn(*mut fid_eq, *mut fi_eq_err_entry, u64) -> isize>,
    pub write: Option<unsafe extern "C" fn(*mut fid_eq, u32, *const c_void, usize, u64) -> isize>,
    /// As `read`, with a timeout in milliseconds before the flags.
    pub sread: Option<unsafe extern "C" fn(*mut fid_eq, *mut u32, *mut c_void, usize, c_int, u64) -> isize>,
    pub strerror: Option<unsafe extern "C" fn(*mut fid_eq, c_int, *const c_void, *mut c_char, usize) -> *const c_char>,
}
