//! What arriving messages do.

use crate::endpoint::Endpoint;
use crate::event::{Asked, Event, Failure, Kind};
use crate::ids::{OpId, PeerId, UnexpectedId};
use crate::message::{Envelope, Message};
use crate::ops::{Content, Op, Receive, ReceiveState, Unexpected};
use crate::peer::{Answer, Assembly, Into};
use crate::port::{ConnectionId, Port, Slot};
use crate::post::scatter;
use std::time::Duration;

/// A peer has broken the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation;

/// The part of a bounce buffer that has the payload of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InSlot {
    pub slot: Slot,
    pub at: usize,
    pub len: usize,
}

impl Endpoint {
    /// A receive has completed with a message of `len` bytes. The bounce buffer is posted again. Nothing is received before
    /// [`Self::established`].
    pub fn received(&mut self, port: &mut impl Port, now: Duration, connection: ConnectionId, slot: Slot, len: usize) {
        self.calls(now);
        let Some(&from) = self.connections.get(&connection) else { return };
        let parsed = port.slot(slot).get(..len).and_then(Message::parse).map(|(returned, message)| {
            let (message, payload) = message.split();
            (returned, message, InSlot { slot, at: len - payload, len: payload })
        });
        let outcome = parsed.ok_or(Violation).and_then(|(returned, message, payload)| {
            let connected = self.peer_mut(from).connected().ok_or(Violation)?;
            if !connected.flow.arrives() {
                return Err(Violation);
            }
            connected.flow.returned(returned);
            self.message(port, now, from, message, payload)
        });
        self.post_again(port, now, from, connection, slot, outcome);
    }

    /// A peer has written `len` bytes to this process's memory, with immediate data. The bounce buffer is posted again.
    pub fn written(
        &mut self,
        port: &mut impl Port,
        now: Duration,
        connection: ConnectionId,
        slot: Slot,
        len: u64,
        immediate: u32,
    ) {
        self.calls(now);
        let Some(&from) = self.connections.get(&connection) else { return };
        let may = self.peer_mut(from).connected().is_some_and(|connected| connected.flow.arrives());
        let asked = Asked { context: 0, report: true };
        let data = Some(immediate.into());
        self.end(Event { data, from: Some(from), ..Event::of(asked, Kind::WrittenByPeer, len, Ok(())) });
        self.post_again(port, now, from, connection, slot, if may { Ok(()) } else { Err(Violation) });
    }

    /// Posts the bounce buffer of a completed receive again, and only then tells the peer so.
    fn post_again(
        &mut self,
        port: &mut impl Port,
        now: Duration,
        from: PeerId,
        connection: ConnectionId,
        slot: Slot,
        outcome: Result<(), Violation>,
    ) {
        if outcome.is_err() || port.post_receive(connection, slot).is_err() {
            self.lost_peer(port, from, Failure::Disconnected);
            return;
        }
        if let Some(connected) = self.peer_mut(from).connected() {
            connected.flow.posted_again();
        }
        self.post_more(port, from, connection);
        self.wake(from);
        self.step(port, now, from);
    }

    fn message(
        &mut self,
        port: &mut impl Port,
        now: Duration,
        from: PeerId,
        message: Message<'static>,
        payload: InSlot,
    ) -> Result<(), Violation> {
        match message {
            Message::Eager { envelope, len, .. } => self.eager(port, from, envelope, len, payload),
            Message::More { .. } => self.more(port, from, payload),
            Message::Announce { envelope, len, id, source } => {
                self.announced(port, now, from, envelope, len, (id, source))
            }
            Message::Grant { id, receiver, len, target } => self.granted(port, now, from, id, receiver, len, target),
            Message::Payload { receiver, .. } => self.payload(port, from, receiver, payload),
            Message::Written { receiver } => self.all_written(port, from, receiver),
            Message::Finished { id } => self.finished(port, from, id),
            Message::Credit => {
                self.peer_mut(from).connected().ok_or(Violation)?.flow.credits_arrive();
                Ok(())
            }
            Message::Atomic { id, request, .. } => self.perform_atomic(port, now, from, id, &request, payload),
            Message::AtomicDone { id, refused, .. } => self.atomic_done(port, from, id, refused, payload),
        }
    }

