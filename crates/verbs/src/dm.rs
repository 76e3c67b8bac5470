//! Device memory.

use crate::abi::*;
use crate::buried::bury;
use crate::context;
use crate::ffi::{EINVAL, EOPNOTSUPP, status};
use crate::living::{leave, object};
use crate::pd;
use crate::pd_mr;
use crate::registry::new_handle;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

/// An `ibv_dm` and Weir's part of it.
#[repr(C)]
pub struct Dm {
    ibv: ibv_dm,
    device: Arc<weir_device::Dm>,
}

/// Called through `verbs_context`. EINVAL for a comp_mask, a length of 0 or more than `max_dm_size`; ENOMEM if too
/// few bytes are free.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    object(|| {
        // SAFETY: guaranteed by the caller.
        let (own, attr) = unsafe { (context::own(context), attr.as_ref().ok_or(EINVAL)?) };
        let (length, max) = (attr.length as u64, own.device.limits().max_dm_size);
        let allocated = match attr.comp_mask == 0 && length <= max {
            true => own.device.alloc_dm(length, attr.log_align_req),
            false => Err(EINVAL),
        };
        let device = allocated.map_err(|errno| {
            let (align, mask) = (attr.log_align_req, attr.comp_mask);
            let why = format!(
                "device memory: length {length}, log_align_req {align}, comp_mask {mask}: the length must be 1 to {max} (max_dm_size), and \
                 fit into what is free, log_align_req 30 at most, comp_mask 0"
            );
            // SAFETY: guaranteed by the caller.
            unsafe { context::refuse(context, errno, &why) }
        })?;
        let handle = new_handle();
        // A forked child may allocate device memory too (rdma-core's own test suite does), but it cannot import the
        // memory.
        // SAFETY: guaranteed by the caller.
        if !unsafe { context::is_inherited(context) } {
            own.exports.dms.insert(handle, device.clone())?;
        }
        Ok(make(context, handle, device))
    })
}

/// Called through `verbs_context`. EBUSY while a region of it is registered.
///
/// # Safety
/// `dm` is from [`alloc_dm`] or imported; after success it is not used again.
pub unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    status(|| {
        let leaving = leave(dm, "ibv_free_dm")?;
        // SAFETY: guaranteed by the caller; created from a Box.
        unsafe {
            if context::is_inherited((*dm).context) {
                return Ok(());
            }
            (*dm.cast::<Dm>()).device.free()?;
            context::own((*dm).context).exports.dms.remove((*dm).handle);
            let _left = leaving.done();
            bury(dm.cast::<Dm>());
        }
        Ok(())
    })
}

/// Called through `verbs_context`. EINVAL unless the region is zero-based and within the memory.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    object(|| {
        // SAFETY: guaranteed by the caller.
        let (own, dm) = unsafe { (pd::own(pd), &(*dm.cast::<Dm>()).device) };
        let pd_mr::Flags { access, on_demand, .. } =
            pd_mr::access_flags(access, |errno, why| own.device.refuse(errno, why))?;
        if on_demand {
            return Err(EOPNOTSUPP);
        }
        let device = own.device.reg_dm_mr(dm, offset, length as u64, access)?;
        // SAFETY: guaranteed by the caller.
        unsafe { pd_mr::make(pd, std::ptr::null_mut(), device) }
    })
}

/// `ibv_import_dm`. EINVAL for an unknown handle.
///
/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    object(|| {
        // SAFETY: guaranteed by the caller.
        let device = unsafe { context::own_checked(context)? }.exports.dms.get(handle)?;
        Ok(make(context, handle, device))
    })
}

/// # Safety
/// `dm` is from `ibv_import_dm` and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: guaranteed by the caller; created from a Box.
    crate::ffi::guard((), || unsafe {
        if let Ok(leaving) = leave(dm, "ibv_unimport_dm") {
            let _left = leaving.done();
            bury(dm.cast::<Dm>());
        }
    })
}

fn make(context: *mut ibv_context, handle: u32, device: Arc<weir_device::Dm>) -> *mut ibv_dm {
    let (to, from) = (Some(memcpy_to_dm as _), Some(memcpy_from_dm as _));
    let ibv = ibv_dm { context, memcpy_to_dm: to, memcpy_from_dm: from, comp_mask: 0, handle };
    Box::into_raw(Box::new(Dm { ibv, device })).cast()
}

/// EINVAL unless offset and length are multiples of 4, EFAULT out of bounds.
unsafe extern "C" fn memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    // SAFETY: the caller's device memory is alive; the copy detects unreadable memory.
    status(|| unsafe { (*dm.cast::<Dm>()).device.write(offset, from.cast(), length as u64) })
}

/// As [`memcpy_to_dm`].
unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    // SAFETY: the caller's device memory is alive; the copy detects unwritable memory.
    status(|| unsafe { (*dm.cast::<Dm>()).device.read(to.cast(), offset, length as u64) })
}
