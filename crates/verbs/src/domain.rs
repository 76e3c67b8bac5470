//! Thread domains and parent domains. A parent domain is a PD with an allocator of the application for the objects
//! created in it.
//!
//! Any thread may use any object, so a thread domain changes nothing; it is kept and counted. A parent domain's
//! allocator provides memory for the structures of QPs, CQs and SRQs only. Their rings grow on use and belong to the
//! adapter.

use crate::abi::*;
use crate::buried::bury;
use crate::context;
use crate::ffi::{EBUSY, EINVAL, status};
use crate::living::{leave, object};
use crate::pd::{self, Allocator, Domain, Pd, PdOwn, Td};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use weir_device::Errno;

/// The object that needs the memory: the upper half is the driver (`RDMA_DRIVER_UNKNOWN`, 0), the lower half Weir's
/// code.
#[derive(Clone, Copy)]
#[repr(u64)]
pub enum Resource {
    Qp = 1,
    Cq = 2,
    Srq = 3,
}

/// An object; the application sees the first part of `value`.
#[repr(C)]
struct Allocation<T> {
    value: T,
    /// The parent domain that counts it as a user, or NULL.
    pd: *mut ibv_pd,
    resource: Resource,
    /// The memory is from the domain's allocator.
    custom: bool,
}

/// Called through `verbs_context`. EINVAL for any `comp_mask`: no attributes are defined yet.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    object(|| {
        // SAFETY: guaranteed by the caller.
        if unsafe { attr.as_ref() }.is_none_or(|attr| attr.comp_mask != 0) {
            return Err(EINVAL);
        }
        Ok(Box::into_raw(Box::new(Td { ibv: ibv_td { context }, users: AtomicUsize::new(0) })).cast())
    })
}

/// Called through `verbs_context`. EBUSY while a parent domain uses it.
///
/// # Safety
/// `td` is from [`alloc_td`]; after success it is not used again.
pub unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    status(|| {
        let leaving = leave(td, "ibv_dealloc_td")?;
        // SAFETY: guaranteed by the caller; created from a Box.
        unsafe {
            if (*td.cast::<Td>()).users.load(Ordering::Acquire) != 0 {
                let why = "thread domain: deallocate: parent domains have it: ibv_dealloc_pd first";
                return Err(context::refuse((*td).context, EBUSY, why));
            }
            let _left = leaving.done();
            bury(td.cast::<Td>());
        }
        Ok(())
    })
}

/// Called through `verbs_context`. EINVAL without a PD of this context, or with only one of the two allocator
/// functions.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    object(|| {
        // A permission for memory that a confidential guest shares: a program of the guest needs none.
        const SUPPORTED: u32 = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
            | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
            | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
        // SAFETY: guaranteed by the caller; members that the mask does not select are not read.
        unsafe {
            let attr = attr.as_ref().ok_or(EINVAL)?;
            if attr.pd.is_null() || (*attr.pd).context != context || attr.comp_mask & !SUPPORTED != 0 {
                let why = "parent domain: it needs a pd of the same device, and a comp_mask of known bits";
                return Err(context::refuse(context, EINVAL, why));
            }
            let has = |bit| attr.comp_mask & bit != 0;
            let pd_context =
                if has(IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT) { attr.pd_context } else { std::ptr::null_mut() };
            let allocator = if has(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) {
                let (alloc, free) = attr
                    .alloc
                    .zip(attr.free)
                    .ok_or_else(|| context::refuse(context, EINVAL, "parent domain: alloc and free belong together"))?;
                Some(Allocator { alloc, free, context: pd_context })
            } else {
                None
            };
            if !attr.td.is_null() {
                (*attr.td.cast::<Td>()).users.fetch_add(1, Ordering::AcqRel);
            }
            let domain = Domain { td: attr.td, allocator, users: AtomicUsize::new(0) };
            let base = pd::own(attr.pd);
            let mut own = PdOwn::new(base.device.parent_domain());
            own.domain = Some(domain);
            let ibv = ibv_pd { context, handle: (*attr.pd).handle };
            Ok(Box::into_raw(Box::new(Pd { ibv, own })).cast())
        }
    })
}

/// Whether a PD is a parent domain.
///
/// # Safety
/// `pd` is NULL or alive.
pub unsafe fn is_parent(pd: *const ibv_pd) -> bool {
    // SAFETY: guaranteed by the caller.
    !pd.is_null() && unsafe { pd::own(pd) }.domain.is_some()
}

/// Stores an object in memory of the parent domain `pd`, or on the heap if `pd` is NULL or no parent domain. ENOMEM
/// if the allocator returns NULL.
///
/// # Safety
/// `pd` is NULL or alive, and stays so until [`release`].
pub unsafe fn allocate_in<T>(pd: *mut ibv_pd, resource: Resource, value: T) -> Result<*mut T, Errno> {
    // SAFETY: guaranteed by the caller.
    let domain = if pd.is_null() { None } else { unsafe { pd::own(pd) }.domain.as_ref() };
    let Some(domain) = domain else {
        let allocation = Allocation { value, pd: std::ptr::null_mut(), resource, custom: false };
        return Ok(Box::into_raw(Box::new(allocation)).cast());
    };
    let (size, align) = (size_of::<Allocation<T>>(), align_of::<Allocation<T>>().max(align_of::<*const ()>()));
    let memory = domain.allocator.map_or(USE_DEFAULT, |own| {
        // SAFETY: the application's function, called as verbs.h specifies.
        unsafe { (own.alloc)(pd, own.context, size, align, resource as u64) }
    });
    if memory.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    let custom = memory != USE_DEFAULT;
    let allocation = Allocation { value, pd, resource, custom };
    let at: *mut Allocation<T> =
        if custom { memory.cast() } else { Box::into_raw(Box::<Allocation<T>>::new_uninit()).cast() };
    // SAFETY: new memory of this size and alignment.
    unsafe { at.write(allocation) };
    domain.users.fetch_add(1, Ordering::AcqRel);
    Ok(at.cast())
}

/// Drops an object and frees its memory.
///
/// # Safety
/// `object` is from [`allocate_in`] and not used again.
pub unsafe fn release<T>(object: *mut T) {
    let allocation = object.cast::<Allocation<T>>();
    // SAFETY: guaranteed by the caller; its parent domain is alive.
    unsafe {
        let (pd, resource, custom) = ((*allocation).pd, (*allocation).resource, (*allocation).custom);
        let domain = if pd.is_null() { None } else { pd::own(pd).domain.as_ref() };
        match domain.and_then(|domain| domain.allocator).filter(|_| custom) {
            Some(own) => {
                allocation.drop_in_place();
                (own.free)(pd, own.context, allocation.cast(), resource as u64);
            }
            None => drop(Box::from_raw(allocation)),
        }
        if let Some(domain) = domain {
            domain.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// An allocator returns this to request the default allocation.
const USE_DEFAULT: *mut c_void = usize::MAX as *mut c_void;
