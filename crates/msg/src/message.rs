//! The messages between two endpoints, as bytes. All numbers are little-endian.
//!
//! | bytes | all messages |
//! | --- | --- |
//! | 0 | kind |
//! | 1 | flags: which optional fields follow, and how many pieces |
//! | 2–3 | credits: receives that the sender has posted again since its last message; the highest bit: it could have used more receives of the other side than there are |
//! | 4–7 | consumed: bytes of unexpected messages that have matched, modulo 2³² ([`crate::flow`]) |
//!
//! The fields of each kind follow in the order of [`Message`], without gaps; payload is the rest.

use crate::atomic::{AtomicKind, Datatype, Operator};
use crate::buffer::{MAX_PIECES, Remote, RemoteBuffer};

/// Longest message without payload, bytes.
pub const LONGEST_HEADER: usize = COMMON + 8 + 8 + 8 + 4 + MAX_PIECES * REMOTE;
/// Bytes in front of the payload of a part of a message, at most.
pub(crate) const PAYLOAD_HEADER: usize = COMMON + 8 + 8 + 4;
const COMMON: usize = 8;
const REMOTE: usize = 20;

/// Most credits in a message.
pub(crate) const MOST_CREDITS: u16 = WAITED - 1;
const WAITED: u16 = 1 << 15;

/// What every message says about the receives of its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Returned {
    /// At most [`MOST_CREDITS`].
    pub credits: u16,
    /// Something waited for a receive of the other side since the last message.
    pub waited: bool,
    pub consumed: u32,
}

