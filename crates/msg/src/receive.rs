//! Receiving messages: the program's calls, and the ends of receives.

use crate::buffer::{Buffer, RemoteBuffer};
use crate::endpoint::Endpoint;
use crate::event::{Asked, Event, Failure, Kind};
use crate::ids::{OpId, PeerId, UnexpectedId};
use crate::matching::{Label, Pattern};
use crate::message::Envelope;
use crate::ops::{Content, Matched, Multi, Op, Receive, ReceiveState};
use crate::peer::{Assembly, Into};
use crate::port::Port;
use crate::post::store;
use crate::registrar::Held;
use std::time::Duration;

/// A receive.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveCall {
    /// For messages with a tag; otherwise only the pattern's sender counts.
    pub tagged: bool,
    pub pattern: Pattern,
    /// In use until the operation ends.
    pub buffer: Buffer,
    /// The receive takes messages, one behind the other, until fewer bytes are left.
    pub multi: Option<u64>,
    pub context: u64,
    /// Success is reported, too.
    pub report: bool,
}

/// A message that waits for a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Bytes.
    pub len: u64,
    pub envelope: Envelope,
    pub from: PeerId,
}

impl Endpoint {
    /// Posts a receive.
    pub fn receive(&mut self, port: &mut impl Port, now: Duration, call: &ReceiveCall) {
        self.calls(now);
        let id = self.new_receive(call, false);
        // A receive for several messages takes all that wait, as far as they fit.
        while let Some((_, message)) = self.matching(call.tagged).message_for(&call.pattern) {
            self.matching(call.tagged).remove_message(message);
            if !self.give(port, now, id, message) {
                return;
            }
        }
        self.matching(call.tagged).post(call.pattern, id);
    }

    /// Receives the message that [`Self::peek`] has claimed with this context. False: there is none.
    pub fn receive_claimed(&mut self, port: &mut impl Port, now: Duration, call: &ReceiveCall) -> bool {
        self.calls(now);
        let Some(message) = self.claimed.remove(&call.context) else { return false };
        let id = self.new_receive(&ReceiveCall { multi: None, ..*call }, false);
        self.give(port, now, id, message);
        true
    }

    /// Looks for a message. With `claim` the message is kept for the receive with this context.
    pub fn peek(&mut self, tagged: bool, pattern: &Pattern, claim: Option<u64>) -> Option<Found> {
        let (_, message) = self.matching(tagged).message_for(pattern)?;
        let waiting = &self.unexpected[message as usize];
        let found = Found { len: waiting.len, envelope: waiting.envelope, from: waiting.from };
        if let Some(context) = claim {
            self.matching(tagged).remove_message(message);
            self.claimed.insert(context, message);
        }
        Some(found)
    }

    /// Receives the message that [`Self::peek`] would find, or that it has claimed, into nothing. False: there is none.
    pub fn discard(&mut self, port: &mut impl Port, now: Duration, call: &ReceiveCall, claimed: bool) -> bool {
        self.calls(now);
        let message = if claimed {
            self.claimed.remove(&call.context)
        } else {
            self.matching(call.tagged).message_for(&call.pattern).map(|(_, message)| message)
        };
        let Some(message) = message else { return false };
        self.matching(call.tagged).remove_message(message);
        let id = self.new_receive(&ReceiveCall { buffer: Buffer::default(), multi: None, ..*call }, true);
        self.give(port, now, id, message);
        true
    }

    /// Cancels the receive with this context. False: there is none, or a message has matched already.
    pub fn cancel(&mut self, _port: &mut impl Port, context: u64) -> bool {
        let is_it = |receive: &OpId, ops: &slab::Slab<Op>| match &ops[*receive as usize] {
            Op::Receive(receive) => receive.asked.context == context,
            _ => false,
        };
        for tagged in [true, false] {
            let matching = if tagged { &self.tagged } else { &self.untagged };
            let found = matching.receives().find(|receive| is_it(receive, &self.ops));
            if let Some(id) = found {
                self.matching(tagged).remove_receive(id);
                self.fail_posted(id, Failure::Cancelled);
                return true;
            }
        }
        false
    }

    fn new_receive(&mut self, call: &ReceiveCall, discards: bool) -> OpId {
        self.insert(Op::Receive(Receive {
            asked: Asked { context: call.context, report: call.report },
            tagged: call.tagged,
            buffer: call.buffer,
            multi: call.multi.map(|least| Multi { used: 0, least, open: 0, failure: None }),
            discards,
            state: ReceiveState::Posted,
        }))
    }

    /// A receive takes a message that waited. True: the receive takes further messages.
    fn give(&mut self, port: &mut impl Port, now: Duration, posted: OpId, message: UnexpectedId) -> bool {
        let waiting = self.unexpected.remove(message as usize);
        let (from, envelope, len) = (waiting.from, waiting.envelope, waiting.len);
        match waiting.content {
            Content::Announced { id, source } => {
                self.peer_mut(from).announced -= 1;
                let (receive, more) = self.take(posted, from, envelope, len, Some((id, source)));
                self.pull(port, now, receive);
                more
            }
            Content::Here(bytes) => {
                let (receive, more) = self.take(posted, from, envelope, len, None);
                self.counters.unexpected_bytes -= len;
                if let Some(connected) = self.peer_mut(from).connected() {
                    connected.flow.matched(len as u32);
                }
                self.wake(from);
                self.arrived_bytes(port, receive, &bytes);
                if (bytes.len() as u64) < len {
                    let (into, arrived) = (Into::Receive(receive), bytes.len() as u64);
                    self.peer_mut(from).assembly = Some(Assembly { into, len, arrived });
                } else {
                    self.end_receive(port, receive, Ok(()));
                }
                more
            }
        }
    }

