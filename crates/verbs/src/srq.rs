//! Shared receive queues.

use crate::abi::*;
use crate::cq::acknowledge;
use crate::domain::{self, Resource};
use crate::ffi::{EINVAL, EIO, EOPNOTSUPP, allocating, guard_hot, status, zeroed};
use crate::living::{check, leave, object};
use crate::pd;
use crate::post::sge_list;
use crate::refused_post;
use crate::registry::{Registry, new_cookie, new_handle};
use crate::{context, cq, xrc};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use weir_device::{Errno, OwnerProcess, SrqCreate, TagCreate, Xrcd};
use weir_transport::RecvWr;

/// An `ibv_srq` and Weir's part of it.
#[repr(C)]
pub struct Srq {
    pub ibv: ibv_srq,
    pub own: SrqOwn,
}

/// Weir's part of an SRQ.
pub struct SrqOwn {
    pub device: Arc<weir_device::Srq>,
    max_sge: u32,
    pub max_tag_sge: u32,
    is_xrc: bool,
    registry: Arc<Registry>,
    cookie: u64,
    owner_process: OwnerProcess,
}

/// What an SRQ is, with the objects that it needs.
enum Kind {
    Basic,
    Xrc(Arc<Xrcd>, Arc<weir_device::Cq>),
    Tags(TagCreate, Arc<weir_device::Cq>),
}

/// # Safety
/// `pd` is alive, `init` as in verbs.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: guaranteed by the caller.
    object(|| unsafe { create((*pd).context, pd, (*init).srq_context, &mut (*init).attr, Kind::Basic) })
}

/// The header's inline function calls this for every SRQ that is not a plain one. EOPNOTSUPP for other types and
/// masks, EINVAL if a member that the type needs is missing or NULL. The CQ of a TM SRQ must be an extended one, otherwise
/// EINVAL: only such a CQ gives the tags of messages.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn create_srq_ex(context: *mut ibv_context, init: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
    object(|| {
        // SAFETY: guaranteed by the caller; members that the mask does not select are not read.
        unsafe {
            const MASK: u32 = IBV_SRQ_INIT_ATTR_TYPE
                | IBV_SRQ_INIT_ATTR_PD
                | IBV_SRQ_INIT_ATTR_XRCD
                | IBV_SRQ_INIT_ATTR_CQ
                | IBV_SRQ_INIT_ATTR_TM;
            let mask = (*init).comp_mask;
            let selects = |bit| mask & bit != 0;
            let kind = if selects(IBV_SRQ_INIT_ATTR_TYPE) { (*init).srq_type } else { IBV_SRQT_BASIC };
            if mask & !MASK != 0 {
                return Err(EOPNOTSUPP);
            }
            if !selects(IBV_SRQ_INIT_ATTR_PD) {
                return Err(context::refuse(context, EINVAL, "SRQ: create: comp_mask has no IBV_SRQ_INIT_ATTR_PD"));
            }
            let kind = match kind {
                IBV_SRQT_BASIC => Kind::Basic,
                IBV_SRQT_XRC
                    if selects(IBV_SRQ_INIT_ATTR_XRCD)
                        && selects(IBV_SRQ_INIT_ATTR_CQ)
                        && !(*init).xrcd.is_null()
                        && !(*init).cq.is_null() =>
                {
                    Kind::Xrc(xrc::own((*init).xrcd).clone(), cq::own((*init).cq).device.clone())
                }
                IBV_SRQT_TM
                    if selects(IBV_SRQ_INIT_ATTR_TM)
                        && selects(IBV_SRQ_INIT_ATTR_CQ)
                        && cq::is_extended((*init).cq) =>
                {
                    let ibv_tm_cap { max_num_tags: max_tags, max_ops } = (*init).tm_cap;
                    Kind::Tags(TagCreate { max_tags, max_ops }, cq::own((*init).cq).device.clone())
                }
                IBV_SRQT_XRC | IBV_SRQT_TM => {
                    let why =
                        "SRQ: create: IBV_SRQT_XRC needs xrcd and cq, IBV_SRQT_TM tm_cap and a cq of ibv_create_cq_ex";
                    return Err(context::refuse(context, EINVAL, why));
                }
                _ => return Err(EOPNOTSUPP),
            };
            create(context, (*init).pd, (*init).srq_context, &mut (*init).attr, kind)
        }
    })
}

/// # Safety
/// `srq` is alive, `attr` readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    allocating(|| {
        check(srq, "ibv_modify_srq")?;
        // SAFETY: guaranteed by the caller.
        let (own, attr) = unsafe { (own_checked(srq)?, &*attr) };
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            let why = "SRQ: modify: srq_attr_mask must have no other bits than IBV_SRQ_MAX_WR and IBV_SRQ_LIMIT";
            // SAFETY: guaranteed by the caller.
            return Err(unsafe { context::refuse((*srq).context, EINVAL, why) });
        }
        let max_wr = (mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
        let limit = (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
        own.device.modify(max_wr, limit)
    })
}

/// # Safety
/// `srq` is alive, `attr` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    status(|| {
        check(srq, "ibv_query_srq")?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (max_wr, max_sge, srq_limit) = own_checked(srq)?.device.query();
            *attr = ibv_srq_attr { max_wr, max_sge, srq_limit };
        }
        Ok(())
    })
}

