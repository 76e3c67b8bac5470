//! Several interfaces as one carrier: between two processes that have it, packets of QPs go over all their links.
//!
//! A [`Bundle`] is a carrier around that of an adapter's ports. Packets to a process that has one, too, go behind headers
//! over the links between both, are copied until they have arrived, and come out of the other one in the order in which
//! they were sent to each QP, but for those within a message, as if they had come from the address that QPs know. All other
//! packets pass as they are.
//!
//! | file | |
//! | --- | --- |
//! | `peers` | with which processes there is a connection, and how it comes to be |
//! | `session` | the connection to one process |
//! | `chains` | the order of packets |
//! | `receive` | what has come; `delivery`: as QPs get it |
//! | `pool` | packets that are on the way, or wait |

mod chains;
mod delivery;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
mod peers;
mod pool;
mod receive;
mod session;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "testing"))]
// Unit tests use more of it than the fuzz target.
#[cfg_attr(not(test), allow(dead_code))]
mod world;

use crate::departures::Departures;
use crate::interfaces::{Interfaces, is_link_local};
use delivery::Receiving;
use peers::Peers;
use pool::Pool;
use session::{Outlet, Session};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use weir_link::{Arrival, Carrier, Group, Inbox, LinkReport, Outbox, SendError};
use weir_transport::Instant;
use weir_transport::edge::{Hello, Parameters, Scheduler};
use weir_wire::edge::MAX_HELLO_LEN;

/// Bytes of packets that pass as they are, in one send, and groups of them.
const PASSING: usize = 64 << 10;
const PASSING_GROUPS: usize = 64;
/// Receives without a packet for QPs that one `receive` goes on after.
const TRIES: usize = 8;

/// What a [`Bundle`] needs to know.
pub struct Settings {
    pub interfaces: Interfaces,
    pub parameters: Parameters,
    pub scheduler: Scheduler,
    /// The port that packets leave from.
    pub port: u16,
    /// The most bytes of a packet of a QP.
    pub largest: usize,
    /// Whether processes that may have a bundle send from a port.
    pub is_peer: fn(u16) -> bool,
    /// Whether a packet is one that no other overtakes, and that overtakes no other.
    pub is_control: fn(&[u8]) -> bool,
    /// Nanoseconds of the clock of [`Carrier::due`].
    pub clock: fn() -> u64,
}

/// Several interfaces as one carrier.
pub struct Bundle<C> {
    inner: C,
    peers: Peers,
    pool: Pool,
    departures: Departures,
    passing: Outbox,
    receiving: Receiving,
    port: u16,
    is_peer: fn(u16) -> bool,
    is_control: fn(&[u8]) -> bool,
    clock: fn() -> u64,
    /// When something is due, at the earliest.
    due: Option<u64>,
}

impl<C: Carrier> Bundle<C> {
    /// Around a carrier that sends from the port of the settings. Error: there are no random numbers.
    pub fn new(inner: C, settings: Settings) -> io::Result<Bundle<C>> {
        let Settings { interfaces, parameters, scheduler, port, largest, is_peer, is_control, clock } = settings;
        Ok(Bundle {
            inner,
            peers: Peers::new(interfaces, (parameters, scheduler), port, is_control)?,
            pool: Pool::new(largest),
            departures: Departures::default(),
            passing: Outbox::new(PASSING, PASSING_GROUPS),
            receiving: Receiving::default(),
            port,
            is_peer,
            is_control,
            clock,
            due: None,
        })
    }

    fn now(&self) -> Instant {
        Instant((self.clock)())
    }

    /// The peer of a group that its packets may go to over several links.
    fn peer_of(&mut self, group: &Group, now: Instant) -> Option<usize> {
        let to = group.to.ip();
        // An address that is valid on one link only is none for several.
        let may = (self.is_peer)(group.to.port()) && !to.is_multicast() && !is_link_local(to) && group.fate.is_empty();
        if may { self.peers.entry((group.from, group.to), now) } else { None }
    }

    /// Lets datagrams of a group leave as they are: all, because an ICRC covers the place in its group.
    fn pass(&mut self, group: &Group, bytes: &[u8]) -> io::Result<()> {
        let mut result = Ok(());
        if self.passing.len + bytes.len() > self.passing.bytes.len() || self.passing.groups.len() >= PASSING_GROUPS {
            result = self.send_passing();
        }
        let (start, len) = (self.passing.len, bytes.len());
        self.passing.bytes[start..start + len].copy_from_slice(bytes);
        self.passing.len += len;
        self.passing.groups.push(Group { start, iovecs: (0, 0), ..*group });
        result
    }

    fn send_passing(&mut self) -> io::Result<()> {
        if self.passing.groups.is_empty() {
            return Ok(());
        }
        let result = self.inner.send(&self.passing);
        self.passing.clear();
        result
    }

    fn send_hello(&mut self, from: IpAddr, to: SocketAddr, ifindex: u32, hello: &Hello) {
        let bytes = hello.encode();
        debug_assert!(bytes.len() <= MAX_HELLO_LEN);
        // One that is lost is sent again.
        let (len, segment) = (bytes.len(), bytes.len());
        let _ = self.pass(&Group { any_id: true, len, segment, ..Group::new(to, from, ifindex) }, &bytes);
    }

