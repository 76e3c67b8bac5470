//! MultiEdge over a connection: operations of both sides on each other's memory.
//!
//! A packet is performed by copying its bytes, in any order but for fences. The bytes of a packet are copied out of memory
//! when it is sent, and kept until it has arrived: so what a READ brings is what was there before later operations.
//!
//! A WRITE is complete when the peer has performed all of its packets. The peer also says how many have failed: this side
//! waits until it knows which. It is told in the order in which they failed: so the first `n` that it knows of are the
//! first `n` that the peer has counted.

use super::connection::{Connection, Refusal, Setup};
use super::issued::Issued;
use super::operation::{Event, Memory, Operation};
use super::reads;
use super::sender::LinkState;
use crate::Instant;
use std::collections::{BTreeMap, VecDeque};
use weir_wire::edge::{Ack, Action, HEADER_LEN, Header, Order, PIECE_LEN, Piece, Seq};

/// Notifications that wait for the program, at most.
const MOST_NOTIFICATIONS: usize = 4096;
/// WRITEs of the peer that have failed, which it has not been told, at most: it may not take what it is told.
const MOST_FAILED: usize = 4096;

/// One side of a MultiEdge connection. `B` is what is kept of a packet's payload.
#[derive(Debug)]
pub struct Endpoint<B> {
    connection: Connection<Content<B>, (Piece, B)>,
    issued: Issued,
    /// Numbers of WRITEs of the peer that have failed, which it is to be told.
    failed: VecDeque<u32>,
    /// The latest packet that tells of one.
    told: Option<Seq>,
    /// What the peer asks for.
    responses: VecDeque<Response>,
    /// Requests for bytes that have come, and are not answered in full.
    requests: usize,
    /// WRITEs of this side that were sent in part, and of which the peer is to forget the rest.
    withdrawn: VecDeque<u32>,
    /// WRITEs of the peer of which a part has been performed, by their numbers.
    partial: BTreeMap<u32, Partial>,
    /// More of them than packets in a window, and the one that is being sent, there cannot be.
    most_partial: usize,
    completed: VecDeque<Event>,
    notified: VecDeque<Event>,
    /// Bytes of a packet's payload, at most.
    payload: u32,
    /// The next packet is an answer, if there is one.
    answers_first: bool,
    /// What the peer has performed, as far as operations know.
    performed: (Seq, u32),
}

/// What is kept of a packet until it has arrived.
#[derive(Debug)]
struct Content<B> {
    piece: Piece,
    bytes: B,
}

/// Bytes that the peer asks for, of which `offset` have been sent.
#[derive(Clone, Copy, Debug)]
struct Response {
    number: u32,
    address: u64,
    offset: u32,
    bytes: u32,
}

#[derive(Clone, Copy, Debug)]
struct Partial {
    missing: u32,
    failed: bool,
}

