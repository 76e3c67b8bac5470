//! Memory regions.

use super::fid;
use libc::iovec;
use std::ffi::{c_int, c_uint, c_void};

/// `fi_domain_attr::mr_mode`: what a program does for registrations. None of it.
pub const FI_MR_UNSPEC: c_int = 0;
/// Of programs before version 1.5: virtual addresses, the provider's keys, pages that exist.
pub const FI_MR_BASIC: c_int = 1 << 0;
/// Of programs before version 1.5: offsets, the program's keys.
pub const FI_MR_SCALABLE: c_int = 1 << 1;
/// Registers local buffers.
pub const FI_MR_LOCAL: c_int = 1 << 2;
/// Exchanges keys of any size.
pub const FI_MR_RAW: c_int = 1 << 3;
/// Remote addresses are virtual addresses, not offsets in the region.
pub const FI_MR_VIRT_ADDR: c_int = 1 << 4;
/// The pages exist when the region is registered.
pub const FI_MR_ALLOCATED: c_int = 1 << 5;
/// The provider chooses keys.
pub const FI_MR_PROV_KEY: c_int = 1 << 6;
/// Reports changes of pages by `FI_REFRESH`.
pub const FI_MR_MMU_NOTIFY: c_int = 1 << 7;
/// Binds a counter and enables the region, for `FI_RMA_EVENT`.
pub const FI_MR_RMA_EVENT: c_int = 1 << 8;
/// Binds the region to an endpoint and enables it.
pub const FI_MR_ENDPOINT: c_int = 1 << 9;
/// Registers device memory.
pub const FI_MR_HMEM: c_int = 1 << 10;
/// Registers buffers of collective operations.
pub const FI_MR_COLLECTIVE: c_int = 1 << 11;

/// Kind of device to which registered memory belongs.
pub type fi_hmem_iface = c_uint;
/// Host memory.
pub const FI_HMEM_SYSTEM: fi_hmem_iface = 0;
/// CUDA.
pub const FI_HMEM_CUDA: fi_hmem_iface = 1;
/// ROCr.
pub const FI_HMEM_ROCR: fi_hmem_iface = 2;
/// Level Zero.
pub const FI_HMEM_ZE: fi_hmem_iface = 3;
/// Neuron.
pub const FI_HMEM_NEURON: fi_hmem_iface = 4;
/// SynapseAI.
pub const FI_HMEM_SYNAPSEAI: fi_hmem_iface = 5;

/// Name of the table [`fi_hmem_override_ops`] in `fi_ops::ops_set`.
pub const FI_SET_OPS_HMEM_OVERRIDE: &std::ffi::CStr = c"hmem_override_ops";

/// A memory region.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fid_mr {
    pub fid: fid,
    /// What a program passes as `desc` of a local buffer.
    pub mem_desc: *mut c_void,
    pub key: u64,
}

/// The device, by the kind of [`fi_mr_attr::iface`]; in the header an unnamed union.
#[derive(Clone, Copy)]
#[repr(C)]
pub union fi_mr_attr_device {
    pub reserved: u64,
    pub cuda: c_int,
    pub ze: c_int,
    pub neuron: c_int,
    pub synapseai: c_int,
}

/// Attributes of a registration. A program of an older version has no `iface` and `device`, or no `auth_key` either.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct fi_mr_attr {
    pub mr_iov: *const iovec,
    pub iov_count: usize,
    /// `FI_SEND`, `FI_RECV`, `FI_READ`, `FI_WRITE`, `FI_REMOTE_READ`, `FI_REMOTE_WRITE`, `FI_COLLECTIVE`.
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: fi_hmem_iface,
    pub device: fi_mr_attr_device,
}

/// Argument of `FI_REFRESH`: the pages are those of `mr_iov`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct fi_mr_modify {
    pub flags: u64,
    pub attr: fi_mr_attr,
}

/// Argument of `FI_GET_RAW_MR`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_mr_raw_attr {
    pub flags: u64,
    pub base_addr: *mut u64,
    pub raw_key: *mut u8,
    /// In: size of the buffer. Out: size of the key.
    pub key_size: *mut usize,
}

/// Argument of `FI_MAP_RAW_MR`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_mr_map_raw {
    pub flags: u64,
    pub base_addr: u64,
    pub raw_key: *mut u8,
    pub key_size: usize,
    /// Where the 64-bit key goes.
    pub key: *mut u64,
}

/// Calls of a domain that register memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops_mr {
    /// Size of this table in bytes.
    pub size: usize,
    /// Domain, buffer, length, access, offset, requested key, flags, where the region goes, context.
    pub reg: Option<
        unsafe extern "C" fn(
            *mut fid,
            *const c_void,
            usize,
            u64,
            u64,
            u64,
            u64,
            *mut *mut fid_mr,
            *mut c_void,
        ) -> c_int,
    >,
    /// As `reg`, of several buffers.
    pub regv: Option<
        unsafe extern "C" fn(*mut fid, *const iovec, usize, u64, u64, u64, u64, *mut *mut fid_mr, *mut c_void) -> c_int,
    >,
    /// Domain, attributes, flags, where the region goes.
    pub regattr: Option<unsafe extern "C" fn(*mut fid, *const fi_mr_attr, u64, *mut *mut fid_mr) -> c_int>,
}

/// Calls of the program that copy device memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_hmem_override_ops {
    /// Size of this table in bytes.
    pub size: usize,
    /// Destination, its size, kind, device, source, buffers of the source, offset in the source.
    pub copy_from_hmem_iov:
        Option<unsafe extern "C" fn(*mut c_void, usize, fi_hmem_iface, u64, *const iovec, usize, u64) -> isize>,
    /// Kind, device, destination, buffers of the destination, offset in the destination, source, its size.
    pub copy_to_hmem_iov:
        Option<unsafe extern "C" fn(fi_hmem_iface, u64, *const iovec, usize, u64, *const c_void, usize) -> isize>,
}
