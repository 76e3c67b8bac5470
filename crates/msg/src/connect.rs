//! Connections: on demand, when both sides connect at once, refused, and lost.
//!
//! Of two connections that cross, the one stays that the endpoint with the lower name began. The other endpoint's
//! request is refused as crossing, and that endpoint waits for the request of the lower one, or tries again.

use crate::endpoint::Endpoint;
use crate::event::{Failure, Reason};
use crate::flow::{Flow, Room};
use crate::hello::{Hello, Rejection};
use crate::ids::{OpId, PeerId};
use crate::ops::{Content, Op};
use crate::peer::{Connected, Into, State};
use crate::port::{ConnectionId, Errno, Port, Slot};
use crate::queue::SendQueue;
use std::time::Duration;

/// After a refusal as crossing, an endpoint waits so long for the other connection before it connects again.
const EXPECTS: Duration = Duration::from_millis(500);
/// A peer that refuses because it does not listen is asked again for so long.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);
const ECONNREFUSED: i32 = 111;
const ETIMEDOUT: i32 = 110;
const ENOMEM: i32 = 12;

/// What a connection can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Most requests in the send queue.
    pub requests: usize,
    /// Longest inline request, bytes.
    pub inline: usize,
}

/// What becomes of a peer's request for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// [`Port::accept`] has been called.
    Accepted,
    /// The port refuses it, with this reason.
    Rejected(Rejection),
}

impl Endpoint {
    /// A peer asks for a connection.
    pub fn incoming(&mut self, port: &mut impl Port, connection: ConnectionId, hello: Option<&Hello>) -> Verdict {
        let Some(hello) = hello else { return Verdict::Rejected(Rejection::Version) };
        if hello.name == self.name {
            return Verdict::Rejected(Rejection::Version);
        }
        let Some(id) = self.introduced(&hello.name) else { return Verdict::Rejected(Rejection::Resources) };
        let stays = hello.name > self.name;
        match self.peer_mut(id).state {
            State::Connecting { .. } if stays => return Verdict::Rejected(Rejection::Crossing),
            // The request crossed one of this side. If it is a new one, the peer has lost the connection, of which this side
            // hears, too; then the peer's next request is accepted.
            State::Connected(_) if stays => {
                self.probe(port, id);
                return Verdict::Rejected(Rejection::Crossing);
            }
            // The peer has lost the connection, and this side has not noticed yet.
            State::Connected(_) => self.lost_peer(port, id, Failure::Disconnected),
            _ => self.disconnect(port, id),
        }
        let Some(receives) = self.receives_for_connection(port) else {
            return Verdict::Rejected(Rejection::Resources);
        };
        let own = self.hello(id);
        if port.accept(connection, &own, &receives).is_err() {
            self.free_slots(port, receives);
            return Verdict::Rejected(Rejection::Resources);
        }
        let peer = self.peer_mut(id);
        peer.receives = receives;
        peer.state = State::Accepting { connection };
        self.connections.insert(connection, id);
        self.greeted(id, hello);
        Verdict::Accepted
    }

    /// A connection is established. `hello`: what the peer says, if this side has connected.
    pub fn established(
        &mut self,
        port: &mut impl Port,
        now: Duration,
        connection: ConnectionId,
        hello: Option<&Hello>,
        depth: Depth,
    ) {
        let Some(&id) = self.connections.get(&connection) else { return };
        if let Some(hello) = hello {
            self.greeted(id, hello);
        }
        let Some(Hello { receives, slot, unexpected: window, .. }) = self.peer_mut(id).hello else {
            // It speaks another protocol.
            self.lost_peer(port, id, Failure::Unreachable(Reason::Rejected(Rejection::Version)));
            return;
        };
        // Messages from before the connection, of which some may have matched since the peer was told.
        let told = self.peer_mut(id).told_unexpected;
        let (own, waiting) = (self.settings, self.unexpected_of(id));
        let room = Room { receives: own.first_receives, window: own.unexpected.saturating_sub(told) };
        self.peer_mut(id).state = State::Connected(Box::new(Connected {
            id: connection,
            queue: SendQueue::new(depth.requests, depth.inline),
            flow: Flow::new(room, Room { receives, window }, told.saturating_sub(waiting)),
            longest: own.slot.min(slot) as usize,
        }));
        self.step(port, now, id);
    }

