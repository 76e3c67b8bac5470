//! One direction of packets in a segment: a ring of records.
//!
//! A record begins at a multiple of 64 bytes with a *prefix* of 8 bytes; it is written last, and 0 means that no record
//! is there yet. So a consumer finds a short packet and the fact that it has arrived in one cache line. The producer
//! writes several records, then a 0 where the next one will be, then the prefix of the first: that publishes all of
//! them. The consumer reports how far it has read; only the producer looks at that, and only when its ring seems full.
//!
//! The peer may write anything at any time. A [`Record`] holds private copies of prefix and headers, with a length that
//! was checked to be within the ring. Nothing else that is read from the ring decides about addresses.

use crate::local::segment::{RING, Segment};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_wire::MAX_HEADERS;

/// Records begin at multiples of this.
const ALIGN: usize = 64;
const PREFIX: usize = 8;
/// Where a long payload begins in its record: copies of aligned memory are faster.
const LONG_PAYLOAD: usize = 64;
/// The shortest payload that is aligned.
const LONG: usize = 512;
/// Bytes of the longest record after its prefix.
const LONGEST: usize = LONG_PAYLOAD - PREFIX + 4096 + 4;
const _: () = assert!(PREFIX + MAX_HEADERS <= LONG_PAYLOAD && RING.is_multiple_of(ALIGN) && RING.is_power_of_two());

/// Words that hold all headers.
const WORDS: usize = MAX_HEADERS.div_ceil(8);

/// Bits of a prefix: the length after it, whether the payload is aligned, and the tag. The length 0 does not occur.
const IS_LONG: u64 = 1 << 31;
const LENGTH: u64 = IS_LONG - 1;
const TAG_SHIFT: u32 = 32;
/// The prefix of a gap: the next record is at the begin of the ring.
const GAP: u64 = LENGTH;

/// The peer has written what no Weir process writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lie;

/// Why a packet does not enter a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The peer has not read enough.
    Full,
    /// The peer claims to have read what was not written.
    Lie,
}

/// The writing end of a ring.
pub struct Producer {
    segment: Arc<Segment>,
    ring: usize,
    /// Bytes written since the begin.
    head: u64,
    /// Position and prefix of the first record that is not published.
    first: Option<(u64, u64)>,
    /// How far the consumer had read when this side looked.
    consumed: u64,
}

/// The reading end of a ring.
pub struct Consumer {
    segment: Arc<Segment>,
    ring: usize,
    /// Bytes read since the begin.
    tail: u64,
}

/// Room for a packet in a ring, which [`Producer::commit`] fills.
pub struct Room {
    /// Position of the record.
    at: u64,
    /// There is a gap before it, from this position on.
    gap: Option<u64>,
    headers: usize,
    body: usize,
}

/// A packet in a ring: headers in private memory, payload in the ring.
pub struct Record {
    head: [u64; WORDS],
    /// What the sender knows of the QP.
    pub tag: u32,
    len: usize,
    long: bool,
    at: u64,
}

impl Producer {
    /// The end that writes to a ring of a new segment.
    pub fn new(segment: Arc<Segment>, ring: usize) -> Producer {
        Producer { segment, ring, head: 0, first: None, consumed: 0 }
    }

    /// Finds room for a packet with this many bytes of headers, and of payload and pad.
    #[inline]
    pub fn reserve(&mut self, headers: usize, body: usize) -> Result<Room, NoRoom> {
        let size = record_size(headers, body);
        let offset = offset_of(self.head);
        let gap = if offset + size > RING { RING - offset } else { 0 };
        // The zero after the record needs room too.
        let need = (gap + size + ALIGN) as u64;
        if self.head + need > self.consumed + RING as u64 {
            self.look(need)?;
        }
        Ok(Room { at: self.head + gap as u64, gap: (gap > 0).then_some(self.head), headers, body })
    }

    /// Looks how far the consumer has read.
    #[cold]
    fn look(&mut self, need: u64) -> Result<(), NoRoom> {
        let consumed = self.segment.consumed(self.ring).load(Ordering::Acquire);
        if consumed < self.consumed || consumed > self.head || !consumed.is_multiple_of(ALIGN as u64) {
            return Err(NoRoom::Lie);
        }
        self.consumed = consumed;
        if self.head + need > consumed + RING as u64 { Err(NoRoom::Full) } else { Ok(()) }
    }

    /// Where headers, and payload and pad, of a packet are written.
    ///
    /// The slices are in memory that the peer can change and read at any time. Callers only write to them.
    #[inline]
    pub fn buffers(&mut self, room: &Room) -> (&mut [u8], &mut [u8]) {
        let start = self.at(room.at + PREFIX as u64);
        let body = self.at(room.at + body_start(room.headers, room.body) as u64);
        // SAFETY: both are within the ring: `reserve` has found room for the whole record before its end. They do not
        // overlap: the body begins behind the headers. This process reads or writes that room by this value only. The
        // peer may do so too, which this process cannot prevent: the callers do not read, so it has no effect here.
        unsafe {
            (std::slice::from_raw_parts_mut(start, room.headers), std::slice::from_raw_parts_mut(body, room.body))
        }
    }

    /// The packet is in its room. It is published with the next [`publish`](Self::publish).
    #[inline]
    pub fn commit(&mut self, room: Room, tag: u32) {
        let long = room.body >= LONG;
        let len = body_start(room.headers, room.body) + room.body - PREFIX;
        let prefix = len as u64 | if long { IS_LONG } else { 0 } | u64::from(tag) << TAG_SHIFT;
        if let Some(gap) = room.gap {
            self.enter(gap, GAP);
        }
        self.enter(room.at, prefix);
        self.head = room.at + record_size(room.headers, room.body) as u64;
    }

