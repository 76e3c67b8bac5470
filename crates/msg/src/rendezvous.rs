//! Messages that stay with the sender until they match (Li et al., V.B).
//!
//! | by WRITE | by READ | through bounce buffers |
//! | --- | --- | --- |
//! | announcement → | announcement, with the source → | announcement → |
//! | ← grant, with the target | ← READ | ← grant |
//! | WRITE → | | payload → |
//! | written → | ← finished | |
//!
//! The adapter moves large messages, if both sides can register their memory. Others stay with the sender because the
//! receiver has no memory left for messages that match no receive, or because the sender wants to know that they have matched.

use crate::arrive::Violation;
use crate::buffer::{Buffer, RemoteBuffer};
use crate::endpoint::Endpoint;
use crate::ids::{OpId, PeerId};
use crate::message::{Envelope, Message};
use crate::ops::{Content, Matched, Op, Receive, ReceiveState, Send, SendState};
use crate::peer::Answer;
use crate::port::Port;
use crate::post::{Body, Step, Transfer};
use crate::registrar::Held;
use crate::scheme::Moment;
use crate::settings::Rendezvous;
use std::time::Duration;

/// The sender's side.
impl Endpoint {
    /// Announces a message.
    pub(crate) fn announce(&mut self, port: &mut impl Port, now: Duration, id: OpId) -> Step {
        let Some(Op::Send(send)) = self.ops.get(id as usize) else { return Step::Done };
        let (to, envelope, len, buffer) = (send.to, send.envelope, send.len, send.source.buffer().copied());
        let peer = self.peer_mut(to);
        let most = peer.hello.map_or(0, |hello| hello.announced);
        if peer.announcing >= most {
            return Step::Blocked;
        }
        let large = buffer.filter(|_| len > self.settings.eager_limit);
        let mut source = RemoteBuffer::default();
        if let Some(buffer) = large
            && self.settings.rendezvous == Rendezvous::Read
        {
            let held = self.hold_send(port, now, id, &buffer);
            source = self.registrar.remote(&held, &buffer);
        }
        let message = Message::Announce { envelope, len, id, source };
        if self.post_message(port, to, message, Body::NONE, None) == Step::Blocked {
            return Step::Blocked;
        }
        self.peer_mut(to).announcing += 1;
        if let Some(Op::Send(send)) = self.ops.get_mut(id as usize) {
            send.state = SendState::Announced;
        }
        // The answer takes a round trip: time to register the memory, and to bring its pages in.
        if let Some(buffer) = large {
            self.hold_send(port, now, id, &buffer);
            self.prefetch_send(port, now, id, Moment::ControlSent);
        }
        Step::Done
    }

    /// Registers a message's memory, unless it is registered. If that is impossible, the message goes through bounce buffers.
    fn hold_send(&mut self, port: &mut impl Port, now: Duration, id: OpId, buffer: &Buffer) -> Held {
        let Some(Op::Send(send)) = self.ops.get(id as usize) else { return Held::default() };
        if !send.held.is_empty() {
            return send.held;
        }
        let held = self.registrar.hold(port, &mut self.counters, buffer, false).unwrap_or_default();
        if let Some(Op::Send(send)) = self.ops.get_mut(id as usize) {
            send.held = held;
        }
        self.prefetch_send(port, now, id, Moment::Registered);
        held
    }

    /// Prefetches a message's memory, if the scheme does so at this moment.
    pub(crate) fn prefetch_send(&mut self, port: &mut impl Port, now: Duration, id: OpId, moment: Moment) {
        if let Some(Op::Send(send)) = self.ops.get_mut(id as usize)
            && let Some(buffer) = send.source.buffer()
        {
            self.registrar.prefetch(port, &mut self.counters, now, moment, &mut send.held, buffer, false);
        }
    }

    /// An announced message has matched.
    #[allow(clippy::too_many_arguments)] // The fields of the message.
    pub(crate) fn granted(
        &mut self,
        port: &mut impl Port,
        now: Duration,
        from: PeerId,
        id: u32,
        receiver: u32,
        len: u64,
        target: RemoteBuffer,
    ) -> Result<(), Violation> {
        let send = self.announced_send(from, id)?;
        if len == 0 || len > send.len || (!target.is_empty() && target.len() != len) {
            return Err(Violation);
        }
        send.state = SendState::Granted { receiver, len, target };
        let writes = !send.held.is_empty() && !target.is_empty();
        let held = send.held;
        self.peer_mut(from).announcing -= 1;
        if writes {
            if self.registrar.is_stale(&held, self.computed) {
                self.prefetch_send(port, now, id, Moment::AnswerWasEarly);
            }
            self.counters.rendezvous += 1;
            self.answer(from, Answer::Write { op: id, done: 0 });
        } else {
            self.counters.deferred += 1;
            self.answer(from, Answer::Payload { op: id, sent: 0 });
        }
        Ok(())
    }