/// A packet that leaves: its header, an acknowledgement that goes with it, and what it carries.
pub type Packet<'a, B> = (Header, Option<&'a Ack>, Option<(Piece, &'a B)>);

impl<B> Endpoint<B> {
    /// With packets of at most so many bytes of payload, 1 at least, and links of these weights. The order of a packet takes
    /// of these bytes.
    ///
    /// # Panics
    /// As [`Connection::new`].
    pub fn new(setup: Setup, weights: &[u32], payload: u32) -> Endpoint<B> {
        Endpoint {
            connection: Connection::new(setup, weights),
            issued: Issued::new(payload.max(1)),
            failed: VecDeque::new(),
            told: None,
            withdrawn: VecDeque::new(),
            responses: VecDeque::new(),
            requests: 0,
            partial: BTreeMap::new(),
            most_partial: setup.parameters.window as usize + 1,
            completed: VecDeque::new(),
            notified: VecDeque::new(),
            payload: payload.max(1),
            answers_first: true,
            performed: (setup.first[0], 0),
        }
    }

    /// Begins an operation; returns its number, which its completion has.
    pub fn issue(&mut self, operation: Operation) -> u32 {
        self.issued.add(operation)
    }

    /// The bytes of a WRITE of this side, which are sent from where they are, cannot be read any more: it fails. The caller
    /// sends [`Action::Abandon`] in place of each of its packets that cannot be sent again.
    pub fn withdraw(&mut self, operation: u32) {
        if self.issued.withdraw(operation) {
            self.withdrawn.push_back(operation);
        }
    }

    /// The next operation that is complete, if there is one.
    pub fn poll_completion(&mut self) -> Option<Event> {
        self.completed.pop_front()
    }

    /// The next event: completions first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.completed.pop_front().or_else(|| self.notified.pop_front())
    }

    /// Whether this side has nothing to send, and its operations are over.
    pub fn is_idle(&self) -> bool {
        let has_answers = !self.failed.is_empty() || !self.withdrawn.is_empty() || !self.responses.is_empty();
        self.issued.is_empty() && !has_answers && self.connection.is_idle()
    }

    /// What the state of each link is.
    pub fn links(&self) -> impl ExactSizeIterator<Item = LinkState> + '_ {
        self.connection.links()
    }

    /// A packet has come; `bytes` makes what is kept of its payload, if it is new, and gets whether it is used by this
    /// call, or has to wait. The payload is as long as [`Piece::payload`]. What may be performed then, is.
    pub fn handle<M: Memory<Bytes = B>>(
        &mut self,
        now: Instant,
        (header, ack): (&Header, Option<&Ack>),
        piece: Option<Piece>,
        bytes: impl FnOnce(bool) -> B,
        memory: &mut M,
    ) -> Result<(), Refusal> {
        let refusal = match piece {
            _ if header.packet.is_some() != piece.is_some() => Some(Refusal::Piece),
            Some(piece) => self.refusal(&piece),
            None => None,
        };
        // What the peer says of this side's packets counts.
        let taken = Header { packet: header.packet.filter(|_| refusal.is_none()), ..*header };
        let packet = |waits| (piece.expect("as the header has said"), bytes(waits));
        let is_new = self.connection.handle(now, &taken, ack, packet, |_, _| ());
        if let (Ok(true), Some(Piece { action: Action::Read { .. }, .. })) = (&is_new, piece) {
            self.requests += 1;
        }
        while let Some((_, (piece, bytes))) = self.connection.perform(now) {
            self.perform(&piece, &bytes, memory);
        }
        let performed = self.connection.performed_by_peer();
        if performed != self.performed {
            self.performed = performed;
            self.told = self.told.filter(|told| !told.before(performed.0));
            self.issued.performed(performed, |event| self.completed.push_back(event));
        }
        is_new.and_then(|_| refusal.map_or(Ok(()), Err))
    }

    /// Sends packets while there are any: those that go again, answers, operations, and an acknowledgement.
    pub fn transmit<M: Memory<Bytes = B>>(
        &mut self,
        now: Instant,
        memory: &mut M,
        mut send: impl FnMut(Packet<'_, B>),
    ) {
        while let Some((header, content)) = self.connection.poll_again(now) {
            send((header, None, content.map(|content| (content.piece, &content.bytes))));
        }
        // In turns, also if the links take one packet at a time: a peer that asks for more and more does not stop this
        // side's operations.
        loop {
            let answers_last = !self.answers_first;
            if answers_last && self.next(now, memory, &mut send) {
                self.answers_first = true;
            } else if self.answer(now, memory, &mut send) {
                self.answers_first = false;
            } else if answers_last || !self.next(now, memory, &mut send) {
                break;
            }
        }
        while let Some((header, ack)) = self.connection.poll_ack(now) {
            send((header, Some(ack), None));
        }
    }

    /// When `handle_timeout` and then `transmit` are to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.connection.poll_timeout()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.connection.handle_timeout(now);
    }

    /// The interface of a link is up, or down.
    pub fn set_link(&mut self, now: Instant, link: usize, up: bool) {
        self.connection.set_link(now, link, up);
    }

    /// Why a piece is not taken.
    fn refusal(&self, piece: &Piece) -> Option<Refusal> {
        match piece.action {
            Action::Read { .. } if piece.bytes > reads::AT_ONCE || self.requests >= reads::MOST => Some(Refusal::Reads),
            Action::Write { notify: true, .. } if self.notified.len() >= MOST_NOTIFICATIONS => {
                Some(Refusal::Notifications)
            }
            Action::Write { .. } if self.failed.len() >= MOST_FAILED => Some(Refusal::Failures),
            _ => None,
        }
    }

    fn perform<M: Memory<Bytes = B>>(&mut self, piece: &Piece, bytes: &B, memory: &mut M) {
        let number = piece.number;
        let mut write = |address: u64, by_peer: bool| match piece.bytes {
            0 => Ok(()),
            _ => memory.write(address, bytes, by_peer),
        };
        let mut tell = |event| self.completed.push_back(event);
        match piece.action {
            Action::Write { address, total, notify } => {
                let failed = write(address.wrapping_add(u64::from(piece.offset)), true).is_err();
                if self.is_written(piece, total, failed) && notify {
                    self.notified.push_back(Event::Notified { address, bytes: total });
                }
            }
            Action::Abandon => _ = self.partial.remove(&number),
            Action::Read { address } => {
                self.responses.push_back(Response { number, address, offset: 0, bytes: piece.bytes });
            }
            Action::Response => self.issued.response(piece, |address| write(address, false), tell),
            Action::ReadFailed => self.issued.read_failed(number, tell),
            Action::WriteFailed => {
                self.issued.write_failed(number);
                self.issued.performed(self.performed, &mut tell);
            }
        }
    }

    /// A piece of a WRITE has been performed, or has failed. Returns whether the WRITE has been performed.
    fn is_written(&mut self, piece: &Piece, total: u32, failed: bool) -> bool {
        let is_full = self.partial.len() >= self.most_partial;
        let mut whole = Partial { missing: total, failed: false };
        let partial = match self.partial.get_mut(&piece.number) {
            Some(partial) => partial,
            None if piece.bytes >= total => &mut whole,
            None if is_full => return false,
            None => self.partial.entry(piece.number).or_insert(whole),
        };
        if failed && !partial.failed {
            self.connection.note_failure();
            self.failed.push_back(piece.number);
        }
        partial.missing = partial.missing.saturating_sub(piece.bytes);
        partial.failed |= failed;
        let Partial { missing, failed } = *partial;
        if missing == 0 {
            self.partial.remove(&piece.number);
        }
        missing == 0 && !failed
    }

    /// Sends the next answer; returns whether it has.
    fn answer<M: Memory<Bytes = B>>(
        &mut self,
        now: Instant,
        memory: &mut M,
        send: &mut impl FnMut(Packet<'_, B>),
    ) -> bool {
        let has_none = self.failed.is_empty() && self.withdrawn.is_empty() && self.responses.is_empty();
        if has_none || !self.connection.has_room(now) {
            return false;
        }
        if let Some(number) = self.withdrawn.front().copied() {
            // The peer must not meet a packet of the WRITE after it has forgotten the WRITE.
            let order = Order::AfterAll(self.connection.next_seq().minus(1));
            let piece = Piece { number, action: Action::Abandon, offset: 0, bytes: 0 };
            return self.put(now, piece, memory.nothing(), order, send) && self.withdrawn.pop_front().is_some();
        }
        if let Some(number) = self.failed.front().copied() {
            let (seq, order) = (self.connection.next_seq(), self.told.map_or(Order::Any, Order::AfterOne));
            let piece = Piece { number, action: Action::WriteFailed, offset: 0, bytes: 0 };
            let sent = self.put(now, piece, memory.nothing(), order, send);
            if sent {
                self.failed.pop_front();
                self.told = Some(seq);
            }
            return sent;
        }
        let Some(Response { number, address, offset, bytes: all }) = self.responses.front().copied() else {
            return false;
        };
        let bytes = (all - offset).min(self.payload);
        let content = match bytes {
            0 => Ok(memory.nothing()),
            _ => memory.read(address.wrapping_add(u64::from(offset)), bytes, true),
        };
        let (piece, content) = match content {
            Ok(content) => (Piece { number, action: Action::Response, offset, bytes }, content),
            Err(_) => (Piece { number, action: Action::ReadFailed, offset: 0, bytes: 0 }, memory.nothing()),
        };
        if !self.put(now, piece, content, Order::Any, send) {
            return false;
        }
        if piece.action == Action::Response && offset + bytes < all {
            self.responses[0].offset += bytes;
        } else {
            self.responses.pop_front();
            self.requests -= 1;
        }
        true
    }

    /// Sends the next packet of this side's operations; returns whether there may be another.
    fn next<M: Memory<Bytes = B>>(
        &mut self,
        now: Instant,
        memory: &mut M,
        send: &mut impl FnMut(Packet<'_, B>),
    ) -> bool {
        let seq = self.connection.next_seq();
        let Some(next) = self.issued.next(seq).filter(|_| self.connection.has_room(now)) else { return false };
        let bytes = match next.source {
            Some(local) => memory.read(local, next.piece.bytes, false),
            None => Ok(memory.nothing()),
        };
        let Ok(bytes) = bytes else {
            self.issued.unreadable(|event| self.completed.push_back(event));
            return true;
        };
        let sent = self.put(now, next.piece, bytes, next.order, send);
        if sent {
            self.issued.sent(seq, &next);
        }
        sent
    }

    fn put(
        &mut self,
        now: Instant,
        piece: Piece,
        bytes: B,
        order: Order,
        send: &mut impl FnMut(Packet<'_, B>),
    ) -> bool {
        let payload = piece.payload() + order.wire_len() as u32;
        let (len, room) = ((HEADER_LEN + PIECE_LEN) as u32 + payload, self.payload.saturating_sub(payload));
        let Some(leaving) = self.connection.send(now, len, room, order, Content { piece, bytes }) else {
            return false;
        };
        send((leaving.header, leaving.ack, Some((leaving.content.piece, &leaving.content.bytes))));
        true
    }
}
