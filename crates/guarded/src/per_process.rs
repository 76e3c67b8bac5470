//! State that exists once per process, and that a forked child creates anew.
//!
//! At a fork another thread may hold any lock. That thread does not exist in the child, so that the lock stays locked
//! there for ever. A child therefore never accesses its parent's state: it creates its own state at the first use.
//! The fork handlers need no lock for that, wait for nothing and allocate nothing.

use crate::generation::generation;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A value of this process, created at its first use. A child creates a new value; the parent's value is left
/// unchanged.
pub struct PerProcess<T: 'static> {
    pointer: AtomicPtr<Stamped<T>>,
}

struct Stamped<T> {
    generation: u32,
    value: T,
}

impl<T: Default + Send + Sync> PerProcess<T> {
    /// No value yet: the first `get` in a process makes it.
    #[allow(clippy::new_without_default)] // For statics: `Default` is not const.
    pub const fn new() -> Self {
        PerProcess { pointer: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The value of this process.
    pub fn get(&self) -> &'static T {
        let found = self.pointer.load(Ordering::Acquire);
        // SAFETY: NULL, or made by `make` and never freed.
        match unsafe { found.as_ref() } {
            Some(stamped) if stamped.generation == generation() => &stamped.value,
            _ => self.make(found),
        }
    }

    /// The value if it exists already. Allocates nothing: for signal handlers and for code that runs at exit.
    pub fn existing(&self) -> Option<&'static T> {
        // SAFETY: NULL, or made by `make` and never freed.
        let found = unsafe { self.pointer.load(Ordering::Acquire).as_ref() };
        found.filter(|stamped| stamped.generation == generation()).map(|stamped| &stamped.value)
    }

    #[cold]
    fn make(&self, before: *mut Stamped<T>) -> &'static T {
        let new = Box::into_raw(Box::new(Stamped { generation: generation(), value: T::default() }));
        let found = match self.pointer.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(found) => {
                // SAFETY: no other thread has seen the new value.
                drop(unsafe { Box::from_raw(new) });
                found
            }
        };
        // SAFETY: never freed. Only threads of this process run this code, so that the value is of this generation.
        unsafe { &(*found).value }
    }
}

/// An action that is done once and then holds for forked children too, for example a signal handler that was set. A
/// child repeats the action if its parent forked during it: doing it twice must be harmless.
pub struct OnceInherited {
    done: AtomicBool,
    running: PerProcess<Running>,
}

struct Running(Once);

impl Default for Running {
    fn default() -> Self {
        Running(Once::new())
    }
}

impl OnceInherited {
    /// The action is not done yet.
    #[allow(clippy::new_without_default)] // For statics: `Default` is not const.
    pub const fn new() -> Self {
        OnceInherited { done: AtomicBool::new(false), running: PerProcess::new() }
    }

    /// Runs `work` if it was not done yet. Returns when it is done.
    pub fn call_once(&self, work: impl FnOnce()) {
        if self.done.load(Ordering::Acquire) {
            return;
        }
        self.running.get().0.call_once(|| {
            work();
            self.done.store(true, Ordering::Release);
        });
    }
}
