//! A radix heap of events: it compares no two events, and its cost does not grow with their number.
//!
//! No event is earlier than the last one taken. An event is in a list that its time and the time of the last event
//! taken determine: the highest digit in which they differ is its level, and the value of that digit is its slot. The
//! first event is therefore in the first slot of the lowest level. An event moves to a lower level only together with
//! all the others of its list, so that events of the same time are always in the same list, in their order.

use super::event::Packed;
use weir_transport::Instant;

/// Bits of a digit of the time.
const DIGIT: u32 = 10;
/// Values of a digit.
const SLOTS: usize = 1 << DIGIT;
/// Words of a set of slots.
const WORDS: usize = SLOTS / u64::BITS as usize;
/// Digits of the time.
const LEVELS: usize = u64::BITS.div_ceil(DIGIT) as usize;
/// Events of a list that are compared to find the earliest: about as many QPs of a host have deadlines.
const FEW: usize = 64;
/// The end of a list.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Radix {
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
    event: Packed,
    /// The entry after it in its list, or after it among the unused entries.
    next: u32,
}

impl Default for Radix {
    fn default() -> Self {
        let level = Level { words: 0, filled: [0; WORDS], slots: [List { first: NONE, last: NONE }; SLOTS] };
        Radix { last: 0, filled: 0, levels: Box::new([level; LEVELS]), entries: Vec::new(), unused: NONE }
    }
}

impl Radix {
    /// Adds an event at a time that is not before that of the last event taken.
    pub fn put(&mut self, at: Instant, event: Packed) {
        let index = self.entry(at, event);
        self.append(index, at);
    }

    /// Adds an event that comes before all others, at a time that is not before that of the last event taken.
    pub fn put_first(&mut self, at: Instant, event: Packed) {
        let index = self.entry(at, event);
        let (level, slot) = self.place(at);
        let list = self.levels[level].slots[slot];
        if self.levels[level].filled[slot / 64] & 1 << (slot % 64) == 0 {
            return self.append(index, at);
        }
        self.entries[index as usize].next = list.first;
        self.levels[level].slots[slot].first = index;
    }

    /// A time before which there is no event, exact where few events are next; the largest, if there is no event.
    #[inline]
    pub fn bound(&self) -> Instant {
        let Some((level, slot)) = self.first_slot() else { return Instant(u64::MAX) };
        // The digits above are those of the last event taken.
        let shift = level as u32 * DIGIT;
        let above = self.last.checked_shr(shift + DIGIT).map_or(0, |digits| digits << (shift + DIGIT));
        let begin = above | (slot as u64) << shift;
        if level == 0 { Instant(begin) } else { self.bound_in(begin, self.levels[level].slots[slot]) }
    }

    /// As `bound`, of a list of events that are at `begin` or later.
    fn bound_in(&self, begin: u64, list: List) -> Instant {
        let (mut least, mut index) = (u64::MAX, list.first);
        for _ in 0..FEW {
            let Entry { at, next, .. } = self.entries[index as usize];
            least = least.min(at.0);
            if next == NONE {
                return Instant(least);
            }
            index = next;
        }
        Instant(begin)
    }

    /// Time of the earliest event.
    pub fn next_time(&self) -> Option<Instant> {
        let (level, slot) = self.first_slot()?;
        self.list(self.levels[level].slots[slot]).map(|index| self.entries[index as usize].at).min()
    }

    /// Removes the earliest event.
    pub fn take(&mut self) -> Option<(Instant, Packed)> {
        let (mut level, mut slot) = self.first_slot()?;
        if level > 0 {
            self.spread(level, slot);
            (level, slot) = self.first_slot()?;
        }
        let taken = self.remove(level, slot);
        self.last = taken.0.0;
        Some(taken)
    }

    /// Removes the earliest event if that moves no other. Later events may still be at any time that is not before that
    /// of the last event `take` returned.
    pub fn take_ahead(&mut self) -> Option<(Instant, Packed)> {
        let (level, slot) = self.first_slot()?;
        (level == 0).then(|| self.remove(level, slot))
    }

    /// Removes the first event of a list.
    #[inline]
    fn remove(&mut self, level: usize, slot: usize) -> (Instant, Packed) {
        let list = &mut self.levels[level].slots[slot];
        let first = list.first;
        let entry = &mut self.entries[first as usize];
        let (at, event) = (entry.at, entry.event);
        list.first = std::mem::replace(&mut entry.next, self.unused);
        let emptied = list.first == NONE;
        self.unused = first;
        if emptied {
            self.clear(level, slot);
        }
        (at, event)
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

    /// An entry that is in no list yet.
    #[inline]
    fn entry(&mut self, at: Instant, event: Packed) -> u32 {
        debug_assert!(at.0 >= self.last, "an event in the past");
        let (entry, index) = (Entry { at, event, next: NONE }, self.unused);
        if let Some(unused) = self.entries.get_mut(index as usize) {
            self.unused = unused.next;
            *unused = entry;
            return index;
        }
        self.entries.push(entry);
        self.entries.len() as u32 - 1
    }

    /// The level and the slot of a time.
    #[inline]
    fn place(&self, at: Instant) -> (usize, usize) {
        let differs = at.0 ^ self.last;
        // Most events are in the lowest level.
        let number = if differs < SLOTS as u64 { 0 } else { (differs.ilog2() / DIGIT) as usize };
        (number, (at.0 >> (number as u32 * DIGIT)) as usize % SLOTS)
    }

    /// Appends an entry to the list of its time.
    #[inline]
    fn append(&mut self, index: u32, at: Instant) {
        let (number, slot) = self.place(at);
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
