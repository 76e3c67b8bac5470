//! Completion channels.

use crate::Errno;
use crate::os::notify::Notify;
use std::os::fd::RawFd;

/// A completion channel.
pub struct CompChannel {
    pub(crate) events: Notify<u64>,
}

impl CompChannel {
    /// A channel without events. Error: EMFILE.
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(CompChannel { events: Notify::new()? })
    }

    /// The descriptor that is readable while an event is pending; applications may make it non-blocking and poll it.
    pub fn fd(&self) -> RawFd {
        self.events.fd()
    }

    /// Takes one event: the cookie of its CQ. Blocks.
    #[cfg(test)]
    pub(crate) fn get_event(&self) -> Result<u64, Errno> {
        self.events.take()
    }

    /// Takes one event, the cookie of its CQ, after the caller has read eight bytes from the descriptor. `None`: the
    /// event's CQ is gone.
    pub fn pop_event(&self) -> Option<u64> {
        self.events.pop()
    }
}
