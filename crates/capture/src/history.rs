//! The history of a recorder: the last frames stay in the ring, and the oldest leave it, until a mark says that
//! something happened. Then the ring's reading end goes to the thread, which writes what came before the mark, and what
//! comes in the second after it. After that the reading end comes back: this is an excerpt of the file.
//!
//! The end changes hands under a mutex that is held only for the move. The data path never waits for it.

use crate::block::{LENGTH_AT, START};
use rtrb::{Consumer, Producer};
use std::fmt::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// An excerpt lasts so long after the last mark in it.
pub const AFTER: Duration = Duration::from_secs(1);
/// The most excerpts of a file.
pub const MOST_EXCERPTS: u32 = 8;

/// The data path's part.
pub struct History {
    /// So many bytes stay in the ring.
    keep: usize,
    state: State,
    /// The last mark, and whether no frame has it as a comment yet.
    mark: Text,
    is_pending: bool,
}

enum State {
    /// Marks start an excerpt; the ring drops its oldest frames.
    Armed(Consumer<u8>),
    /// The thread has the reading end.
    Writing,
    /// All excerpts are written, or the file cannot be written: nothing is recorded any more.
    Done,
}

/// What passes between data path and thread.
#[derive(Default)]
pub struct Handover {
    excerpt: Mutex<Option<Excerpt>>,
    /// The reading end, and the value of `until` by which the excerpt ended.
    back: Mutex<Option<(Consumer<u8>, u64)>>,
    has_excerpt: AtomicBool,
    has_back: AtomicBool,
    /// The thread will begin no excerpt any more.
    done: AtomicBool,
    /// When the excerpt ends, nanoseconds since 1970.
    until: AtomicU64,
}

/// An excerpt that begins.
pub struct Excerpt {
    pub source: Consumer<u8>,
    /// The mark.
    pub text: Text,
    /// When it was set, nanoseconds since 1970.
    pub at: u64,
    /// Bytes in the ring then.
    pub before: u64,
}

/// A short text without an allocation.
#[derive(Clone, Copy)]
pub struct Text {
    bytes: [u8; 480],
    len: usize,
}

impl History {
    /// The history of a ring, of which `keep` bytes stay.
    pub fn new(keep: usize, source: Consumer<u8>) -> History {
        History { keep, state: State::Armed(source), mark: Text::default(), is_pending: false }
    }

    /// Whether frames are recorded.
    pub fn records(&self) -> bool {
        !matches!(self.state, State::Done)
    }

    /// Whether the thread takes frames out of the ring.
    pub fn is_read(&self) -> bool {
        matches!(self.state, State::Writing)
    }

    /// Makes room for `bytes` more, if the ring is not with the thread: the oldest frames leave it.
    pub fn make_room(&mut self, bytes: usize) {
        let State::Armed(source) = &mut self.state else { return };
        let mut used = source.slots();
        while used > 0 && used + bytes > self.keep {
            let Some(block) = first_block(source) else { return };
            let Ok(chunk) = source.read_chunk(block) else { return };
            chunk.commit_all();
            used -= block;
        }
    }

    /// Takes the ring back when its excerpt is over. A mark that came when the excerpt had just ended begins another.
    pub fn look_for_return(&mut self, handover: &Handover) -> bool {
        if !self.is_read() {
            return false;
        }
        if handover.done.load(Ordering::Relaxed) {
            self.state = State::Done;
            return false;
        }
        if !handover.has_back.load(Ordering::Acquire) {
            return false;
        }
        let Some((source, until)) = handover.back.try_lock().ok().and_then(|mut back| back.take()) else {
            return false;
        };
        handover.has_back.store(false, Ordering::Relaxed);
        self.state = State::Armed(source);
        let missed = handover.until.load(Ordering::Relaxed);
        missed != until && self.begin(handover, missed.saturating_sub(AFTER.as_nanos() as u64))
    }

