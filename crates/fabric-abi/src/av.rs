//! Address vectors and sets of addresses.

use super::{fi_addr_t, fid};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// Kind of address vector.
pub type fi_av_type = c_uint;
/// Any kind.
pub const FI_AV_UNSPEC: fi_av_type = 0;
/// The provider chooses the values of addresses.
pub const FI_AV_MAP: fi_av_type = 1;
/// Addresses are indices, in the order of insertion.
pub const FI_AV_TABLE: fi_av_type = 2;

/// Attributes of an address vector.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_av_attr {
    pub r#type: fi_av_type,
    /// Upper bits of an address that name a receive context.
    pub rx_ctx_bits: c_int,
    /// Expected number of addresses.
    pub count: usize,
    pub ep_per_node: usize,
    /// Of a vector that processes share; otherwise null.
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    /// `FI_EVENT`, `FI_READ`, `FI_SYMMETRIC`, `FI_AV_USER_ID`, `FI_PEER`.
    pub flags: u64,
}

/// An address vector.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fid_av {
    pub fid: fid,
    pub ops: *mut fi_ops_av,
}

/// Calls of an address vector.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops_av {
    /// Size of this table in bytes.
    pub size: usize,
    /// Addresses in the domain's format, their number, where the results go (may be null), flags, context; returns how
    /// many were inserted.
    pub insert:
        Option<unsafe extern "C" fn(*mut fid_av, *const c_void, usize, *mut fi_addr_t, u64, *mut c_void) -> c_int>,
    /// Node, service.
    pub insertsvc: Option<
        unsafe extern "C" fn(*mut fid_av, *const c_char, *const c_char, *mut fi_addr_t, u64, *mut c_void) -> c_int,
    >,
    /// First node, number of nodes, first service, number of services.
    pub insertsym: Option<
        unsafe extern "C" fn(
            *mut fid_av,
            *const c_char,
            usize,
            *const c_char,
            usize,
            *mut fi_addr_t,
            u64,
            *mut c_void,
        ) -> c_int,
    >,
    pub remove: Option<unsafe extern "C" fn(*mut fid_av, *mut fi_addr_t, usize, u64) -> c_int>,
    /// The length is that of the buffer, and then that of the address.
    pub lookup: Option<unsafe extern "C" fn(*mut fid_av, fi_addr_t, *mut c_void, *mut usize) -> c_int>,
    /// As text; the length is that of the buffer, and then that of the whole text.
    pub straddr: Option<unsafe extern "C" fn(*mut fid_av, *const c_void, *mut c_char, *mut usize) -> *const c_char>,
    pub av_set:
        Option<unsafe extern "C" fn(*mut fid_av, *mut fi_av_set_attr, *mut *mut fid_av_set, *mut c_void) -> c_int>,
}

/// Attributes of a set of addresses.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_av_set_attr {
    pub count: usize,
    pub start_addr: fi_addr_t,
    pub end_addr: fi_addr_t,
    pub stride: u64,
    pub comm_key_size: usize,
    pub comm_key: *mut u8,
    pub flags: u64,
}

/// A set of addresses, for collective operations.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fid_av_set {
    pub fid: fid,
    pub ops: *mut fi_ops_av_set,
}

/// Calls of a set of addresses.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops_av_set {
    /// Size of this table in bytes.
    pub size: usize,
    pub set_union: Option<unsafe extern "C" fn(*mut fid_av_set, *const fid_av_set) -> c_int>,
    pub intersect: Option<unsafe extern "C" fn(*mut fid_av_set, *const fid_av_set) -> c_int>,
    pub diff: Option<unsafe extern "C" fn(*mut fid_av_set, *const fid_av_set) -> c_int>,
    pub insert: Option<unsafe extern "C" fn(*mut fid_av_set, fi_addr_t) -> c_int>,
    pub remove: Option<unsafe extern "C" fn(*mut fid_av_set, fi_addr_t) -> c_int>,
    /// The address that the collective operations of the set take.
    pub addr: Option<unsafe extern "C" fn(*mut fid_av_set, *mut fi_addr_t) -> c_int>,
}

/// What a join with `FI_COLLECTIVE` takes as address.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_collective_addr {
    pub set: *const fid_av_set,
    pub coll_addr: fi_addr_t,
}
