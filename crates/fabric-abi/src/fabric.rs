//! Fabrics and domains, their attributes, and [`fi_info`].

use super::{
    fi_atomic_attr, fi_av_attr, fi_av_type, fi_cntr_attr, fi_collective_attr, fi_collective_op, fi_cq_attr,
    fi_datatype, fi_ep_attr, fi_eq_attr, fi_op, fi_ops_mr, fi_poll_attr, fi_progress, fi_resource_mgmt, fi_rx_attr,
    fi_threading, fi_tx_attr, fi_wait_attr, fid, fid_av, fid_cntr, fid_cq, fid_ep, fid_eq, fid_nic, fid_pep, fid_poll,
    fid_stx, fid_t, fid_wait,
};
use std::ffi::{c_char, c_int, c_void};

/// What a program asks for, and what a provider offers. `fi_freeinfo` of the core releases the list and all that it
/// points to with `free`; it closes `nic`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_info {
    pub next: *mut fi_info,
    pub caps: u64,
    pub mode: u64,
    /// Format of both addresses.
    pub addr_format: u32,
    /// Bytes.
    pub src_addrlen: usize,
    /// Bytes.
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    /// A connection request, or a passive endpoint that becomes an endpoint.
    pub handle: fid_t,
    pub tx_attr: *mut fi_tx_attr,
    pub rx_attr: *mut fi_rx_attr,
    pub ep_attr: *mut fi_ep_attr,
    pub domain_attr: *mut fi_domain_attr,
    pub fabric_attr: *mut fi_fabric_attr,
    /// May be null.
    pub nic: *mut fid_nic,
}

/// Attributes of a domain.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_domain_attr {
    /// An open domain, or null.
    pub domain: *mut fid_domain,
    pub name: *mut c_char,
    pub threading: fi_threading,
    pub control_progress: fi_progress,
    pub data_progress: fi_progress,
    pub resource_mgmt: fi_resource_mgmt,
    pub av_type: fi_av_type,
    /// `FI_MR_…`.
    pub mr_mode: c_int,
    /// Bytes.
    pub mr_key_size: usize,
    /// Bytes of immediate data.
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    /// Buffers of a registration.
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: usize,
    /// Bytes of `err_data`.
    pub max_err_data: usize,
    pub mr_cnt: usize,
    /// Since version 1.9.
    pub tclass: u32,
}

/// Attributes of a fabric.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_fabric_attr {
    /// An open fabric, or null.
    pub fabric: *mut fid_fabric,
    pub name: *mut c_char,
    /// Null in what a provider returns: the core sets it.
    pub prov_name: *mut c_char,
    /// The core sets it in what a provider returns.
    pub prov_version: u32,
    /// The version that the program asked for; the core sets it.
    pub api_version: u32,
}

/// A fabric.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fid_fabric {
    pub fid: fid,
    pub ops: *mut fi_ops_fabric,
    /// The core sets it.
    pub api_version: u32,
}

/// Calls of a fabric.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops_fabric {
    /// Size of this table in bytes.
    pub size: usize,
    pub domain: Option<unsafe extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, *mut c_void) -> c_int>,
    pub passive_ep:
        Option<unsafe extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut fid_pep, *mut c_void) -> c_int>,
    pub eq_open: Option<unsafe extern "C" fn(*mut fid_fabric, *mut fi_eq_attr, *mut *mut fid_eq, *mut c_void) -> c_int>,
    pub wait_open: Option<unsafe extern "C" fn(*mut fid_fabric, *mut fi_wait_attr, *mut *mut fid_wait) -> c_int>,
    /// Objects, their number: whether a thread may wait for all their wait objects now.
    pub trywait: Option<unsafe extern "C" fn(*mut fid_fabric, *mut *mut fid, c_int) -> c_int>,
    /// As `domain`, with flags.
    pub domain2:
        Option<unsafe extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, u64, *mut c_void) -> c_int>,
}

/// A domain.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fid_domain {
    pub fid: fid,
    pub ops: *mut fi_ops_domain,
    pub mr: *mut fi_ops_mr,
}

/// Calls of a domain.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops_domain {
    /// Size of this table in bytes.
    pub size: usize,
    pub av_open: Option<unsafe extern "C" fn(*mut fid_domain, *mut fi_av_attr, *mut *mut fid_av, *mut c_void) -> c_int>,
    pub cq_open: Option<unsafe extern "C" fn(*mut fid_domain, *mut fi_cq_attr, *mut *mut fid_cq, *mut c_void) -> c_int>,
    pub endpoint: Option<unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int>,
    pub scalable_ep:
        Option<unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int>,
    pub cntr_open:
        Option<unsafe extern "C" fn(*mut fid_domain, *mut fi_cntr_attr, *mut *mut fid_cntr, *mut c_void) -> c_int>,
    pub poll_open: Option<unsafe extern "C" fn(*mut fid_domain, *mut fi_poll_attr, *mut *mut fid_poll) -> c_int>,
    pub stx_ctx:
        Option<unsafe extern "C" fn(*mut fid_domain, *mut fi_tx_attr, *mut *mut fid_stx, *mut c_void) -> c_int>,
    pub srx_ctx: Option<unsafe extern "C" fn(*mut fid_domain, *mut fi_rx_attr, *mut *mut fid_ep, *mut c_void) -> c_int>,
    /// Type, operation, where the result goes, flags (`FI_FETCH_ATOMIC`, `FI_COMPARE_ATOMIC`, `FI_TAGGED`).
    pub query_atomic:
        Option<unsafe extern "C" fn(*mut fid_domain, fi_datatype, fi_op, *mut fi_atomic_attr, u64) -> c_int>,
    pub query_collective:
        Option<unsafe extern "C" fn(*mut fid_domain, fi_collective_op, *mut fi_collective_attr, u64) -> c_int>,
    /// As `endpoint`, with flags.
    pub endpoint2:
        Option<unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, u64, *mut c_void) -> c_int>,
}

/// An event of a connection, in an event queue.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_eq_cm_entry {
    pub fid: fid_t,
    /// Of a connection request; the program frees it.
    pub info: *mut fi_info,
    /// Private data, as many bytes as the read's result leaves.
    pub data: [u8; 0],
}
