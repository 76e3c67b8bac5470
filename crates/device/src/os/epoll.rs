//! Epoll sets.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Creates an empty set. Error: EMFILE, ENFILE, ENOMEM.
pub fn create() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, owned from here on.
    Ok(unsafe { OwnedFd::from_raw_fd(set) })
}

/// Adds a descriptor. The set reports `events` of it with `token`.
pub fn add(set: &OwnedFd, descriptor: RawFd, events: i32, token: u64) -> io::Result<()> {
    control(set, libc::EPOLL_CTL_ADD, descriptor, events, token)
}

/// Changes the events of a descriptor in the set.
pub fn modify(set: &OwnedFd, descriptor: RawFd, events: i32, token: u64) -> io::Result<()> {
    control(set, libc::EPOLL_CTL_MOD, descriptor, events, token)
}

/// Removes a descriptor, which need not be in the set.
pub fn remove(set: &OwnedFd, descriptor: RawFd) {
    let _ = control(set, libc::EPOLL_CTL_DEL, descriptor, 0, 0);
}

fn control(set: &OwnedFd, operation: i32, descriptor: RawFd, events: i32, token: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events: events as u32, u64: token };
    // SAFETY: one event on the stack.
    let result = unsafe { libc::epoll_ctl(set.as_raw_fd(), operation, descriptor, &mut event) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
