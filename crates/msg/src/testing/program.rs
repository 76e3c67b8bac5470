//! A program on a mesh that checks what it is told: each operation ends once, with the right bytes, and matches in order.

use super::audit::{audit, close};
use super::memory::CANARY;
use super::mesh::{Mesh, name};
use crate::buffer::{Buffer, Piece};
use crate::event::{Event, Failure, Kind};
use crate::ids::PeerId;
use crate::matching::Pattern;
use crate::message::Envelope;
use crate::receive::ReceiveCall;
use crate::send::SendCall;

/// A message of the program.
#[derive(Clone, Copy, Debug)]
pub struct Send {
    pub from: usize,
    pub to: usize,
    pub tag: Option<u64>,
    pub len: u64,
    pub pieces: usize,
    pub matched: bool,
}

/// A receive of the program.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    pub node: usize,
    pub tagged: bool,
    pub tag: u64,
    pub ignore: u64,
    pub from: Option<usize>,
    pub len: u64,
    pub pieces: usize,
    pub multi: Option<u64>,
}

#[derive(Debug)]
struct Sent {
    call: Send,
    ended: Option<Result<(), Failure>>,
    /// The receive that has taken it.
    matched: Option<usize>,
}

#[derive(Debug)]
struct Posted {
    call: Receive,
    buffer: Buffer,
    /// It is one for a claimed message, or for one that is discarded.
    discards: bool,
    messages: usize,
    ended: Option<Result<(), Failure>>,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Send(usize),
    Receive(usize),
}

/// The state of a program with a process at each node. Contexts are numbers of operations.
#[derive(Debug)]
pub struct Program {
    pub mesh: Mesh,
    ops: Vec<Op>,
    sends: Vec<Sent>,
    receives: Vec<Posted>,
    /// Operations with these nodes may fail.
    pub may_fail: Vec<usize>,
    /// Events of other operations.
    pub others: Vec<(usize, Event)>,
}

impl Send {
    /// A contiguous message with a tag.
    pub fn tagged(from: usize, to: usize, tag: u64, len: u64) -> Send {
        Send { from, to, tag: Some(tag), len, pieces: 1, matched: false }
    }
}

impl Receive {
    /// A contiguous receive for a tag, from any peer.
    pub fn tagged(node: usize, tag: u64, len: u64) -> Receive {
        Receive { node, tagged: true, tag, ignore: 0, from: None, len, pieces: 1, multi: None }
    }

    fn takes(&self, send: &Send) -> bool {
        self.node == send.to
            && self.tagged == send.tag.is_some()
            && send.tag.is_none_or(|tag| (tag ^ self.tag) & !self.ignore == 0)
            && self.from.is_none_or(|from| from == send.from)
    }
}

impl Program {
    pub fn new(mesh: Mesh) -> Program {
        let (ops, sends, receives) = (Vec::new(), Vec::new(), Vec::new());
        Program { mesh, ops, sends, receives, may_fail: Vec::new(), others: Vec::new() }
    }

    fn context(&mut self, op: Op) -> u64 {
        self.ops.push(op);
        self.ops.len() as u64
    }

    /// A buffer in several pieces, with canary bytes around each.
    pub fn buffer(&mut self, node: usize, len: u64, pieces: usize) -> Buffer {
        let mut buffer = Buffer::default();
        let mut left = len;
        for rest in (0..pieces as u64).rev() {
            let len = if rest == 0 { left } else { self.mesh.rng.below(left + 1) };
            let addr = self.mesh.nodes[node].port.memory.allocate(len);
            buffer.push(Piece { addr, len });
            left -= len;
        }
        buffer
    }

    /// Fills a buffer with the bytes of message `number`.
    pub fn fill(&mut self, node: usize, buffer: &Buffer, number: u64) {
        let mut at = 0;
        for piece in buffer.pieces() {
            for byte in self.mesh.nodes[node].port.memory.bytes_mut(piece.addr, piece.len as usize) {
                *byte = byte_of(number, at);
                at += 1;
            }
        }
    }

    /// The bytes of a buffer.
    pub fn bytes(&self, node: usize, buffer: &Buffer) -> Vec<u8> {
        let memory = &self.mesh.nodes[node].port.memory;
        buffer.pieces().iter().flat_map(|piece| memory.bytes(piece.addr, piece.len as usize).to_vec()).collect()
    }

    /// The id by which a node knows another.
    pub fn peer(&mut self, node: usize, other: usize) -> PeerId {
        self.mesh.nodes[node].endpoint.as_mut().expect("the node is alive").peer(&name(other))
    }

