//! Packets that have come.

use crate::engine::Engine;
use crate::memory::Local;
use crate::meter::Part;
use crate::payload::{Payload, Seen};
use crate::peer::MOST_HELD;
use weir_link::{Arrival, Carrier, Iovec};
use weir_transport::Instant;
use weir_wire::edge::{Header, Hello};

impl Engine {
    /// Takes what one call of the sockets brings; returns how much that was.
    pub(crate) fn receive(&mut self, now: Instant) -> usize {
        let Some(mut inbox) = self.inbox.take() else { return 0 };
        let call = self.meter.during(Part::Device);
        // An error concerns packets that were sent earlier.
        let got = self.carrier.receive(&mut inbox).unwrap_or(0);
        if got == 0 {
            call.is_for(Part::Poll);
            self.counters.empty_receives += 1;
        } else {
            self.counters.receives += 1;
        }
        drop(call);
        for arrival in &inbox.arrivals {
            for bytes in inbox.datagrams(arrival) {
                self.packet(now, arrival, bytes);
            }
        }
        self.inbox = Some(inbox);
        got
    }

    /// A packet has come.
    pub(crate) fn packet(&mut self, now: Instant, arrival: &Arrival, bytes: &[u8]) {
        if Hello::is_hello(bytes) {
            return self.hello(now, arrival, bytes);
        }
        if !self.take_packet(now, arrival, bytes) {
            self.counters.packets_refused += 1;
        }
    }

    /// Takes a packet of a connection; returns whether it is one.
    fn take_packet(&mut self, now: Instant, arrival: &Arrival, bytes: &[u8]) -> bool {
        let Ok(parsed) = Header::parse(bytes, &mut self.ack) else { return false };
        let (header, piece, payload) = (parsed.header, parsed.piece, parsed.rest);
        let number = header.connection;
        if piece.is_none() && !payload.is_empty() {
            return false;
        }
        let Some(peer) = self.peers.get_mut(&number).filter(|peer| peer.endpoint.is_some()) else {
            self.disown(now, number, arrival);
            return false;
        };
        // The numbers of a connection are no secret on its path, but its packets come from its peer only.
        let is_of_peer = |ends: &weir_links::Ends| ends.to == arrival.from && ends.from == arrival.to;
        if !peer.links.get(usize::from(header.link)).is_some_and(is_of_peer) {
            return false;
        }
        peer.heard = now;
        // A thread may wait for the peer to show that it has agreed.
        self.has_news |= !peer.opening.is_confirmed();
        peer.opening.confirm();
        if !peer.is_taken {
            if peer.held.len() < MOST_HELD {
                let arrival = Arrival { start: 0, len: bytes.len(), segment: bytes.len(), ..*arrival };
                peer.held.push((arrival, bytes.into()));
            }
            return true;
        }
        let Some(endpoint) = &mut peer.endpoint else { return false };
        let (pool, meter) = (&self.pool, &self.meter);
        let place = Iovec { addr: payload.as_ptr().expose_provenance(), len: payload.len() };
        let copies = self.options.copy_receives;
        let kept = |waits: bool| match payload.len() {
            0 => Payload::Nothing,
            _ if !waits && !copies => Payload::Arrived(place),
            _ => {
                let _copying = meter.during(Part::ReceiveCopy);
                pool.copy(place).unwrap_or(Payload::Nothing)
            }
        };
        let copy_sends = self.options.copy_sends;
        let mut memory = Local { allowed: &mut peer.allowed, pool, meter, copy_sends, seen: &Seen::default() };
        let ack = parsed.has_ack.then_some(&self.ack);
        let taken = endpoint.handle(now, (&header, ack), piece, kept, &mut memory);
        self.counters.packets_received += 1;
        self.counters.bytes_received += payload.len() as u64;
        if !std::mem::replace(&mut peer.is_touched, true) {
            self.touched.push(number);
        }
        taken.is_ok()
    }
}
