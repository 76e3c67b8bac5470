//! The thread that writes a recorder's ring to its file. The ring holds complete blocks, so it only moves bytes.

use crate::block::{self, InterfaceInfo, LENGTH_AT, RecordedInterface, START};
use crate::history::{Excerpt, MOST_EXCERPTS};
use crate::kept::{Descriptors, Kept};
use crate::shared::Shared;
use crate::wake::Sleeper;
use rtrb::Consumer;
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Opens the file of a recorder with a history, when there is something to write.
pub type Open = Box<dyn FnMut() -> io::Result<File> + Send>;

/// The state of the writing thread.
pub struct Drain {
    pub shared: Arc<Shared>,
    pub sleeper: Sleeper,
    pub info: OwnedInfo,
    pub open: Open,
    pub descriptors: Descriptors,
    /// The ring's reading end; a recorder with a history has it now and then.
    pub source: Option<Consumer<u8>>,
    /// The file, once it is open.
    pub file: Option<Blocks>,
    /// The recorder has a history of so many bytes.
    pub history: Option<usize>,
    pub section: Section,
    pub excerpts: u32,
    pub failure: Option<io::Error>,
}

/// What a section says about its interfaces.
pub struct OwnedInfo {
    /// Their names and MAC addresses; one at least.
    pub interfaces: Vec<(String, Option<[u8; 6]>)>,
    pub description: String,
    pub application: String,
    pub snap: u32,
}

/// What was written of the present section.
#[derive(Default)]
pub struct Section {
    /// When it began, nanoseconds since 1970.
    started: u64,
    written: u64,
    /// Frames that were dropped before it.
    dropped_before: u64,
    /// What its last statistics say: when, and frames that were written and dropped.
    stated: (u64, u64, u64),
    /// Bytes that may still be written in this excerpt.
    left: u64,
}

/// A file of complete blocks: after a failed write it is truncated to the last complete one.
pub struct Blocks {
    file: Kept<File>,
    whole: u64,
}

/// Blocks that are written together, bytes: a write frees its part of the ring only at its end.
const AT_ONCE: usize = 1 << 20;
/// Time between two looks at the ring while frames come.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Time between two statistics in a section, nanoseconds.
const STATE_EVERY: u64 = 1_000_000_000;

impl Drain {
    pub fn run(mut self) -> io::Result<()> {
        loop {
            let stop = self.shared.stop.load(Ordering::Acquire);
            let asked = self.shared.asked.load(Ordering::Acquire);
            self.shared.nudged.store(false, Ordering::Relaxed);
            if self.source.is_none()
                && let Some(excerpt) = self.shared.handover.take_excerpt()
            {
                self.begin(excerpt);
            }
            let wrote = self.write_all();
            if wrote {
                self.state(false);
            }
            let asks = asked > self.shared.flushed.load(Ordering::Relaxed);
            if asks || stop {
                self.state(true);
            }
            if asks {
                self.shared.flushed.store(asked, Ordering::Release);
            }
            if stop {
                return self.failure.map_or(Ok(()), Err);
            }
            let until = self.shared.handover.until();
            let over = self.history.is_some() && (wall_clock() >= until || self.section.left == 0);
            if over && let Some(source) = self.source.take() {
                self.state(true);
                let last = self.excerpts >= MOST_EXCERPTS || self.failure.is_some();
                self.shared.handover.give_back(source, until, last);
                continue;
            }
            if wrote || (self.source.is_some() && self.history.is_some()) {
                self.sleeper.sleep(Some(LOOK_EVERY));
            } else {
                self.sleep();
            }
        }
    }

    /// Sleeps until a frame arrives; the first frame after a pause wakes this thread.
    fn sleep(&mut self) {
        let shared = &self.shared;
        shared.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let asked = shared.asked.load(Ordering::Acquire) > shared.flushed.load(Ordering::Relaxed);
        let idle = self.source.as_ref().is_none_or(Consumer::is_empty) && !shared.handover.has_excerpt();
        if idle && !asked && !shared.stop.load(Ordering::Acquire) {
            self.sleeper.sleep(None);
        }
        self.shared.asleep.store(false, Ordering::Relaxed);
    }