    /// A connection of this side is not established: the peer refuses it, or it cannot be reached.
    pub fn refused(&mut self, port: &mut impl Port, now: Duration, connection: ConnectionId, reason: Reason) {
        let Some(&id) = self.connections.get(&connection) else { return };
        let since = match self.peer_mut(id).state {
            State::Connecting { since, .. } => since,
            State::Accepting { .. } => {
                // It was accepted so late that the peer has given up. What waits for the peer makes another one.
                self.disconnect(port, id);
                self.wake(id);
                return;
            }
            _ => {
                // What was sent on it must end.
                self.lost_peer(port, id, Failure::Unreachable(reason));
                return;
            }
        };
        self.disconnect(port, id);
        // A peer that computes answers late. One that does not listen may be about to.
        let within = match reason {
            Reason::Rejected(Rejection::Crossing) | Reason::System(Errno(ETIMEDOUT)) => self.settings.connect_within,
            Reason::System(Errno(ECONNREFUSED)) => self.settings.connect_within.min(LISTENS_WITHIN),
            _ => Duration::ZERO,
        };
        if now + EXPECTS < since + within {
            self.peer_mut(id).state = State::Expecting { since, again: now + EXPECTS };
            self.wake(id);
        } else {
            self.lost_peer(port, id, Failure::Unreachable(reason));
        }
    }

    /// A connection has ended. Completions that the adapter has reported before are told first, or operations that have
    /// succeeded or been denied end as disconnected.
    pub fn lost(&mut self, port: &mut impl Port, connection: ConnectionId) {
        if let Some(&id) = self.connections.get(&connection) {
            self.lost_peer(port, id, Failure::Disconnected);
        }
    }

    /// When [`Self::progress`] has something to do although nothing has happened: it connects again, gives a peer up, or
    /// finds out whether one still is there. A program that blocks must call it then. `None`: never.
    pub fn next_time(&self) -> Option<Duration> {
        if !self.broken.is_empty() {
            return Some(Duration::ZERO);
        }
        let within = self.settings.connect_within;
        let waiting = self.peers.iter().filter(|peer| peer.has_work());
        let times = waiting.filter_map(|peer| match peer.state {
            State::Expecting { again, .. } => Some(again),
            State::Connecting { since, .. } => Some(since + within),
            _ => None,
        });
        times.chain(self.next_probe()).min()
    }

    /// Connects to a peer for which something waits.
    pub(crate) fn connect(&mut self, port: &mut impl Port, now: Duration, id: PeerId) {
        let within = self.settings.connect_within;
        let since = match self.peer_mut(id).state {
            State::Idle => now,
            State::Expecting { since, again } if now >= again => since,
            State::Connecting { since, .. } if now >= since + within => {
                self.lost_peer(port, id, Failure::Unreachable(Reason::Timeout));
                return;
            }
            _ => return,
        };
        let (name, own) = (self.peer_mut(id).name, self.hello(id));
        let Some(receives) = self.receives_for_connection(port) else {
            self.lost_peer(port, id, Failure::Unreachable(Reason::System(Errno(ENOMEM))));
            return;
        };
        match port.connect(&name, &own, &receives) {
            Ok(connection) => {
                let peer = self.peer_mut(id);
                peer.receives = receives;
                peer.state = State::Connecting { connection, since };
                self.connections.insert(connection, id);
            }
            Err(errno) => {
                self.free_slots(port, receives);
                self.lost_peer(port, id, Failure::Unreachable(Reason::System(errno)));
            }
        }
    }

    /// What a peer says of itself, if it is the peer that it should be.
    fn greeted(&mut self, id: PeerId, hello: &Hello) {
        let peer = self.peer_mut(id);
        peer.hello = Some(*hello).filter(|hello| hello.name == peer.name);
    }

    /// Bounce buffers for the receives of a connection. `None`: no memory is left, or none to send anything.
    fn receives_for_connection(&mut self, port: &mut impl Port) -> Option<Vec<Slot>> {
        if self.send_slots == 0 {
            self.add_send_slot(port)?;
        }
        let mut receives = Vec::new();
        for _ in 0..self.settings.first_receives {
            let Some(slot) = self.new_slot(port) else {
                self.free_slots(port, receives);
                return None;
            };
            receives.push(slot);
        }
        Some(receives)
    }

