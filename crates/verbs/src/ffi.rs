//! The boundary between C and Rust: how calls report errors. No panic unwinds into the application, and no
//! `pthread_cancel` of the application unwinds through Rust frames.
//!
//! A panic inside an export is a bug of Weir. It is logged if `WEIR_LOG` selects it, the call fails with EIO, and the
//! adapters of the process fail, so that no thread waits for what the panic left undone.
//!
//! The only exports that are cancellation points are the two that wait for an event. Control calls defer a cancel
//! until they return. The calls of the hot path ([`guard_hot`]) do not need to: they reach cancellation points only
//! while they hold the engine and in the log's writer, and both defer the cancel. `tests/c/cancel.c` checks all
//! exports.

use crate::log;
use crate::shortage::explain;
use std::any::Any;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{Ordering::SeqCst, compiler_fence};
use weir_device::{Errno, Uncancelled, headroom, holds_engine, refused};

pub const EBUSY: Errno = Errno(libc::EBUSY);
pub const EDEADLK: Errno = Errno(libc::EDEADLK);
pub const EINVAL: Errno = Errno(libc::EINVAL);
pub const EIO: Errno = Errno(libc::EIO);
pub const ENODATA: Errno = Errno(libc::ENODATA);
pub const ENODEV: Errno = Errno(libc::ENODEV);
pub const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

thread_local! {
    /// Control calls that this thread is in.
    static CALLS: Cell<u32> = const { Cell::new(0) };
    /// Whether a call of this thread was refused by [`interrupts`] and is not in the log yet, and the first such call.
    static UNLOGGED: Cell<bool> = const { Cell::new(false) };
    static INTERRUPTING: Cell<&'static str> = const { Cell::new("") };
}

/// This thread is in a control call, until this is dropped.
struct Call;

impl Call {
    fn begin() -> Call {
        CALLS.set(CALLS.get() + 1);
        Call
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // Before the count is 0: a signal handler that interrupts the log's writer must find itself within a call.
        if UNLOGGED.get() && !is_nested() {
            log_interrupting();
        }
        CALLS.set(CALLS.get() - 1);
    }
}

/// EDEADLK for a call that came in the middle of another call of this thread. The interrupted call may be inside malloc
/// or the log's writer, so that this only remembers what to log: the line comes when the interrupted control call ends,
/// or at the end of the thread's next one if a post or a poll was interrupted. Of several such calls it names the first.
#[cold]
pub fn interrupts(verb: &'static str) -> Errno {
    if !UNLOGGED.replace(true) {
        // A further signal handler must find the flag set: it would write the other half of the name.
        compiler_fence(SeqCst);
        INTERRUPTING.set(verb);
    }
    EDEADLK
}

#[cold]
fn log_interrupting() {
    let verb = INTERRUPTING.get();
    // A signal handler may write the name as soon as the flag is clear.
    compiler_fence(SeqCst);
    UNLOGGED.set(false);
    let errno = std::io::Error::last_os_error().raw_os_error();
    let why =
        "it was called by a signal handler that interrupted another call of this thread: call it after the handler";
    refused(EDEADLK.0, format_args!("{verb}: {why}"));
    // The call that ends here has not failed because of this.
    set_errno(Errno(errno.unwrap_or(0)));
}

/// Returns whether the control call in which this thread is came in the middle of another call of this thread: from a
/// signal handler or a memory hook of the program. What that call holds is free only after it. Calls of the hot path
/// count while they hold the engine.
pub fn is_nested() -> bool {
    CALLS.get() > 1 || holds_engine()
}

/// Runs the body of a control call that cannot fail. After a panic it returns `fallback` and sets errno to EIO.
pub fn guard<R>(fallback: R, body: impl FnOnce() -> R) -> R {
    let _uncancelled = Uncancelled::new();
    let _call = Call::begin();
    guard_hot(fallback, body)
}

/// Like [`guard`], for a call of the hot path, which has no cancellation point of its own.
#[inline]
pub fn guard_hot<R>(fallback: R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        caught(&*panic);
        fallback
    })
}

#[cold]
fn caught(panic: &(dyn Any + Send)) {
    let _uncancelled = Uncancelled::new();
    if !weir_device::is_known(panic) {
        weir_device::panicked();
    }
    log::panicked();
    set_errno(EIO);
}

