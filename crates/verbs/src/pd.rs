//! The structures behind protection domains, parent domains and thread domains.

use crate::abi::*;
use crate::ffi::EBUSY;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use weir_device::Errno;

/// An `ibv_pd` and Weir's part of it.
#[repr(C)]
pub struct Pd {
    pub ibv: ibv_pd,
    pub own: PdOwn,
}

/// Weir's part of a PD.
pub struct PdOwn {
    pub device: Arc<weir_device::Pd>,
    /// Present in a parent domain.
    pub domain: Option<Domain>,
}

impl PdOwn {
    /// A PD that is no parent domain.
    pub fn new(device: Arc<weir_device::Pd>) -> PdOwn {
        PdOwn { device, domain: None }
    }
}

/// The data that makes a PD a parent domain.
pub struct Domain {
    /// NULL, or a thread domain that counts this domain as a user.
    pub td: *mut ibv_td,
    pub allocator: Option<Allocator>,
    /// Objects created in this domain, in addition to those that the adapter counts.
    pub users: AtomicUsize,
}

/// The application's functions. They are called only from within calls of the application.
#[derive(Clone, Copy)]
pub struct Allocator {
    pub alloc: AllocFn,
    pub free: FreeFn,
    pub context: *mut c_void,
}

/// `alloc` of `ibv_parent_domain_init_attr`: PD, context, size, alignment, resource type.
pub type AllocFn = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;
/// `free` of `ibv_parent_domain_init_attr`: PD, context, memory, resource type.
pub type FreeFn = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

/// An `ibv_td` and Weir's part of it.
#[repr(C)]
pub struct Td {
    pub ibv: ibv_td,
    pub users: AtomicUsize,
}

/// Weir's part of a PD.
///
/// # Safety
/// `pd` is alive for `'a`.
pub unsafe fn own<'a>(pd: *const ibv_pd) -> &'a PdOwn {
    // SAFETY: every `ibv_pd` that Weir creates is the start of a `Pd`.
    unsafe { &(*pd.cast::<Pd>()).own }
}

impl Domain {
    /// EBUSY while objects of this domain exist.
    pub fn check(&self) -> Result<(), Errno> {
        if self.users.load(Ordering::Acquire) != 0 { Err(EBUSY) } else { Ok(()) }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if !self.td.is_null() {
            // SAFETY: a thread domain is not freed while this domain is counted as its user.
            unsafe { (*self.td.cast::<Td>()).users.fetch_sub(1, Ordering::AcqRel) };
        }
    }
}
