//! Raw sockets.

use anyhow::{Context, Result};
use std::io::Error;
use std::os::fd::{FromRawFd, OwnedFd};

/// The socket that `make` returns as a descriptor, or -1.
pub fn open(make: impl FnOnce() -> i32) -> Result<OwnedFd> {
    match make() {
        -1 => Err(Error::last_os_error()).context("cannot open a raw socket"),
        // SAFETY: the new descriptor has no other owner.
        socket => Ok(unsafe { OwnedFd::from_raw_fd(socket) }),
    }
}
