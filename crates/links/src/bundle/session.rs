//! A connection over several links to a process, and the packets of QPs on it.

use super::chains::Chains;
use super::pool::{Kept, Pool};
use crate::departures::{Departures, Ends};
use crate::interfaces::Interfaces;
use std::collections::VecDeque;
use std::time::Duration;
use weir_link::{Carrier, Iovec};
use weir_transport::Instant;
use weir_transport::edge::{Agreed, Connection, Leaving, LinkState, Parameters, Refusal, Scheduler, Seq, Setup};
use weir_wire::edge::{Ack, Header, MAX_ACK_LEN, MAX_HEADER_LEN, RECEIVED_LEN};
use weir_wire::frame;

/// Packets that wait for the links, at most. Others are lost, as on any wire.
const MOST_WAITING: usize = 8192;
/// A peer that performs nothing for so long while it should is gone.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of the headers of Ethernet, IP and UDP, and between frames.
const OUTER: u32 = 66;
/// The first bytes of a packet are staged behind its header: those of its own headers, which a capture of headers reads,
/// and all of a short one.
const INNER: usize = 64;
const SHORT: usize = 192;

/// A connection.
pub(super) struct Session {
    connection: Connection<Kept, Came>,
    /// Where the packets of each link go.
    ends: Vec<Ends>,
    /// The interface of each link, by its number among this side's.
    pub interfaces: Vec<u8>,
    chains: Chains,
    waiting: VecDeque<Kept>,
    /// Bytes that fit into a packet behind a header.
    room: u32,
    /// The number that this side gave the connection, and the peer.
    pub own: u32,
    pub peer: u32,
    /// The peer has performed something since, or had nothing to perform before.
    quiet_since: Instant,
    /// What it had performed by then.
    performed: Seq,
    is_control: fn(&[u8]) -> bool,
    /// Memory for packets that have arrived at the peer.
    done: Vec<Kept>,
}

/// A packet that has come.
#[derive(Debug)]
pub(super) enum Came {
    /// It is in the inbox: where it begins.
    Here,
    /// It came earlier.
    Earlier(Kept),
}

/// What packets leave through.
pub(super) struct Outlet<'a> {
    pub departures: &'a mut Departures,
    pub carrier: &'a mut dyn Carrier,
    pub pool: &'a mut Pool,
}

impl Session {
    /// `port`: the peer's. `own`: this side's interfaces.
    pub fn new(
        agreed: &Agreed,
        (parameters, scheduler): (Parameters, Scheduler),
        port: u16,
        own: &Interfaces,
        is_control: fn(&[u8]) -> bool,
        now: Instant,
    ) -> Session {
        let links = &agreed.links;
        let weights: Vec<u32> = links.iter().map(|pair| pair.weight()).collect();
        let first = [agreed.numbers.first, agreed.first];
        let setup = Setup { parameters, scheduler, peer: agreed.peer, first };
        let ends: Vec<Ends> = links.iter().map(|pair| Ends::of(pair, port, own)).collect();
        let rooms =
            ends.iter().zip(links).map(|(ends, pair)| ends.room(pair.mtu()).saturating_sub(MAX_HEADER_LEN as u32));
        Session {
            connection: Connection::new(setup, &weights),
            interfaces: links.iter().map(|pair| pair.local.interface).collect(),
            chains: Chains::default(),
            waiting: VecDeque::new(),
            room: rooms.min().unwrap_or(0),
            ends,
            own: agreed.numbers.connection,
            peer: agreed.peer,
            quiet_since: now,
            performed: agreed.numbers.first,
            is_control,
            done: vec![],
        }
    }

    /// Whether a packet of so many bytes fits.
    pub fn takes(&self, bytes: usize) -> bool {
        bytes <= self.room as usize
    }

    /// Sends a packet, now or when the links take it.
    pub fn send(&mut self, now: Instant, packet: &[u8], out: &mut Outlet<'_>) {
        if self.connection.is_idle() {
            self.quiet_since = now;
        }
        if self.waiting.is_empty() && self.connection.has_room(now) {
            let kept = out.pool.keep(packet);
            self.leave(now, kept, out);
        } else if self.waiting.len() < MOST_WAITING {
            self.waiting.push_back(out.pool.keep(packet));
        }
    }

    /// Whether a header may come on its link from this address and port, to this address.
    pub fn expects(&self, header: &Header, from: std::net::SocketAddr, to: std::net::IpAddr) -> bool {
        self.ends.get(usize::from(header.link)).is_some_and(|ends| (ends.to, ends.from) == (from, to))
    }

