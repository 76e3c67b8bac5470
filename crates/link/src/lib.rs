//! Carriers of packets: UDP sockets, and the wrappers that inject faults and capture.
//!
//! A [`Carrier`] moves whole UDP payloads. Outgoing ones lie in an [`Outbox`], as groups of equal segments to one
//! destination; incoming ones in an [`Inbox`]. Wrappers ([`faults`], [`capture`]) are carriers around a carrier.

mod alone;
pub mod capture;
mod clock;
mod cmsg;
mod fate;
pub mod faults;
mod inbox;
mod messages;
mod outbox;
mod ports;
mod trouble;
mod udp;
mod without;

pub use fate::Fate;
pub use inbox::{Arrival, Inbox};
pub use outbox::{Group, MAX_PIECES, Outbox, Piece};
pub use ports::{Ports, SILENT_CALLS};
pub use trouble::{Trouble, TroubleKind};
pub use udp::Udp;
pub use without::{UnknownFeature, Without};

use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

/// Moves datagrams. Never blocks.
pub trait Carrier: Send {
    /// Sends all groups of the outbox; those with [`Fate::LOST`] are offered only to who `records_fates`. Datagrams that
    /// the kernel refuses are lost, as on any wire.
    fn send(&mut self, outbox: &Outbox) -> io::Result<()>;

    /// Fills the inbox with what has arrived; returns the number of arrivals, 0 if there was nothing.
    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize>;

    /// How many segments one group may have: 1 where each datagram must go alone. It may fall to 1 at any `send`, where
    /// the kernel turns out to refuse segments.
    fn max_segments(&self) -> usize;

    /// Whether groups may consist of pieces. `send` then fails with EFAULT where one was not there: its group is lost,
    /// the others went out.
    fn takes_pieces(&self) -> bool {
        false
    }

    /// Receives on a further port too; nothing changes on an error.
    fn listen(&mut self, port: u16) -> io::Result<()>;

    /// Receives what an interface takes in for a multicast group at a port too, by a descriptor of its own, which others
    /// may have as well. Errors: those of the membership; `AddrInUse` if somebody has the port for himself.
    fn join(&mut self, _group: IpAddr, _port: u16, _ifindex: u32) -> io::Result<RawFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Ends a membership, and closes its descriptor.
    fn leave(&mut self, _membership: RawFd) {}

    /// Descriptors that become readable when something arrives.
    fn fds(&self) -> Vec<RawFd>;

    /// When a delayed datagram is due (nanoseconds of CLOCK_MONOTONIC): call `send` or `receive` by then.
    fn due(&self) -> Option<u64> {
        None
    }

    /// Sends what is due by `now`.
    fn flush_due(&mut self, _now: u64) -> io::Result<()> {
        Ok(())
    }

    /// What went wrong while sending since the last call, one at a time, and each once a minute: for the log.
    fn take_trouble(&mut self) -> Option<Trouble> {
        None
    }

    /// The process is about to end: what is still to be written goes to its file.
    fn close(&mut self) {}

    /// Whether groups with [`Fate::LOST`] are wanted too: a capture records them and does not send them.
    fn records_fates(&self) -> bool {
        false
    }

    /// As `receive`, for a wrapper that will decide on fates and then call [`Carrier::record_arrivals`].
    fn receive_unrecorded(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        self.receive(inbox)
    }

    /// Arrivals in `inbox` with their fates, lost ones included, for the record.
    fn record_arrivals(&mut self, _inbox: &Inbox, _arrivals: &[Arrival]) {}
}

impl<C: Carrier + ?Sized> Carrier for Box<C> {
    fn send(&mut self, outbox: &Outbox) -> io::Result<()> {
        (**self).send(outbox)
    }
    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        (**self).receive(inbox)
    }
    fn max_segments(&self) -> usize {
        (**self).max_segments()
    }
    fn takes_pieces(&self) -> bool {
        (**self).takes_pieces()
    }
    fn listen(&mut self, port: u16) -> io::Result<()> {
        (**self).listen(port)
    }
    fn join(&mut self, group: IpAddr, port: u16, ifindex: u32) -> io::Result<RawFd> {
        (**self).join(group, port, ifindex)
    }
    fn leave(&mut self, membership: RawFd) {
        (**self).leave(membership);
    }
    fn fds(&self) -> Vec<RawFd> {
        (**self).fds()
    }
    fn due(&self) -> Option<u64> {
        (**self).due()
    }
    fn flush_due(&mut self, now: u64) -> io::Result<()> {
        (**self).flush_due(now)
    }
    fn take_trouble(&mut self) -> Option<Trouble> {
        (**self).take_trouble()
    }
    fn close(&mut self) {
        (**self).close();
    }
    fn records_fates(&self) -> bool {
        (**self).records_fates()
    }
    fn receive_unrecorded(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        (**self).receive_unrecorded(inbox)
    }
    fn record_arrivals(&mut self, inbox: &Inbox, arrivals: &[Arrival]) {
        (**self).record_arrivals(inbox, arrivals);
    }
}
