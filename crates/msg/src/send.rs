//! Sending messages.

use crate::buffer::Buffer;
use crate::endpoint::Endpoint;
use crate::event::{Again, Asked, Event, Failure, Kind};
use crate::ids::{OpId, PeerId};
use crate::message::{Envelope, Message, PAYLOAD_HEADER};
use crate::ops::{Op, Send, SendState, Source};
use crate::port::Port;
use crate::post::{Body, Step};
use crate::registrar::Held;
use std::time::Duration;

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct SendCall {
    pub to: PeerId,
    pub envelope: Envelope,
    /// In use until the operation ends.
    pub buffer: Buffer,
    /// The operation ends only after the message has matched a receive.
    pub matched: bool,
    pub context: u64,
    /// Success is reported, too.
    pub report: bool,
}

impl Endpoint {
    /// Sends a message.
    pub fn send(&mut self, port: &mut impl Port, now: Duration, call: &SendCall) {
        self.calls(now);
        let asked = Asked { context: call.context, report: call.report };
        self.begin_send(port, now, asked, call.to, call.envelope, Source::Program(call.buffer), call.matched);
    }

    /// Sends a message; its bytes are copied before this returns. Success is not reported.
    ///
    /// # Panics
    /// If it is longer than [`Self::longest_injected`].
    pub fn inject(
        &mut self,
        port: &mut impl Port,
        now: Duration,
        to: PeerId,
        envelope: Envelope,
        bytes: &[u8],
    ) -> Result<(), Again> {
        self.inject_as(port, now, to, envelope, bytes, 0, false)
    }

    /// As [`Self::inject`]. If `report`, success is reported with this context.
    #[allow(clippy::too_many_arguments)] // What a message is made of.
    pub fn inject_as(
        &mut self,
        port: &mut impl Port,
        now: Duration,
        to: PeerId,
        envelope: Envelope,
        bytes: &[u8],
        context: u64,
        report: bool,
    ) -> Result<(), Again> {
        assert!(bytes.len() <= self.longest_injected());
        self.calls(now);
        let len = bytes.len() as u64;
        let asked = Asked { context, report };
        if self.may_send_now(to, len) {
            let message = Message::Eager { envelope, len: len as u32, payload: &[] };
            if self.post_message(port, to, message, Body::Bytes(bytes), None) == Step::Done {
                self.sent_eagerly(to, len);
                // The bytes are on their way, which is all that an injected message promises. Counters count it.
                self.end(sent_event(asked, envelope, len, Ok(())));
                return Ok(());
            }
        }
        let copied = self.copy_injected(bytes)?;
        self.begin_send(port, now, asked, to, envelope, copied, false);
        Ok(())
    }

    /// As [`Self::send`], but the bytes are copied before this returns, and the buffer of the call does not count. The
    /// operation ends when the message has arrived or matched, as with [`Self::send`].
    ///
    /// # Panics
    /// If it is longer than [`Self::longest_injected`].
    pub fn send_copied(
        &mut self,
        port: &mut impl Port,
        now: Duration,
        call: &SendCall,
        bytes: &[u8],
    ) -> Result<(), Again> {
        assert!(bytes.len() <= self.longest_injected());
        self.calls(now);
        let (asked, copied) = (Asked { context: call.context, report: call.report }, self.copy_injected(bytes)?);
        self.begin_send(port, now, asked, call.to, call.envelope, copied, call.matched);
        Ok(())
    }

    /// Copies bytes of the program until they have left. Error: there is no room for them.
    pub(crate) fn copy_injected(&mut self, bytes: &[u8]) -> Result<Source, Again> {
        if self.injected + bytes.len() > self.settings.injected {
            return Err(Again);
        }
        self.injected += bytes.len();
        Ok(Source::Copied(bytes.into()))
    }

    /// Longest message that can be injected, bytes.
    pub fn longest_injected(&self) -> usize {
        self.settings.longest_injected()
    }

    /// Whether a message may leave at once: nothing is before it, and it goes in one part.
    fn may_send_now(&mut self, to: PeerId, len: u64) -> bool {
        let peer = self.peer_mut(to);
        let empty = !peer.has_work();
        let Some(connected) = peer.connected() else { return false };
        let one_part = len <= (connected.longest - PAYLOAD_HEADER) as u64;
        empty && one_part && connected.flow.may_be_unexpected(len)
    }