    /// Something happened at `now`. Returns whether the thread has something to do.
    pub fn set_mark(&mut self, handover: &Handover, what: &dyn fmt::Display, now: u64) -> bool {
        if !self.records() {
            return false;
        }
        if self.is_pending {
            let _ = write!(self.mark, "; ");
        } else {
            self.mark = Text::default();
        }
        let _ = write!(self.mark, "{what}");
        self.is_pending = true;
        match self.state {
            State::Armed(_) => self.begin(handover, now),
            State::Writing => {
                handover.until.store(now + AFTER.as_nanos() as u64, Ordering::Relaxed);
                false
            }
            State::Done => false,
        }
    }

    /// The mark for the next frame, once.
    pub fn take_mark(&mut self) -> Option<Text> {
        // An excerpt that begins later needs the text, too.
        std::mem::take(&mut self.is_pending).then_some(self.mark)
    }

    fn begin(&mut self, handover: &Handover, at: u64) -> bool {
        // The thread locks it only when there is an excerpt.
        let Ok(mut excerpt) = handover.excerpt.try_lock() else { return false };
        match std::mem::replace(&mut self.state, State::Writing) {
            State::Armed(source) => {
                handover.until.store(at + AFTER.as_nanos() as u64, Ordering::Relaxed);
                let before = source.slots() as u64;
                *excerpt = Some(Excerpt { source, text: self.mark, at, before });
                handover.has_excerpt.store(true, Ordering::Release);
                true
            }
            other => {
                self.state = other;
                false
            }
        }
    }
}

impl Handover {
    /// Whether an excerpt waits for the thread.
    pub fn has_excerpt(&self) -> bool {
        self.has_excerpt.load(Ordering::Acquire)
    }

    /// The thread takes an excerpt.
    pub fn take_excerpt(&self) -> Option<Excerpt> {
        if !self.has_excerpt.swap(false, Ordering::AcqRel) {
            return None;
        }
        self.excerpt.lock().ok()?.take()
    }

    /// When the excerpt ends, nanoseconds since 1970.
    pub fn until(&self) -> u64 {
        self.until.load(Ordering::Relaxed)
    }

    /// The excerpt is over, at the time `until`; `last`: it was the last.
    pub fn give_back(&self, source: Consumer<u8>, until: u64, last: bool) {
        if last {
            self.done.store(true, Ordering::Relaxed);
        } else if let Ok(mut back) = self.back.lock() {
            *back = Some((source, until));
            self.has_back.store(true, Ordering::Release);
        }
    }
}

impl Default for Text {
    fn default() -> Self {
        Text { bytes: [0; 480], len: 0 }
    }
}

impl Text {
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl Write for Text {
    /// What does not fit is left out.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let text = crate::block::prefix(text, self.bytes.len() - self.len);
        self.bytes[self.len..self.len + text.len()].copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

/// Moves blocks of a batch into a ring, as many as fit; returns the rest.
pub fn push_blocks<'a>(ring: &mut Producer<u8>, mut blocks: &'a [u8]) -> &'a [u8] {
    while let Some(len) = blocks.get(LENGTH_AT..START).map(length) {
        if ring.push_entire_slice(&blocks[..len]).is_err() {
            break;
        }
        blocks = &blocks[len..];
    }
    blocks
}

/// The number of blocks in a batch.
pub fn count_blocks(mut blocks: &[u8]) -> u64 {
    let mut count = 0;
    while let Some(len) = blocks.get(LENGTH_AT..START).map(length) {
        blocks = &blocks[len..];
        count += 1;
    }
    count
}

/// The length of the oldest block.
fn first_block(source: &mut Consumer<u8>) -> Option<usize> {
    let start = source.read_chunk(START).ok()?;
    let (first, second) = start.as_slices();
    // Blocks and ring are multiples of four long.
    Some(length(if first.len() == START { &first[LENGTH_AT..] } else { &second[..START - LENGTH_AT] }))
}

