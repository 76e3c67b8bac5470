//! Opening and closing a device, and the function tables of an open device.

use crate::abi::*;
use crate::exports::Exports;
use crate::ffi::{ENODEV, status, zeroed};
use crate::living::{leave, object_of};
use crate::{
    advise, context, cq, cq_ex, device, dm, domain, flow, log, mw, pd_mr, poll, post, qp, qp_create, query, srq,
    srq_ops, wq, xrc,
};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use weir_device::{Errno, headroom};

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
    let verbs = verbs_table(device, opened.async_fd(), cmd_fd.as_raw_fd());
    Ok(context::create(verbs, opened, info, exports, cmd_fd))
}

/// In a forked child this does nothing to the parent's device, like all calls that destroy an object.
///
/// # Safety
/// `context` is from `ibv_open_device` and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    status(|| {
        let leaving = leave(context, "ibv_close_device")?;
        // SAFETY: guaranteed by the caller; `ibv_open_device` created it from a Box.
        unsafe {
            if context::is_inherited(context) {
                return Ok(());
            }
            // QPs that the application has not destroyed are destroyed with their device, as with a real adapter.
            for qp in context::own(context).registry.qps().objects() {
                let device = &qp::own(qp.as_ptr()).device;
                device.end_flows();
                if let Err(error) = device.destroy() {
                    tracing::warn!(?error, "a QP could not be destroyed with its device");
                }
            }
            context::close_file(context);
        }
        // Frees it, unless other objects are left.
        drop(leaving.done());
        Ok(())
    })
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
    verbs.create_qp_ex = Some(qp_create::create_qp_ex);
    verbs.open_qp = Some(qp_create::open_qp);
    verbs.create_srq_ex = Some(srq::create_srq_ex);
    verbs.get_srq_num = Some(srq::get_srq_num);
    verbs.post_srq_ops = Some(srq_ops::post_srq_ops);
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
    verbs.ibv_create_flow = Some(flow::create_flow);
    verbs.ibv_destroy_flow = Some(flow::destroy_flow);
    verbs.create_counters = Some(flow::create_counters);
    verbs.destroy_counters = Some(flow::destroy_counters);
    verbs.attach_counters_point_flow = Some(flow::attach_counters_point_flow);
    verbs.read_counters = Some(flow::read_counters);
    verbs.create_wq = Some(wq::create_wq);
    verbs.modify_wq = Some(wq::modify_wq);
    verbs.destroy_wq = Some(wq::destroy_wq);
    verbs.create_rwq_ind_table = Some(wq::create_rwq_ind_table);
    verbs.destroy_rwq_ind_table = Some(wq::destroy_rwq_ind_table);
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
