//! Panics, which are bugs of Weir: no panic leaves a thread of the library, or a call of the program, unnoticed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The panic payload for a caller if its adapter has already failed because of the panic.
pub struct Failed;

/// Makes all adapters of this process fail; null before there was one.
static FAIL_ALL: AtomicPtr<fn()> = AtomicPtr::new(std::ptr::null_mut());

/// From here on, a panic outside of an engine calls `fail_all`.
pub fn set_fail_all(fail_all: &'static fn()) {
    FAIL_ALL.store((&raw const *fail_all).cast_mut(), Ordering::Release);
}

/// A panic occurred outside of an engine, in an entry point of the library or on one of its threads. It is unknown
/// what state it has damaged, so all adapters of the process fail.
pub fn panicked() {
    // SAFETY: null, or a reference that is valid for ever.
    if let Some(fail_all) = unsafe { FAIL_ALL.load(Ordering::Acquire).as_ref() } {
        fail_all();
    }
}

/// Returns whether a panic with this payload has already made its adapter fail.
pub fn is_known(payload: &(dyn std::any::Any + Send)) -> bool {
    payload.is::<Failed>()
}

/// Runs the body of a library thread; after a panic, all adapters fail.
pub fn watched(body: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(body))
        && !is_known(&*payload)
    {
        panicked();
    }
}

/// A step of failing; a panic in it does not stop the next step. Returns whether there was no panic.
pub fn catch_panic(step: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(step)).is_ok()
}
