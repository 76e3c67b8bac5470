//! The control calls of libibverbs that this library defines: they make, change and destroy what the layer watches.
//!
//! Each calls the next definition. librdmacm, UCX and other libraries call these functions too.

use crate::contexts::{self, CONTEXTS, CONTROL, Context, Odp, PollCq, Real};
use crate::cq::{CQS, Cq};
use crate::file::{self, Counter};
use crate::guard::{self, pinned, rnr, watch};
use crate::locked::Raw;
use crate::next::*;
use crate::objects::{self, NUMBERS, QPS};
use crate::qp::Qp;
use crate::quiet::{self, Uncancelled, observe};
use crate::room::Room;
use crate::{biased, builder, cq_ex, fork, post};
use std::ffi::{CStr, c_int, c_void};
use std::mem::offset_of;
use std::sync::Once;
use weir_abi::*;

/// # Safety
/// As in verbs.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let _uncancelled = Uncancelled::new();
    let context = call!(OPEN_DEVICE, std::ptr::null_mut(), device);
    // SAFETY: a new context.
    unsafe { adopt(context) };
    context
}

/// # Safety
/// As in verbs.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_device(fd: c_int) -> *mut ibv_context {
    let _uncancelled = Uncancelled::new();
    let context = call!(IMPORT_DEVICE, std::ptr::null_mut(), fd);
    // SAFETY: a new context.
    unsafe { adopt(context) };
    context
}

/// # Safety
/// As in verbs.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    let _uncancelled = Uncancelled::new();
    observe(file::note_time);
    observe(|| {
        // The program may leave QPs behind.
        let Some(closed) = CONTEXTS.get(context as u64) else { return };
        QPS.each(|own| {
            if std::ptr::eq(own.context(), closed) && !own.is_inherited() {
                own.guard.close();
            }
        });
    });
    let status = call!(CLOSE_DEVICE, libc::ENOSYS, context);
    if status == 0 {
        observe(|| CONTROL.with(|| CONTEXTS.remove(context as u64)));
    }
    status
}

/// # Safety
/// As in verbs.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let _uncancelled = Uncancelled::new();
    // A provider's own function may have opened it (mlx5dv_open_device).
    // SAFETY: the caller's context.
    unsafe { adopt(context) };
    call!(ALLOC_PD, std::ptr::null_mut(), context)
}

/// # Safety
/// As in verbs.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the caller's context.
    unsafe { adopt(context) };
    let more = guard::cq::wanted_entries(cqe);
    let mut cq = call!(CREATE_CQ, std::ptr::null_mut(), context, cqe.saturating_add(more), cq_context, channel, vector);
    if cq.is_null() && more != 0 {
        cq = call!(CREATE_CQ, std::ptr::null_mut(), context, cqe, cq_context, channel, vector);
    }
    observe(|| {
        if let Some(own) = CONTEXTS.get(context as u64).filter(|_| !cq.is_null()) {
            // SAFETY: a new CQ.
            let spare = i64::from(unsafe { (*cq).cqe }.saturating_sub(cqe));
            CONTROL.with(|| Cq::enter(cq, own, spare));
        }
    });
    cq
}

/// # Safety
/// As in verbs.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    let _uncancelled = Uncancelled::new();
    let own = CQS.get(cq as u64).filter(|own| !own.is_inherited());
    // As the program wants it first: the library may refuse that.
    let status = call!(RESIZE_CQ, libc::ENOSYS, cq, cqe);
    let more = own.map_or(0, |_| guard::cq::wanted_entries(cqe));
    if status == 0 && more != 0 && call!(RESIZE_CQ, libc::ENOSYS, cq, cqe.saturating_add(more)) != 0 {
        observe(|| own.inspect(|own| own.guard.lose_spare()));
    }
    status
}

/// # Safety
/// As in verbs.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    let _uncancelled = Uncancelled::new();
    // Before the call: afterwards another CQ may have this address.
    let known = CQS.get(cq as u64);
    let status = call!(DESTROY_CQ, libc::ENOSYS, cq);
    observe(|| {
        // Another thread may have made another CQ at this address meanwhile: then it stays.
        let same = CQS.get(cq as u64).zip(known).is_some_and(|(now, before)| std::ptr::eq(now, before));
        if status == 0 && same {
            CONTROL.with(|| Cq::forget(cq));
        }
    });
    status
}

