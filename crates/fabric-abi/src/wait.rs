//! Wait sets and poll sets.

use super::fid;
use std::ffi::{c_int, c_uint, c_void};

/// What a thread waits for.
pub type fi_wait_obj = c_uint;
/// Nothing: no thread waits.
pub const FI_WAIT_NONE: fi_wait_obj = 0;
/// The provider's choice: threads wait in its calls only.
pub const FI_WAIT_UNSPEC: fi_wait_obj = 1;
/// A wait set.
pub const FI_WAIT_SET: fi_wait_obj = 2;
/// A file descriptor.
pub const FI_WAIT_FD: fi_wait_obj = 3;
/// A pthread mutex and a condition variable.
pub const FI_WAIT_MUTEX_COND: fi_wait_obj = 4;
/// Nothing: the provider polls and yields.
pub const FI_WAIT_YIELD: fi_wait_obj = 5;
/// Several file descriptors.
pub const FI_WAIT_POLLFD: fi_wait_obj = 6;

/// Attributes of a wait set.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_wait_attr {
    pub wait_obj: fi_wait_obj,
    pub flags: u64,
}

/// A wait set.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fid_wait {
    pub fid: fid,
    pub ops: *mut fi_ops_wait,
}

/// Calls of a wait set.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops_wait {
    /// Size of this table in bytes.
    pub size: usize,
    /// The timeout is in milliseconds; a negative one never ends.
    pub wait: Option<unsafe extern "C" fn(*mut fid_wait, c_int) -> c_int>,
}

/// What `FI_GETWAIT` writes for [`FI_WAIT_MUTEX_COND`].
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_mutex_cond {
    pub mutex: *mut libc::pthread_mutex_t,
    pub cond: *mut libc::pthread_cond_t,
}

/// What `FI_GETWAIT` reads and writes for [`FI_WAIT_POLLFD`].
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_wait_pollfd {
    /// Changes with the list of file descriptors.
    pub change_index: u64,
    /// In: entries of `fd`. Out: file descriptors.
    pub nfds: usize,
    pub fd: *mut libc::pollfd,
}

/// Attributes of a poll set.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_poll_attr {
    pub flags: u64,
}

/// A poll set: queues and counters that are polled together.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fid_poll {
    pub fid: fid,
    pub ops: *mut fi_ops_poll,
}

/// Calls of a poll set.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops_poll {
    /// Size of this table in bytes.
    pub size: usize,
    /// Writes the contexts of objects with events; returns their number.
    pub poll: Option<unsafe extern "C" fn(*mut fid_poll, *mut *mut c_void, c_int) -> c_int>,
    pub poll_add: Option<unsafe extern "C" fn(*mut fid_poll, *mut fid, u64) -> c_int>,
    pub poll_del: Option<unsafe extern "C" fn(*mut fid_poll, *mut fid, u64) -> c_int>,
}