    fn sent_eagerly(&mut self, to: PeerId, len: u64) {
        self.counters.eager += 1;
        if let Some(connected) = self.peer_mut(to).connected() {
            connected.flow.sent_eagerly(len as u32);
        }
    }

    #[allow(clippy::too_many_arguments)] // What a message is made of.
    fn begin_send(
        &mut self,
        port: &mut impl Port,
        now: Duration,
        asked: Asked,
        to: PeerId,
        envelope: Envelope,
        source: Source,
        matched: bool,
    ) {
        let (len, held, state) = (source.len(), Held::default(), SendState::New);
        let op = self.insert(Op::Send(Send { asked, to, envelope, source, len, matched, held, state }));
        self.peer_mut(to).pending.push_back(op);
        self.step(port, now, to);
    }

    /// Goes on with a message that has not left as a whole.
    pub(crate) fn step_send(&mut self, port: &mut impl Port, now: Duration, id: OpId) -> Step {
        let Some(Op::Send(send)) = self.ops.get(id as usize) else { return Step::Done };
        let (to, len, state) = (send.to, send.len, send.state);
        let mut sent = match state {
            SendState::Eager(sent) => sent,
            _ => {
                let small = len <= self.settings.eager_limit && !send.matched;
                let Some(connected) = self.peers[to.0 as usize].connected() else { return Step::Blocked };
                if !small || !connected.flow.may_be_unexpected(len) {
                    return self.announce(port, now, id);
                }
                0
            }
        };
        let Some(longest) = self.longest_part(to) else { return Step::Blocked };
        loop {
            let part = (len - sent).min(longest);
            let last = sent + part == len;
            if self.post_part(port, id, sent, part, last) == Step::Blocked {
                return Step::Blocked;
            }
            if sent == 0 {
                self.sent_eagerly(to, len);
            }
            sent += part;
            let Some(Op::Send(send)) = self.ops.get_mut(id as usize) else { return Step::Done };
            send.state = if last { SendState::Sent } else { SendState::Eager(sent) };
            if last {
                self.forget_copied(id);
                return Step::Done;
            }
        }
    }

    /// Sends bytes `sent` to `sent + part` of a message. The operation goes on when the last part completes.
    pub(crate) fn post_part(&mut self, port: &mut impl Port, id: OpId, sent: u64, part: u64, last: bool) -> Step {
        let Some(Op::Send(send)) = self.ops.get(id as usize) else { return Step::Done };
        let to = send.to;
        let message = match send.state {
            SendState::Granted { receiver, .. } => Message::Payload { receiver, payload: &[] },
            _ if sent == 0 => Message::Eager { envelope: send.envelope, len: send.len as u32, payload: &[] },
            _ => Message::More { payload: &[] },
        };
        let op = last.then_some(id);
        match &send.source {
            Source::Program(buffer) => {
                let range = buffer.range(sent, part);
                self.post_message(port, to, message, Body::Program(&range), op)
            }
            Source::Copied(bytes) => {
                // Injected messages go in one part, so that this copies once and only where there was no room at first.
                let bytes = bytes[sent as usize..(sent + part) as usize].to_vec();
                self.post_message(port, to, message, Body::Bytes(&bytes), op)
            }
        }
    }

    /// The last request of a message has completed.
    pub(crate) fn send_completed(&mut self, port: &mut impl Port, id: OpId) {
        self.end_send(port, id, Ok(()));
    }

    /// A message has ended.
    pub(crate) fn end_send(&mut self, port: &mut impl Port, id: OpId, result: Result<(), Failure>) {
        if !matches!(self.ops.get(id as usize), Some(Op::Send(_))) {
            return;
        }
        self.forget_copied(id);
        let Op::Send(send) = self.ops.remove(id as usize) else { return };
        self.registrar.release(port, &mut self.counters, send.held);
        self.end(sent_event(send.asked, send.envelope, send.len, result));
    }

    /// The copy of an injected message is not needed any more.
    fn forget_copied(&mut self, id: OpId) {
        if let Some(Op::Send(send)) = self.ops.get_mut(id as usize)
            && let Source::Copied(bytes) = &mut send.source
        {
            self.injected -= std::mem::take(bytes).len();
        }
    }
}

/// The end of a send.
fn sent_event(asked: Asked, envelope: Envelope, len: u64, result: Result<(), Failure>) -> Event {
    let kind = Kind::Send { tagged: envelope.tag.is_some() };
    Event { tag: envelope.tag, data: envelope.data, ..Event::of(asked, kind, len, result) }
}