    /// A receive takes a message. Returns the operation that gets the message's bytes, and whether the receive takes
    /// further messages.
    pub(crate) fn take(
        &mut self,
        posted: OpId,
        from: PeerId,
        envelope: Envelope,
        len: u64,
        announced: Option<(u32, RemoteBuffer)>,
    ) -> (OpId, bool) {
        let matched = |take, parent| {
            let held = Held::default();
            let granted = false;
            ReceiveState::Matched(Matched { from, envelope, len, take, arrived: 0, announced, granted, parent, held })
        };
        let Op::Receive(receive) = &mut self.ops[posted as usize] else { unreachable!("only receives are posted") };
        let Some(multi) = &mut receive.multi else {
            receive.state = matched(len.min(receive.buffer.len()), None);
            return (posted, false);
        };
        let take = len.min(receive.buffer.len() - multi.used);
        let buffer = receive.buffer.range(multi.used, take);
        multi.used += take;
        multi.open += 1;
        let more = receive.buffer.len() - multi.used >= multi.least.max(1);
        let (asked, tagged, state) = (receive.asked, receive.tagged, matched(take, Some(posted)));
        (self.insert(Op::Receive(Receive { asked, tagged, buffer, multi: None, discards: false, state })), more)
    }

    /// The first bytes of a message that a receive takes.
    fn arrived_bytes(&mut self, port: &mut impl Port, id: OpId, bytes: &[u8]) {
        let Some(Op::Receive(Receive { buffer, state: ReceiveState::Matched(matched), .. })) =
            self.ops.get_mut(id as usize)
        else {
            return;
        };
        let take = (bytes.len() as u64).min(matched.take);
        store(port, &bytes[..take as usize], &buffer.range(0, take));
        matched.arrived = take;
    }

    /// A message has arrived as a whole, or its receive has failed.
    pub(crate) fn end_receive(&mut self, port: &mut impl Port, id: OpId, result: Result<(), Failure>) {
        let Some((_, &mut matched)) = self.matched(id) else { return };
        let Op::Receive(receive) = self.ops.remove(id as usize) else { return };
        self.registrar.release(port, &mut self.counters, matched.held);
        let truncated = matched.len - matched.take;
        let result = match result {
            Ok(()) if truncated > 0 && !receive.discards => Err(Failure::Truncated { by: truncated }),
            result => result,
        };
        let parent = matched.parent.and_then(|parent| self.part_ended(parent));
        let released = parent.is_some_and(|(_, failure)| failure.is_none());
        self.end(Event {
            context: receive.asked.context,
            kind: Kind::Receive { tagged: receive.tagged },
            // The program must know when the buffer is its own again.
            reported: receive.asked.report || released,
            len: if receive.discards { matched.len } else { matched.take },
            tag: matched.envelope.tag,
            data: matched.envelope.data,
            from: Some(matched.from),
            addr: receive.buffer.pieces().first().map_or(0, |piece| piece.addr),
            released,
            result,
        });
        match parent {
            Some((parent, Some(failure))) => self.fail_posted(parent, failure),
            Some((parent, None)) => drop(self.ops.remove(parent as usize)),
            None => {}
        }
    }

    /// A message in a receive for several has ended. If it was the last one, the receive itself ends, perhaps with a failure.
    fn part_ended(&mut self, parent: OpId) -> Option<(OpId, Option<Failure>)> {
        let Some(Op::Receive(Receive { multi: Some(multi), buffer, .. })) = self.ops.get_mut(parent as usize) else {
            return None;
        };
        multi.open -= 1;
        let full = buffer.len() - multi.used < multi.least.max(1);
        (multi.open == 0 && (full || multi.failure.is_some())).then_some((parent, multi.failure))
    }

    /// A receive that is not posted any more ends without a message; one for several messages, after those that it has.
    pub(crate) fn fail_posted(&mut self, id: OpId, failure: Failure) {
        if let Some(Op::Receive(Receive { multi: Some(multi), .. })) = self.ops.get_mut(id as usize)
            && multi.open > 0
        {
            multi.failure = Some(failure);
            return;
        }
        let Op::Receive(receive) = self.ops.remove(id as usize) else { return };
        let asked = Asked { report: true, ..receive.asked };
        let kind = Kind::Receive { tagged: receive.tagged };
        self.end(Event { released: receive.multi.is_some(), ..Event::of(asked, kind, 0, Err(failure)) });
    }

    /// The label of a message for matching: messages without a tag match by their sender alone.
    pub(crate) fn label(envelope: &Envelope, from: PeerId) -> Label {
        Label { tag: envelope.tag.unwrap_or(0), from }
    }
}
