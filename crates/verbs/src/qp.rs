//! Queue pairs: their creation, modification, query and destruction.

use crate::abi::*;
use crate::builder::{self, Builder};
use crate::domain::{self, Resource};
use crate::ffi::{EINVAL, EOPNOTSUPP, guard, object, status, zeroed};
use crate::pd_mr::{self, new_handle};
use crate::post::INLINE_ROOM;
use crate::registry::{Registry, new_cookie};
use crate::{attr, context, cq, srq, xrc};
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;
use weir_device::{Errno, OwnerProcess, QpCreate, Receives, headroom};
use weir_transport::{AttrMask, Service};

/// An `ibv_qp` and Weir's part of it. Every QP has the additional members that [`ibv_qp_to_qp_ex`] gives access to.
#[repr(C)]
pub struct Qp {
    ex: ibv_qp_ex,
    pub own: QpOwn,
}

/// Weir's part of a QP.
pub struct QpOwn {
    pub device: Arc<weir_device::Qp>,
    pub service: Service,
    /// The batch that `ibv_wr_start` begins.
    pub builder: Builder,
    /// The QP was created for `ibv_wr_*`.
    extended: bool,
    pub max_send_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline: usize,
    sq_sig_all: bool,
    registry: Arc<Registry>,
    cookie: u64,
    owner_process: OwnerProcess,
}

/// # Safety
/// `pd` is alive, `init` as in verbs.h; it may be the first 64 bytes of an `ibv_qp_init_attr_ex`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: guaranteed by the caller.
    object(|| unsafe { create(pd, init) })
}

/// The header's inline function calls this for every `comp_mask` beyond IBV_QP_INIT_ATTR_PD. EOPNOTSUPP for
/// attributes, flags and send operations that are not supported; EINVAL without a PD.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn create_qp_ex(context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    object(|| {
        const SUPPORTED: u32 = IBV_QP_INIT_ATTR_PD
            | IBV_QP_INIT_ATTR_XRCD
            | IBV_QP_INIT_ATTR_CREATE_FLAGS
            | IBV_QP_INIT_ATTR_MAX_TSO_HEADER
            | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        // SAFETY: guaranteed by the caller; members that the mask does not select are not read.
        unsafe {
            let mask = (*init).comp_mask;
            if (*init).qp_type == IBV_QPT_XRC_RECV {
                return create_xrc_target(context, init);
            }
            if mask & IBV_QP_INIT_ATTR_PD == 0 {
                return Err(EINVAL);
            }
            let selects = |bit| mask & bit != 0;
            let built = selects(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then(|| (*init).send_ops_flags);
            let flags = if selects(IBV_QP_INIT_ATTR_CREATE_FLAGS) { (*init).create_flags } else { 0 };
            if mask & !SUPPORTED != 0
                || flags & !IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0
                || (selects(IBV_QP_INIT_ATTR_MAX_TSO_HEADER) && (*init).max_tso_header != 0)
                || built.is_some_and(|operations| !builder::offers((*init).qp_type, operations))
            {
                return Err(EOPNOTSUPP);
            }
            if let Some(operations) = built {
                let inline = &mut (*init).cap.max_inline_data;
                *inline = (*inline).max(builder::inline_bytes(operations));
            }
            if flags != 0 && (*init).qp_type != IBV_QPT_UD {
                return Err(EINVAL);
            }
            let qp = create((*init).pd, init.cast())?;
            if flags != 0 {
                own(qp).device.block_own_multicast();
            }
            if let Some(operations) = built {
                (*qp.cast::<Qp>()).own.extended = true;
                builder::install(&mut (*qp.cast::<Qp>()).ex, operations);
            }
            Ok(qp)
        }
    })
}

/// # Safety
/// `qp` is alive, `attr` as in verbs.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (own, asked) = unsafe { (own_checked(qp)?, &*attr) };
        let (attr, mask) = attr::to_modify(asked, mask)?;
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
    own.owner_process.check()?;
    Ok(own)
}

/// # Safety
/// As for `ibv_create_qp`.
unsafe fn create(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: guaranteed by the caller. A reference would cover the padding, which is `comp_mask` in the longer
    // structure.
    let (context, send_cq, recv_cq, srq, cap, qp_type, qp_context, sq_sig_all) = unsafe {
        (
            (*pd).context,
            (*init).send_cq,
            (*init).recv_cq,
            (*init).srq,
            (*init).cap,
            (*init).qp_type,
            (*init).qp_context,
            (*init).sq_sig_all != 0,
        )
    };
    // SAFETY: the context of a living PD is open.
    unsafe { context::own_checked(context)? };
    // An XRC initiator receives nothing and needs no receive CQ; the target uses the CQs of its SRQs.
    let recv_cq = if qp_type == IBV_QPT_XRC_SEND && recv_cq.is_null() { send_cq } else { recv_cq };
    if send_cq.is_null() || recv_cq.is_null() || cap.max_inline_data as usize > INLINE_ROOM {
        return Err(EINVAL);
    }
    let receives = if srq.is_null() {
        Receives::Own
    } else {
        // SAFETY: the caller guarantees that it is alive.
        Receives::Shared(unsafe { srq::own(srq) }.device.clone())
    };
    let cookie = new_cookie();
    let service = service(qp_type)?;
    let create = QpCreate { service, caps: attr::caps(&cap), sq_sig_all, cookie };
    // SAFETY: the caller guarantees that PD and CQs are alive.
    let device = unsafe {
        let (send_cq, recv_cq) = (&cq::own(send_cq).device, &cq::own(recv_cq).device);
        pd_mr::own(pd).device.create_qp_with(&create, send_cq, recv_cq, receives)?
    };
    // SAFETY: the PD outlives its QPs; `init` is writable.
    unsafe {
        let qp = enter(context, pd, device, service, cookie, sq_sig_all)?;
        let public = qp.cast::<ibv_qp>();
        (*public).qp_context = qp_context;
        (*public).send_cq = send_cq;
        (*public).recv_cq = recv_cq;
        (*public).srq = srq;
        (*public).qp_type = qp_type;
        let mut given = (*qp).own.device.caps();
        given.max_inline_data = given.max_inline_data.min(INLINE_ROOM as u32);
        (*init).cap = attr::from_caps(&given);
        Ok(public)
    }
}

