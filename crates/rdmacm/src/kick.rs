//! What wakes the agent.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use weir_device::{Errno, descriptors};

/// Wakes the agent.
pub struct Kick(OwnedFd);

impl Kick {
    /// Error: EMFILE.
    pub fn new() -> Result<Kick, Errno> {
        // SAFETY: creates a descriptor, which `OwnedFd` owns.
        let kick = unsafe {
            let descriptor = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if descriptor < 0 {
                return Err(std::io::Error::last_os_error().into());
            }
            OwnedFd::from_raw_fd(descriptor)
        };
        descriptors::register(&[kick.as_raw_fd()]);
        Ok(Kick(kick))
    }

    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub fn kick(&self) {
        kick(self.descriptor());
    }

    /// The agent has woken up.
    pub fn take(&self) {
        let mut count = 0u64;
        // SAFETY: eight bytes onto the stack.
        unsafe { libc::syscall(libc::SYS_read, self.descriptor(), &raw mut count, 8) };
    }
}

/// Wakes the agent by its descriptor. A raw system call, which is no cancellation point.
pub fn kick(descriptor: RawFd) {
    // The program may have closed it, and use the number for a file of its own.
    if !descriptors::is_marked(descriptor) {
        return;
    }
    let one = 1u64;
    // SAFETY: eight bytes of the stack.
    unsafe { libc::syscall(libc::SYS_write, descriptor, &raw const one, 8) };
}
