//! Future events, ordered by time; events of the same time in the order in which they were added.
//!
//! No event is earlier than the last one taken. So the queue is a radix heap: it compares no two events, and its cost
//! does not grow with their number. An event is in a list that its time and the time of the last event taken determine:
//! the highest digit in which they differ is its level, and the value of that digit is its slot. The first event is
//! therefore in the first slot of the lowest level. An event moves to a lower level only together with all the others of
//! its list, so that events of the same time are always in the same list, in their order.

use crate::ids::{HostId, QpId};
use weir_transport::Instant;

/// Bits of a digit of the time.
const DIGIT: u32 = 10;
/// Values of a digit.
const SLOTS: usize = 1 << DIGIT;
/// Words of a set of slots.
const WORDS: usize = SLOTS / u64::BITS as usize;
/// Digits of the time.
const LEVELS: usize = u64::BITS.div_ceil(DIGIT) as usize;
/// The end of a list.
const NONE: u32 = u32::MAX;

/// A future event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A host's port is free for the next packet.
    PortFree(HostId),
    /// The first packet in a pipe arrives at its end.
    Arrival(u32),
    /// A QP's deadline, unless it has moved.
    Deadline(QpId),
    /// A page fault of a host ends.
    FaultEnds(HostId, u32),
    /// The fault notifier of a host is due.
    NotifyRequesters(HostId),
    /// A timer of the application.
    Timer(u64),
}

#[derive(Debug)]
pub(crate) struct Queue {
    /// Time of the last event taken.
    last: u64,
    /// Bit n: level n has events.
    filled: u32,
    levels: Box<[Level; LEVELS]>,
    entries: Vec<Entry>,
    /// The first unused entry.
    unused: u32,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    /// Bit n: word n of `filled` is not 0.
    words: u32,
    /// Bit m of word n: slot 64 n + m has events.
    filled: [u64; WORDS],
    slots: [List; SLOTS],
}

/// Events that are linked by [`Entry::next`].
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Instant,
    event: Event,
    /// The entry after it in its list, or after it among the unused entries.
    next: u32,
}

impl Default for Queue {
    fn default() -> Self {
        let level = Level { words: 0, filled: [0; WORDS], slots: [List { first: NONE, last: NONE }; SLOTS] };
        Queue { last: 0, filled: 0, levels: Box::new([level; LEVELS]), entries: Vec::new(), unused: NONE }
    }
}

impl Queue {
    /// Adds an event at a time that is not before that of the last event taken.
    pub fn put(&mut self, at: Instant, event: Event) {
        debug_assert!(at.0 >= self.last, "an event in the past: {event:?}");
        let entry = Entry { at, event, next: NONE };
        let mut index = self.unused;
        if let Some(unused) = self.entries.get_mut(index as usize) {
            self.unused = unused.next;
            *unused = entry;
        } else {
            index = self.entries.len() as u32;
            self.entries.push(entry);
        }
        self.append(index, at);
    }

    /// Time of the earliest event.
    pub fn next_time(&self) -> Option<Instant> {
        let (level, slot) = self.first_slot()?;
        self.list(self.levels[level].slots[slot]).map(|index| self.entries[index as usize].at).min()
    }

    /// Removes the earliest event.
    pub fn take(&mut self) -> Option<(Instant, Event)> {
        let (mut level, mut slot) = self.first_slot()?;
        if level > 0 {
            self.spread(level, slot);
            (level, slot) = self.first_slot()?;
        }
        let list = &mut self.levels[level].slots[slot];
        let first = list.first;
        let entry = &mut self.entries[first as usize];
        let (at, event) = (entry.at, entry.event);
        list.first = std::mem::replace(&mut entry.next, self.unused);
        let emptied = list.first == NONE;
        self.unused = first;
        self.last = at.0;
        if emptied {
            self.clear(level, slot);
        }
        Some((at, event))
    }

    /// The level and the slot of the earliest event.
    #[inline]
    fn first_slot(&self) -> Option<(usize, usize)> {
        let number = self.filled.trailing_zeros() as usize;
        let level = self.levels.get(number)?;
        let word = level.words.trailing_zeros() as usize % WORDS;
        Some((number, word * 64 + level.filled[word].trailing_zeros() as usize % 64))
    }

    /// Makes the time of the first event in a list the last time, so that the list's events move to lower levels.
    fn spread(&mut self, level: usize, slot: usize) {
        let list = self.levels[level].slots[slot];
        self.clear(level, slot);
        self.last = self.list(list).map(|index| self.entries[index as usize].at.0).fold(u64::MAX, u64::min);
        let mut index = list.first;
        while let Some(entry) = self.entries.get_mut(index as usize) {
            let next = std::mem::replace(&mut entry.next, NONE);
            let at = entry.at;
            self.append(index, at);
            index = next;
        }
    }

    /// Appends an entry to the list of its time.
    #[inline]
    fn append(&mut self, index: u32, at: Instant) {
        let differs = at.0 ^ self.last;
        // Most events are in the lowest level.
        let number = if differs < SLOTS as u64 { 0 } else { (differs.ilog2() / DIGIT) as usize };
        let slot = (at.0 >> (number as u32 * DIGIT)) as usize % SLOTS;
        let level = &mut self.levels[number];
        let (word, bit) = (slot / 64, 1 << (slot % 64));
        let list = &mut level.slots[slot];
        let last = std::mem::replace(&mut list.last, index);
        if level.filled[word] & bit != 0 {
            self.entries[last as usize].next = index;
            return;
        }
        list.first = index;
        level.filled[word] |= bit;
        level.words |= 1 << word;
        self.filled |= 1 << number;
    }

    /// Empties a slot; its entries are used elsewhere.
    #[inline]
    fn clear(&mut self, number: usize, slot: usize) {
        let level = &mut self.levels[number];
        level.filled[slot / 64] &= !(1 << (slot % 64));
        if level.filled[slot / 64] == 0 {
            level.words &= !(1 << (slot / 64));
            if level.words == 0 {
                self.filled &= !(1 << number);
            }
        }
    }

    /// The entries of a list.
    fn list(&self, list: List) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(list.first), |&index| {
            Some(self.entries[index as usize].next).filter(|&next| next != NONE)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;
    use weir_transport::Chance;

    /// Compares the queue with a heap of times and sequence numbers, at distances from none to years.
    #[test]
    fn events_leave_in_the_order_of_time_and_then_of_addition() {
        for seed in 0..20 {
            let mut chance = Chance::seeded(seed);
            let (mut queue, mut heap, mut now) = (Queue::default(), BinaryHeap::new(), 0);
            for number in 0..20_000 {
                if chance.share() < 0.52 {
                    let at = now + (chance.bits() >> (16 + chance.bits() % 48) & !(chance.bits() & 0xf));
                    queue.put(Instant(at), Event::Timer(number));
                    heap.push(Reverse((at, number)));
                } else {
                    assert_eq!(queue.next_time(), heap.peek().map(|Reverse((at, _))| Instant(*at)), "seed {seed}");
                    let first = heap.pop().map(|Reverse((at, number))| (Instant(at), Event::Timer(number)));
                    assert_eq!(queue.take(), first, "seed {seed}");
                    now = first.map_or(now, |(at, _)| at.0);
                }
            }
            while let Some(Reverse((at, number))) = heap.pop() {
                assert_eq!(queue.take(), Some((Instant(at), Event::Timer(number))), "seed {seed}");
            }
            assert_eq!((queue.take(), queue.next_time()), (None, None), "seed {seed}");
        }
    }
}
