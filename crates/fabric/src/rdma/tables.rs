//! The inline functions of `<infiniband/verbs.h>`, which call the function tables of an open device.

use crate::rdma::errno::{Errno, check};
use crate::rdma::libraries::Libraries;
use std::ffi::c_int;
use std::mem::offset_of;
use weir_abi::{
    ibv_context, ibv_cq, ibv_device_attr_ex, ibv_pd, ibv_port_attr, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
    verbs_context,
};

/// `__VERBS_ABI_IS_EXTENDED`: the context is the end of a [`verbs_context`].
const EXTENDED: usize = usize::MAX;

/// `verbs_get_ctx_op`: a member of the extended table, if the library's table reaches that far and has the function.
macro_rules! operation {
    ($context:expr, $member:ident) => {{
        let context: *mut ibv_context = $context;
        if (*context).abi_compat.addr() == EXTENDED {
            let table = context.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
            let least = size_of::<verbs_context>() - offset_of!(verbs_context, $member);
            if (*table).sz >= least { (*table).$member } else { None }
        } else {
            None
        }
    }};
}

/// `ibv_query_device_ex`, or `ibv_query_device` if the device has no more; members that it does not know are 0.
///
/// # Safety
/// An open device.
pub(crate) unsafe fn query_device(
    libraries: &Libraries,
    context: *mut ibv_context,
) -> Result<ibv_device_attr_ex, Errno> {
    // SAFETY: a structure of integers, and the library is told its size.
    unsafe {
        let mut attributes: ibv_device_attr_ex = std::mem::zeroed();
        if let Some(query) = operation!(context, query_device_ex) {
            match query(context, std::ptr::null(), &mut attributes, size_of::<ibv_device_attr_ex>()) {
                libc::EOPNOTSUPP | libc::ENOSYS => attributes = std::mem::zeroed(),
                returned => return check(returned).map(|()| attributes),
            }
        }
        check((libraries.ibv_query_device)(context, &mut attributes.orig_attr))?;
        Ok(attributes)
    }
}

/// `ibv_query_port`.
///
/// # Safety
/// An open device.
pub(crate) unsafe fn query_port(
    libraries: &Libraries,
    context: *mut ibv_context,
    port: u8,
) -> Result<ibv_port_attr, Errno> {
    let mut attributes = ibv_port_attr::default();
    // SAFETY: the function is told the structure's size; the older one fills a shorter structure.
    check(unsafe {
        match operation!(context, query_port) {
            Some(query) => query(context, port, &mut attributes, size_of::<ibv_port_attr>()),
            None => (libraries.ibv_query_port)(context, port, &mut attributes),
        }
    })?;
    Ok(attributes)
}

/// `ibv_advise_mr`; EOPNOTSUPP if the device has no such function.
///
/// # Safety
/// A PD of an open device.
pub(crate) unsafe fn advise(pd: *mut ibv_pd, advice: c_int, flags: u32, ranges: &mut [ibv_sge]) -> Result<(), Errno> {
    // SAFETY: the device checks keys and ranges, and does not keep the list.
    unsafe {
        let advise = operation!((*pd).context, advise_mr).ok_or(Errno(libc::EOPNOTSUPP))?;
        check(advise(pd, advice, flags, ranges.as_mut_ptr(), ranges.len() as u32))
    }
}

/// `ibv_poll_cq`: how many completions were written.
///
/// # Safety
/// An existing CQ.
#[inline]
pub(crate) unsafe fn poll(cq: *mut ibv_cq, completions: &mut [ibv_wc]) -> Result<usize, Errno> {
    let most = completions.len().min(c_int::MAX as usize) as c_int;
    // SAFETY: the device writes as many completions as there is room for.
    let polled = unsafe {
        let poll = (*(*cq).context).ops.poll_cq.ok_or(Errno(libc::EOPNOTSUPP))?;
        poll(cq, most, completions.as_mut_ptr())
    };
    match polled {
        0.. => Ok(polled as usize),
        -1 => Err(Errno(libc::EIO)),
        code => Err(Errno(code.saturating_abs())),
    }
}

/// `ibv_req_notify_cq`.
///
/// # Safety
/// An existing CQ.
#[inline]
pub(crate) unsafe fn request_notification(cq: *mut ibv_cq, solicited_only: bool) -> Result<(), Errno> {
    // SAFETY: the caller's CQ.
    unsafe {
        let request = (*(*cq).context).ops.req_notify_cq.ok_or(Errno(libc::EOPNOTSUPP))?;
        check(request(cq, solicited_only.into()))
    }
}

/// `ibv_post_send`.
///
/// # Safety
/// An existing QP; the list and its SGEs are valid, and so is their memory until the requests have completed.
#[inline]
pub(crate) unsafe fn post_send(qp: *mut ibv_qp, request: *mut ibv_send_wr) -> Result<(), Errno> {
    let mut bad = std::ptr::null_mut();
    // SAFETY: the caller's QP and list.
    unsafe {
        let post = (*(*qp).context).ops.post_send.ok_or(Errno(libc::EOPNOTSUPP))?;
        check(post(qp, request, &mut bad))
    }
}

/// `ibv_post_recv`.
///
/// # Safety
/// An existing QP; the list and its SGEs are valid, and so is their memory until the requests have completed.
#[inline]
pub(crate) unsafe fn post_recv(qp: *mut ibv_qp, request: *mut ibv_recv_wr) -> Result<(), Errno> {
    let mut bad = std::ptr::null_mut();
    // SAFETY: the caller's QP and list.
    unsafe {
        let post = (*(*qp).context).ops.post_recv.ok_or(Errno(libc::EOPNOTSUPP))?;
        check(post(qp, request, &mut bad))
    }
}
