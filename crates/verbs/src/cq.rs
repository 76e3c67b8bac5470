//! Completion queues and completion channels: their creation, destruction and events.

use crate::abi::*;
use crate::context;
use crate::domain::{self, Resource};
use crate::ffi::{self, EBUSY, EINVAL, EIO, allocating, guard, status, zeroed};
use crate::gate::Gate;
use crate::living::{check, leave, object};
use crate::registry::{Registry, new_cookie, new_handle};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use weir_device::{CqCreate, Errno, OwnerProcess};
use weir_transport::Completion;

/// An `ibv_cq` and Weir's part of it. Every CQ can be polled as an `ibv_cq`: an `ibv_cq_ex` begins with the same
/// members.
#[repr(C)]
pub struct Cq {
    ibv: ibv_cq_ex,
    pub own: CqOwn,
}

/// The attributes of a new CQ.
pub struct Creating {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub timestamps: bool,
    pub ignore_overrun: bool,
    pub polling: Polling,
    /// The parent domain that allocates the CQ's memory, or NULL.
    pub parent: *mut ibv_pd,
}

/// The current completion between `ibv_start_poll` and `ibv_end_poll`.
#[derive(Default)]
pub struct Polling {
    pub current: Gate<Option<(Completion, u64)>>,
    /// The application guarantees that only one thread polls; the gate is not entered.
    pub single_threaded: bool,
}

/// Weir's part of a CQ.
pub struct CqOwn {
    pub device: Arc<weir_device::Cq>,
    pub polling: Polling,
    registry: Arc<Registry>,
    cookie: u64,
    owner_process: OwnerProcess,
}

#[repr(C)]
struct Channel {
    ibv: ibv_comp_channel,
    own: ChannelOwn,
}

struct ChannelOwn {
    device: Arc<weir_device::CompChannel>,
    registry: Arc<Registry>,
}

/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    object(|| {
        check(context, "ibv_create_comp_channel")?;
        // SAFETY: guaranteed by the caller.
        let own = unsafe { context::own_checked(context)? };
        let device = own.device.create_channel()?;
        let ibv = ibv_comp_channel { context, fd: device.fd(), refcnt: 0 };
        let own = ChannelOwn { device, registry: own.registry.clone() };
        Ok(Box::into_raw(Box::new(Channel { ibv, own })).cast())
    })
}

/// # Safety
/// `channel` is from `ibv_create_comp_channel`; after success it is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    status(|| {
        let leaving = leave(channel, "ibv_destroy_comp_channel")?;
        // SAFETY: guaranteed by the caller; created from a Box.
        unsafe {
            if context::is_inherited((*channel).context) {
                return Ok(());
            }
            if count_users(channel, 0) != 0 {
                return Err(EBUSY);
            }
            let _left = leaving.done();
            drop(Box::from_raw(channel.cast::<Channel>()));
        }
        Ok(())
    })
}

/// # Safety
/// `context` is open, `channel` NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    object(|| {
        if cqe < 1 || comp_vector < 0 {
            check(context, "ibv_create_cq")?;
            let why = format_args!("CQ: {cqe} entries, completion vector {comp_vector}: too few, or negative");
            // SAFETY: guaranteed by the caller.
            return Err(unsafe { context::own_checked(context)? }.device.refuse(libc::EINVAL, why));
        }
        let creating = Creating {
            cqe: cqe as u32,
            cq_context,
            channel,
            comp_vector: comp_vector as u32,
            timestamps: false,
            ignore_overrun: false,
            polling: Polling::default(),
            parent: std::ptr::null_mut(),
        };
        // SAFETY: guaranteed by the caller.
        Ok(unsafe { create(context, creating)? }.cast())
    })
}