/// # Safety
/// As in verbs.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the caller's PD.
    unsafe { adopt((*pd).context) };
    // SAFETY: the caller's attributes.
    let (cap, service) = unsafe { (&raw mut (*attr).cap, (*attr).qp_type) };
    let create = || call!(CREATE_QP, std::ptr::null_mut(), pd, attr);
    // SAFETY: as above.
    let (qp, spare) = unsafe { with_places(cap, service, create) };
    // SAFETY: the library has written what the QP can hold.
    observe(|| unsafe { created(qp, &*cap, (*attr).sq_sig_all != 0, spare) });
    qp
}

/// # Safety
/// As in verbs.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    let _uncancelled = Uncancelled::new();
    let own = QPS.get(qp as u64).filter(|own| !own.is_inherited());
    // A guard does not act on the QP meanwhile.
    let _acting = own.map(|own| own.guard.acting());
    // SAFETY: the caller's attributes.
    let quick = own.and_then(|own| rnr::quick_timer(own, unsafe { &*attr }, mask));
    let mut done = false;
    if let Some(timer) = quick {
        // SAFETY: as above.
        let mut quicker = ibv_qp_attr { min_rnr_timer: timer, ..unsafe { *attr } };
        done = call!(MODIFY_QP, libc::ENOSYS, qp, &mut quicker, mask | IBV_QP_MIN_RNR_TIMER) == 0;
    }
    let status = if done { 0 } else { call!(MODIFY_QP, libc::ENOSYS, qp, attr, mask) };
    if status == 0 {
        observe(|| {
            if let Some(own) = own {
                // SAFETY: the caller's attributes.
                own.modified(unsafe { &*attr }, mask, done);
                if own.guard.is_on() {
                    watch::start();
                    // SAFETY: as above.
                    if mask & IBV_QP_STATE != 0 && unsafe { (*attr).qp_state } == IBV_QPS_RESET {
                        own.guard.purge();
                    }
                }
            }
        });
    }
    status
}

/// # Safety
/// As in verbs.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    let own = QPS.get(qp as u64).filter(|own| !own.is_inherited());
    // Not in the middle of a start.
    let _acting = own.map(|own| own.guard.acting());
    let status = call!(QUERY_QP, libc::ENOSYS, qp, attr, mask, init);
    if status == 0 {
        observe(|| {
            if let Some(own) = own {
                // SAFETY: the library has written both.
                unsafe { rnr::show_own(own, &mut *attr, &mut (*init).cap) };
            }
        });
    }
    status
}

/// # Safety
/// As in verbs.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    let _uncancelled = Uncancelled::new();
    let key = QPS.get(qp as u64).map(|own| own.key());
    let own = QPS.get(qp as u64).filter(|own| !own.is_inherited());
    let _until_gone = observe(|| own.and_then(|own| own.guard.close()));
    let status = call!(DESTROY_QP, libc::ENOSYS, qp);
    observe(|| {
        file::note_time();
        let same = QPS.get(qp as u64).map(|own| own.key()) == key;
        if status == 0 && same && key.is_some() {
            CONTROL.with(|| objects::forget_qp(qp));
        }
    });
    status
}

/// # Safety
/// As in verbs.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let _uncancelled = Uncancelled::new();
    observe(|| pinned::release(pd));
    call!(DEALLOC_PD, libc::ENOSYS, pd)
}

/// # Safety
/// As in verbs.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the caller's region, which is gone after the call.
    let (context, lkey) = unsafe { ((*mr).context, (*mr).lkey) };
    observe(|| {
        if let Some(own) = CONTEXTS.get(context as u64).filter(|own| contexts::is_odp(own, lkey)) {
            contexts::forget_odp(own, lkey);
        }
    });
    call!(DEREG_MR, libc::ENOSYS, mr)
}