/// What a receive is matched by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// `None`: the message has no tag, and matches receives without one.
    pub tag: Option<u64>,
    /// What the sender's program attached.
    pub data: Option<u64>,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The first part of a message of `len` bytes, or all of it.
    Eager { envelope: Envelope, len: u32, payload: &'a [u8] },
    /// The next part of the message that the last [`Message::Eager`] began.
    More { payload: &'a [u8] },
    /// A message of `len` bytes that stays with its sender until it has matched. If `source` has pieces, the receiver
    /// may READ them.
    Announce { envelope: Envelope, len: u64, id: u32, source: RemoteBuffer },
    /// The announced message `id` has matched: the receiver takes `len` bytes of it. The sender WRITEs them to
    /// `target`; if it has no pieces, it sends them as [`Message::Payload`].
    Grant { id: u32, receiver: u32, len: u64, target: RemoteBuffer },
    /// The next bytes of a granted message.
    Payload { receiver: u32, payload: &'a [u8] },
    /// All bytes of a granted message have been written.
    Written { receiver: u32 },
    /// The receiver has all bytes that it wants of announced message `id`.
    Finished { id: u32 },
    /// Nothing but [`Returned`].
    Credit,
    /// An operation on the memory of the receiver. `payload`: the operands, and then, for a comparison, as many bytes
    /// to compare with.
    Atomic { id: u32, request: AtomicRequest, payload: &'a [u8] },
    /// An atomic has been performed, or refused. `payload`: the values before.
    AtomicDone { id: u32, refused: bool, payload: &'a [u8] },
}

/// What an atomic does, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    pub kind: AtomicKind,
    pub operator: Operator,
    pub datatype: Datatype,
    pub target: RemoteBuffer,
}

const EAGER: u8 = 1;
const MORE: u8 = 2;
const ANNOUNCE: u8 = 3;
const GRANT: u8 = 4;
const PAYLOAD: u8 = 5;
const WRITTEN: u8 = 6;
const FINISHED: u8 = 7;
const CREDIT: u8 = 8;
const ATOMIC: u8 = 9;
const ATOMIC_DONE: u8 = 10;

const TAG: u8 = 1;
const DATA: u8 = 2;
const REFUSED: u8 = 4;
const PIECES_SHIFT: u8 = 5;

impl<'a> Message<'a> {
    /// Writes the header to the front of `out`, and returns its length. Payload is the caller's to add behind it.
    ///
    /// # Panics
    /// If `out` is shorter than [`LONGEST_HEADER`].
    pub fn emit(&self, returned: Returned, out: &mut [u8]) -> usize {
        let mut writer = Writer { out, at: COMMON, flags: 0 };
        let kind = match *self {
            Message::Eager { envelope, len, .. } => {
                writer.envelope(envelope);
                writer.u32(len);
                EAGER
            }
            Message::More { .. } => MORE,
            Message::Announce { envelope, len, id, source } => {
                writer.envelope(envelope);
                writer.u64(len);
                writer.u32(id);
                writer.pieces(&source);
                ANNOUNCE
            }
            Message::Grant { id, receiver, len, target } => {
                writer.u32(id);
                writer.u32(receiver);
                writer.u64(len);
                writer.pieces(&target);
                GRANT
            }
            Message::Payload { receiver, .. } => {
                writer.u32(receiver);
                PAYLOAD
            }
            Message::Written { receiver } => {
                writer.u32(receiver);
                WRITTEN
            }
            Message::Finished { id } => {
                writer.u32(id);
                FINISHED
            }
            Message::Credit => CREDIT,
            Message::Atomic { id, request, .. } => {
                writer.u32(id);
                writer.bytes(&[request.kind.code(), request.operator.code(), request.datatype.code(), 0]);
                writer.pieces(&request.target);
                ATOMIC
            }
            Message::AtomicDone { id, refused, .. } => {
                writer.u32(id);
                writer.flags |= if refused { REFUSED } else { 0 };
                ATOMIC_DONE
            }
        };
        let Writer { out, at, flags } = writer;
        out[0] = kind;
        out[1] = flags;
        let waited = if returned.waited { WAITED } else { 0 };
        out[2..4].copy_from_slice(&(returned.credits.min(MOST_CREDITS) | waited).to_le_bytes());
        out[4..8].copy_from_slice(&returned.consumed.to_le_bytes());
        at
    }

    /// Reads a message. `None`: the bytes are no message.
    pub fn parse(bytes: &'a [u8]) -> Option<(Returned, Message<'a>)> {
        let (common, rest) = bytes.split_at_checked(COMMON)?;
        let (kind, flags) = (common[0], common[1]);
        let credits = u16::from_le_bytes([common[2], common[3]]);
        let returned = Returned {
            credits: credits & MOST_CREDITS,
            waited: credits & WAITED != 0,
            consumed: u32::from_le_bytes([common[4], common[5], common[6], common[7]]),
        };
        let mut reader = Reader { rest, flags };
        let message = match kind {
            EAGER => {
                let (envelope, len) = (reader.envelope()?, reader.u32()?);
                Message::Eager { envelope, len, payload: reader.rest }
            }
            MORE => Message::More { payload: reader.rest },
            ANNOUNCE => Message::Announce {
                envelope: reader.envelope()?,
                len: reader.u64()?,
                id: reader.u32()?,
                source: reader.pieces()?,
            },
            GRANT => Message::Grant {
                id: reader.u32()?,
                receiver: reader.u32()?,
                len: reader.u64()?,
                target: reader.pieces()?,
            },
            PAYLOAD => Message::Payload { receiver: reader.u32()?, payload: reader.rest },
            WRITTEN => Message::Written { receiver: reader.u32()? },
            FINISHED => Message::Finished { id: reader.u32()? },
            CREDIT => Message::Credit,
            ATOMIC => {
                let id = reader.u32()?;
                let [kind, operator, datatype, _] = reader.array()?;
                let request = AtomicRequest {
                    kind: AtomicKind::from_code(kind)?,
                    operator: Operator::from_code(operator)?,
                    datatype: Datatype::from_code(datatype)?,
                    target: reader.pieces()?,
                };
                Message::Atomic { id, request, payload: reader.rest }
            }
            ATOMIC_DONE => {
                let id = reader.u32()?;
                Message::AtomicDone { id, refused: flags & REFUSED != 0, payload: reader.rest }
            }
            _ => return None,
        };
        Some((returned, message))
    }
}

impl Message<'_> {
    /// The message without its payload, and the payload's length.
    pub fn split(self) -> (Message<'static>, usize) {
        let none: &'static [u8] = &[];
        match self {
            Message::Eager { envelope, len, payload } => {
                (Message::Eager { envelope, len, payload: none }, payload.len())
            }
            Message::More { payload } => (Message::More { payload: none }, payload.len()),
            Message::Payload { receiver, payload } => (Message::Payload { receiver, payload: none }, payload.len()),
            Message::Atomic { id, request, payload } => (Message::Atomic { id, request, payload: none }, payload.len()),
            Message::AtomicDone { id, refused, payload } => {
                (Message::AtomicDone { id, refused, payload: none }, payload.len())
            }
            Message::Announce { envelope, len, id, source } => (Message::Announce { envelope, len, id, source }, 0),
            Message::Grant { id, receiver, len, target } => (Message::Grant { id, receiver, len, target }, 0),
            Message::Written { receiver } => (Message::Written { receiver }, 0),
            Message::Finished { id } => (Message::Finished { id }, 0),
            Message::Credit => (Message::Credit, 0),
        }
    }
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
    flags: u8,
}

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    fn envelope(&mut self, envelope: Envelope) {
        for (field, flag) in [(envelope.tag, TAG), (envelope.data, DATA)] {
            if let Some(value) = field {
                self.flags |= flag;
                self.u64(value);
            }
        }
    }

    fn pieces(&mut self, buffer: &RemoteBuffer) {
        self.flags |= (buffer.pieces().len() as u8) << PIECES_SHIFT;
        for piece in buffer.pieces() {
            self.u64(piece.addr);
            self.u64(piece.len);
            self.u32(piece.rkey);
        }
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    flags: u8,
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*array)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn envelope(&mut self) -> Option<Envelope> {
        let tag = if self.flags & TAG != 0 { Some(self.u64()?) } else { None };
        let data = if self.flags & DATA != 0 { Some(self.u64()?) } else { None };
        Some(Envelope { tag, data })
    }

    /// Pieces of no bytes are left out, as [`RemoteBuffer::push`] does.
    fn pieces(&mut self) -> Option<RemoteBuffer> {
        let count = usize::from(self.flags >> PIECES_SHIFT);
        if count > MAX_PIECES {
            return None;
        }
        let mut buffer = RemoteBuffer::default();
        for _ in 0..count {
            buffer.push(Remote { addr: self.u64()?, len: self.u64()?, rkey: self.u32()? });
        }
        Some(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(pieces: usize) -> RemoteBuffer {
        let mut buffer = RemoteBuffer::default();
        (0..pieces as u64).for_each(|n| buffer.push(Remote { addr: n << 40, len: n + 1, rkey: n as u32 }));
        buffer
    }

    #[test]
    fn every_message_survives_the_wire() {
        let envelope = Envelope { tag: Some(u64::MAX), data: None };
        let request = AtomicRequest {
            kind: AtomicKind::Compare,
            operator: Operator::Swap,
            datatype: Datatype::F64,
            target: remote(2),
        };
        let messages = [
            Message::Eager { envelope, len: 9, payload: b"payload" },
            Message::Eager { envelope: Envelope { tag: None, data: Some(5) }, len: 0, payload: b"" },
            Message::More { payload: b"more" },
            Message::Announce { envelope, len: 1 << 40, id: 3, source: remote(4) },
            Message::Grant { id: 4, receiver: 5, len: 6, target: remote(0) },
            Message::Payload { receiver: 1, payload: b"x" },
            Message::Written { receiver: 2 },
            Message::Finished { id: 3 },
            Message::Credit,
            Message::Atomic { id: 7, request, payload: b"operands" },
            Message::AtomicDone { id: 7, refused: true, payload: b"" },
        ];
        for message in messages {
            let returned = Returned { credits: 513, waited: true, consumed: 0xfedc_ba98 };
            let mut bytes = vec![0; LONGEST_HEADER];
            let len = message.emit(returned, &mut bytes);
            bytes.truncate(len);
            if let Message::Eager { payload, .. }
            | Message::More { payload }
            | Message::Payload { payload, .. }
            | Message::Atomic { payload, .. } = message
            {
                bytes.extend(payload);
            }
            assert_eq!(Message::parse(&bytes), Some((returned, message)));
            // A header that is cut short is no message.
            (0..len).for_each(|short| assert_eq!(Message::parse(&bytes[..short]), None, "{message:?} {short}"));
        }
    }

    #[test]
    fn more_pieces_than_fit_are_refused() {
        let mut bytes = [0; 256];
        bytes[0] = GRANT;
        bytes[1] = 5 << PIECES_SHIFT;
        assert_eq!(Message::parse(&bytes), None);
    }
}