/// For calls that return 0 or an errno value.
pub fn status(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match guard(Err(EIO), || body().inspect_err(explain)) {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            errno.0
        }
    }
}

/// For calls that return a number, or -1 and errno.
pub fn number<N: From<i8>>(body: impl FnOnce() -> Result<N, Errno>) -> N {
    guard(Err(EIO), || body().inspect_err(explain)).unwrap_or_else(|errno| {
        set_errno(errno);
        N::from(-1)
    })
}

/// For calls that return 0 or an errno value and may allocate what an object needs: ENOMEM if memory is short.
pub fn allocating(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    status(|| {
        headroom::check(headroom::OBJECT)?;
        body()
    })
}

/// For calls that return an object, or NULL and errno: ENOMEM if memory is short.
pub fn object<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    object_of(headroom::OBJECT, body)
}

/// Like [`object`], for an object that needs less than `bytes` bytes.
pub fn object_of<T>(bytes: usize, body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    let body = || {
        headroom::check(bytes)?;
        body().inspect_err(explain)
    };
    guard(Err(EIO), body).unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

unsafe extern "C-unwind" {
    // The libc crate declares it as a function that does not unwind; a cancelled thread does unwind from it.
    fn read(fd: c_int, to: *mut c_void, len: usize) -> isize;
}

/// Waits until an event can be taken from an eventfd. Returns 0, or -1 and errno: EAGAIN if the program has made the
/// descriptor non-blocking.
///
/// This is a cancellation point, as with a kernel adapter: a cancelled thread unwinds from here. Therefore this
/// function and its callers are `C-unwind` and have nothing with a destructor.
///
/// # Safety
/// The descriptor is an eventfd.
pub unsafe extern "C-unwind" fn read_event(fd: c_int) -> c_int {
    let mut count = 0u64;
    // SAFETY: writes eight bytes to a variable on the stack.
    if unsafe { read(fd, (&raw mut count).cast(), 8) } == 8 { 0 } else { -1 }
}

/// Sets the errno of the calling thread.
pub fn set_errno(errno: Errno) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno.0 }
}

/// A C string as text; `None` if it is NULL or not UTF-8.
///
/// # Safety
/// `text` is NULL or NUL-terminated and outlives the result.
pub unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// Copies as much of `text` as fits; NUL-terminated if the end of `to` is zero already.
pub fn fill(to: &mut [c_char], text: &str) {
    let room = to.len() - 1;
    for (slot, byte) in to[..room].iter_mut().zip(text.bytes()) {
        *slot = byte as c_char;
    }
}

/// The all-zero value of a type.
///
/// # Safety
/// All zeros is a valid `T`: a C struct of integers, pointers and optional functions.
pub unsafe fn zeroed<T>() -> T {
    // SAFETY: guaranteed by the caller.
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_call_reports_errors_in_its_way() {
        assert_eq!(status(|| Err(EBUSY)), libc::EBUSY);
        assert_eq!(number::<i32>(|| Err(EINVAL)), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
        assert!(object::<u8>(|| Err(ENODEV)).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn a_call_within_a_call_is_nested() {
        let nested = || guard(true, is_nested);
        assert!(!nested() && guard(false, nested) && !nested());
    }

    #[test]
    fn a_call_that_interrupts_another_is_logged_when_that_one_ends() {
        let within = || guard(EIO, || interrupts("ibv_destroy_qp"));
        assert_eq!(guard((EIO, false), || (within(), UNLOGGED.get())), (EDEADLK, true));
        assert!(!UNLOGGED.get());
    }

    #[test]
    fn a_panic_becomes_eio_and_fails_the_adapters() {
        let context = weir_device::Context::open("weir_lo").expect("the loopback interface exists");
        assert_eq!(status(|| panic!("on purpose")), libc::EIO);
        assert_eq!(context.get_async_event(), Ok(weir_device::AsyncEvent::DeviceFatal));
        assert!(context.create_cq(1, None, 0).is_err());
        assert!(object::<u8>(|| panic!("on purpose")).is_null());
    }

    #[test]
    fn a_long_name_is_truncated_and_terminated() {
        let mut name = [0 as c_char; 4];
        fill(&mut name, "weir_lo");
        assert_eq!(name.map(|c| c as u8), *b"wei\0");
    }
}