/// A region was registered. `iova` is its first address for the adapter, `caller` the address that the call returns to.
pub fn registered(mr: *mut ibv_mr, implicit: bool, iova: u64, access: u32, caller: *const c_void) {
    // SAFETY: a new region.
    let Some(mr) = (unsafe { mr.as_ref() }) else { return };
    let Some(own) = CONTEXTS.get(mr.context as u64) else { return };
    if access & IBV_ACCESS_ON_DEMAND == 0 {
        file::count(Counter::Pinned, 1);
        file::count(Counter::PinnedBytes, mr.length as u64);
        return;
    }
    let plain = iova == mr.addr as u64 && access & IBV_ACCESS_ZERO_BASED == 0;
    contexts::enter_odp(own, mr.lkey, if plain { Odp::Plain } else { Odp::Shifted });
    rnr::quicken(own);
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: fills a local variable; the loader's name of a library that is running.
    let path = unsafe {
        let known = libc::dladdr(caller, &mut info) != 0 && !info.dli_fname.is_null();
        if known { CStr::from_ptr(info.dli_fname).to_bytes() } else { b"?" }
    };
    CONTROL.with(|| file::count_source(path, mr.length as u64, implicit));
}

/// Watches a context from now on, if `weir doctor` runs this program, or guards are on.
///
/// # Safety
/// An open context or NULL.
pub unsafe fn adopt(context: *mut ibv_context) {
    let guarded = guard::list().any();
    if !context.is_null() && !file::is_wanted() && !guarded {
        return;
    }
    observe(|| {
        if context.is_null() {
            return;
        }
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            quiet::silence();
            biased::prepare();
            // SAFETY: functions of this library, which is never unloaded.
            unsafe { libc::pthread_atfork(Some(fork::before_fork), Some(fork::after_fork), Some(fork::in_child)) };
        });
        CONTROL.with(|| {
            if (file::make() || guarded) && CONTEXTS.get(context as u64).is_none() {
                // SAFETY: guaranteed by the caller.
                unsafe { patch(context) };
            }
        });
    });
}

/// Replaces the functions that the header's inline calls reach through a context.
unsafe fn patch(context: *mut ibv_context) {
    // SAFETY: an open context; the call that returns it to the program has not returned, or the program cannot have
    // objects that use the functions yet.
    let (ops, extended) = unsafe { (&mut (*context).ops, verbs_of(context)) };
    let has = |member: usize| {
        // SAFETY: as above. New members are added in front.
        extended.is_some_and(|verbs| unsafe { (*verbs).sz } >= size_of::<verbs_context>() - member)
    };
    let (create_cq_ex, create_qp_ex) =
        (has(offset_of!(verbs_context, create_cq_ex)), has(offset_of!(verbs_context, create_qp_ex)));
    // SAFETY: as above; members that the context has.
    let (cq, qp) = unsafe {
        (
            extended.filter(|_| create_cq_ex).and_then(|verbs| (*verbs).create_cq_ex),
            extended.filter(|_| create_qp_ex).and_then(|verbs| (*verbs).create_qp_ex),
        )
    };
    let real = Real {
        // SAFETY: as below.
        poll_cq: unsafe { std::mem::transmute::<Option<_>, Option<PollCq>>(ops.poll_cq) },
        req_notify_cq: ops.req_notify_cq,
        post_send: ops.post_send,
        post_recv: ops.post_recv,
        // SAFETY: a member that the context has.
        advise_mr: extended
            .filter(|_| has(offset_of!(verbs_context, advise_mr)))
            .and_then(|verbs| unsafe { (*verbs).advise_mr }),
        create_cq_ex: cq,
        create_qp_ex: qp,
    };
    let query = extended.filter(|_| has(offset_of!(verbs_context, query_device_ex)));
    // SAFETY: as above.
    let no_odp = query.is_some_and(|verbs| unsafe { lacks_odp(context, verbs) });
    Context::enter(context, real, no_odp);
    // SAFETY: the types differ in whether a cancelled thread may unwind through the functions.
    ops.poll_cq = unsafe { std::mem::transmute::<Option<PollCq>, Option<_>>(Some(post::poll_cq)) };
    ops.req_notify_cq = Some(post::req_notify_cq);
    ops.post_send = Some(post::post_send);
    if guard::list().reissue {
        ops.post_recv = Some(guard::post::post_recv);
    }
    if let Some(verbs) = extended {
        // SAFETY: as above.
        unsafe {
            if cq.is_some() {
                (*verbs).create_cq_ex = Some(cq_ex::create_cq_ex);
            }
            if qp.is_some() {
                (*verbs).create_qp_ex = Some(create_qp_ex_of_context);
            }
        }
    }
}

