//! A descriptor that ends waits at a time: a timerfd.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Readable from the time that it is set to until it is set again.
pub struct Timer(OwnedFd);

impl Timer {
    /// Not set. `None`: there are no descriptors left.
    pub fn new() -> Option<Timer> {
        // SAFETY: makes a descriptor.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        // SAFETY: the descriptor is new.
        (fd >= 0).then(|| Timer(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sets it, or, with `None`, stops it. It is not readable any more.
    pub fn set(&self, after: Option<Duration>) {
        // A time of zero would stop it.
        let after = after.map_or(Duration::ZERO, |after| after.max(Duration::from_nanos(1)));
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec { tv_sec: after.as_secs() as libc::time_t, tv_nsec: after.subsec_nanos().into() };
        let spec = libc::itimerspec { it_interval: none, it_value: value };
        // SAFETY: the descriptor is a timer's, and the kernel reads a value of this function.
        unsafe { libc::timerfd_settime(self.fd(), 0, &spec, std::ptr::null_mut()) };
    }

    /// The descriptor, which stays owned by this.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::wait_any;
    use std::time::Instant;

    fn is_readable(timer: &Timer, within: Duration) -> bool {
        let began = Instant::now();
        wait_any(&[timer.fd()], within);
        let mut polled = libc::pollfd { fd: timer.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: a list of one.
        let ready = unsafe { libc::poll(&mut polled, 1, 0) } == 1;
        assert!(ready || began.elapsed() >= within, "the wait ended early");
        ready
    }

    #[test]
    fn it_is_readable_from_its_time_on() {
        let timer = Timer::new().unwrap();
        assert!(!is_readable(&timer, Duration::ZERO));
        timer.set(Some(Duration::ZERO));
        assert!(is_readable(&timer, Duration::from_secs(10)));
        timer.set(Some(Duration::from_secs(100)));
        assert!(!is_readable(&timer, Duration::from_millis(1)));
        timer.set(Some(Duration::from_millis(1)));
        assert!(is_readable(&timer, Duration::from_secs(10)));
        timer.set(None);
        assert!(!is_readable(&timer, Duration::from_millis(1)));
    }
}
