//! The structure of an open device's context: its owner, and what every call finds in it.

use crate::abi::*;
use crate::buried::bury;
use crate::device::DeviceOwn;
use crate::exports::Exports;
use crate::registry::Registry;
use std::mem::offset_of;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use weir_device::{Errno, OwnerProcess, descriptors};

/// An open device. Weir's part comes before the public one: `verbs_context` must end with its `ibv_context`, and
/// programs built against a longer `verbs_context` read its additional members at lower addresses.
#[repr(C)]
struct Context {
    own: ContextOwn,
    verbs: verbs_context,
}

/// Weir's part of a context.
pub struct ContextOwn {
    pub device: Arc<weir_device::Context>,
    pub info: &'static DeviceOwn,
    pub registry: Arc<Registry>,
    pub exports: Arc<Exports>,
    owner_process: OwnerProcess,
    /// -1 after the device is closed.
    cmd_fd: AtomicI32,
}

/// Offset of the `ibv_context` in a [`Context`].
const PUBLIC: usize = offset_of!(Context, verbs) + offset_of!(verbs_context, context);

// There must be no bytes between the `ibv_context` and the end of the `verbs_context`.
const _: () = assert!(offset_of!(verbs_context, context) + size_of::<ibv_context>() == size_of::<verbs_context>());

/// Creates a context; `cmd_fd` identifies the device and its `exports`.
pub fn create(
    verbs: verbs_context,
    device: Arc<weir_device::Context>,
    info: &'static DeviceOwn,
    exports: Arc<Exports>,
    cmd_fd: OwnedFd,
) -> *mut ibv_context {
    let cmd_fd = cmd_fd.into_raw_fd();
    descriptors::lend(cmd_fd);
    let (registry, owner_process) = (Arc::default(), OwnerProcess::current());
    let own = ContextOwn { device, info, registry, exports, owner_process, cmd_fd: AtomicI32::new(cmd_fd) };
    let context = Box::into_raw(Box::new(Context { verbs, own }));
    // SAFETY: just created; the mutex is initialised at its final address.
    unsafe {
        let public = context.byte_add(PUBLIC).cast::<ibv_context>();
        libc::pthread_mutex_init(&raw mut (*public).mutex, std::ptr::null());
        public
    }
}

/// Closes the descriptor that identifies the device of a context.
///
/// # Safety
/// `context` is from [`create`].
pub unsafe fn close_file(context: *const ibv_context) {
    // SAFETY: guaranteed by the caller.
    let descriptor: RawFd = unsafe { own(context) }.cmd_fd.swap(-1, Ordering::AcqRel);
    // Otherwise the program has closed it, and uses the number for a file of its own.
    if descriptor >= 0 && descriptors::take_back(descriptor) {
        // SAFETY: the context's own descriptor, which is closed once.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
}

/// Drops a context.
///
/// # Safety
/// `context` is from [`create`] and not used again.
pub unsafe fn release(context: *mut ibv_context) {
    // SAFETY: guaranteed by the caller; created from a Box.
    unsafe {
        libc::pthread_mutex_destroy(&raw mut (*context).mutex);
        bury(context.byte_sub(PUBLIC).cast::<Context>());
    }
}

/// Weir's part of a context.
///
/// # Safety
/// `context` is open and stays so for `'a`.
pub unsafe fn own<'a>(context: *const ibv_context) -> &'a ContextOwn {
    // SAFETY: every `ibv_context` that Weir creates is part of a `Context`.
    unsafe { &(*context.byte_sub(PUBLIC).cast::<Context>()).own }
}

/// Like [`own`], but EIO in a forked child. At the fork, other threads of the parent may have held locks of its
/// objects. The child never releases these locks, and what they guard may be half changed.
///
/// # Safety
/// As for [`own`].
pub unsafe fn own_checked<'a>(context: *const ibv_context) -> Result<&'a ContextOwn, Errno> {
    // SAFETY: guaranteed by the caller.
    let own = unsafe { own(context) };
    own.owner_process.check(|| own.info.name.clone())?;
    Ok(own)
}

/// The name of a context's device.
///
/// # Safety
/// As for [`own`].
pub unsafe fn name(context: *const ibv_context) -> String {
    // SAFETY: guaranteed by the caller.
    unsafe { own(context) }.info.name.clone()
}

/// Logs why a call is refused, with the name of the device, and returns its error.
///
/// # Safety
/// As for [`own`].
#[cold]
pub unsafe fn refuse(context: *const ibv_context, errno: Errno, why: &str) -> Errno {
    // SAFETY: guaranteed by the caller.
    unsafe { own(context) }.device.refuse(errno.0, format_args!("{why}"))
}

/// Whether this process is a forked child of the process that opened the device.
///
/// # Safety
/// As for [`own`].
pub unsafe fn is_inherited(context: *const ibv_context) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe { own(context) }.owner_process.is_inherited()
}
