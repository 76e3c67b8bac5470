//! Opening and closing a device, and the function tables of an open device.

use crate::abi::*;
use crate::ffi::{ENODEV, object_of, status, zeroed};
use crate::import::Exports;
use crate::registry::Registry;
use crate::{advise, cq, cq_ex, device, dm, domain, log, mw, pd_mr, poll, post, qp, query, srq, xrc};
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use weir_device::{Errno, OwnerProcess, headroom};

/// An open device. Weir's part comes before the public one: `verbs_context` must end with its `ibv_context`, and
/// programs built against a longer `verbs_context` read its additional members at lower addresses.
#[repr(C)]
pub struct Context {
    pub own: ContextOwn,
    verbs: verbs_context,
}

/// Weir's part of a context.
pub struct ContextOwn {
    pub device: Arc<weir_device::Context>,
    pub info: &'static device::DeviceOwn,
    pub registry: Arc<Registry>,
    pub exports: Arc<Exports>,
    owner_process: OwnerProcess,
    _cmd_fd: OwnedFd,
}

/// Offset of the `ibv_context` in a [`Context`].
const PUBLIC: usize = offset_of!(Context, verbs) + offset_of!(verbs_context, context);

// There must be no bytes between the `ibv_context` and the end of the `verbs_context`.
const _: () = assert!(offset_of!(verbs_context, context) + size_of::<ibv_context>() == size_of::<verbs_context>());

/// # Safety
/// `device` is from `ibv_get_device_list`; its list may be freed already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    object_of(headroom::DEVICE, || {
        log::start();
        if device.is_null() {
            return Err(ENODEV);
        }
        // SAFETY: guaranteed by the caller.
        let info = unsafe { device::own(device) };
        let opened = weir_device::Context::open(&info.name)?;
        let (exports, cmd_fd) = Exports::new(device)?;
        make(device, opened, exports, cmd_fd)
    })
}

/// Creates a context of an opened device; `cmd_fd` identifies the device and its `exports`.
pub fn make(
    device: *mut ibv_device,
    opened: Arc<weir_device::Context>,
    exports: Arc<Exports>,
    cmd_fd: OwnedFd,
) -> Result<*mut ibv_context, Errno> {
    // SAFETY: devices are not freed.
    let info = unsafe { device::own(device) };
    let context = Box::new(Context {
        verbs: verbs_table(device, opened.async_fd(), cmd_fd.as_raw_fd()),
        own: ContextOwn {
            device: opened,
            info,
            registry: Arc::default(),
            exports,
            owner_process: OwnerProcess::current(),
            _cmd_fd: cmd_fd,
        },
    });
    let context = Box::into_raw(context);
    // SAFETY: just created; the mutex is initialised at its final address.
    unsafe {
        let public = context.byte_add(PUBLIC).cast::<ibv_context>();
        libc::pthread_mutex_init(&raw mut (*public).mutex, std::ptr::null());
        Ok(public)
    }
}

/// In a forked child this does nothing to the parent's device, like all calls that destroy an object.
///
/// # Safety
/// `context` is from `ibv_open_device` and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    status(|| {
        // SAFETY: guaranteed by the caller; `ibv_open_device` created it from a Box.
        unsafe {
            if is_inherited(context) {
                return Ok(());
            }
            // QPs that the application has not destroyed are destroyed with their device, as with a real adapter.
            for qp in own(context).registry.qps().objects() {
                if let Err(error) = (*qp.as_ptr()).own.device.destroy() {
                    tracing::warn!(?error, "a QP could not be destroyed with its device");
                }
            }
            libc::pthread_mutex_destroy(&raw mut (*context).mutex);
            drop(Box::from_raw(context.byte_sub(PUBLIC).cast::<Context>()));
        }
        Ok(())
    })
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
    own.owner_process.check()?;
    Ok(own)
}

/// Whether this process is a forked child of the process that opened the device.
///
/// # Safety
/// As for [`own`].
pub unsafe fn is_inherited(context: *const ibv_context) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe { own(context) }.owner_process.is_inherited()
}

/// Members that stay NULL make the header's inline functions return EOPNOTSUPP. The members that these functions call
/// without a check are set.
fn verbs_table(device: *mut ibv_device, async_fd: c_int, cmd_fd: c_int) -> verbs_context {
    // SAFETY: integers, pointers and optional functions; a zeroed mutex is an uninitialised mutex.
    let mut verbs: verbs_context = unsafe { zeroed() };
    verbs.query_port = Some(query::query_port);
    verbs.query_rt_values = Some(query::query_rt_values);
    verbs.query_device_ex = Some(query::query_device_ex);
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
    verbs.modify_cq = Some(cq::modify_cq);
    verbs.create_qp_ex = Some(qp::create_qp_ex);
    verbs.open_qp = Some(qp::open_qp);
    verbs.create_srq_ex = Some(srq::create_srq_ex);
    verbs.get_srq_num = Some(srq::get_srq_num);
    verbs.open_xrcd = Some(xrc::open_xrcd);
    verbs.close_xrcd = Some(xrc::close_xrcd);
    verbs.advise_mr = Some(advise::advise_mr);
    verbs.alloc_null_mr = Some(pd_mr::alloc_null_mr);
    verbs.alloc_dm = Some(dm::alloc_dm);
    verbs.free_dm = Some(dm::free_dm);
    verbs.reg_dm_mr = Some(dm::reg_dm_mr);
    verbs.alloc_td = Some(domain::alloc_td);
    verbs.dealloc_td = Some(domain::dealloc_td);
    verbs.alloc_parent_domain = Some(domain::alloc_parent_domain);
    verbs.sz = size_of::<verbs_context>();

    let context = &mut verbs.context;
    context.device = device;
    context.cmd_fd = cmd_fd;
    context.async_fd = async_fd;
    context.num_comp_vectors = 1;
    context.abi_compat = usize::MAX as *mut c_void;
    context.ops.alloc_mw = Some(mw::alloc_mw);
    context.ops.bind_mw = Some(mw::bind_mw);
    context.ops.dealloc_mw = Some(mw::dealloc_mw);
    context.ops.poll_cq = Some(poll::poll_cq);
    context.ops.req_notify_cq = Some(poll::req_notify_cq);
    context.ops.post_srq_recv = Some(srq::post_srq_recv);
    context.ops.post_send = Some(post::post_send);
    context.ops.post_recv = Some(post::post_recv);
    verbs
}
