//! A forked child has its parent's memory but not its adapter: the child closes the descriptors, and every call on
//! objects of the parent fails.

use crate::paging::invalidate;
use crate::userfault;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Descriptors of open adapters, free places -1. Fixed, for the child of a fork may not allocate.
static DESCRIPTORS: [AtomicI32; 1024] = [const { AtomicI32::new(-1) }; 1024];

/// Counts the forks between the first process and this one.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// What holds descriptors that a child closes: dropped by the process that made it only. In a child their numbers may
/// be those of the program's own files by then.
pub struct Owned<T> {
    generation: u32,
    inner: ManuallyDrop<T>,
}

impl<T> Owned<T> {
    /// Of this process.
    pub fn new(inner: T) -> Self {
        Owned { generation: generation(), inner: ManuallyDrop::new(inner) }
    }
}

impl<T> Deref for Owned<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.generation == generation() {
            // SAFETY: once, and nobody looks at it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

/// Makes forked children count themselves. Once per process.
pub fn install_handlers() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler does nothing but atomics and close.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

/// Descriptors that a child must close, so that slot and ports go with this process.
pub fn register(descriptors: &[RawFd]) {
    for descriptor in descriptors {
        let free = DESCRIPTORS
            .iter()
            .find(|place| place.compare_exchange(-1, *descriptor, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        debug_assert!(free.is_some(), "more adapters than a process has use for");
    }
}

/// They are closed here now.
pub fn forget(descriptors: &[RawFd]) {
    for descriptor in descriptors {
        for place in &DESCRIPTORS {
            if place.compare_exchange(*descriptor, -1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                break;
            }
        }
    }
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    invalidate::forget_in_child();
    userfault::forget_in_child();
    for place in &DESCRIPTORS {
        let descriptor = place.swap(-1, Ordering::AcqRel);
        if descriptor >= 0 {
            // SAFETY: ours; every use of it in this process is refused from now on.
            unsafe { libc::close(descriptor) };
        }
    }
}
