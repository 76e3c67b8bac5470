//! Packets that leave.

use crate::engine::{Engine, Lingering, MOST_LINGERING};
use crate::memory::Local;
use crate::meter::Part;
use crate::payload::Seen;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use weir_link::{Arrival, Carrier, Group, Iovec};
use weir_transport::Instant;
use weir_transport::edge::Event;
use weir_wire::edge::{Action, Hello, MAX_HEADER_LEN, PIECE_LEN, Piece};

/// A peer that does not know that a connection has ended is told no more often.
const AGAIN: Duration = Duration::from_millis(10);

impl Engine {
    /// Sends what connections have, and tells the program what has happened to them.
    pub(crate) fn send_touched(&mut self, now: Instant) {
        while let Some(number) = self.touched.pop() {
            let Some(peer) = self.peers.get_mut(&number) else { continue };
            peer.is_touched = false;
            self.transmit(now, number);
            self.collect(number);
            self.schedule(number);
        }
    }

    /// Sends the packets of a connection.
    fn transmit(&mut self, now: Instant, number: u32) {
        let Some(peer) = self.peers.get_mut(&number).filter(|peer| peer.is_taken) else { return };
        let Some(endpoint) = &mut peer.endpoint else { return };
        let (pool, meter, carrier, outgoing) = (&self.pool, &self.meter, &mut self.carrier, &mut self.outgoing);
        let (links, counters) = (&peer.links, &mut self.counters);
        let (allowed, copy_sends) = (&mut peer.allowed, self.options.copy_sends);
        loop {
            let seen = Seen::default();
            let mut memory = Local { allowed, pool, meter, copy_sends, seen: &seen };
            // WRITEs that cannot be sent from their place any more.
            let mut lost: Vec<u32> = vec![];
            endpoint.transmit(now, &mut memory, |(header, ack, carried)| {
                let most = MAX_HEADER_LEN + ack.map_or(0, |ack| ack.wire_len()) + PIECE_LEN;
                if !outgoing.has_room(most) {
                    let _sending = meter.during(Part::Device);
                    // What is lost goes again, and is looked at before.
                    let _ = outgoing.send(carrier);
                    counters.sends += 1;
                }
                let mut place = Iovec { addr: 0, len: 0 };
                let piece = carried.map(|(piece, payload)| {
                    if !payload.is_readable(&seen) {
                        lost.push(piece.number);
                        return Piece { number: piece.number, action: Action::Abandon, offset: 0, bytes: 0 };
                    }
                    place = payload.iovec();
                    piece
                });
                if piece.is_some() {
                    counters.packets_sent += 1;
                    counters.bytes_sent += place.len as u64;
                } else {
                    counters.acknowledgements_sent += 1;
                }
                let Some(ends) = links.get(usize::from(header.link)) else { return };
                // SAFETY: the connection keeps what it has sent until the peer has it, of which it learns from a packet that
                // it handles later. Bytes in memory of the program may vanish: the sockets take iovecs.
                unsafe { outgoing.put(*ends, most, place, |out| header.emit(ack, piece.as_ref(), out)) };
            });
            if !outgoing.is_empty() {
                let _sending = meter.during(Part::Device);
                let _ = outgoing.send(carrier);
                counters.sends += 1;
            }
            if lost.is_empty() {
                return;
            }
            lost.into_iter().for_each(|operation| endpoint.withdraw(operation));
        }
    }

    /// Tells the program what has happened to a connection.
    pub(crate) fn collect(&mut self, number: u32) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let counters = &mut self.counters;
        self.has_news |= peer.collect(|event| match event {
            Event::Completed { result, .. } => {
                counters.completed += 1;
                counters.failed += u64::from(result.is_err());
            }
            Event::Notified { .. } => counters.notified += 1,
        });
    }

    /// Tells the peer what has been performed, now.
    pub(crate) fn acknowledge(&mut self, now: Instant, number: u32) {
        let soon = now + self.options.parameters.ack_delay;
        self.touch(number);
        self.send_touched(soon);
    }

    /// Tells the peer that the connection ends.
    pub(crate) fn say_goodbye(&mut self, now: Instant, number: u32) {
        let Some(peer) = self.peers.get(&number) else { return };
        let (agreed, remote, local) = (peer.agreed.clone(), peer.remote, peer.local);
        let hello = agreed.farewell(&self.own(&[]));
        self.send_hello(&hello, remote, local, 0);
        if self.lingering.len() >= MOST_LINGERING {
            self.lingering.pop_front();
        }
        self.lingering.push_back(Lingering { agreed, remote, again: now + AGAIN });
    }

    /// A packet has come for a connection that has ended, or that another process had at this port: its sender may not know
    /// that.
    pub(crate) fn disown(&mut self, now: Instant, number: u32, arrival: &Arrival) {
        let is_it = |ended: &&mut Lingering| ended.agreed.numbers.connection == number;
        let Some(ended) = self.lingering.iter_mut().find(is_it) else {
            if self.disowns <= now {
                self.disowns = now + AGAIN;
                self.send_hello(&Hello::unknown(number), arrival.from, arrival.to, 0);
            }
            return;
        };
        if ended.again > now {
            return;
        }
        ended.again = now + AGAIN;
        let (agreed, remote) = (ended.agreed.clone(), ended.remote);
        let hello = agreed.farewell(&self.own(&[]));
        let from = if remote == arrival.from { arrival.to } else { unspecified(remote) };
        self.send_hello(&hello, remote, from, 0);
    }

    /// Sends a hello, from an address or from that of the route.
    pub(crate) fn send_hello(&mut self, hello: &Hello, to: SocketAddr, from: IpAddr, ifindex: u32) {
        let bytes = hello.encode();
        self.outbox.clear();
        self.outbox.bytes[..bytes.len()].copy_from_slice(&bytes);
        self.outbox.len = bytes.len();
        let group = Group { len: bytes.len(), segment: bytes.len(), any_id: true, ..Group::new(to, from, ifindex) };
        self.outbox.groups.push(group);
        // A hello that is lost is sent again.
        let _ = self.carrier.send(&self.outbox);
    }
}

/// No address of the family of an address: that of the route is used.
pub fn unspecified(of: SocketAddr) -> IpAddr {
    match of {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}