    /// Posts further receives if the peer could use more than it has. Without memory for them it goes on with those.
    pub(crate) fn post_more(&mut self, port: &mut impl Port, id: PeerId, connection: ConnectionId) {
        let most = self.settings.receive_slots;
        let lacks = self.peer_mut(id).connected().map_or(0, |connected| connected.flow.lacks(most));
        for _ in 0..lacks {
            let Some(slot) = self.new_slot(port) else {
                // It would ask again with each message.
                self.settings.receive_slots = self.settings.first_receives;
                return;
            };
            if port.post_receive(connection, slot).is_err() {
                // The connection breaks, of which the port tells.
                self.free_slots(port, vec![slot]);
                return;
            }
            let peer = self.peer_mut(id);
            peer.receives.push(slot);
            if let Some(connected) = peer.connected() {
                connected.flow.posted_more();
            }
        }
    }

    /// Ends the connection to a peer, but nothing else.
    pub(crate) fn disconnect(&mut self, port: &mut impl Port, id: PeerId) {
        let peer = &mut self.peers[id.0 as usize];
        if let Some(connection) = peer.connection() {
            port.disconnect(connection);
            self.connections.remove(&connection);
            // The port may use the number again.
            self.broken.retain(|&broken| broken != connection);
        }
        if let State::Connected(connected) = &mut peer.state {
            self.free_slots.extend(connected.queue.drain().filter_map(|posted| posted.slot));
        }
        (peer.state, peer.hello) = (State::Idle, None);
        let receives = std::mem::take(&mut peer.receives);
        self.free_slots(port, receives);
    }

    /// Ends all that has to do with a peer.
    pub(crate) fn lost_peer(&mut self, port: &mut impl Port, id: PeerId, failure: Failure) {
        self.disconnect(port, id);
        let peer = self.peer_mut(id);
        peer.answers.clear();
        peer.pending.clear();
        (peer.announcing, peer.announced) = (0, 0);
        let assembly = peer.assembly.take();
        self.forget_unexpected(id, assembly.map(|assembly| assembly.into));
        let of_peer = self.ops.iter().filter(|(_, op)| op.peer() == Some(id));
        let ended: Vec<OpId> = of_peer.map(|(op, _)| op as OpId).collect();
        for op in ended {
            self.fail(port, op, failure);
        }
        for tagged in [true, false] {
            for receive in self.matching(tagged).remove_receives_from(id) {
                self.fail_posted(receive, failure);
            }
        }
    }

    /// An operation that has begun fails.
    pub(crate) fn fail(&mut self, port: &mut impl Port, op: OpId, failure: Failure) {
        match self.ops.get(op as usize) {
            Some(Op::Send(_)) => self.end_send(port, op, Err(failure)),
            Some(Op::Rma(_)) => self.end_rma(port, op, Err(failure)),
            Some(Op::Atomic(_)) => self.end_atomic(op, Err(failure)),
            Some(Op::Receive(_)) => self.end_receive(port, op, Err(failure)),
            None => {}
        }
    }

    /// Messages of a peer that are not here as a whole are lost with it.
    fn forget_unexpected(&mut self, from: PeerId, incomplete: Option<Into>) {
        let lost = |id: usize, content: &Content| match content {
            Content::Announced { .. } => true,
            Content::Here(_) => incomplete == Some(Into::Unexpected(id as u32)),
        };
        let of_peer =
            self.unexpected.iter().filter(|(id, waiting)| waiting.from == from && lost(*id, &waiting.content));
        let gone: Vec<usize> = of_peer.map(|(id, _)| id).collect();
        for id in gone {
            let waiting = self.unexpected.remove(id);
            if matches!(waiting.content, Content::Here(_)) {
                self.counters.unexpected_bytes -= waiting.len;
            }
            self.matching(waiting.envelope.tag.is_some()).remove_message(id as u32);
            self.claimed.retain(|_, &mut claimed| claimed != id as u32);
        }
    }
}
