//! Queue pairs: their structure, modification, query and destruction.

use crate::abi::*;
use crate::batch::Builder;
use crate::ffi::{EOPNOTSUPP, guard, status};
use crate::living::{check, leave};
use crate::registry::Registry;
use crate::tables::TableUser;
use crate::{attr, context, domain};
use std::ffi::c_int;
use std::sync::Arc;
use weir_device::{Errno, OwnerProcess, headroom};
use weir_transport::{AttrMask, Service};

/// An `ibv_qp` and Weir's part of it. Every QP has the additional members that [`ibv_qp_to_qp_ex`] gives access to.
#[repr(C)]
pub struct Qp {
    pub ex: ibv_qp_ex,
    pub own: QpOwn,
}

/// Weir's part of a QP.
pub struct QpOwn {
    pub device: Arc<weir_device::Qp>,
    pub service: Service,
    /// The batch that `ibv_wr_start` begins.
    pub builder: Builder,
    /// The QP was created for `ibv_wr_*`.
    pub extended: bool,
    pub max_send_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline: usize,
    pub sq_sig_all: bool,
    /// Raw: the indirection table that it uses.
    pub table: Option<TableUser>,
    pub registry: Arc<Registry>,
    pub cookie: u64,
    pub owner_process: OwnerProcess,
}

/// # Safety
/// `qp` is alive, `attr` as in verbs.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    status(|| {
        check(qp, "ibv_modify_qp")?;
        // SAFETY: guaranteed by the caller.
        let (own, asked) = unsafe { (own_checked(qp)?, &*attr) };
        let (attr, mask) = attr::to_modify(asked, mask)?;
        if own.service == Service::Raw && mask.contains(AttrMask::RATE_LIMIT) && attr.rate_limit != 0 {
            // The device reports no packet pacing.
            return Err(EOPNOTSUPP);
        }
        if mask.contains(AttrMask::AV) {
            // The QP now contacts its peer, which needs memory. Moves to the error and reset states need none.
            headroom::check(headroom::OBJECT)?;
        }
        own.device.modify(&attr, mask)?;
        if mask.contains(AttrMask::STATE) {
            // SAFETY: guaranteed by the caller.
            unsafe { (*qp).state = attr.qp_state as c_int };
        }
        Ok(())
    })
}

/// # Safety
/// `qp` is alive, `attr` and `init` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // Reports all attributes and ignores the mask: programs set bits that do not exist, rdma-core's own test suite
    // among them.
    status(|| {
        check(qp, "ibv_query_qp")?;
        // SAFETY: guaranteed by the caller. `init` may begin a longer structure, so single members are written.
        unsafe {
            let own = own_checked(qp)?;
            let queried = attr::from_query(&own.device.query());
            *attr = queried;
            (*init).qp_context = (*qp).qp_context;
            (*init).send_cq = (*qp).send_cq;
            (*init).recv_cq = (*qp).recv_cq;
            (*init).srq = (*qp).srq;
            (*init).cap = queried.cap;
            (*init).qp_type = (*qp).qp_type;
            (*init).sq_sig_all = own.sq_sig_all.into();
            (*qp).state = queried.qp_state;
        }
        Ok(())
    })
}

/// # Safety
/// `qp` is from `ibv_create_qp`; after success it is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    status(|| {
        let leaving = leave(qp, "ibv_destroy_qp")?;
        // SAFETY: guaranteed by the caller; created from a Box.
        unsafe {
            if context::is_inherited((*qp).context) {
                return Ok(());
            }
            let own = own(qp);
            own.device.destroy()?;
            let handed_out = own.registry.qps().remove(own.cookie);
            libc::pthread_mutex_lock(&raw mut (*qp).mutex);
            if let Some(events) = handed_out {
                while (*qp).events_completed != events.async_events {
                    libc::pthread_cond_wait(&raw mut (*qp).cond, &raw mut (*qp).mutex);
                }
            }
            libc::pthread_mutex_unlock(&raw mut (*qp).mutex);
            libc::pthread_mutex_destroy(&raw mut (*qp).mutex);
            libc::pthread_cond_destroy(&raw mut (*qp).cond);
            let _left = leaving.done();
            domain::release(qp.cast::<Qp>());
        }
        Ok(())
    })
}

/// NULL for a QP that was not created for `ibv_wr_*`.
///
/// # Safety
/// `qp` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: guaranteed by the caller.
    if unsafe { own(qp) }.extended { qp.cast() } else { std::ptr::null_mut() }
}

/// Returns 0, not in order: packets are stored in PSN order, and the last line of each packet last. But the
/// processor's own copy instruction stores the lines before it, and these stores may become visible in any order.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: c_int, _flags: u32) -> c_int {
    guard(0, || 0)
}

/// Weir's part of a QP.
///
/// # Safety
/// `qp` is alive for `'a`.
pub unsafe fn own<'a>(qp: *const ibv_qp) -> &'a QpOwn {
    // SAFETY: every `ibv_qp` that Weir creates is the start of a `Qp`.
    unsafe { &(*qp.cast::<Qp>()).own }
}

/// Like [`own`], but EIO in a forked child. Takes no lock before that check: see [`context::own_checked`].
///
/// # Safety
/// As for [`own`].
#[inline]
pub unsafe fn own_checked<'a>(qp: *const ibv_qp) -> Result<&'a QpOwn, Errno> {
    // SAFETY: guaranteed by the caller.
    let own = unsafe { own(qp) };
    own.owner_process.check(|| own.device.name())?;
    Ok(own)
}
