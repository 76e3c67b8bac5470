//! Carriers of packets: UDP sockets, and the wrappers that inject faults and capture.
//!
//! A [`Carrier`] moves whole UDP payloads. Outgoing ones lie in an [`Outbox`], as groups of equal segments to one
//! destination; incoming ones in an [`Inbox`]. Wrappers ([`faults`], [`capture`]) are carriers around a carrier.

mod inbox;
mod outbox;

pub use inbox::{Arrival, Inbox};
pub use outbox::{Group, Outbox};

use std::io;

/// Moves datagrams. Never blocks.
pub trait Carrier: Send {
    /// Sends all groups of the outbox. Datagrams that the kernel refuses are lost, as on any wire.
    fn send(&mut self, outbox: &Outbox) -> io::Result<()>;

    /// Fills the inbox with what has arrived; returns the number of arrivals, 0 if there was nothing.
    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize>;

    /// How many segments one group may have: 1 where each datagram must go alone.
    fn max_segments(&self) -> usize;

    /// When a delayed datagram is due (nanoseconds of CLOCK_MONOTONIC): call `send` or `receive` by then.
    fn due(&self) -> Option<u64> {
        None
    }

    /// Sends what is due by `now`.
    fn flush_due(&mut self, _now: u64) -> io::Result<()> {
        Ok(())
    }
}
