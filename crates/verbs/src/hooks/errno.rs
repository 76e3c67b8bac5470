//! errno of the calling thread.

use libc::c_int;

/// Fails because there is no next definition: -1, with errno ENOSYS.
pub fn fail_enosys() -> c_int {
    // SAFETY: the calling thread's errno.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

/// Does some work, and restores errno.
pub fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the calling thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let result = work();
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}
