//! What all objects begin with, and the calls that all objects have.

use std::ffi::{c_char, c_int, c_void};

/// The beginning of every object.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fid {
    /// One of `FI_CLASS_…`.
    pub fclass: usize,
    /// The program's pointer, as given when the object was opened.
    pub context: *mut c_void,
    pub ops: *mut fi_ops,
}

/// An object of any class.
pub type fid_t = *mut fid;

/// Calls that objects of all classes have.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops {
    /// Size of this table in bytes: tells which members exist.
    pub size: usize,
    pub close: Option<unsafe extern "C" fn(*mut fid) -> c_int>,
    /// Object, object to bind to it, flags.
    pub bind: Option<unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int>,
    /// Object, command, the command's argument.
    pub control: Option<unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int>,
    /// Object, name of a table, flags, where its address goes, context.
    pub ops_open: Option<unsafe extern "C" fn(*mut fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int>,
    /// Object, buffer, size of the buffer.
    pub tostr: Option<unsafe extern "C" fn(*const fid, *mut c_char, usize) -> c_int>,
    /// Object, name of a table, flags, the table, context.
    pub ops_set: Option<unsafe extern "C" fn(*mut fid, *const c_char, u64, *mut c_void, *mut c_void) -> c_int>,
}

/// Classes of objects (`fid::fclass`): none.
pub const FI_CLASS_UNSPEC: usize = 0;
/// `fid_fabric`.
pub const FI_CLASS_FABRIC: usize = 1;
/// `fid_domain`.
pub const FI_CLASS_DOMAIN: usize = 2;
/// `fid_ep`: an endpoint.
pub const FI_CLASS_EP: usize = 3;
/// `fid_ep`: a scalable endpoint.
pub const FI_CLASS_SEP: usize = 4;
/// `fid_ep`: a receive context.
pub const FI_CLASS_RX_CTX: usize = 5;
/// `fid_ep`: a shared receive context.
pub const FI_CLASS_SRX_CTX: usize = 6;
/// `fid_ep`: a transmit context.
pub const FI_CLASS_TX_CTX: usize = 7;
/// `fid_stx`: a shared transmit context.
pub const FI_CLASS_STX_CTX: usize = 8;
/// `fid_pep`: a passive endpoint.
pub const FI_CLASS_PEP: usize = 9;
/// Not used.
pub const FI_CLASS_INTERFACE: usize = 10;
/// `fid_av`: an address vector.
pub const FI_CLASS_AV: usize = 11;
/// `fid_mr`: a memory region.
pub const FI_CLASS_MR: usize = 12;
/// `fid_eq`: an event queue.
pub const FI_CLASS_EQ: usize = 13;
/// `fid_cq`: a completion queue.
pub const FI_CLASS_CQ: usize = 14;
/// `fid_cntr`: a counter.
pub const FI_CLASS_CNTR: usize = 15;
/// `fid_wait`: a wait set.
pub const FI_CLASS_WAIT: usize = 16;
/// `fid_poll`: a poll set.
pub const FI_CLASS_POLL: usize = 17;
/// The handle of a connection request.
pub const FI_CLASS_CONNREQ: usize = 18;
/// `fid_mc`: a joined multicast group.
pub const FI_CLASS_MC: usize = 19;
/// `fid_nic`.
pub const FI_CLASS_NIC: usize = 20;
/// `fid_av_set`.
pub const FI_CLASS_AV_SET: usize = 21;
/// The core's cache of memory regions.
pub const FI_CLASS_MR_CACHE: usize = 22;
/// A monitor of memory mappings.
pub const FI_CLASS_MEM_MONITOR: usize = 23;
/// A CQ that another provider owns.
pub const FI_CLASS_PEER_CQ: usize = 24;
/// A shared receive context that another provider owns.
pub const FI_CLASS_PEER_SRX: usize = 25;
/// The core's log.
pub const FI_CLASS_LOG: usize = 26;
/// An address vector that another provider owns.
pub const FI_CLASS_PEER_AV: usize = 27;
/// A set of addresses that another provider owns.
pub const FI_CLASS_PEER_AV_SET: usize = 28;

/// Commands of `fi_ops::control`: reads an endpoint's flags for operations (`u64`).
pub const FI_GETFIDFLAG: c_int = 0;
/// Sets an object's flags (`u64`).
pub const FI_SETFIDFLAG: c_int = 1;
/// Reads an endpoint's default flags of operations (`u64`, in and out).
pub const FI_GETOPSFLAG: c_int = 2;
/// Sets an endpoint's default flags of operations (`u64`).
pub const FI_SETOPSFLAG: c_int = 3;
/// Makes another object for the same endpoint ([`fi_alias`]).
pub const FI_ALIAS: c_int = 4;
/// Reads what a thread can wait for: an fd (`int`), `fi_mutex_cond` or `fi_wait_pollfd`.
pub const FI_GETWAIT: c_int = 5;
/// Makes an endpoint or a memory region ready for use (no argument).
pub const FI_ENABLE: c_int = 6;
/// Sets how many connection requests a passive endpoint keeps (`int`).
pub const FI_BACKLOG: c_int = 7;
/// Reads a memory region's key of any size (`fi_mr_raw_attr`).
pub const FI_GET_RAW_MR: c_int = 8;
/// Makes a 64-bit key for a peer's key of any size (`fi_mr_map_raw`).
pub const FI_MAP_RAW_MR: c_int = 9;
/// Releases such a 64-bit key (`u64`).
pub const FI_UNMAP_KEY: c_int = 10;
/// Queues work that a counter starts (`fi_deferred_work`).
pub const FI_QUEUE_WORK: c_int = 11;
/// Cancels such work (`fi_deferred_work`).
pub const FI_CANCEL_WORK: c_int = 12;
/// Cancels all such work of a domain (no argument).
pub const FI_FLUSH_WORK: c_int = 13;
/// Tells a memory region that pages have changed (`fi_mr_modify`).
pub const FI_REFRESH: c_int = 14;
/// Copies an object, such as `fid_nic` (`*mut *mut fid`).
pub const FI_DUP: c_int = 15;
/// Reads what kind of wait object a queue has (`fi_wait_obj`).
pub const FI_GETWAITOBJ: c_int = 16;
/// Reads a named value of a provider ([`fi_fid_var`]).
pub const FI_GET_VAL: c_int = 17;
/// Sets a named value of a provider ([`fi_fid_var`]).
pub const FI_SET_VAL: c_int = 18;
/// Exports an object to another provider ([`fi_fid_export`]).
pub const FI_EXPORT_FID: c_int = 19;

/// A bit of values that one provider defines.
pub const FI_PROV_SPECIFIC: u32 = 1 << 31;

/// Argument of [`FI_ALIAS`].
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_alias {
    /// Where the new object goes.
    pub fid: *mut *mut fid,
    pub flags: u64,
}

/// Argument of [`FI_GET_VAL`] and [`FI_SET_VAL`].
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_fid_var {
    pub name: c_int,
    pub val: *mut c_void,
}

/// Argument of [`FI_EXPORT_FID`]; in C of `<rdma/fi_ext.h>`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_fid_export {
    /// Where the exported object goes.
    pub fid: *mut *mut fid,
    pub flags: u64,
    pub context: *mut c_void,
}

/// What a program passes as `context` of an operation under `FI_CONTEXT`: room for the provider, until the completion.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_context {
    pub internal: [*mut c_void; 4],
}

/// The same under `FI_CONTEXT2`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_context2 {
    pub internal: [*mut c_void; 8],
}
