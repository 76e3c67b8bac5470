//! Carriers of packets: UDP sockets, and the wrappers that inject faults and capture.
//!
//! A [`Carrier`] moves complete UDP payloads. Outgoing payloads are in an [`Outbox`], as groups of equal segments to
//! one destination; incoming payloads are in an [`Inbox`]. The wrappers [`faults`] and [`capture`] are carriers
//! around a carrier.

mod allow;
pub mod capture;
mod clock;
mod cmsg;
mod disabled_features;
mod ethernet;
mod fate;
pub mod faults;
mod frequent;
mod inbox;
mod messages;
mod outbox;
mod ports;
mod send_error;
mod single_datagram;
mod socket_filter;
mod udp;

pub use allow::{AllowError, Allowed};
pub use clock::monotonic;
pub use disabled_features::{DisabledFeatures, UnknownFeature};
pub use ethernet::{Ethernet, FilterInstruction, Membership};
pub use fate::Fate;
pub use inbox::{Arrival, Inbox};
pub use outbox::{GROUP_BYTES, Group, Iovec, MAX_IOVECS, Outbox};
pub use ports::Ports;
pub use send_error::{SendError, SendErrorKind};
pub use udp::Udp;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

/// What the state of a link to a peer is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkReport {
    /// Which of the interfaces that are used as one it begins at.
    pub interface: u8,
    /// Whether it is used.
    pub is_up: bool,
    /// Bytes that were put on it.
    pub bytes: u64,
    /// Bytes per second, measured or guessed.
    pub rate: f64,
    /// Share of its packets that were lost lately.
    pub loss: f64,
    /// The mean round trip, if it is known.
    pub round_trip: Option<std::time::Duration>,
}

/// Sends and receives datagrams. Never blocks.
pub trait Carrier: Send {
    /// Sends all groups of the outbox. Groups with [`Fate::LOST`] may be passed only to a carrier that returns true
    /// from `records_fates`. Datagrams that the kernel refuses are lost, as on any wire.
    fn send(&mut self, outbox: &Outbox) -> io::Result<()>;

    /// Fills the inbox with arrivals; returns their number, 0 if nothing has arrived.
    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize>;

    /// Returns whether [`add_socket`](Self::add_socket) would make sends cheaper: once, until it is worth the next try.
    fn wants_socket(&mut self) -> bool {
        false
    }

    /// Opens a socket for the present destination, which most sends have had lately; or connects the one of an earlier
    /// destination anew. Not during a turn, because it allocates. An error changes nothing.
    fn add_socket(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The next `receive` looks at every socket, also at those that `receive` looks at seldom.
    fn look_everywhere(&mut self) {}

    /// The most segments of one group: 1 if each datagram must be sent alone. It may fall to 1 at any `send` at which
    /// the kernel refuses segments.
    fn max_segments(&self) -> usize;

    /// Whether groups may consist of iovecs. `send` then fails with EFAULT if the memory of an iovec is not mapped:
    /// its group is lost, the others were sent.
    fn supports_iovecs(&self) -> bool {
        false
    }

    /// Receives on an additional port too; an error changes nothing.
    fn listen(&mut self, port: u16) -> io::Result<()>;

    /// Receives the datagrams of an interface for a multicast group at a port too, on a descriptor of its own; other
    /// sockets may join as well. Errors: those of the membership; `AddrInUse` if another socket has the port
    /// exclusively.
    fn join(&mut self, _group: IpAddr, _port: u16, _ifindex: u32) -> io::Result<RawFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Ends a membership and closes its descriptor.
    fn leave(&mut self, _membership: RawFd) {}

    /// The descriptors that become readable when a datagram arrives.
    fn fds(&self) -> Vec<RawFd>;

    /// When a delayed datagram is due (nanoseconds of CLOCK_MONOTONIC): call `send` or `receive` by then.
    fn due(&self) -> Option<u64> {
        None
    }

    /// Sends the datagrams that are due by `now`.
    fn flush_due(&mut self, _now: u64) -> io::Result<()> {
        Ok(())
    }

    /// For the log: the next send error that was not yet returned; each kind at most once a minute for a destination.
    fn take_send_error(&mut self) -> Option<SendError> {
        None
    }

    /// Something happened that a capture with a history is for, such as a stall: the packets around it are worth a
    /// look.
    fn mark(&mut self, _what: &dyn fmt::Display) {}

    /// Reports the links that packets go over, if there are several.
    fn links(&self, _see: &mut dyn FnMut(LinkReport)) {}

    /// Bytes that were put on links of an interface that have ended: [`links`](Self::links) reports them no more.
    fn bytes_of_ended_links(&self, _interface: u8) -> u64 {
        0
    }

    /// The process is about to end: writes buffered data to its file.
    fn close(&mut self) {}

    /// Whether the carrier accepts groups with [`Fate::LOST`]: a capture records them and does not send them.
    fn records_fates(&self) -> bool {
        false
    }

    /// Like `receive`, for a wrapper that decides the fates and then calls [`Carrier::record_arrivals`].
    fn receive_unrecorded(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        self.receive(inbox)
    }

    /// Records arrivals in `inbox` with their fates, including dropped ones.
    fn record_arrivals(&mut self, _inbox: &Inbox, _arrivals: &[Arrival]) {}
}

impl<C: Carrier + ?Sized> Carrier for Box<C> {
    fn send(&mut self, outbox: &Outbox) -> io::Result<()> {
        (**self).send(outbox)
    }
    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        (**self).receive(inbox)
    }
    fn wants_socket(&mut self) -> bool {
        (**self).wants_socket()
    }
    fn add_socket(&mut self) -> io::Result<()> {
        (**self).add_socket()
    }
    fn look_everywhere(&mut self) {
        (**self).look_everywhere();
    }
    fn max_segments(&self) -> usize {
        (**self).max_segments()
    }
    fn supports_iovecs(&self) -> bool {
        (**self).supports_iovecs()
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
    fn take_send_error(&mut self) -> Option<SendError> {
        (**self).take_send_error()
    }
    fn mark(&mut self, what: &dyn fmt::Display) {
        (**self).mark(what);
    }
    fn links(&self, see: &mut dyn FnMut(LinkReport)) {
        (**self).links(see);
    }
    fn bytes_of_ended_links(&self, interface: u8) -> u64 {
        (**self).bytes_of_ended_links(interface)
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