    /// Sends a message, and returns its number.
    pub fn send(&mut self, call: Send) -> usize {
        let (number, to) = (self.sends.len(), self.peer(call.from, call.to));
        let context = self.context(Op::Send(number));
        let buffer = self.buffer(call.from, call.len, call.pieces);
        self.fill(call.from, &buffer, number as u64);
        self.sends.push(Sent { call, ended: None, matched: None });
        let envelope = Envelope { tag: call.tag, data: Some(number as u64) };
        let report = self.mesh.rng.once_in(2);
        let send = SendCall { to, envelope, buffer, matched: call.matched, context, report };
        self.mesh.with(call.from, |endpoint, port, now| endpoint.send(port, now, &send));
        number
    }

    /// Injects a message. False: there is no room.
    pub fn inject(&mut self, call: Send) -> bool {
        let (number, to) = (self.sends.len(), self.peer(call.from, call.to));
        let envelope = Envelope { tag: call.tag, data: Some(number as u64) };
        let mut bytes: Vec<u8> = (0..call.len).map(|at| byte_of(number as u64, at)).collect();
        let result = self.mesh.with(call.from, |endpoint, port, now| endpoint.inject(port, now, to, envelope, &bytes));
        bytes.fill(0);
        if result.is_ok() {
            self.sends.push(Sent { call, ended: Some(Ok(())), matched: None });
        }
        result.is_ok()
    }

    /// Sends a message of which the bytes are copied at once, and returns its number. `None`: there is no room.
    pub fn send_copied(&mut self, call: Send) -> Option<usize> {
        let (number, to) = (self.sends.len(), self.peer(call.from, call.to));
        let context = self.context(Op::Send(number));
        let envelope = Envelope { tag: call.tag, data: Some(number as u64) };
        let mut bytes: Vec<u8> = (0..call.len).map(|at| byte_of(number as u64, at)).collect();
        let send = SendCall { to, envelope, buffer: Buffer::default(), matched: call.matched, context, report: true };
        let result = self.mesh.with(call.from, |endpoint, port, now| endpoint.send_copied(port, now, &send, &bytes));
        bytes.fill(0);
        result.ok()?;
        self.sends.push(Sent { call, ended: None, matched: None });
        Some(number)
    }

    /// Posts a receive, and returns its number.
    pub fn receive(&mut self, call: Receive) -> usize {
        let (number, receive) = self.new_receive(call, false);
        self.mesh.with(call.node, |endpoint, port, now| endpoint.receive(port, now, &receive));
        number
    }

    /// Looks for a message, claims it and receives it later, or discards it. False: there is none.
    pub fn claim(&mut self, call: Receive, discards: bool) -> bool {
        let (_, receive) = self.new_receive(Receive { multi: None, ..call }, discards);
        let ReceiveCall { tagged, ref pattern, context, .. } = receive;
        let found = self.mesh.with(call.node, |endpoint, _, _| endpoint.peek(tagged, pattern, Some(context)));
        let Some(found) = found else {
            self.forget_receive();
            return false;
        };
        let number = found.envelope.data.expect("all messages have data") as usize;
        assert_eq!((found.len, found.envelope.tag), (self.sends[number].call.len, self.sends[number].call.tag));
        let taken = self.mesh.with(call.node, |endpoint, port, now| match discards {
            true => endpoint.discard(port, now, &receive, true),
            false => endpoint.receive_claimed(port, now, &receive),
        });
        assert!(taken, "a claimed message is there");
        true
    }

    /// Discards a message that has come. False: there is none.
    pub fn discard(&mut self, call: Receive) -> bool {
        let (_, receive) = self.new_receive(Receive { multi: None, ..call }, true);
        let found = self.mesh.with(call.node, |endpoint, port, now| endpoint.discard(port, now, &receive, false));
        if !found {
            self.forget_receive();
        }
        found
    }

    /// Cancels a receive. False: it has matched.
    pub fn cancel(&mut self, receive: usize) -> bool {
        let context = self.ops.iter().position(|op| matches!(op, Op::Receive(number) if *number == receive));
        let context = context.expect("a receive") as u64 + 1;
        let node = self.receives[receive].call.node;
        self.mesh.with(node, |endpoint, port, _| endpoint.cancel(port, context))
    }

