//! What has come: packets that may be performed go on to QPs, in place if they came last.

use super::peers::Key;
use super::pool::{Kept, Pool};
use super::session::Came;
use super::{Bundle, Instant};
use std::collections::VecDeque;
use weir_link::{Arrival, Carrier, Inbox};
use weir_wire::edge::{Ack, Header, Hello, Parsed, is_edge};

/// What is needed to receive.
#[derive(Default)]
pub(super) struct Receiving {
    ack: Ack,
    /// Memory for what has come.
    came: Vec<Arrival>,
    /// Packets for which the inbox had no room, oldest first.
    rest: VecDeque<(Arrival, Kept)>,
}

/// Where arrivals for QPs are put.
struct Delivery<'a> {
    inbox: &'a mut Inbox,
    /// The next free byte after the slots.
    spare: usize,
}

impl Delivery<'_> {
    fn new(inbox: &mut Inbox) -> Delivery<'_> {
        let spare = inbox.spare().start;
        Delivery { inbox, spare }
    }

    /// A datagram in the inbox: part of `arrival`, `len` bytes from `start` on, of which the first `skip` are not for QPs.
    fn here(&mut self, arrival: Arrival, start: usize, len: usize, skip: usize) {
        if let Some(last) = self.inbox.arrivals.last_mut() {
            let follows = last.start + last.len == start && last.segment == arrival.segment;
            let alike = last.skip == skip && (last.from, last.to) == (arrival.from, arrival.to);
            if follows && alike && last.len.is_multiple_of(last.segment.max(1)) {
                last.len += len;
                return;
            }
        }
        self.inbox.arrivals.push(Arrival { start, len, skip, ..arrival });
    }

    /// A datagram that came earlier; false: there is no room for it.
    fn earlier(&mut self, arrival: Arrival, bytes: &[u8]) -> bool {
        let (start, len) = (self.spare, bytes.len());
        if start + len > self.inbox.spare().end {
            return false;
        }
        self.inbox.bytes[start..start + len].copy_from_slice(bytes);
        self.spare += len;
        self.inbox.arrivals.push(Arrival { start, len, segment: len, skip: 0, ..arrival });
        true
    }
}

impl Receiving {
    /// Whether packets wait for an inbox.
    pub fn has_more(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Delivers packets for which an inbox had no room.
    pub fn deliver_rest(&mut self, inbox: &mut Inbox, pool: &mut Pool) {
        inbox.arrivals.clear();
        let mut delivery = Delivery::new(inbox);
        while let Some((arrival, kept)) = self.rest.pop_front() {
            if !delivery.earlier(arrival, kept.bytes()) {
                self.rest.push_front((arrival, kept));
                break;
            }
            pool.give_back(kept);
        }
    }
}

impl<C: Carrier> Bundle<C> {
    /// Takes what the inner carrier has put into the inbox, and leaves there what is for QPs.
    pub(super) fn take(&mut self, inbox: &mut Inbox) {
        let now = self.now();
        let mut came = std::mem::replace(&mut inbox.arrivals, std::mem::take(&mut self.receiving.came));
        let mut delivery = Delivery::new(inbox);
        for arrival in &came {
            let may = (self.is_peer)(arrival.from.port()) && arrival.to_port == self.port;
            let mut start = arrival.start;
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
        }
        came.clear();
        self.receiving.came = came;
        for n in 0..self.peers.all.len() {
            if self.peers.all[n].is_touched {
                self.serve(n, now);
            }
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
        let peer = &mut self.peers.all[n];
        let (Some(session), Some(key)) = (&mut peer.session, peer.key) else { return };
        if !session.expects(&header, arrival.from, arrival.to) || rest.len() > self.pool.size() {
            return;
        }
        peer.is_touched = true;
        let mut ready = vec![];
        let ack = has_ack.then_some(&self.receiving.ack);
        // What the peer does not keep to is dropped.
        let taken = session.handle(now, (&header, ack), rest, &mut self.pool, |came, _| ready.push(came));
        if taken.is_ok() {
            peer.opening.confirm();
        }
        // As if it had come from the address that QPs know.
        let as_known = Arrival { from: key.1, to: key.0, ..*arrival };
        for came in ready {
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
    }
}