    /// A packet has come, or an acknowledgement; `keep` copies it. `perform` gets each packet that may be performed now.
    pub fn handle(
        &mut self,
        now: Instant,
        (header, ack): (&Header, Option<&Ack>),
        packet: &[u8],
        pool: &mut Pool,
        mut perform: impl FnMut(Came),
    ) -> Result<(), Refusal> {
        let came = |waits| if waits { Came::Earlier(pool.keep(packet)) } else { Came::Here };
        let Session { connection, done, .. } = self;
        let taken = connection.handle(now, header, ack, came, |_, kept| done.push(kept));
        done.drain(..).for_each(|kept| pool.give_back(kept));
        while let Some((_, came)) = connection.perform(now) {
            perform(came);
        }
        let (performed, _) = connection.performed_by_peer();
        if performed != self.performed {
            (self.performed, self.quiet_since) = (performed, now);
        }
        taken.map(|_| ())
    }

    /// Sends what goes again, what has waited, and acknowledgements.
    pub fn transmit(&mut self, now: Instant, out: &mut Outlet<'_>) {
        if self.connection.poll_timeout().is_some_and(|at| at <= now) {
            self.connection.handle_timeout(now);
        }
        while let Some((header, kept)) = self.connection.poll_again(now) {
            put(&self.ends, out, &header, None, kept.map_or(&[], Kept::bytes));
        }
        while !self.waiting.is_empty() && self.connection.has_room(now) {
            let Some(kept) = self.waiting.pop_front() else { break };
            self.leave(now, kept, out);
        }
        while let Some((header, ack)) = self.connection.poll_ack(now) {
            put(&self.ends, out, &header, Some(ack), &[]);
        }
    }

    /// When `transmit` is to be called, or `is_gone` becomes true.
    pub fn due(&self) -> Option<Instant> {
        let gone = (!self.connection.is_idle()).then(|| self.quiet_since + PATIENCE);
        self.connection.poll_timeout().into_iter().chain(gone).min()
    }

    /// Whether the peer has performed nothing for long although it should.
    pub fn is_gone(&self, now: Instant) -> bool {
        !self.connection.is_idle() && self.quiet_since + PATIENCE <= now
    }

    /// Whether nothing has been on the way for so long.
    pub fn is_idle_for(&self, now: Instant, time: Duration) -> bool {
        self.connection.is_idle() && now - self.quiet_since >= time
    }

    /// Whether one of its links leads there, and the peer would have this number for it.
    pub fn leads_to(&self, connection: u32, to: std::net::SocketAddr) -> bool {
        self.peer == connection && self.ends.iter().any(|ends| ends.to == to)
    }

    /// What the state of each link is.
    pub fn links(&self) -> impl Iterator<Item = (u8, LinkState)> + '_ {
        self.interfaces.iter().copied().zip(self.connection.links())
    }

    fn leave(&mut self, now: Instant, kept: Kept, out: &mut Outlet<'_>) {
        let (seq, (performed, _)) = (self.connection.next_seq(), self.connection.performed_by_peer());
        let packet = kept.bytes();
        let order = match packet.get(5..8) {
            Some(qpn) if !(self.is_control)(packet) => {
                let qpn = u32::from_be_bytes([0, qpn[0], qpn[1], qpn[2]]);
                self.chains.for_qp(qpn, (seq, frame::may_overtake(packet)), performed)
            }
            _ => self.chains.barrier(seq, performed),
        };
        let bytes = packet.len() as u32;
        let on_wire = bytes + MAX_HEADER_LEN as u32 + OUTER;
        // `MAX_HEADER_LEN` counts it.
        let room = self.room.saturating_sub(bytes) + RECEIVED_LEN as u32;
        let Some(Leaving { header, ack, content }) = self.connection.send(now, on_wire, room, order, kept) else {
            debug_assert!(false, "the caller has asked whether there is room");
            return;
        };
        put(&self.ends, out, &header, ack, content.bytes());
    }
}

/// Puts a packet into the departures. It stays where it is until it has arrived.
fn put(ends: &[Ends], out: &mut Outlet<'_>, header: &Header, ack: Option<&Ack>, packet: &[u8]) {
    let Some(ends) = ends.get(usize::from(header.link)) else { return };
    let (front, rest) = packet.split_at(if packet.len() <= SHORT { packet.len() } else { INNER });
    let most = MAX_HEADER_LEN + ack.map_or(0, |_| MAX_ACK_LEN) + front.len();
    if !out.departures.has_room(most) {
        // A send that fails is a loss.
        let _ = out.departures.send(out.carrier);
    }
    let emit = |out: &mut [u8]| {
        let len = header.emit(ack, None, out);
        out[len..len + front.len()].copy_from_slice(front);
        len + front.len()
    };
    let payload = Iovec { addr: rest.as_ptr().expose_provenance(), len: rest.len() };
    // SAFETY: the buffer of a packet goes back to the pool only when the packet has arrived, and is then not freed before
    // the departures have been sent.
    unsafe { out.departures.put(*ends, most, payload, emit) };
}
