//! An acknowledgement of a connection over several links.

use super::{EdgeError, MAX_LINKS, Seq};
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The most packets that may be open at a time: those that a bitmap can have, and the one before.
pub const MAX_WINDOW: u32 = 32 * MAX_WORDS as u32 + 1;
/// The most bytes of an acknowledgement.
pub const MAX_ACK_LEN: usize = RawAck::LEN + MAX_LINKS * RawHeard::LEN + MAX_WORDS * 4;

/// The most words of a bitmap.
pub(super) const MAX_WORDS: usize = 128;
/// The unit of times in an acknowledgement, ns.
pub(super) const HELD_UNIT: u64 = 2_000;

/// What a side has heard on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heard {
    /// The number that the sender of those packets gave the link.
    pub link: u8,
    /// The largest count that has come.
    pub newest: u32,
    /// How long ago it came, ns; in steps of 2 µs, at most 131 ms.
    pub held: u64,
    /// When it came by the clock of this side, less `Header::sent`, µs: how long it took, plus what the clocks differ by.
    pub delay: u32,
}

/// An acknowledgement. One that is parsed takes the place, and the memory, of an earlier one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ack {
    /// All packets before this one have been performed.
    pub performed: Seq,
    /// So many packets of them have failed, and the sender has told it or will, in packets.
    pub failures: u32,
    /// Each link at most once.
    pub heard: Vec<Heard>,
    /// Which packets after `Header::received` have arrived: bit *b* of word *k* is packet `received` + 1 + 32*k* + *b*.
    pub bitmap: Vec<u32>,
}

/// Bytes of an acknowledgement that speaks of so many links, and of so many packets after `Header::received`.
pub const fn ack_len(links: usize, packets: usize) -> usize {
    RawAck::LEN + links * RawHeard::LEN + packets.div_ceil(32) * 4
}

impl Ack {
    /// Bytes on the wire.
    pub fn wire_len(&self) -> usize {
        ack_len(self.heard.len(), self.bitmap.len() * 32)
    }

    /// Writes the acknowledgement to the front of `out`; returns its length.
    pub(super) fn emit(&self, out: &mut [u8]) -> usize {
        assert!(self.heard.len() <= MAX_LINKS && self.bitmap.len() <= MAX_WORDS);
        let raw = RawAck {
            performed: self.performed.0.into(),
            failures: self.failures.into(),
            links: self.heard.len() as u8,
            words: self.bitmap.len() as u8,
            zero: U16::ZERO,
        };
        out[..RawAck::LEN].copy_from_slice(raw.as_bytes());
        let mut at = RawAck::LEN;
        for heard in &self.heard {
            let held = (heard.held / HELD_UNIT).min(u64::from(u16::MAX)) as u16;
            let (newest, delay) = (heard.newest.into(), heard.delay.into());
            let raw = RawHeard { link: heard.link, zero: 0, held: held.into(), newest, delay };
            out[at..at + RawHeard::LEN].copy_from_slice(raw.as_bytes());
            at += RawHeard::LEN;
        }
        for word in &self.bitmap {
            out[at..at + 4].copy_from_slice(&word.to_be_bytes());
            at += 4;
        }
        at
    }

    /// Returns the bytes after the acknowledgement. Error `None`: it is truncated.
    pub(super) fn read<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Option<EdgeError>> {
        self.heard.clear();
        self.bitmap.clear();
        let (raw, rest) = RawAck::ref_from_prefix(bytes).map_err(|_| None)?;
        let (links, words) = (usize::from(raw.links), usize::from(raw.words));
        if raw.zero != U16::ZERO {
            return Err(Some(EdgeError::Reserved));
        }
        if links > MAX_LINKS {
            return Err(Some(EdgeError::Links(raw.links)));
        }
        if words > MAX_WORDS {
            return Err(Some(EdgeError::Bitmap(raw.words)));
        }
        (self.performed, self.failures) = (Seq(raw.performed.get()), raw.failures.get());
        let (heard, rest) = <[RawHeard]>::ref_from_prefix_with_elems(rest, links).map_err(|_| None)?;
        let (bitmap, rest) = <[U32]>::ref_from_prefix_with_elems(rest, words).map_err(|_| None)?;
        let mut seen = 0u64;
        for raw in heard {
            if usize::from(raw.link) >= MAX_LINKS {
                return Err(Some(EdgeError::Link(raw.link)));
            }
            if raw.zero != 0 {
                return Err(Some(EdgeError::Reserved));
            }
            if seen & 1 << raw.link != 0 {
                return Err(Some(EdgeError::Twice(raw.link)));
            }
            seen |= 1 << raw.link;
            let held = u64::from(raw.held.get()) * HELD_UNIT;
            self.heard.push(Heard { link: raw.link, newest: raw.newest.get(), held, delay: raw.delay.get() });
        }
        self.bitmap.extend(bitmap.iter().map(|word| word.get()));
        Ok(rest)
    }
}

/// The front of an acknowledgement in wire format.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawAck {
    performed: U32,
    failures: U32,
    links: u8,
    words: u8,
    zero: U16,
}

impl RawAck {
    const LEN: usize = size_of::<RawAck>();
}

/// A link in an acknowledgement in wire format.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeard {
    link: u8,
    zero: u8,
    held: U16,
    newest: U32,
    delay: U32,
}

impl RawHeard {
    const LEN: usize = size_of::<RawHeard>();
}