    /// The receiver has all that it wants of an announced message.
    pub(crate) fn finished(&mut self, port: &mut impl Port, from: PeerId, id: u32) -> Result<(), Violation> {
        let by_read = !self.announced_send(from, id)?.held.is_empty();
        self.peer_mut(from).announcing -= 1;
        self.counters.rendezvous += u64::from(by_read);
        self.counters.deferred += u64::from(!by_read);
        self.end_send(port, id, Ok(()));
        Ok(())
    }

    /// Posts WRITEs of a granted message, from run `done` on, and then tells the receiver.
    pub(crate) fn step_write(&mut self, port: &mut impl Port, id: OpId, done: &mut u64) -> Step {
        let Some(Op::Send(Send { to, source, held, state, .. })) = self.ops.get(id as usize) else { return Step::Done };
        let (to, SendState::Granted { receiver, len, target }, Some(&buffer), held) =
            (*to, *state, source.buffer(), *held)
        else {
            return Step::Done;
        };
        let local = buffer.range(0, len);
        // The operation goes on when the message behind the WRITEs has completed.
        let transfer = Transfer { to, op: id, write: true, immediate: None, local, held, remote: target, ends: false };
        if self.post_runs(port, &transfer, done) == Step::Blocked {
            return Step::Blocked;
        }
        let step = self.post_message(port, to, Message::Written { receiver }, Body::NONE, Some(id));
        if step == Step::Done {
            self.has_left(id);
        }
        step
    }

    /// Sends a granted message through bounce buffers, from byte `sent` on.
    pub(crate) fn step_payload(&mut self, port: &mut impl Port, id: OpId, sent: &mut u64) -> Step {
        let Some(Op::Send(Send { to, state: SendState::Granted { len, .. }, .. })) = self.ops.get(id as usize) else {
            return Step::Done;
        };
        let (to, len) = (*to, *len);
        let Some(longest) = self.longest_part(to) else { return Step::Blocked };
        while *sent < len {
            let part = (len - *sent).min(longest);
            if self.post_part(port, id, *sent, part, *sent + part == len) == Step::Blocked {
                return Step::Blocked;
            }
            *sent += part;
        }
        self.has_left(id);
        Step::Done
    }

    fn has_left(&mut self, id: OpId) {
        if let Some(Op::Send(send)) = self.ops.get_mut(id as usize) {
            send.state = SendState::Sent;
        }
    }

    /// The message that a peer means by `id`, if it is announced to that peer.
    fn announced_send(&mut self, to: PeerId, id: u32) -> Result<&mut Send, Violation> {
        match self.ops.get_mut(id as usize) {
            Some(Op::Send(send)) if send.to == to && send.state == SendState::Announced => Ok(send),
            _ => Err(Violation),
        }
    }
}

/// The receiver's side.
impl Endpoint {
    /// A message has been announced.
    pub(crate) fn announced(
        &mut self,
        port: &mut impl Port,
        now: Duration,
        from: PeerId,
        envelope: Envelope,
        len: u64,
        (id, source): (u32, RemoteBuffer),
    ) -> Result<(), Violation> {
        if !source.is_empty() && source.len() != len {
            return Err(Violation);
        }
        if let Some(receive) = self.match_arrived(envelope, from, len, Some((id, source))) {
            self.pull(port, now, receive);
            return Ok(());
        }
        let peer = self.peer_mut(from);
        peer.announced += 1;
        if peer.announced > self.settings.announced {
            return Err(Violation);
        }
        self.wait(from, envelope, len, Content::Announced { id, source });
        Ok(())
    }

