//! The edge between C and Rust: how calls report errors, and that no panic unwinds into the application.
//!
//! A panic inside an export is a bug of ours. It is logged if `WEIR_LOG` asks, and the call fails with EIO.

use crate::log;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use weir_device::Errno;

pub const EBUSY: Errno = Errno(libc::EBUSY);
pub const EINVAL: Errno = Errno(libc::EINVAL);
pub const EIO: Errno = Errno(libc::EIO);
pub const ENODATA: Errno = Errno(libc::ENODATA);
pub const ENODEV: Errno = Errno(libc::ENODEV);
pub const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

/// Runs the body of an export that cannot fail; after a panic the answer is `fallback`, with errno EIO.
pub fn guard<R>(fallback: R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        log::panicked(&*panic);
        set_errno(EIO);
        fallback
    })
}

/// For calls that return 0 or an errno value.
pub fn status(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match guard(Err(EIO), body) {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            errno.0
        }
    }
}

/// For calls that return a number, or -1 and errno.
pub fn number<N: From<i8>>(body: impl FnOnce() -> Result<N, Errno>) -> N {
    guard(Err(EIO), body).unwrap_or_else(|errno| {
        set_errno(errno);
        N::from(-1)
    })
}

/// For calls that return an object, or NULL and errno.
pub fn object<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    guard(Err(EIO), body).unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// Sets errno of this thread.
pub fn set_errno(errno: Errno) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno.0 }
}

/// A C string as text; `None` where it is NULL or not UTF-8.
///
/// # Safety
/// `text` is NULL or NUL-terminated and outlives the result.
pub unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// Copies as much of `text` as fits, NUL-terminated.
pub fn fill(to: &mut [c_char], text: &str) {
    let room = to.len() - 1;
    for (slot, byte) in to[..room].iter_mut().zip(text.bytes()) {
        *slot = byte as c_char;
    }
}

/// All-zero value of a type for which that is valid.
///
/// # Safety
/// All zeros is a valid `T`: a C struct of integers, pointers and optional functions.
pub unsafe fn zeroed<T>() -> T {
    // SAFETY: the caller's promise.
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_come_as_each_kind_of_call_reports_them() {
        assert_eq!(status(|| Err(EBUSY)), libc::EBUSY);
        assert_eq!(number::<i32>(|| Err(EINVAL)), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
        assert!(object::<u8>(|| Err(ENODEV)).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn a_panic_becomes_eio() {
        assert_eq!(status(|| panic!("on purpose")), libc::EIO);
        assert!(object::<u8>(|| panic!("on purpose")).is_null());
    }

    #[test]
    fn a_long_name_is_cut_and_still_terminated() {
        let mut name = [0 as c_char; 4];
        fill(&mut name, "weir_lo");
        assert_eq!(name.map(|c| c as u8), *b"wei\0");
    }
}