    /// Asks a peer, if that is due, and lets its connection send what is due. Ends one to a peer that is gone.
    fn serve(&mut self, n: usize, now: Instant) {
        self.peers.touch(n);
        while let Some(((from, to), hello)) = self.peers.poll(n, now) {
            self.send_hello(from, to, 0, &hello);
        }
        let Some(session) = &mut self.peers.all[n].session else { return };
        if session.is_gone(now) {
            self.peers.end(n);
            return;
        }
        let Bundle { departures, inner, pool, .. } = self;
        session.transmit(now, &mut Outlet { departures, carrier: inner, pool });
    }

    /// Sends all that waits to leave; an error is that of a send.
    fn flush(&mut self) -> io::Result<()> {
        let sent = self.departures.send(&mut self.inner);
        let passed = self.send_passing();
        self.due = self.peers.renew_due().map(|at| at.0);
        // What goes over links is sent again.
        drop(sent);
        passed
    }
}

impl<C: Carrier> Carrier for Bundle<C> {
    fn send(&mut self, outbox: &Outbox) -> io::Result<()> {
        let now = self.now();
        let mut result = Ok(());
        for group in &outbox.groups {
            let peer = self.peer_of(group, now);
            let bytes = &outbox.bytes[group.start..group.start + group.len];
            let Some(n) = peer.filter(|n| self.peers.all[*n].session.is_some()) else {
                if let Some(n) = peer {
                    // A process may have taken the place of one that is absent: it is asked when it gets a first packet.
                    let is_first = outbox.datagrams(group).any(self.is_control);
                    if !self.peers.all[n].opening.is_absent() || is_first {
                        self.peers.ask(n, now);
                        self.serve(n, now);
                    }
                }
                result = result.and(self.pass(group, bytes));
                continue;
            };
            self.peers.touch(n);
            // An ACK goes behind the packets that it follows. If it came before them, a program that waits for its completion
            // would see that, and stop polling, when its reply has not come yet.
            for datagram in outbox.datagrams(group) {
                let Bundle { departures, inner, pool, .. } = self;
                let fits = |session: &&mut Session| session.takes(datagram.len()) && datagram.len() <= pool.size();
                match self.peers.all[n].session.as_mut().filter(fits) {
                    Some(session) => session.send(now, datagram, &mut Outlet { departures, carrier: inner, pool }),
                    None => {
                        let (len, segment) = (datagram.len(), datagram.len());
                        result = result.and(self.pass(&Group { len, segment, ..*group }, datagram));
                    }
                }
            }
        }
        result.and(self.flush())
    }

    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        if self.receiving.has_more() {
            self.receiving.deliver_rest(inbox, &mut self.pool);
            return Ok(inbox.arrivals.len());
        }
        for _ in 0..TRIES {
            if self.inner.receive(inbox)? == 0 {
                return Ok(0);
            }
            self.take(inbox);
            if !inbox.arrivals.is_empty() {
                break;
            }
        }
        Ok(inbox.arrivals.len())
    }

    fn wants_socket(&mut self) -> bool {
        self.inner.wants_socket()
    }

    fn add_socket(&mut self) -> io::Result<()> {
        self.inner.add_socket()
    }

    fn look_everywhere(&mut self) {
        self.inner.look_everywhere();
    }

    fn max_segments(&self) -> usize {
        self.inner.max_segments()
    }

    fn listen(&mut self, port: u16) -> io::Result<()> {
        self.inner.listen(port)
    }

    fn join(&mut self, group: IpAddr, port: u16, ifindex: u32) -> io::Result<RawFd> {
        self.inner.join(group, port, ifindex)
    }

    fn leave(&mut self, membership: RawFd) {
        self.inner.leave(membership);
    }

    fn fds(&self) -> Vec<RawFd> {
        self.inner.fds()
    }

    fn due(&self) -> Option<u64> {
        [self.due, self.inner.due()].into_iter().flatten().min()
    }

    fn flush_due(&mut self, now: u64) -> io::Result<()> {
        if self.due.is_some_and(|due| due <= now) {
            while let Some(n) = self.peers.take_due(Instant(now)) {
                self.serve(n, Instant(now));
            }
            // What passes as it is may be lost.
            let _ = self.flush();
        }
        self.inner.flush_due(now)
    }

    fn take_send_error(&mut self) -> Option<SendError> {
        self.inner.take_send_error()
    }

    fn links(&self, see: &mut dyn FnMut(LinkReport)) {
        for session in self.peers.all.iter().filter_map(|peer| peer.session.as_ref()) {
            for (interface, state) in session.links() {
                let (is_up, bytes) = (state.is_up, state.bytes);
                let (rate, loss) = (state.rate, state.loss);
                see(LinkReport { interface, is_up, bytes, rate, loss, round_trip: state.round_trip });
            }
        }
    }

    fn bytes_of_ended_links(&self, interface: u8) -> u64 {
        self.peers.ended_bytes.get(usize::from(interface)).copied().unwrap_or(0)
    }

    fn mark(&mut self, what: &dyn fmt::Display) {
        self.inner.mark(what);
    }

    fn close(&mut self) {
        self.inner.close();
    }

    fn records_fates(&self) -> bool {
        self.inner.records_fates()
    }

    fn receive_unrecorded(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        self.receive(inbox)
    }

    fn record_arrivals(&mut self, _inbox: &Inbox, _arrivals: &[Arrival]) {}
}