    /// The first part of a message.
    fn eager(
        &mut self,
        port: &mut impl Port,
        from: PeerId,
        envelope: Envelope,
        len: u32,
        payload: InSlot,
    ) -> Result<(), Violation> {
        let may = self.peer_mut(from).connected().is_some_and(|connected| connected.flow.arrives_eagerly(len));
        let len = u64::from(len);
        if !may || self.peer_mut(from).assembly.is_some() || payload.len as u64 > len {
            return Err(Violation);
        }
        let into = match self.match_arrived(envelope, from, len, None) {
            Some(receive) => {
                if let Some(connected) = self.peer_mut(from).connected() {
                    connected.flow.matched(len as u32);
                }
                Into::Receive(receive)
            }
            None => {
                // Memory is reserved for what has arrived only: a peer may announce more than it sends.
                self.counters.keep_unexpected(len);
                Into::Unexpected(self.wait(from, envelope, len, Content::Here(Vec::new())))
            }
        };
        self.peer_mut(from).assembly = Some(Assembly { into, len, arrived: 0 });
        self.more(port, from, payload)
    }

    /// The next part of a message.
    fn more(&mut self, port: &mut impl Port, from: PeerId, payload: InSlot) -> Result<(), Violation> {
        let Some(assembly) = &mut self.peers[from.0 as usize].assembly else { return Err(Violation) };
        let Assembly { into, len, arrived } = *assembly;
        assembly.arrived += payload.len as u64;
        if assembly.arrived > len || (payload.len == 0 && arrived < len) {
            return Err(Violation);
        }
        let complete = assembly.arrived == len;
        if complete {
            self.peer_mut(from).assembly = None;
        }
        match into {
            Into::Unexpected(id) => {
                let Content::Here(bytes) = &mut self.unexpected[id as usize].content else { return Err(Violation) };
                bytes.extend_from_slice(&port.slot(payload.slot)[payload.at..payload.at + payload.len]);
            }
            Into::Receive(id) => {
                self.scatter_payload(port, id, payload);
                if complete {
                    self.end_receive(port, id, Ok(()));
                }
            }
        }
        Ok(())
    }

    /// The next bytes of a message that the receive `receiver` has been granted.
    fn payload(&mut self, port: &mut impl Port, from: PeerId, receiver: u32, payload: InSlot) -> Result<(), Violation> {
        let matched = self.granted_receive(from, receiver)?;
        if payload.len == 0 || matched.arrived + payload.len as u64 > matched.take {
            return Err(Violation);
        }
        let complete = matched.arrived + payload.len as u64 == matched.take;
        self.scatter_payload(port, receiver, payload);
        if complete {
            self.end_receive(port, receiver, Ok(()));
        }
        Ok(())
    }

    /// Copies payload to where the receive wants it; what is beyond its buffer is dropped.
    fn scatter_payload(&mut self, port: &mut impl Port, id: OpId, payload: InSlot) {
        if let Some(Op::Receive(Receive { buffer, state: ReceiveState::Matched(matched), .. })) =
            self.ops.get_mut(id as usize)
        {
            let range = buffer.range(matched.arrived, (payload.len as u64).min(matched.take - matched.arrived));
            scatter(port, payload.slot, payload.at, &range);
            matched.arrived += range.len();
        }
    }

    /// The receive that an arriving message matches: the operation that gets its bytes.
    pub(crate) fn match_arrived(
        &mut self,
        envelope: Envelope,
        from: PeerId,
        len: u64,
        announced: Option<(u32, crate::buffer::RemoteBuffer)>,
    ) -> Option<OpId> {
        let tagged = envelope.tag.is_some();
        let posted = self.matching(tagged).receive_for(Endpoint::label(&envelope, from))?;
        let (receive, more) = self.take(posted, from, envelope, len, announced);
        if !more {
            self.matching(tagged).remove_receive(posted);
        }
        Some(receive)
    }

    /// No receive matches a message.
    pub(crate) fn wait(&mut self, from: PeerId, envelope: Envelope, len: u64, content: Content) -> UnexpectedId {
        let id = self.unexpected.insert(Unexpected { from, envelope, len, content }) as UnexpectedId;
        let label = Endpoint::label(&envelope, from);
        self.matching(envelope.tag.is_some()).wait(label, id);
        id
    }

    /// The peer waits for an answer.
    pub(crate) fn answer(&mut self, to: PeerId, answer: Answer) {
        self.peer_mut(to).answers.push_back(answer);
        self.wake(to);
    }
}