    fn new_receive(&mut self, call: Receive, discards: bool) -> (usize, ReceiveCall) {
        let number = self.receives.len();
        let context = self.context(Op::Receive(number));
        let from = call.from.map(|from| self.peer(call.node, from));
        let buffer = self.buffer(call.node, call.len, call.pieces);
        self.receives.push(Posted { call, buffer, discards, messages: 0, ended: None });
        let pattern = Pattern { tag: if call.tagged { call.tag } else { 0 }, ignore: call.ignore, from };
        let report = self.mesh.rng.once_in(2);
        (number, ReceiveCall { tagged: call.tagged, pattern, buffer, multi: call.multi, context, report })
    }

    fn forget_receive(&mut self) {
        self.receives.pop();
        self.ops.pop();
    }

    /// Takes the events of all nodes, and checks them.
    pub fn take_events(&mut self) {
        for node in 0..self.mesh.nodes.len() {
            for event in std::mem::take(&mut self.mesh.nodes[node].events) {
                match (event.context as usize).checked_sub(1).and_then(|at| self.ops.get(at).copied()) {
                    Some(Op::Send(number)) => self.sent(node, number, &event),
                    Some(Op::Receive(number)) => self.received(node, number, &event),
                    None => self.others.push((node, event)),
                }
            }
        }
    }

    fn sent(&mut self, node: usize, number: usize, event: &Event) {
        let sent = &mut self.sends[number];
        assert_eq!(sent.ended, None, "message {number} ends twice");
        sent.ended = Some(event.result);
        assert_eq!((node, event.len, event.tag), (sent.call.from, sent.call.len, sent.call.tag));
        assert_eq!(event.kind, Kind::Send { tagged: sent.call.tag.is_some() });
        let may_fail = [sent.call.from, sent.call.to].iter().any(|node| self.may_fail.contains(node));
        assert!(event.result.is_ok() || may_fail, "message {number}: {event:?}");
    }

    fn received(&mut self, node: usize, number: usize, event: &Event) {
        let receive = &mut self.receives[number];
        assert_eq!(receive.ended, None, "receive {number} ends twice: {event:?}");
        assert_eq!((node, event.kind), (receive.call.node, Kind::Receive { tagged: receive.call.tagged }));
        if receive.call.multi.is_none() || event.released {
            receive.ended = Some(event.result);
        }
        let truncated = matches!(event.result, Err(Failure::Truncated { .. }));
        if event.result.is_err() && !truncated {
            let cancelled = event.result == Err(Failure::Cancelled);
            assert!(cancelled || !self.may_fail.is_empty(), "receive {number}: {event:?}");
            return;
        }
        let message = event.data.expect("all messages have data") as usize;
        receive.messages += 1;
        let sent = &mut self.sends[message];
        assert!(receive.call.takes(&sent.call), "receive {number} takes message {message}");
        assert_eq!(sent.matched.replace(number), None, "message {message} is received twice");
        assert_eq!(event.tag, sent.call.tag);
        let (receive, sent) = (&self.receives[number], &self.sends[message]);
        let from = event.from.map(|from| self.mesh.nodes[node].endpoint().name_of(from));
        assert_eq!(from, Some(name(sent.call.from)));
        if receive.discards {
            assert_eq!((event.len, event.result), (sent.call.len, Ok(())));
            return;
        }
        match event.result {
            Ok(()) => assert_eq!(event.len, sent.call.len),
            Err(Failure::Truncated { by }) => assert_eq!(event.len + by, sent.call.len),
            Err(_) => unreachable!(),
        }
        let whole = receive.buffer;
        let buffer = match receive.call.multi {
            Some(_) => {
                let start = whole.pieces()[0];
                assert!(event.len == 0 || event.addr >= start.addr && event.addr + event.len <= start.addr + start.len);
                Buffer::contiguous(event.addr, event.len)
            }
            None => {
                assert_eq!(event.len, sent.call.len.min(whole.len()), "what fits is received");
                whole.range(0, event.len)
            }
        };
        let bytes = self.bytes(node, &buffer);
        let wrong = bytes.iter().enumerate().find(|&(at, &byte)| byte != byte_of(message as u64, at as u64));
        assert_eq!(wrong, None, "byte of message {message} of {} bytes", event.len);
        if receive.call.multi.is_none() {
            let rest = self.bytes(node, &whole.range(event.len, u64::MAX));
            assert!(rest.iter().all(|&byte| byte == CANARY), "bytes behind message {message} have changed");
        }
        for piece in whole.pieces() {
            let memory = &self.mesh.nodes[node].port.memory;
            let around = [memory.bytes(piece.addr - 16, 16), memory.bytes(piece.addr + piece.len, 16)];
            assert!(around.concat().iter().all(|&byte| byte == CANARY), "bytes around receive {number}");
        }
    }