    /// Begins a section with what a mark says.
    fn begin(&mut self, excerpt: Excerpt) {
        let text = format!("{}: {}", time(excerpt.at), excerpt.text.as_str());
        if self.file.is_none() && self.failure.is_none() {
            match (self.open)() {
                Ok(file) => self.file = Some(Blocks::new(file, self.descriptors)),
                Err(error) => self.failure = Some(error),
            }
        }
        self.excerpts += 1;
        self.source = Some(excerpt.source);
        // As much after the mark as before it.
        self.start(&text, excerpt.before + self.history.unwrap_or(0) as u64);
    }

    /// Starts a section of so many bytes.
    pub fn start(&mut self, comment: &str, left: u64) {
        let OwnedInfo { interfaces, description, application, snap } = &self.info;
        let (started, dropped_before) = (wall_clock(), self.shared.dropped.load(Ordering::Relaxed));
        self.section = Section { started, dropped_before, left, stated: (started, 0, 0), ..Section::default() };
        let mut head = Vec::new();
        let name = interfaces.first().map_or("", |(name, _)| name);
        let info = InterfaceInfo { name, description, application };
        if interfaces.len() > 1 {
            let all = interfaces.iter().map(|(name, mac)| RecordedInterface { name, mac: *mac });
            block::section_of_several(&mut head, &info, all, *snap, comment);
        } else {
            block::section(&mut head, &info, *snap, comment);
        }
        self.write(&head, &[]);
    }

    /// Writes what is in the ring; returns whether there was anything.
    fn write_all(&mut self) -> bool {
        let mut wrote = false;
        while let Some(mut source) = self.source.take() {
            let more = self.write_some(&mut source);
            self.source = Some(source);
            wrote |= more;
            if !more || self.section.left == 0 {
                break;
            }
        }
        wrote
    }

    fn write_some(&mut self, source: &mut Consumer<u8>) -> bool {
        let Ok(chunk) = source.read_chunk(source.slots()) else { return false };
        let (first, second) = chunk.as_slices();
        let (bytes, frames) = whole_blocks(first, second, self.section.left.min(AT_ONCE as u64) as usize);
        let cut = bytes.min(first.len());
        let written = self.write(&first[..cut], &second[..bytes - cut]);
        self.shared.written.fetch_add(written, Ordering::Relaxed);
        self.shared.dropped.fetch_add(frames - written, Ordering::Relaxed);
        self.section.written += written;
        self.section.left = self.section.left.saturating_sub(bytes as u64);
        chunk.commit(bytes);
        bytes > 0
    }

    /// Writes both; returns the number of blocks that are in the file, not all of them if writing failed now or before.
    fn write(&mut self, first: &[u8], second: &[u8]) -> u64 {
        let Some(file) = self.file.as_mut().filter(|_| self.failure.is_none()) else { return 0 };
        let (blocks, outcome) = file.write(first, second);
        self.failure = outcome.err();
        blocks
    }

    /// Adds statistics to the section, unless the last ones are still right; often enough, or now.
    fn state(&mut self, now: bool) {
        let Section { started, written, dropped_before, stated, .. } = self.section;
        let dropped = self.shared.dropped.load(Ordering::Relaxed) - dropped_before;
        let time = wall_clock();
        let is_due = now || time - stated.0.min(time) >= STATE_EVERY;
        if is_due && (written, dropped) != (stated.1, stated.2) {
            self.section.stated = (time, written, dropped);
            let mut statistics = Vec::with_capacity(128);
            block::statistics(&mut statistics, (started, time), written + dropped, dropped);
            self.write(&statistics, &[]);
        }
    }
}

impl Blocks {
    pub fn new(file: File, descriptors: Descriptors) -> Blocks {
        Blocks { file: Kept::new(file, descriptors), whole: 0 }
    }

    /// Returns the number of blocks that are in the file.
    fn write(&mut self, first: &[u8], second: &[u8]) -> (u64, io::Result<()>) {
        if let Err(error) = self.file.check() {
            return (0, Err(error));
        }
        let outcome = self.write_both(first, second);
        let written = match &outcome {
            Ok(()) => first.len() + second.len(),
            // The disk had room for some of them. Pipes have no position.
            Err(_) => self.file.stream_position().map_or(0, |at| at.saturating_sub(self.whole) as usize),
        };
        let (whole, blocks) = blocks_within(first, second, written);
        self.whole += whole as u64;
        if outcome.is_err() {
            // Pipes cannot be truncated; the first error is the one to report.
            let _ = self.file.set_len(self.whole).and_then(|()| self.file.seek(SeekFrom::Start(self.whole)));
        }
        (blocks, outcome)
    }

