//! `pthread_cancel` of a thread of the program that is at work here: the cancel waits until that work is done.
//!
//! The C library cancels by unwinding the thread's stack, from any call that is a cancellation point (read, write, open,
//! poll …). Rust frames must not be unwound so: the process would end with "FATAL: exception not rethrown". Kernel
//! adapters have few cancellation points in their verbs: the two calls that wait for an event.

use std::ffi::c_int;
use std::marker::PhantomData;

/// As long as it lives, this thread is not cancelled. What was in force before is in force afterwards.
pub struct Uncancelled {
    before: c_int,
    /// Of this thread.
    _here: PhantomData<*mut ()>,
}

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

const DISABLE: c_int = 1;

impl Uncancelled {
    /// From now on. Some three nanoseconds, and as much again at its end.
    #[inline]
    #[allow(clippy::new_without_default)] // It is not a value but a time.
    pub fn new() -> Uncancelled {
        let mut before = 0;
        // SAFETY: one integer on the stack.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Uncancelled { before, _here: PhantomData }
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as above; the state is one that the thread had.
        unsafe { pthread_setcancelstate(self.before, &mut self.before) };
    }
}
