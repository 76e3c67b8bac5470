//! The objects that the program has created and not destroyed, by address. Calls that destroy, change or query an object
//! look here before they touch it: a program may destroy an object twice, from two threads at once, or after its device.
//! Posts and polls do not look: they must be fast.
//!
//! If the device of a context is closed before its objects are destroyed, the context stays in memory until the last of
//! them is destroyed.

use crate::abi::*;
use crate::context;
use crate::ffi::{self, EINVAL, interrupts};
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{Ordering::SeqCst, compiler_fence};
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

#[derive(Default)]
struct Table {
    entries: HashMap<usize, Entry>,
    /// The calls that create an object and have not entered it yet. Each of them needs a place of its own.
    pending: usize,
}

/// Empty in a forked child, which does nothing to its parent's objects.
static LIVING: PerProcess<Mutex<Table>> = PerProcess::new();

thread_local! {
    /// This thread holds the lock of the table, or is about to. A signal handler of it must not take the lock then.
    static IN_TABLE: Cell<bool> = const { Cell::new(false) };
}

/// The flag [`IN_TABLE`] is set, until this is dropped.
struct Inside {
    before: bool,
}

impl Inside {
    fn begin() -> Inside {
        let before = IN_TABLE.replace(true);
        // For signal handlers: the compiler must not move the lock to a place before the flag.
        compiler_fence(SeqCst);
        Inside { before }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // As above, for the end of the lock.
        compiler_fence(SeqCst);
        IN_TABLE.set(self.before);
    }
}

/// The table, locked.
struct Locked {
    // The fields are dropped in this order: the flag outlasts the lock.
    table: MutexGuard<'static, Table>,
    _inside: Inside,
}

impl Deref for Locked {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut Table {
        &mut self.table
    }
}

fn living() -> Locked {
    // The first use allocates, so that a memory hook may call `ibv_dereg_mr`: it comes before the flag.
    let table = LIVING.get();
    let inside = Inside::begin();
    Locked { table: table.lock().unwrap_or_else(PoisonError::into_inner), _inside: inside }
}

/// A place in the table for an object, until this is dropped: after the object was entered, or could not be created.
struct Place(());

impl Place {
    /// Grows the table outside of the lock. ENOMEM without memory.
    fn reserve() -> Result<Place, Errno> {
        let (place, pending) = {
            let mut table = living();
            table.pending += 1;
            (Place(()), table.pending)
        };
        drop(with_room(pending, living, |table| &mut table.entries)?);
        Ok(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = living();
        // In a child that was forked in the middle of the call, the table is new.
        table.pending = table.pending.saturating_sub(1);
    }
}

/// For calls that return an object, or NULL and errno: ENOMEM if memory is short.
pub fn object<T: Object>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    object_of(headroom::OBJECT, body)
}

/// Like [`object`], for an object that needs less than `bytes` bytes.
pub fn object_of<T: Object>(bytes: usize, body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    ffi::object_of(bytes, || {
        // Before there is an object: its insertion must not allocate, and cannot fail.
        let _place = Place::reserve()?;
        let object = body()?;
        // SAFETY: just created.
        let context = unsafe { T::context(object) } as usize;
        let entry = Entry { kind: T::KIND, context, leaving: false, objects: 0, closed: false };
        let mut table = living();
        table.entries.insert(object as usize, entry);
        if let Some(context) = table.entries.get_mut(&context) {
            context.objects += 1;
        }
        Ok(object)
    })
}

/// EINVAL if an object does not exist, or a thread destroys it, or it is a context of a closed device. `verb`: the
/// call, for the log.
///
/// EDEADLK in a signal handler that has interrupted this thread while it holds the lock of the table.
pub fn check<T: Object>(object: *const T, verb: &'static str) -> Result<(), Errno> {
    if IN_TABLE.get() {
        return Err(interrupts(verb));
    }
    let is_usable = |entry: &Entry| entry.kind == T::KIND && !entry.leaving && !entry.closed;
    let exists = living().entries.get(&(object as usize)).is_some_and(is_usable);
    if exists || may_be_inherited(object) { Ok(()) } else { Err(missing::<T>(verb)) }
}

/// The thread begins to destroy an object. EINVAL as for [`check`]. If the call fails, the object stays.
///
/// EDEADLK in a signal handler that has interrupted a control call of this thread, or a turn: it would wait for what
/// that call holds. Regions are excepted, because a memory hook may deregister them in the middle of any call, except
/// under the lock of the table: nothing allocates there, so that only a signal handler can come.
pub fn leave<T: Object>(object: *mut T, verb: &'static str) -> Result<Leaving, Errno> {
    if IN_TABLE.get() || T::KIND != ibv_mr::KIND && ffi::is_nested() {
        return Err(interrupts(verb));
    }
    let mut table = living();
    let entry = table.entries.get_mut(&(object as usize)).filter(|entry| entry.kind == T::KIND && !entry.leaving);
    // A context that waits for its objects is closed already.
    let Some(entry) = entry.filter(|entry| !entry.closed) else {
        drop(table);
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

/// An object that a thread destroys.
pub struct Leaving {
    /// Its address; 0 in a child, for an object of its parent.
    object: usize,
}

impl Leaving {
    /// The object is about to be freed. The result must be dropped after that.
    pub fn done(mut self) -> Left {
        let object = std::mem::take(&mut self.object);
        let mut table = living();
        let entries = &mut table.entries;
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
            && let Some(entry) = living().entries.get_mut(&self.object)
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
    fn under_the_lock_of_the_table_nothing_takes_it_again() {
        let region = std::ptr::without_provenance_mut::<ibv_mr>(24);
        let locked = living();
        let (checked, left) = (check(region, "ibv_rereg_mr"), leave(region, "ibv_dereg_mr").err());
        drop(locked);
        assert_eq!((checked, left), (Err(ffi::EDEADLK), Some(ffi::EDEADLK)));
        assert_eq!(check(region, "ibv_rereg_mr"), Err(EINVAL), "it does not exist");
    }

    /// Creates `count` objects, each in the middle of the creation of another. Returns the room in the table when none
    /// is entered yet.
    fn create_within(count: usize, made: &mut Vec<*mut ibv_pd>) -> usize {
        let mut room = 0;
        let pd = object(|| {
            room = if count > 1 {
                create_within(count - 1, made)
            } else {
                let entries = &living().entries;
                entries.capacity() - entries.len()
            };
            Ok(Box::into_raw(Box::new(ibv_pd { context: std::ptr::without_provenance_mut(16), handle: 0 })))
        });
        made.push(pd);
        room
    }

    #[test]
    fn each_object_in_creation_has_its_own_place() {
        let mut made = vec![];
        assert!(create_within(100, &mut made) >= 100);
        for pd in made {
            drop(leave(pd, "ibv_dealloc_pd").unwrap().done());
            // SAFETY: from `Box::into_raw`.
            drop(unsafe { Box::from_raw(pd) });
        }
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
