//! File descriptors of the libraries.

use crate::rdma::errno::{Errno, check};
use std::ffi::c_int;

/// Sets O_NONBLOCK of an open descriptor.
pub(crate) fn set_nonblocking(fd: c_int) -> Result<(), Errno> {
    // SAFETY: fcntl(2) without pointers.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags == -1 {
            return Err(Errno::last());
        }
        check(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK))
    }
}
