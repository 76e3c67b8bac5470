//! Objects by handle, for imported contexts: a further context of an open device in this process.
//!
//! An import takes the command descriptor, as with a kernel adapter. Here the descriptor is a memory file that
//! identifies an open device of this process. A descriptor from another process is not found and not supported.

use crate::abi::*;
use crate::exports::Exports;
use crate::ffi::guard;
use crate::living::{leave, object};
use crate::pd::{Pd, PdOwn};
use crate::{context, device, open, pd_mr};
use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

/// After success the context owns the descriptor and closes it.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    object(|| {
        let exports = Exports::of(cmd_fd)?;
        // SAFETY: a device of this process.
        let info = unsafe { device::own(exports.device) };
        let opened = weir_device::Context::open(&info.name)?;
        // SAFETY: an open descriptor; the caller passes its ownership.
        let cmd_fd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        open::make(exports.device, opened, exports, cmd_fd)
    })
}

/// EINVAL for an unknown handle.
///
/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    object(|| {
        // SAFETY: guaranteed by the caller.
        let own = unsafe { context::own_checked(context)? };
        let original = own.exports.pds.get(handle)?;
        let own = PdOwn::new(original.import(&own.device)?);
        Ok(Box::into_raw(Box::new(Pd { ibv: ibv_pd { context, handle }, own })).cast())
    })
}

/// # Safety
/// `pd` is from `ibv_import_pd` and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: guaranteed by the caller; created from a Box.
    guard((), || unsafe {
        if let Ok(leaving) = leave(pd, "ibv_unimport_pd") {
            let _left = leaving.done();
            drop(Box::from_raw(pd.cast::<Pd>()));
        }
    })
}

/// The region's address stays NULL. EINVAL for an unknown handle.
///
/// # Safety
/// `pd` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    object(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let context = (*pd).context;
            let device = context::own_checked(context)?.exports.mrs.get(handle)?;
            let ibv = pd_mr::describe(pd, std::ptr::null_mut(), handle, &device);
            Ok(Box::into_raw(Box::new(pd_mr::Mr { ibv, device, imported: true })).cast())
        }
    })
}

/// # Safety
/// `mr` is from `ibv_import_mr` and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: guaranteed by the caller; created from a Box.
    guard((), || unsafe {
        if let Ok(leaving) = leave(mr, "ibv_unimport_mr") {
            let _left = leaving.done();
            drop(Box::from_raw(mr.cast::<pd_mr::Mr>()));
        }
    })
}
