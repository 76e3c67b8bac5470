//! The boundary to the program: no panic unwinds into it or prints, and no `pthread_cancel` unwinds through Rust
//! frames.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// After a panic, which is a bug of the layer, it only forwards calls.
static BROKEN: AtomicBool = AtomicBool::new(false);

/// This copy of the Rust runtime is the library's own: its hook is no other library's.
pub fn silence() {
    std::panic::set_hook(Box::new(|_| ()));
}

/// Runs an observation. `None` after a panic, and after an earlier one.
#[inline]
pub fn observe<R>(body: impl FnOnce() -> R) -> Option<R> {
    if BROKEN.load(Relaxed) {
        return None;
    }
    catch_unwind(AssertUnwindSafe(body)).inspect_err(|_| BROKEN.store(true, Relaxed)).ok()
}

/// Makes system calls. The program's errno stays as it is.
pub fn keeping_errno<R>(calls: impl FnOnce() -> R) -> R {
    // SAFETY: this thread's own variable.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let result = calls();
        *errno = before;
        result
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// As long as it lives, a cancel of this thread waits. The library below may have cancellation points in calls that
/// unwind through frames of this one.
pub struct Uncancelled(c_int);

impl Uncancelled {
    #[inline]
    pub fn new() -> Uncancelled {
        let mut old = 0;
        // SAFETY: writes a local variable. 1 is PTHREAD_CANCEL_DISABLE.
        unsafe { pthread_setcancelstate(1, &mut old) };
        Uncancelled(old)
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: restores the state that `new` found.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_panic_nothing_is_observed() {
        silence();
        assert_eq!(observe(|| 5), Some(5));
        assert_eq!(observe(|| panic!("on purpose")), None::<i32>);
        assert_eq!(observe(|| 5), None);
        BROKEN.store(false, Relaxed);
    }
}
