//! Posting: messages through bounce buffers or inline, and WRITEs and READs.

use crate::buffer::{Buffer, RemoteBuffer, runs};
use crate::endpoint::Endpoint;
use crate::ids::{OpId, PeerId};
use crate::message::{LONGEST_HEADER, Message, PAYLOAD_HEADER};
use crate::port::{Local, Port, Slot, Work};
use crate::queue::Posted;
use crate::registrar::Held;

/// Longest request that is sent inline, whatever the adapter permits, bytes.
pub(crate) const LONGEST_INLINE: usize = 512;

/// Longest request from or to the program's memory, bytes: adapters permit 2^31, and some less.
const LONGEST_RUN: u64 = 1 << 30;

/// A transfer between registered memory of the program and a peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub to: PeerId,
    pub op: OpId,
    /// WRITEs, the last of them with this immediate data; otherwise READs.
    pub write: bool,
    pub immediate: Option<u32>,
    pub local: Buffer,
    pub held: Held,
    pub remote: RemoteBuffer,
    /// The operation goes on when the last request has completed; otherwise something else follows.
    pub ends: bool,
}

/// What became of something to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Step {
    /// It has left.
    Done,
    /// There is no room, or no connection. It is to be tried again.
    Blocked,
}

/// The payload of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body<'a> {
    Bytes(&'a [u8]),
    /// All of it.
    Program(&'a Buffer),
}

impl Body<'_> {
    pub const NONE: Body<'static> = Body::Bytes(&[]);

    fn len(&self) -> usize {
        match self {
            Body::Bytes(bytes) => bytes.len(),
            Body::Program(buffer) => buffer.len() as usize,
        }
    }
}

impl Endpoint {
    /// The longest part of a message that one request to a connected peer can carry, bytes of payload.
    pub(crate) fn longest_part(&mut self, peer: PeerId) -> Option<u64> {
        let connected = self.peer_mut(peer).connected()?;
        Some((connected.longest - PAYLOAD_HEADER) as u64)
    }

    /// Sends a message. `op` goes on when the request completes.
    pub(crate) fn post_message(
        &mut self,
        port: &mut impl Port,
        peer: PeerId,
        message: Message<'_>,
        body: Body<'_>,
        op: Option<OpId>,
    ) -> Step {
        // A peer that asks for more answers than can leave gets back one receive with each answer.
        let backlog = self.peers[peer.0 as usize].answers.len() > usize::from(self.settings.receive_slots);
        let most = if backlog { 1 } else { u16::MAX };
        let Some(connected) = self.peers[peer.0 as usize].connected() else { return Step::Blocked };
        if !connected.may_send(&message) {
            connected.flow.has_to_wait();
            return Step::Blocked;
        }
        // The header is at most so long; whether it fits inline is decided before credits are spent.
        let inline = connected.queue.inline().min(LONGEST_INLINE);
        let mut bytes = [0; LONGEST_HEADER + LONGEST_INLINE];
        let (header, len) = (message.emit(Default::default(), &mut bytes), body.len());
        if header + len <= inline {
            message.emit(connected.flow.leaves(most), &mut bytes);
            fill(port, body, &mut bytes[header..header + len]);
            let posted = Posted { op, last: op.is_some(), ..Posted::default() };
            self.post(port, peer, posted, Work::SendInline(&bytes[..header + len]));
            return Step::Done;
        }
        let Some(slot) = self.take_slot(port, peer) else { return Step::Blocked };
        let Some(connected) = self.peers[peer.0 as usize].connected() else { return Step::Blocked };
        message.emit(connected.flow.leaves(most), &mut bytes);
        port.slot(slot)[..header].copy_from_slice(&bytes[..header]);
        match body {
            Body::Bytes(payload) => port.slot(slot)[header..header + len].copy_from_slice(payload),
            Body::Program(buffer) => gather(port, buffer, slot, header),
        }
        let local = Local::Slot { slot, len: (header + len) as u32 };
        let posted = Posted { slot: Some(slot), op, last: op.is_some(), at: 0 };
        self.post(port, peer, posted, Work::Send(local));
        Step::Done
    }

    /// Posts the requests of a transfer, from run `done` on.
    pub(crate) fn post_runs(&mut self, port: &mut impl Port, transfer: &Transfer, done: &mut u64) -> Step {
        let Transfer { to, op, write, immediate, local, held, remote, ends } = *transfer;
        let mut next = runs(&local, &remote, LONGEST_RUN).skip(*done as usize).peekable();
        while let Some(run) = next.next() {
            if !self.has_room(to) {
                return Step::Blocked;
            }
            let final_run = next.peek().is_none();
            let lkey = self.registrar.lkey(&held, run.piece);
            let local = Local::Memory { addr: run.local.addr, len: run.local.len as u32, lkey };
            let (addr, rkey) = (run.remote.addr, run.remote.rkey);
            let work = if write {
                Work::Write { local, addr, rkey, immediate: immediate.filter(|_| final_run) }
            } else {
                Work::Read { local, addr, rkey }
            };
            self.post(port, to, Posted { op: Some(op), last: ends && final_run, ..Posted::default() }, work);
            *done += 1;
        }
        Step::Done
    }

    /// Whether a request fits into the send queue of a connected peer.
    pub(crate) fn has_room(&mut self, peer: PeerId) -> bool {
        self.peer_mut(peer).connected().is_some_and(|connected| connected.queue.has_room())
    }

    /// Posts a request. The caller has checked that the queue has room.
    pub(crate) fn post(&mut self, port: &mut impl Port, peer: PeerId, posted: Posted, work: Work<'_>) {
        let Some(connected) = self.peers[peer.0 as usize].connected() else { return };
        let (number, signaled) = connected.queue.next(posted);
        let connection = connected.id;
        let result = port.post_send(connection, number, signaled, work);
        // A request that the adapter refuses ends with the others, when the connection does.
        connected.queue.push(posted, signaled);
        if result.is_err() {
            connected.queue.refuse();
            self.broken.push(connection);
        }
    }
}

/// Copies a buffer of the program to a bounce buffer, from byte `at` on.
pub(crate) fn gather(port: &mut impl Port, buffer: &Buffer, slot: Slot, mut at: usize) {
    for piece in buffer.pieces() {
        port.copy_to_slot(piece.addr, piece.len as usize, slot, at);
        at += piece.len as usize;
    }
}

/// Copies a bounce buffer, from byte `at` on, to a buffer of the program.
pub(crate) fn scatter(port: &mut impl Port, slot: Slot, mut at: usize, buffer: &Buffer) {
    for piece in buffer.pieces() {
        port.copy_from_slot(slot, at, piece.addr, piece.len as usize);
        at += piece.len as usize;
    }
}

/// Copies bytes to a buffer of the program.
pub(crate) fn store(port: &mut impl Port, mut bytes: &[u8], buffer: &Buffer) {
    for piece in buffer.pieces() {
        let Some((now, rest)) = bytes.split_at_checked(piece.len as usize) else { return };
        port.store(piece.addr, now);
        bytes = rest;
    }
}

/// Copies a payload.
pub(crate) fn fill(port: &mut impl Port, body: Body<'_>, mut out: &mut [u8]) {
    match body {
        Body::Bytes(payload) => out.copy_from_slice(payload),
        Body::Program(buffer) => {
            for piece in buffer.pieces() {
                let (now, rest) = out.split_at_mut(piece.len as usize);
                port.load(piece.addr, now);
                out = rest;
            }
        }
    }
}
