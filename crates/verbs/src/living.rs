//! The objects that the program has created and not destroyed, by address. Calls that destroy, change or query an object
//! look here before they touch it: a program may destroy an object twice, from two threads at once, or after its device.
//! Posts and polls do not look: they must be fast.
//!
//! If the device of a context is closed before its objects are destroyed, the context stays in memory until the last of
//! them is destroyed.

use crate::abi::*;
use crate::context;
use crate::ffi::{self, EINVAL};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_device::{Errno, OwnerProcess, PerProcess, headroom, refused, with_room};

/// A structure of verbs.h that a call creates and another one destroys.
pub trait Object {
    /// Its name in messages. Two structures of one object have the same name.
    const KIND: &'static str;

    /// The context that it belongs to; NULL for a context.
    ///
    /// # Safety
    /// `object` is alive.
    unsafe fn context(object: *const Self) -> *mut ibv_context;
}

macro_rules! objects {
    ($($type:ty: $kind:literal),* $(,)?) => {
        $(impl Object for $type {
            const KIND: &'static str = $kind;

            unsafe fn context(object: *const Self) -> *mut ibv_context {
                // SAFETY: guaranteed by the caller.
                unsafe { (*object).context }
            }
        })*
    };
}

objects! {
    ibv_pd: "PD", ibv_mr: "MR", ibv_mw: "MW", ibv_cq: "CQ", ibv_cq_ex: "CQ", ibv_comp_channel: "completion channel",
    ibv_qp: "QP", ibv_srq: "SRQ", ibv_ah: "address handle", ibv_xrcd: "XRC domain", ibv_td: "thread domain",
    ibv_dm: "device memory", ibv_wq: "WQ", ibv_rwq_ind_table: "indirection table", ibv_flow: "flow",
    ibv_counters: "counters object",
}

impl Object for ibv_context {
    const KIND: &'static str = "context";

    unsafe fn context(_: *const Self) -> *mut ibv_context {
        std::ptr::null_mut()
    }
}

/// What is known of an object.
struct Entry {
    kind: &'static str,
    /// The address of its context, 0 for a context.
    context: usize,
    /// A thread destroys it at this moment.
    leaving: bool,
    /// Of a context: its objects, and whether the device was closed before they were destroyed.
    objects: usize,
    closed: bool,
}

type Entries = HashMap<usize, Entry>;

/// Empty in a forked child, which does nothing to its parent's objects.
static LIVING: PerProcess<Mutex<Entries>> = PerProcess::new();

fn living() -> MutexGuard<'static, Entries> {
    LIVING.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// For calls that return an object, or NULL and errno: ENOMEM if memory is short.
pub fn object<T: Object>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    object_of(headroom::OBJECT, body)
}

/// Like [`object`], for an object that needs less than `bytes` bytes.
pub fn object_of<T: Object>(bytes: usize, body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    ffi::object_of(bytes, || {
        // Grows outside of the lock, and before there is an object.
        drop(with_room(1, living, |entries| entries)?);
        let object = body()?;
        // SAFETY: just created.
        let context = unsafe { T::context(object) } as usize;
        let entry = Entry { kind: T::KIND, context, leaving: false, objects: 0, closed: false };
        let mut entries = living();
        entries.insert(object as usize, entry);
        if let Some(context) = entries.get_mut(&context) {
            context.objects += 1;
        }
        Ok(object)
    })
}

/// EINVAL if an object does not exist, or a thread destroys it. `verb`: the call, for the log.
pub fn check<T: Object>(object: *const T, verb: &str) -> Result<(), Errno> {
    let exists = living().get(&(object as usize)).is_some_and(|entry| entry.kind == T::KIND && !entry.leaving);
    if exists || may_be_inherited(object) { Ok(()) } else { Err(missing::<T>(verb)) }
}

/// The thread begins to destroy an object. EINVAL as for [`check`]. If the call fails, the object stays.
///
/// EDEADLK in a signal handler that has interrupted a control call of this thread, or a turn: it would wait for what
/// that call holds. Regions are excepted, because a memory hook may deregister them in the middle of any call.
pub fn leave<T: Object>(object: *mut T, verb: &str) -> Result<Leaving, Errno> {
    if T::KIND != ibv_mr::KIND && ffi::is_nested() {
        return Err(interrupts(verb));
    }
    let mut entries = living();
    let entry = entries.get_mut(&(object as usize)).filter(|entry| entry.kind == T::KIND && !entry.leaving);
    // A context that waits for its objects is closed already.
    let Some(entry) = entry.filter(|entry| !entry.closed) else {
        drop(entries);
        return if may_be_inherited(object) { Ok(Leaving { object: 0 }) } else { Err(missing::<T>(verb)) };
    };
    entry.leaving = true;
    Ok(Leaving { object: object as usize })
}

