//! Counters.

use super::{fi_wait_obj, fid, fid_wait};
use std::ffi::{c_int, c_uint};

/// What a counter counts.
pub type fi_cntr_events = c_uint;
/// Completed operations.
pub const FI_CNTR_EVENTS_COMP: fi_cntr_events = 0;

/// Attributes of a counter.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_cntr_attr {
    pub events: fi_cntr_events,
    pub wait_obj: fi_wait_obj,
    pub wait_set: *mut fid_wait,
    pub flags: u64,
}

/// A counter.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fid_cntr {
    pub fid: fid,
    pub ops: *mut fi_ops_cntr,
}

/// Calls of a counter.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops_cntr {
    /// Size of this table in bytes.
    pub size: usize,
    pub read: Option<unsafe extern "C" fn(*mut fid_cntr) -> u64>,
    /// The number of errors.
    pub readerr: Option<unsafe extern "C" fn(*mut fid_cntr) -> u64>,
    pub add: Option<unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int>,
    pub set: Option<unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int>,
    /// Threshold, timeout in milliseconds; `-FI_EAVAIL` if there are errors.
    pub wait: Option<unsafe extern "C" fn(*mut fid_cntr, u64, c_int) -> c_int>,
    pub adderr: Option<unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int>,
    pub seterr: Option<unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int>,
}