/// # Safety
/// `srq` is from one of the functions above; after success it is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    status(|| {
        let leaving = leave(srq, "ibv_destroy_srq")?;
        // SAFETY: guaranteed by the caller; `create` made it.
        unsafe {
            if context::is_inherited((*srq).context) {
                return Ok(());
            }
            let own = own(srq);
            own.device.destroy()?;
            let handed_out = own.registry.srqs().remove(own.cookie);
            libc::pthread_mutex_lock(&raw mut (*srq).mutex);
            if let Some(events) = handed_out {
                while (*srq).events_completed != events.async_events {
                    libc::pthread_cond_wait(&raw mut (*srq).cond, &raw mut (*srq).mutex);
                }
            }
            libc::pthread_mutex_unlock(&raw mut (*srq).mutex);
            libc::pthread_mutex_destroy(&raw mut (*srq).mutex);
            libc::pthread_cond_destroy(&raw mut (*srq).cond);
            let _left = leaving.done();
            domain::release(srq.cast::<Srq>());
        }
        Ok(())
    })
}

/// EINVAL for an SRQ that is not an XRC SRQ.
///
/// # Safety
/// `srq` is alive, `number` writable.
pub unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    status(|| {
        check(srq, "ibv_get_srq_num")?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let own = own(srq);
            if !own.is_xrc {
                let why = "SRQ: only SRQs of type IBV_SRQT_XRC have a number";
                return Err(context::refuse((*srq).context, EINVAL, why));
            }
            *number = own.device.number();
        }
        Ok(())
    })
}

/// `ibv_post_srq_recv`: 0, or an errno value with the first work request that was not posted in `bad_wr`.
///
/// # Safety
/// `srq` is alive, `wr` is a list as in verbs.h, `bad_wr` is writable.
pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut next = wr;
    let outcome = guard_hot(EIO.0, || {
        // SAFETY: guaranteed by the caller.
        let own = match unsafe { own_checked(srq) } {
            Ok(own) => own,
            Err(errno) => return errno.0,
        };
        // SAFETY: the caller's list; each `next` is NULL or points to the next work request.
        while let Some(request) = unsafe { next.as_ref() } {
            // SAFETY: the caller's SGE list.
            let posted = unsafe { sge_list(request.sg_list, request.num_sge, own.max_sge) }
                .and_then(|sges| own.device.post(&RecvWr { wr_id: request.wr_id, sges }));
            if let Err(error) = posted {
                return refused_post::shared_receive(&own.device, own.max_sge, request, error).0;
            }
            next = request.next;
        }
        0
    });
    if outcome != 0 && !bad_wr.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { *bad_wr = next };
    }
    outcome
}

/// Weir's part of an SRQ.
///
/// # Safety
/// `srq` is alive for `'a`.
pub unsafe fn own<'a>(srq: *const ibv_srq) -> &'a SrqOwn {
    // SAFETY: every `ibv_srq` that Weir creates is the start of an `Srq`.
    unsafe { &(*srq.cast::<Srq>()).own }
}

/// Like [`own`], but EIO in a forked child. Takes no lock before that check: see [`context::own_checked`].
///
/// # Safety
/// As for [`own`].
#[inline]
pub unsafe fn own_checked<'a>(srq: *const ibv_srq) -> Result<&'a SrqOwn, Errno> {
    // SAFETY: guaranteed by the caller.
    let own = unsafe { own(srq) };
    // SAFETY: as above; its context outlives it.
    own.owner_process.check(|| unsafe { context::name((*srq).context) })?;
    Ok(own)
}

/// Counts an event of this SRQ as acknowledged.
///
/// # Safety
/// `srq` is alive.
pub unsafe fn acknowledge_event(srq: *mut ibv_srq) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if own_checked(srq).is_ok() {
            acknowledge(&raw mut (*srq).mutex, &raw mut (*srq).cond, &raw mut (*srq).events_completed, 1);
        }
    }
}

/// # Safety
/// `ibv_context` is open, `pd` alive.
unsafe fn create(
    ibv_context: *mut ibv_context,
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
    kind: Kind,
) -> Result<*mut ibv_srq, Errno> {
    check(pd, "ibv_create_srq")?;
    let cookie = new_cookie();
    // A new SRQ has no limit and ignores `srq_limit`: only `ibv_modify_srq` sets a limit.
    let create = SrqCreate { max_wr: attr.max_wr, max_sge: attr.max_sge, cookie };
    let is_xrc = matches!(kind, Kind::Xrc(..));
    // SAFETY: guaranteed by the caller.
    let (pd_device, context) = unsafe { (&pd::own(pd).device, context::own_checked(ibv_context)?) };
    let device = match kind {
        Kind::Basic => pd_device.create_srq(&create, None)?,
        Kind::Xrc(xrcd, cq) => pd_device.create_srq(&create, Some((xrcd, cq)))?,
        Kind::Tags(tags, cq) => pd_device.create_tm_srq(&create, &tags, &cq)?,
    };
    let registry = context.registry.clone();
    // SAFETY: integers and pointers; mutex and condition are initialised below.
    let mut ibv: ibv_srq = unsafe { zeroed() };
    (ibv.context, ibv.srq_context, ibv.pd, ibv.handle) = (ibv_context, srq_context, pd, new_handle());
    let own = SrqOwn {
        device,
        max_sge: attr.max_sge,
        max_tag_sge: context.device.limits().max_tag_sge,
        is_xrc,
        registry: registry.clone(),
        cookie,
        owner_process: OwnerProcess::current(),
    };
    // SAFETY: the PD outlives its SRQs.
    let srq = unsafe { domain::allocate_in(pd, Resource::Srq, Srq { ibv, own })? };
    // SAFETY: just created, at its final address.
    unsafe {
        libc::pthread_mutex_init(&raw mut (*srq).ibv.mutex, std::ptr::null());
        libc::pthread_cond_init(&raw mut (*srq).ibv.cond, std::ptr::null());
    }
    registry.srqs().insert(cookie, NonNull::new(srq.cast()).ok_or(EINVAL)?);
    Ok(srq.cast())
}