/// In a child, an object that is not known may be one of its parent: the call finds that out by itself.
fn may_be_inherited<T>(object: *const T) -> bool {
    !object.is_null() && OwnerProcess::current().is_forked()
}

#[cold]
fn missing<T: Object>(verb: &str) -> Errno {
    refused(EINVAL.0, format_args!("{verb}: this {} does not exist (any more)", T::KIND))
}

#[cold]
fn interrupts(verb: &str) -> Errno {
    let why =
        "it is called by a signal handler that interrupted another call of this thread: call it after the handler";
    refused(ffi::EDEADLK.0, format_args!("{verb}: {why}"))
}

/// An object that a thread destroys.
pub struct Leaving {
    /// Its address; 0 in a child, for an object of its parent.
    object: usize,
}

impl Leaving {
    /// The object is about to be freed. The result must be dropped after that.
    pub fn done(mut self) -> Left {
        let object = std::mem::take(&mut self.object);
        let mut entries = living();
        let Some(entry) = entries.get_mut(&object) else { return Left { context: None } };
        if entry.context == 0 && entry.objects > 0 {
            (entry.closed, entry.leaving) = (true, false);
            return Left { context: None };
        }
        let context = if entry.context == 0 { object } else { entry.context };
        entries.remove(&object);
        if context != object {
            let Some(of) = entries.get_mut(&context) else { return Left { context: None } };
            of.objects -= 1;
            if of.objects > 0 || !of.closed {
                return Left { context: None };
            }
            entries.remove(&context);
        }
        Left { context: Some(context as *mut ibv_context) }
    }
}

impl Drop for Leaving {
    /// The call has failed.
    fn drop(&mut self) {
        if self.object != 0
            && let Some(entry) = living().get_mut(&self.object)
        {
            entry.leaving = false;
        }
    }
}

/// Frees the context of the object if its device is closed and this was its last object.
pub struct Left {
    context: Option<*mut ibv_context>,
}

impl Drop for Left {
    fn drop(&mut self) {
        if let Some(context) = self.context {
            // SAFETY: the device is closed, and no object of the context is left.
            unsafe { context::release(context) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pd_of(context: *mut ibv_context) -> *mut ibv_pd {
        object(|| Ok(Box::into_raw(Box::new(ibv_pd { context, handle: 0 }))))
    }

    #[test]
    fn within_another_call_only_regions_are_destroyed() {
        let pd = pd_of(std::ptr::without_provenance_mut(16));
        let within = |verb| ffi::guard(None, || ffi::guard(None, || leave(pd, verb).err()));
        assert_eq!(within("ibv_dealloc_pd"), Some(ffi::EDEADLK));
        let no_region = std::ptr::without_provenance_mut::<ibv_mr>(24);
        let region = ffi::guard(None, || ffi::guard(None, || leave(no_region, "ibv_dereg_mr").err()));
        assert_eq!(region, Some(EINVAL), "it does not exist");
        drop(leave(pd, "ibv_dealloc_pd").unwrap().done());
        // SAFETY: from `Box::into_raw`.
        drop(unsafe { Box::from_raw(pd) });
    }

    #[test]
    fn an_object_is_destroyed_once() {
        // Of a context that is not open: only a context itself has none.
        let pd = pd_of(std::ptr::without_provenance_mut(16));
        assert_eq!(check(pd, "ibv_reg_mr"), Ok(()));
        assert_eq!(check(pd.cast::<ibv_qp>(), "ibv_modify_qp"), Err(EINVAL), "it is no QP");
        drop(leave(pd, "ibv_dealloc_pd").unwrap());
        let leaving = leave(pd, "ibv_dealloc_pd").expect("the first attempt has failed");
        assert_eq!(leave(pd, "ibv_dealloc_pd").err(), Some(EINVAL), "another thread destroys it");
        drop(leaving.done());
        assert_eq!(leave(pd, "ibv_dealloc_pd").err(), Some(EINVAL));
        assert_eq!(check(pd, "ibv_reg_mr"), Err(EINVAL));
        assert_eq!(check(std::ptr::null::<ibv_pd>(), "ibv_reg_mr"), Err(EINVAL));
        // SAFETY: from `Box::into_raw`.
        drop(unsafe { Box::from_raw(pd) });
    }
}