    /// With one system call if possible: a process that is killed leaves no part of a block.
    fn write_both(&mut self, first: &[u8], second: &[u8]) -> io::Result<()> {
        let written = loop {
            match self.file.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                outcome => break outcome?,
            }
        };
        self.file.write_all(&first[written.min(first.len())..])?;
        self.file.write_all(&second[written.saturating_sub(first.len())..])
    }
}

/// The bytes of whole blocks at the front of two slices that follow each other, up to `most` and one at least, and the
/// number of these blocks.
fn whole_blocks(first: &[u8], second: &[u8], most: usize) -> (usize, u64) {
    let (mut bytes, mut frames) = (0, 0);
    while bytes < most
        && let Some(length) = length_at(first, second, bytes)
    {
        bytes += length;
        frames += 1;
    }
    (bytes.min(first.len() + second.len()), frames)
}

/// As [`whole_blocks`], of blocks that lie within `most` bytes.
fn blocks_within(first: &[u8], second: &[u8], most: usize) -> (usize, u64) {
    let (mut bytes, mut blocks) = (0, 0);
    while let Some(length) = length_at(first, second, bytes).filter(|length| bytes + length <= most) {
        bytes += length;
        blocks += 1;
    }
    (bytes, blocks)
}

/// The length of the block that begins at this place of two slices that follow each other.
fn length_at(first: &[u8], second: &[u8], block: usize) -> Option<usize> {
    let at = block + LENGTH_AT;
    // Blocks and ring are multiples of four long.
    let word = first.get(at..at + 4).or_else(|| {
        let at = at.checked_sub(first.len())?;
        second.get(at..at + 4)
    })?;
    Some((u32::from_le_bytes(*word.first_chunk()?) as usize).max(START))
}

/// Nanoseconds since 1970.
pub fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// A time as text: UTC, with milliseconds.
fn time(nanoseconds: u64) -> String {
    let (seconds, rest) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March, so that the leap day is the last; 719,468 days from then in the year 0 to 1970.
    let days = days + 719_468;
    let era = days / 146_097;
    let day = days % 146_097;
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year + u64::from(month >= 10);
    let month = if month < 10 { month + 3 } else { month - 9 };
    let (hour, minute, second, ms) = (second / 3600, second / 60 % 60, second % 60, rest / 1_000_000);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{ms:03} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00.000 UTC"),
            (951_782_399, "2000-02-28 23:59:59.000 UTC"),
            (951_782_400, "2000-02-29 00:00:00.000 UTC"),
            (951_868_800, "2000-03-01 00:00:00.000 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59.000 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00.000 UTC"),
        ] {
            assert_eq!(time(seconds * 1_000_000_000), text);
        }
        assert_eq!(time(1_764_085_496_123_456_789), "2025-11-25 15:44:56.123 UTC");
    }

    #[test]
    fn whole_blocks_of_a_ring_that_wraps() {
        let block = |len: usize| {
            let mut block = vec![0; len];
            block[LENGTH_AT..START].copy_from_slice(&(len as u32).to_le_bytes());
            block
        };
        let all = [block(12), block(20), block(40)].concat();
        for cut in (0..=all.len()).step_by(4) {
            let (first, second) = all.split_at(cut);
            for (most, expected) in [(1, (12, 1)), (12, (12, 1)), (13, (32, 2)), (33, (72, 3)), (1000, (72, 3))] {
                assert_eq!(whole_blocks(first, second, most), expected, "cut at {cut}, {most} at most");
            }
        }
        assert_eq!(whole_blocks(&[], &[], 10), (0, 0));
        let (first, second) = all.split_at(16);
        for (most, expected) in [(11, (0, 0)), (12, (12, 1)), (31, (12, 1)), (32, (32, 2)), (1000, (72, 3))] {
            assert_eq!(blocks_within(first, second, most), expected, "{most} at most");
        }
    }
}
