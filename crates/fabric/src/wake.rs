//! A descriptor that ends waits: an eventfd.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Readable from [`Wake::set`] until [`Wake::clear`].
pub struct Wake(OwnedFd);

impl Wake {
    /// Not readable. `None`: there are no descriptors left.
    pub fn new() -> Option<Wake> {
        // SAFETY: makes a descriptor.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        // SAFETY: the descriptor is new.
        (fd >= 0).then(|| Wake(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes it readable.
    pub fn set(&self) {
        let one = 1u64;
        // SAFETY: writes a number to an eventfd. It does not block, and fails only if it is readable already.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
    }

    /// Makes it unreadable.
    pub fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: reads the number of an eventfd, which does not block.
        unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) };
    }

    /// The descriptor, which stays owned by this.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