/// Creates an XRC target QP, which only responds, for the SRQs of a domain.
///
/// # Safety
/// `context` is open, `init` as in verbs.h.
unsafe fn create_xrc_target(context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    let cookie = new_cookie();
    // SAFETY: guaranteed by the caller.
    unsafe {
        context::own_checked(context)?;
        if (*init).comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 {
            return Err(EINVAL);
        }
        let device = xrc::own((*init).xrcd).create_target(cookie)?;
        let qp = enter(context, std::ptr::null_mut(), device, Service::Xrc, cookie, false)?;
        (*qp).ex.qp_base.qp_context = (*init).qp_context;
        (*qp).ex.qp_base.qp_type = IBV_QPT_XRC_RECV;
        Ok(qp.cast())
    }
}

/// Opens a further handle of an XRC target QP of the domain.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    object(|| {
        const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let attr = &*attr;
            if attr.comp_mask & !(NEEDED | IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
                return Err(EOPNOTSUPP);
            }
            if attr.comp_mask & NEEDED != NEEDED || attr.qp_type != IBV_QPT_XRC_RECV {
                return Err(EINVAL);
            }
            context::own_checked(context)?;
            let device = xrc::own(attr.xrcd).target(attr.qp_num)?;
            device.open();
            let qp = enter(context, std::ptr::null_mut(), device, Service::Xrc, new_cookie(), false)?;
            if attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
                (*qp).ex.qp_base.qp_context = attr.qp_context;
            }
            (*qp).ex.qp_base.qp_type = IBV_QPT_XRC_RECV;
            Ok(qp.cast())
        }
    })
}

/// Creates the structure of a QP and adds it to the registry, where events find it.
///
/// # Safety
/// `context` is open, `pd` alive or NULL.
unsafe fn enter(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    device: Arc<weir_device::Qp>,
    service: Service,
    cookie: u64,
    sq_sig_all: bool,
) -> Result<*mut Qp, Errno> {
    let mut given = device.caps();
    given.max_inline_data = given.max_inline_data.min(INLINE_ROOM as u32);
    // SAFETY: integers and pointers; mutex and condition are initialised below.
    let mut ibv: ibv_qp = unsafe { zeroed() };
    ibv.context = context;
    ibv.pd = pd;
    ibv.handle = new_handle();
    ibv.qp_num = device.num();
    // SAFETY: the context of a living PD is open.
    let registry = unsafe { context::own_checked(context)? }.registry.clone();
    let own = QpOwn {
        device,
        service,
        builder: Builder::default(),
        extended: false,
        max_send_wr: given.max_send_wr,
        max_send_sge: given.max_send_sge,
        max_recv_sge: given.max_recv_sge,
        max_inline: given.max_inline_data as usize,
        sq_sig_all,
        registry: registry.clone(),
        cookie,
        owner_process: OwnerProcess::current(),
    };
    // SAFETY: integers, pointers and optional functions.
    let ex = ibv_qp_ex { qp_base: ibv, ..unsafe { zeroed() } };
    // SAFETY: the PD outlives its QPs.
    let qp = unsafe { domain::allocate_in(pd, Resource::Qp, Qp { ex, own })? };
    // SAFETY: just created, at its final address.
    unsafe {
        libc::pthread_mutex_init(&raw mut (*qp).ex.qp_base.mutex, std::ptr::null());
        libc::pthread_cond_init(&raw mut (*qp).ex.qp_base.cond, std::ptr::null());
    }
    registry.qps().insert(cookie, NonNull::new(qp).ok_or(EINVAL)?);
    Ok(qp)
}

fn service(qp_type: c_int) -> Result<Service, Errno> {
    match qp_type {
        IBV_QPT_RC => Ok(Service::Rc),
        IBV_QPT_UC => Ok(Service::Uc),
        IBV_QPT_UD => Ok(Service::Ud),
        IBV_QPT_XRC_SEND => Ok(Service::Xrc),
        _ => Err(EOPNOTSUPP),
    }
}
