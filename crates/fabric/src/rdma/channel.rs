//! Channels of connection events.

use crate::rdma::cm_types::rdma_event_channel;
use crate::rdma::descriptor::set_nonblocking;
use crate::rdma::errno::{Errno, check_object};
use crate::rdma::libraries::Libraries;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A `rdma_event_channel`, the source of the events of its listeners and connections. It never blocks.
pub struct EventChannel {
    pub(crate) libraries: &'static Libraries,
    pub(crate) raw: *mut rdma_event_channel,
    /// Held in each call for this channel and its ids: librdmacm changes a QP while it takes an event, and destroying
    /// an id waits for the event that another thread has taken.
    calls: Mutex<()>,
}

// SAFETY: the libraries are safe for use by several threads, and `calls` orders the calls for ids.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// Opens a channel. ENODEV: there is no RDMA device; ELIBACC: a library is not installed.
    pub fn new() -> Result<Arc<EventChannel>, Errno> {
        let libraries = Libraries::load().map_err(|_| Errno(libc::ELIBACC))?;
        if !libraries.has_devices() {
            return Err(Errno(libc::ENODEV));
        }
        // SAFETY: a call without arguments.
        let raw = check_object(unsafe { (libraries.rdma_create_event_channel)() })?;
        let channel = EventChannel { libraries, raw, calls: Mutex::new(()) };
        set_nonblocking(channel.fd())?;
        Ok(Arc::new(channel))
    }

    /// Readable if there is an event.
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel exists until this is dropped; the library does not change its descriptor.
        unsafe { (*self.raw).fd }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: each id holds the channel, so there are none; each event was acknowledged when it was taken.
        unsafe { (self.libraries.rdma_destroy_event_channel)(self.raw) }
    }
}