    #[inline]
    fn enter(&mut self, at: u64, prefix: u64) {
        match self.first {
            None => self.first = Some((at, prefix)),
            Some(_) => self.prefix(at).store(prefix, Ordering::Relaxed),
        }
    }

    /// Makes the committed packets visible to the consumer. Returns whether there were any.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let Some((at, prefix)) = self.first.take() else { return false };
        self.prefix(self.head).store(0, Ordering::Relaxed);
        self.prefix(at).store(prefix, Ordering::Release);
        true
    }

    /// Where the prefix of the next record will be.
    #[cfg(test)]
    pub fn next_prefix(&self) -> &AtomicU64 {
        self.prefix(self.head)
    }

    #[inline]
    fn prefix(&self, position: u64) -> &AtomicU64 {
        prefix_at(&self.segment, self.ring, position)
    }

    #[inline]
    fn at(&self, position: u64) -> *mut u8 {
        // SAFETY: an offset within the ring.
        unsafe { self.segment.packets(self.ring).as_ptr().add(offset_of(position)) }
    }
}

impl Consumer {
    /// The end that reads a ring of a new segment.
    pub fn new(segment: Arc<Segment>, ring: usize) -> Consumer {
        Consumer { segment, ring, tail: 0 }
    }

    /// The next packet, which stays in the ring. `None`: the ring is empty.
    #[inline]
    pub fn next(&mut self) -> Result<Option<Record>, Lie> {
        let mut prefix = prefix_at(&self.segment, self.ring, self.tail).load(Ordering::Acquire);
        if prefix == 0 {
            return Ok(None);
        }
        if prefix == GAP {
            let offset = offset_of(self.tail);
            // There is no gap at the begin of the ring, so that this is done once at most.
            if offset == 0 {
                return Err(Lie);
            }
            self.tail += (RING - offset) as u64;
            prefix = prefix_at(&self.segment, self.ring, self.tail).load(Ordering::Acquire);
            if prefix == 0 {
                return Ok(None);
            }
        }
        let (len, long) = ((prefix & LENGTH) as usize, prefix & IS_LONG != 0);
        let fits = len <= LONGEST && offset_of(self.tail) + PREFIX + len <= RING;
        if !fits || long && len < LONG_PAYLOAD - PREFIX || len == 0 {
            return Err(Lie);
        }
        let mut record = Record { head: [0; WORDS], tag: (prefix >> TAG_SHIFT) as u32, len, long, at: self.tail };
        let words = if long { LONG_PAYLOAD - PREFIX } else { len }.div_ceil(8).min(record.head.len());
        for (at, word) in record.head[..words].iter_mut().enumerate() {
            // Within the ring: a record's last word is, because records and ring are multiples of 64 bytes long.
            *word = prefix_at(&self.segment, self.ring, self.tail + (PREFIX + 8 * at) as u64).load(Ordering::Relaxed);
        }
        Ok(Some(record))
    }

    /// The payload and pad of a packet with headers of this length; `None` if it is shorter.
    ///
    /// The peer can change these bytes at any time. The caller hands them to the guarded copy and looks at none of
    /// them itself: nothing depends on their values.
    #[inline]
    pub fn body(&self, record: &Record, headers: usize) -> Option<&[u8]> {
        let start = if record.long { LONG_PAYLOAD } else { PREFIX + headers };
        let len = (PREFIX + record.len).checked_sub(start)?;
        // SAFETY: `next` has checked that the record ends within the ring.
        unsafe {
            let base = self.segment.packets(self.ring).as_ptr().add(offset_of(record.at));
            Some(std::slice::from_raw_parts(base.add(start), len))
        }
    }

    /// Goes on to the packet after this one. The memory of this one is free at the next [`release`](Self::release).
    #[inline]
    pub fn advance(&mut self, record: &Record) {
        self.tail = record.at + (PREFIX + record.len).next_multiple_of(ALIGN) as u64;
    }

    /// Gives the memory of all packets before the next one back to the producer.
    #[inline]
    pub fn release(&self) {
        self.segment.consumed(self.ring).store(self.tail, Ordering::Release);
    }
}

impl Record {
    /// The private copy of the first bytes, with room for all headers. A packet that is shorter ends with other bytes:
    /// see [`headers_room`](Self::headers_room).
    #[inline]
    pub fn head(&self) -> &[u8; 8 * WORDS] {
        // SAFETY: as many bytes, of any values.
        unsafe { &*self.head.as_ptr().cast() }
    }

    /// Bytes of headers, payload and pad, about.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // A packet has headers.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that its headers have at most.
    #[inline]
    pub fn headers_room(&self) -> usize {
        self.len.min(MAX_HEADERS)
    }
}

#[inline]
fn body_start(headers: usize, body: usize) -> usize {
    if body >= LONG { LONG_PAYLOAD } else { PREFIX + headers }
}

#[inline]
fn record_size(headers: usize, body: usize) -> usize {
    (body_start(headers, body) + body).next_multiple_of(ALIGN)
}

#[inline]
fn offset_of(position: u64) -> usize {
    position as usize & (RING - 1)
}

/// An aligned word of a ring. `position`: a multiple of 8.
#[inline]
fn prefix_at(segment: &Segment, ring: usize, position: u64) -> &AtomicU64 {
    debug_assert!(position.is_multiple_of(8));
    // SAFETY: an offset within the ring, aligned as the ring is; access to such words is by atomics.
    unsafe { segment.packets(ring).add(offset_of(position) & !7).cast().as_ref() }
}

#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
#[cfg(test)]
mod tests;