fn length(bytes: &[u8]) -> usize {
    bytes.iter().take(START - LENGTH_AT).rev().fold(0, |number, byte| number << 8 | usize::from(*byte)).max(START)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rtrb::RingBuffer;

    fn block(len: usize, fill: u8) -> Vec<u8> {
        let mut block = vec![fill; len];
        block[LENGTH_AT..START].copy_from_slice(&(len as u32).to_le_bytes());
        block
    }

    fn push(history: &mut History, ring: &mut Producer<u8>, block: &[u8]) {
        history.make_room(block.len());
        ring.push_entire_slice(block).expect("make_room made room");
    }

    #[test]
    fn the_oldest_blocks_leave_as_wholes() {
        let (mut ring, source) = RingBuffer::new(116);
        let mut history = History::new(100, source);
        let mut all = Vec::new();
        for n in 0..100u8 {
            let block = block(12 + 4 * usize::from(n % 5), n);
            push(&mut history, &mut ring, &block);
            all.extend(block);
            let State::Armed(source) = &mut history.state else { panic!("no mark was set") };
            let used = source.slots();
            assert!(used <= 100 && (used > 100 - 28 || all.len() <= 100), "{used} bytes");
            let chunk = source.read_chunk(used).unwrap();
            let (first, second) = chunk.as_slices();
            assert_eq!([first, second].concat(), all[all.len() - used..]);
        }
    }

    #[test]
    fn the_ring_goes_to_the_thread_at_a_mark_and_comes_back_after_its_excerpt() {
        let (mut ring, source) = RingBuffer::new(256);
        let (mut history, handover) = (History::new(128, source), Handover::default());
        push(&mut history, &mut ring, &block(64, 1));
        assert!(!handover.has_excerpt());
        assert!(history.set_mark(&handover, &"first", 1000));
        assert!(history.is_read() && handover.has_excerpt());
        let mut excerpt = handover.take_excerpt().unwrap();
        assert_eq!((excerpt.text.as_str(), excerpt.at, excerpt.source.slots()), ("first", 1000, 64));
        assert!(handover.take_excerpt().is_none());
        assert_eq!(history.take_mark().unwrap().as_str(), "first");
        assert!(history.take_mark().is_none());

        // Frames after the mark go to the thread, and another mark makes the excerpt longer.
        push(&mut history, &mut ring, &block(64, 2));
        assert_eq!(excerpt.source.slots(), 128);
        assert!(!history.set_mark(&handover, &"second", 2000));
        assert_eq!(handover.until(), 2000 + AFTER.as_nanos() as u64);
        assert!(!history.look_for_return(&handover) && history.is_read());
        excerpt.source.read_chunk(64).unwrap().commit_all();
        handover.give_back(excerpt.source, handover.until(), false);
        assert!(!history.look_for_return(&handover) && !history.is_read());
        assert!(history.set_mark(&handover, &"third", 3000));
        let excerpt = handover.take_excerpt().unwrap();
        assert_eq!((excerpt.text.as_str(), excerpt.source.slots()), ("second; third", 64));

        handover.give_back(excerpt.source, handover.until(), true);
        assert!(!history.look_for_return(&handover));
        assert!(!history.records() && !history.set_mark(&handover, &"fourth", 4000));
    }

    #[test]
    fn a_mark_while_the_excerpt_ends_begins_another() {
        let (_ring, source) = RingBuffer::new(256);
        let (mut history, handover) = (History::new(128, source), Handover::default());
        history.set_mark(&handover, &"first", 1000);
        let excerpt = handover.take_excerpt().unwrap();
        let until = handover.until();
        history.set_mark(&handover, &"second", 2000);
        assert_eq!(history.take_mark().unwrap().as_str(), "first; second");
        assert!(history.take_mark().is_none());
        handover.give_back(excerpt.source, until, false);
        assert!(history.look_for_return(&handover), "the thread has an excerpt to write");
        let excerpt = handover.take_excerpt().unwrap();
        assert_eq!((excerpt.text.as_str(), excerpt.at), ("first; second", 2000));
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let mut text = Text::default();
        write!(text, "{}", "é".repeat(400)).unwrap();
        assert_eq!(text.as_str(), "é".repeat(240));
    }
}