    /// Gets an announced message that a receive has taken.
    pub(crate) fn pull(&mut self, port: &mut impl Port, now: Duration, receive: OpId) {
        let Some((buffer, matched)) = self.matched(receive) else { return };
        let Some((id, source)) = matched.announced else { return };
        let (from, take) = (matched.from, matched.take);
        if take == 0 {
            self.answer(from, Answer::Finished(id));
            self.end_receive(port, receive, Ok(()));
            return;
        }
        let wanted = buffer.range(0, take);
        if matched.len > self.settings.eager_limit
            && let Ok(held) = self.registrar.hold(port, &mut self.counters, &wanted, true)
        {
            if let Some((_, matched)) = self.matched(receive) {
                matched.held = held;
            }
            self.prefetch_receive(port, now, receive, Moment::Registered);
            if !source.is_empty() {
                self.answer(from, Answer::Read { op: receive, done: 0 });
                self.step(port, now, from);
                return;
            }
        }
        self.answer(from, Answer::Grant(receive));
        self.step(port, now, from);
    }

    /// Grants a message: the sender may WRITE it, or sends it through bounce buffers.
    pub(crate) fn step_grant(&mut self, port: &mut impl Port, now: Duration, receive: OpId) -> Step {
        let Some((buffer, matched)) = self.matched(receive) else { return Step::Done };
        let (wanted, held, from, len) = (buffer.range(0, matched.take), matched.held, matched.from, matched.take);
        let Some((id, _)) = matched.announced else { return Step::Done };
        let target = if held.is_empty() { RemoteBuffer::default() } else { self.registrar.remote(&held, &wanted) };
        let message = Message::Grant { id, receiver: receive, len, target };
        if self.post_message(port, from, message, Body::NONE, None) == Step::Blocked {
            return Step::Blocked;
        }
        if let Some((_, matched)) = self.matched(receive) {
            matched.granted = true;
        }
        self.prefetch_receive(port, now, receive, Moment::ControlSent);
        Step::Done
    }

    /// Posts READs of an announced message, from run `done` on.
    pub(crate) fn step_read(&mut self, port: &mut impl Port, now: Duration, receive: OpId, done: &mut u64) -> Step {
        let Some((buffer, matched)) = self.matched(receive) else { return Step::Done };
        let (local, held, to) = (buffer.range(0, matched.take), matched.held, matched.from);
        let Some((_, remote)) = matched.announced else { return Step::Done };
        let transfer = Transfer { to, op: receive, write: false, immediate: None, local, held, remote, ends: true };
        if self.post_runs(port, &transfer, done) == Step::Blocked {
            return Step::Blocked;
        }
        self.prefetch_receive(port, now, receive, Moment::ReadPosted);
        Step::Done
    }

    /// The READs of a receive have completed.
    pub(crate) fn receive_completed(&mut self, port: &mut impl Port, receive: OpId) {
        let Some((_, matched)) = self.matched(receive) else { return };
        if let (from, Some((id, _))) = (matched.from, matched.announced) {
            self.answer(from, Answer::Finished(id));
        }
        self.end_receive(port, receive, Ok(()));
    }

    /// All bytes of a granted message have been written.
    pub(crate) fn all_written(&mut self, port: &mut impl Port, from: PeerId, receiver: u32) -> Result<(), Violation> {
        let matched = self.granted_receive(from, receiver)?;
        if matched.held.is_empty() {
            return Err(Violation);
        }
        self.end_receive(port, receiver, Ok(()));
        Ok(())
    }

    /// The receive that a peer means by its number, if it waits for bytes of a granted message of that peer.
    pub(crate) fn granted_receive(&mut self, from: PeerId, id: u32) -> Result<&mut Matched, Violation> {
        match self.matched(id) {
            Some((_, matched)) if matched.from == from && matched.granted => Ok(matched),
            _ => Err(Violation),
        }
    }

    /// Prefetches a receive's memory, if the scheme does so at this moment.
    pub(crate) fn prefetch_receive(&mut self, port: &mut impl Port, now: Duration, id: OpId, moment: Moment) {
        if let Some(Op::Receive(Receive { buffer, state: ReceiveState::Matched(matched), .. })) =
            self.ops.get_mut(id as usize)
        {
            let wanted = buffer.range(0, matched.take);
            self.registrar.prefetch(port, &mut self.counters, now, moment, &mut matched.held, &wanted, true);
        }
    }

    /// A receive with a message, and its buffer.
    pub(crate) fn matched(&mut self, id: OpId) -> Option<(Buffer, &mut Matched)> {
        match self.ops.get_mut(id as usize) {
            Some(Op::Receive(Receive { buffer, state: ReceiveState::Matched(matched), .. })) => {
                Some((*buffer, matched))
            }
            _ => None,
        }
    }
}