/// Whether a device says that it cannot have ODP memory.
unsafe fn lacks_odp(context: *mut ibv_context, verbs: *mut verbs_context) -> bool {
    // SAFETY: an open context that has this member; numbers, for which all zeros is valid.
    unsafe {
        let Some(query) = (*verbs).query_device_ex else { return false };
        let mut attr: ibv_device_attr_ex = std::mem::zeroed();
        let status = query(context, std::ptr::null(), &mut attr, size_of::<ibv_device_attr_ex>());
        status == 0 && attr.odp_caps.general_caps & IBV_ODP_SUPPORT == 0
    }
}

/// The structure that a context is the end of, if it is.
unsafe fn verbs_of(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: an open context.
    let extended = unsafe { (*context).abi_compat } as usize == usize::MAX;
    extended.then(|| context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast())
}

/// `ibv_create_qp_ex`.
unsafe extern "C" fn create_qp_ex_of_context(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    let real = CONTEXTS.get(context as u64).and_then(|own| own.real.create_qp_ex);
    let Some(real) = real else { return std::ptr::null_mut() };
    let _uncancelled = Uncancelled::new();
    // SAFETY: the caller's attributes.
    let (cap, service) = unsafe { (&raw mut (*attr).cap, (*attr).qp_type) };
    // SAFETY: as above, in the caller's own call.
    let (qp, spare) = unsafe { with_places(cap, service, || real(context, attr)) };
    // SAFETY: the library has written what the QP can hold. Only members that `comp_mask` names are read.
    observe(|| unsafe {
        let attr = &*attr;
        let own = created(qp, &attr.cap, attr.sq_sig_all != 0, spare);
        if let Some(own) = own.filter(|_| attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0) {
            builder::install(qp.cast(), own, attr.send_ops_flags);
        }
    });
    qp
}

/// Creates a QP with places for dummies in its send queue, if it gets them; returns their number, too. The program sees
/// the rest.
///
/// # Safety
/// `cap` is what `create` passes to the library.
unsafe fn with_places(
    cap: *mut ibv_qp_cap,
    service: c_int,
    mut create: impl FnMut() -> *mut ibv_qp,
) -> (*mut ibv_qp, u32) {
    // SAFETY: guaranteed by the caller.
    let asked = unsafe { *cap };
    let spare = guard::qp::places(service);
    if spare == 0 {
        return (create(), 0);
    }
    // SAFETY: as above.
    unsafe { (*cap).max_send_wr = asked.max_send_wr.saturating_add(spare) };
    let qp = create();
    if !qp.is_null() {
        // SAFETY: as above.
        unsafe { (*cap).max_send_wr = (*cap).max_send_wr.saturating_sub(spare) };
        return (qp, spare);
    }
    // SAFETY: as above.
    unsafe { *cap = asked };
    (create(), 0)
}

/// Watches a new QP.
unsafe fn created(qp: *mut ibv_qp, cap: &ibv_qp_cap, signal_all: bool, spare: u32) -> Option<&'static Qp> {
    if qp.is_null() {
        return None;
    }
    // SAFETY: a new QP.
    let context = CONTEXTS.get(unsafe { (*qp).context } as u64)?;
    let room =
        Room { requests: cap.max_send_wr, sges: cap.max_send_sge, inline: cap.max_inline_data, signal_all, spare };
    CONTROL.with(|| {
        // SAFETY: as above.
        NUMBERS.remove(context.key(unsafe { (*qp).qp_num }));
        objects::enter_qp(qp, context, &room)
    })
}