/// # Safety
/// `context` is open, the channel is NULL or alive, the parent domain is NULL or alive.
pub unsafe fn create(context: *mut ibv_context, creating: Creating) -> Result<*mut ibv_cq_ex, Errno> {
    check(context, "ibv_create_cq")?;
    // SAFETY: guaranteed by the caller.
    let (own, vectors) = unsafe { (context::own_checked(context)?, (*context).num_comp_vectors) };
    let Creating { cqe, cq_context, channel, comp_vector, timestamps, ignore_overrun, polling, parent } = creating;
    if comp_vector >= vectors as u32 {
        let why = format_args!("CQ: there is no completion vector {comp_vector}: the device has {vectors}");
        return Err(own.device.refuse(libc::EINVAL, why));
    }
    let notify = (!channel.is_null()).then(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { &(*channel.cast::<Channel>()).own }.device.clone()
    });
    let cookie = new_cookie();
    let create = CqCreate { cqe, channel: notify, cookie, timestamps, ignore_overrun };
    let device = own.device.create_cq_with(create)?;
    // SAFETY: integers, pointers and optional functions; mutex and condition are initialised below.
    let mut ibv: ibv_cq_ex = unsafe { zeroed() };
    ibv.context = context;
    ibv.channel = channel;
    ibv.cq_context = cq_context;
    ibv.handle = new_handle();
    ibv.cqe = device.cqe() as c_int;
    let made =
        CqOwn { device, polling, registry: own.registry.clone(), cookie, owner_process: OwnerProcess::current() };
    // SAFETY: a parent domain outlives its CQs.
    let cq = unsafe { domain::allocate_in(parent, Resource::Cq, Cq { ibv, own: made })? };
    // SAFETY: just created, at its final address.
    unsafe {
        libc::pthread_mutex_init(&raw mut (*cq).ibv.mutex, std::ptr::null());
        libc::pthread_cond_init(&raw mut (*cq).ibv.cond, std::ptr::null());
        if !channel.is_null() {
            count_users(channel, 1);
        }
    }
    own.registry.cqs().insert(cookie, NonNull::new(cq.cast()).ok_or(EINVAL)?);
    Ok(cq.cast())
}

/// `ibv_modify_cq`. Only the moderation of events can be changed; EINVAL for any other attribute.
///
/// # Safety
/// `cq` is alive, `attr` as in verbs.h.
pub unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    allocating(|| {
        check(cq, "ibv_modify_cq")?;
        // SAFETY: guaranteed by the caller.
        let (own, attr) = unsafe { (own_checked(cq)?, &*attr) };
        if attr.attr_mask != IBV_CQ_ATTR_MODERATE {
            let why = "CQ: modify: attr_mask must be IBV_CQ_ATTR_MODERATE, and nothing else";
            // SAFETY: guaranteed by the caller.
            return Err(unsafe { context::refuse((*cq).context, EINVAL, why) });
        }
        own.device.moderate(attr.moderate.cq_count, attr.moderate.cq_period)
    })
}

/// # Safety
/// `cq` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    allocating(|| {
        check(cq, "ibv_resize_cq")?;
        if cqe < 1 {
            // SAFETY: guaranteed by the caller.
            return Err(unsafe { context::refuse((*cq).context, EINVAL, "CQ: resize: cqe is less than 1") });
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            let device = &own_checked(cq)?.device;
            device.resize(cqe as u32)?;
            (*cq).cqe = device.cqe() as c_int;
        }
        Ok(())
    })
}

/// # Safety
/// `cq` is from `ibv_create_cq`; after success it is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    status(|| {
        let leaving = leave(cq, "ibv_destroy_cq")?;
        // SAFETY: guaranteed by the caller; created from a Box.
        unsafe {
            if context::is_inherited((*cq).context) {
                return Ok(());
            }
            let own = own(cq);
            own.device.destroy()?;
            let handed_out = own.registry.cqs().remove(own.cookie);
            libc::pthread_mutex_lock(&raw mut (*cq).mutex);
            if let Some(events) = handed_out {
                while (*cq).comp_events_completed != events.completion_events
                    || (*cq).async_events_completed != events.async_events
                {
                    libc::pthread_cond_wait(&raw mut (*cq).cond, &raw mut (*cq).mutex);
                }
            }
            libc::pthread_mutex_unlock(&raw mut (*cq).mutex);
            if !(*cq).channel.is_null() {
                count_users((*cq).channel, -1);
            }
            libc::pthread_mutex_destroy(&raw mut (*cq).mutex);
            libc::pthread_cond_destroy(&raw mut (*cq).cond);
            let _left = leaving.done();
            domain::release(cq.cast::<Cq>());
        }
        Ok(())
    })
}