    /// Waits until nothing happens any more, and checks that all has ended that could.
    pub fn settle(&mut self) {
        self.mesh.settle();
        self.take_events();
        self.check_order();
        audit(&mut self.mesh);
        self.take_events();
    }

    /// As [`Self::settle`]; all messages have been received, and everything is given back.
    pub fn finish(mut self) {
        self.settle();
        assert_eq!(self.open(), (0, 0), "messages and receives that have not ended");
        let unreceived = self.sends.iter().filter(|sent| sent.matched.is_none() && sent.ended == Some(Ok(())));
        assert!(unreceived.count() == 0 || !self.may_fail.is_empty(), "messages are lost");
        for node in self.mesh.nodes.iter().filter(|node| node.endpoint.is_some()) {
            assert_eq!(node.endpoint().open_operations(), 0);
            assert!(node.endpoint().unexpected_messages() == 0 || !self.may_fail.is_empty());
        }
        close(&mut self.mesh);
    }

    /// A process ends, with all its operations. `silently`: its peers do not hear of it before they send.
    pub fn kill(&mut self, node: usize, silently: bool) {
        self.take_events();
        self.mesh.kill(node, silently);
        self.mesh.nodes[node].events.clear();
        self.may_fail.push(node);
        let gone = Some(Err(Failure::Disconnected));
        self.sends.iter_mut().filter(|sent| sent.call.from == node).for_each(|sent| sent.ended = sent.ended.or(gone));
        for receive in self.receives.iter_mut().filter(|receive| receive.call.node == node) {
            receive.ended = receive.ended.or(gone);
        }
    }

    /// Messages and receives that have not ended.
    pub fn open(&self) -> (usize, usize) {
        let sends = self.sends.iter().filter(|sent| sent.ended.is_none()).count();
        (sends, self.receives.iter().filter(|receive| receive.ended.is_none()).count())
    }

    /// How a message has ended.
    pub fn send_ended(&self, number: usize) -> Option<Result<(), Failure>> {
        self.sends[number].ended
    }

    /// How a receive has ended.
    pub fn receive_ended(&self, number: usize) -> Option<Result<(), Failure>> {
        self.receives[number].ended
    }

    /// The receive that has taken a message.
    pub fn matched(&self, number: usize) -> Option<usize> {
        self.sends[number].matched
    }

    /// The messages that no receive has taken, as receives for them would be.
    pub fn missing_receives(&self) -> Vec<Receive> {
        let lost = |node: &usize| self.may_fail.contains(node);
        let waiting = self.sends.iter().filter(|sent| sent.matched.is_none() && !matches!(sent.ended, Some(Err(_))));
        waiting
            .filter(|sent| !lost(&sent.call.from) && !lost(&sent.call.to))
            .map(|Sent { call, .. }| Receive {
                tagged: call.tag.is_some(),
                from: Some(call.from),
                ..Receive::tagged(call.to, call.tag.unwrap_or(0), call.len)
            })
            .collect()
    }

    /// Receives that have not ended.
    pub fn open_receives(&self) -> Vec<usize> {
        (0..self.receives.len()).filter(|&number| self.receives[number].ended.is_none()).collect()
    }

    /// The rules of matching: among messages of one peer, and among receives, the first that fits.
    fn check_order(&self) {
        for (later, second) in self.sends.iter().enumerate() {
            let Some(taken) = second.matched else { continue };
            let receive = &self.receives[taken];
            for (earlier, first) in self.sends[..later].iter().enumerate() {
                let before = (first.call.from, first.call.to) == (second.call.from, second.call.to);
                if before && receive.call.takes(&first.call) && !self.lost(first) {
                    let right = first.matched.is_some_and(|first| first <= taken);
                    assert!(right, "message {later} overtakes message {earlier} in receive {taken}");
                }
            }
            for (number, posted) in self.receives[..taken].iter().enumerate() {
                if posted.call.takes(&second.call) && posted.call.multi.is_none() {
                    let right = posted.messages > 0 || posted.ended.is_some();
                    assert!(right, "receive {taken} takes message {later} before receive {number}");
                }
            }
        }
    }

    fn lost(&self, sent: &Sent) -> bool {
        let nodes = [sent.call.from, sent.call.to];
        matches!(sent.ended, Some(Err(_))) || nodes.iter().any(|node| self.may_fail.contains(node))
    }
}

/// A byte of a message.
pub fn byte_of(number: u64, at: u64) -> u8 {
    (number.wrapping_mul(37) ^ at.wrapping_mul(7) ^ (at >> 8).wrapping_mul(13)) as u8
}
