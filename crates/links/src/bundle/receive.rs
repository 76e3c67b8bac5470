//! What has come: packets that may be performed go on to QPs, in place if they came last.

use super::delivery::Delivery;
use super::peers::Key;
use super::session::Came;
use super::{Bundle, Instant};
use weir_link::{Arrival, Carrier, Inbox};
use weir_wire::edge::{Header, Hello, Parsed, is_edge};

impl<C: Carrier> Bundle<C> {
    /// Takes what the inner carrier has put into the inbox, and leaves there what is for QPs.
    pub(super) fn take(&mut self, inbox: &mut Inbox) {
        let now = self.now();
        let mut came = std::mem::replace(&mut inbox.arrivals, std::mem::take(&mut self.receiving.came));
        let mut delivery = Delivery::new(inbox);
        for arrival in &came {
            let may = (self.is_peer)(arrival.from.port()) && arrival.to_port == self.port;
            let (mut start, first) = (arrival.start, delivery.inbox.arrivals.len());
            while start < arrival.start + arrival.len {
                let len = arrival.segment.max(1).min(arrival.start + arrival.len - start);
                let datagram = &delivery.inbox.bytes[start..start + len];
                if may && is_edge(datagram) {
                    self.take_packet(&mut delivery, arrival, (start, len), now);
                } else if may && Hello::is_hello(datagram) {
                    let hello = Hello::decode(datagram);
                    self.take_hello(arrival, hello.ok(), now);
                } else {
                    delivery.here(*arrival, start, len, arrival.skip);
                }
                start += len;
            }
            delivery.end_buffer(first);
        }
        came.clear();
        self.receiving.came = came;
        for at in 0..self.peers.touched.len() {
            self.serve(self.peers.touched[at], now);
        }
        // A send that fails is a loss.
        let _ = self.flush();
    }

    fn take_hello(&mut self, arrival: &Arrival, hello: Option<Hello>, now: Instant) {
        let Some(hello) = hello else { return };
        if let Some(connection) = hello.unknown_connection() {
            return self.peers.doubt(connection, arrival.from, now);
        }
        let key: Key = (arrival.to, arrival.from);
        if let Some(reply) = self.peers.handle(key, &hello, now) {
            self.send_hello(arrival.to, arrival.from, 0, &reply);
        }
    }

    fn take_packet(
        &mut self,
        delivery: &mut Delivery<'_>,
        arrival: &Arrival,
        (start, len): (usize, usize),
        now: Instant,
    ) {
        let datagram = &delivery.inbox.bytes[start..start + len];
        let Ok(Parsed { header, has_ack, piece: None, rest }) = Header::parse(datagram, &mut self.receiving.ack) else {
            return;
        };
        let skip = len - rest.len();
        let Some(n) = self.peers.of_connection(header.connection) else {
            if let Some(hello) = self.peers.unknown(header.connection, now) {
                self.send_hello(arrival.to, arrival.from, arrival.ifindex, &hello);
            }
            return;
        };
        self.peers.touch(n);
        let peer = &mut self.peers.all[n];
        let (Some(session), Some(key)) = (&mut peer.session, peer.key) else { return };
        if !session.expects(&header, arrival.from, arrival.to) || rest.len() > self.pool.size() {
            return;
        }
        let mut ready = std::mem::take(&mut self.receiving.ready);
        let ack = has_ack.then_some(&self.receiving.ack);
        // What the peer does not keep to is dropped.
        let taken = session.handle(now, (&header, ack), rest, &mut self.pool, |came| ready.push(came));
        if taken.is_ok() {
            peer.opening.confirm();
        }
        // As if it had come from the address that QPs know.
        let as_known = Arrival { from: key.1, to: key.0, over_links: true, ..*arrival };
        for came in ready.drain(..) {
            let rest = &mut self.receiving.rest;
            match came {
                Came::Here if rest.is_empty() => delivery.here(as_known, start, len, skip),
                Came::Here => {
                    let kept = self.pool.keep(&delivery.inbox.bytes[start + skip..start + len]);
                    rest.push_back((as_known, kept));
                }
                Came::Earlier(kept) if rest.is_empty() && delivery.earlier(as_known, kept.bytes()) => {
                    self.pool.give_back(kept);
                }
                Came::Earlier(kept) => rest.push_back((as_known, kept)),
            }
        }
        self.receiving.ready = ready;
    }
}