/// # Safety
/// `channel` is alive; `cq` and `cq_context` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let (own, fd, inherited) =
        unsafe { (&(*channel.cast::<Channel>()).own, (*channel).fd, context::is_inherited((*channel).context)) };
    if inherited {
        ffi::set_errno(EIO);
        return -1;
    }
    let mut outcome = None;
    while outcome.is_none() {
        // A cancelled thread unwinds from here: nothing in this function has a destructor.
        // SAFETY: the channel's descriptor.
        if unsafe { ffi::read_event(fd) } != 0 {
            return -1;
        }
        outcome = guard(Some(-1), || {
            let cookie = own.device.pop_event()?;
            let mut cqs = own.registry.cqs();
            let entry = cqs.get(cookie)?;
            entry.completion_events = entry.completion_events.wrapping_add(1);
            // SAFETY: alive while the registry is locked, and after that until the event is acknowledged.
            unsafe {
                *cq = entry.object().cast();
                *cq_context = (**cq).cq_context;
            }
            Some(0)
        });
    }
    outcome.unwrap_or(-1)
}

/// # Safety
/// `cq` has `nevents` unacknowledged events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    // SAFETY: guaranteed by the caller: `ibv_destroy_cq` waits for these events.
    guard((), || unsafe {
        if own_checked(cq).is_ok() {
            acknowledge(&raw mut (*cq).mutex, &raw mut (*cq).cond, &raw mut (*cq).comp_events_completed, nevents);
        }
    })
}

/// Whether the program can read its completions field by field: `ibv_create_cq_ex` made it.
///
/// # Safety
/// `cq` is NULL or alive.
pub unsafe fn is_extended(cq: *const ibv_cq) -> bool {
    // SAFETY: guaranteed by the caller; every `ibv_cq` that Weir creates is the start of a `Cq`.
    !cq.is_null() && unsafe { (*cq.cast::<Cq>()).ibv.start_poll.is_some() }
}

/// Weir's part of a CQ.
///
/// # Safety
/// `cq` is alive for `'a`.
pub unsafe fn own<'a>(cq: *const ibv_cq) -> &'a CqOwn {
    // SAFETY: every `ibv_cq` that Weir creates is the start of a `Cq`.
    unsafe { &(*cq.cast::<Cq>()).own }
}

/// Like [`own`], but EIO in a forked child. Takes no lock before that check: see [`context::own_checked`].
///
/// # Safety
/// As for [`own`].
#[inline]
pub unsafe fn own_checked<'a>(cq: *const ibv_cq) -> Result<&'a CqOwn, Errno> {
    // SAFETY: guaranteed by the caller.
    let own = unsafe { own(cq) };
    // SAFETY: as above; its context outlives it.
    own.owner_process.check(|| unsafe { context::name((*cq).context) })?;
    Ok(own)
}

/// Counts events as acknowledged and wakes the thread that destroys their object.
///
/// # Safety
/// All three pointers belong to one living object.
pub unsafe fn acknowledge(
    mutex: *mut libc::pthread_mutex_t,
    cond: *mut libc::pthread_cond_t,
    completed: *mut u32,
    count: u32,
) {
    // SAFETY: guaranteed by the caller; the counter is accessed only under the mutex.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        *completed = (*completed).wrapping_add(count);
        libc::pthread_cond_signal(cond);
        libc::pthread_mutex_unlock(mutex);
    }
}

/// Adds to the number of CQs of a channel and returns it.
///
/// # Safety
/// The channel and its context are alive.
unsafe fn count_users(channel: *mut ibv_comp_channel, change: c_int) -> c_int {
    // SAFETY: guaranteed by the caller; the counter is accessed only under the context's mutex.
    unsafe {
        let mutex = &raw mut (*(*channel).context).mutex;
        libc::pthread_mutex_lock(mutex);
        (*channel).refcnt += change;
        let users = (*channel).refcnt;
        libc::pthread_mutex_unlock(mutex);
        users
    }
}
