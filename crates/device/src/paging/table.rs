//! The adapter's translation table of a region: which pages it may read and write without a network page fault.
//! Initially empty. Reads take no lock; callers that change it synchronise among themselves (see `invalidate`).

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Bytes of a page. A huge page counts as many pages.
pub const PAGE: u64 = 4096;

/// The numbers of all pages that contain bytes of `addr .. addr + len`.
pub fn pages_of(addr: u64, len: u64) -> Range<u64> {
    let end = addr.saturating_add(len);
    let last = end / PAGE + u64::from(!end.is_multiple_of(PAGE));
    addr / PAGE..last.max(addr / PAGE)
}

/// Presence of pages, each readable, or readable and writable.
pub struct Table {
    /// Page numbers that it covers.
    pages: Range<u64>,
    /// Pointers to chunks, from the chunk of the first page on; chunks are allocated when they are first needed.
    chunks: NonNull<AtomicPtr<Chunk>>,
    count: usize,
    /// Number of present pages.
    present: AtomicU64,
}

/// Words of 32 pages each: the lower 32 bits say which may be read, the upper 32 bits which may also be written.
type Chunk = [AtomicU64; WORDS];

const WORDS: usize = 512;
const PAGES_OF_WORD: u64 = 32;
const PAGES_OF_CHUNK: u64 = WORDS as u64 * PAGES_OF_WORD;

// SAFETY: chunks are reached by atomic pointers, and freed with the table only.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    /// An empty table for the pages of `len` bytes at `addr`. `None` if there is no memory for it.
    pub fn new(addr: u64, len: u64) -> Option<Table> {
        let pages = pages_of(addr, len);
        let count = (pages.end.div_ceil(PAGES_OF_CHUNK) - pages.start / PAGES_OF_CHUNK).max(1) as usize;
        // For the whole address space these are 16 MiB, which the kernel allocates as they are touched.
        let layout = Layout::array::<AtomicPtr<Chunk>>(count).ok()?;
        // SAFETY: the size is not zero; zeros are null pointers.
        let chunks = NonNull::new(unsafe { alloc_zeroed(layout) }.cast())?;
        Some(Table { pages, chunks, count, present: AtomicU64::new(0) })
    }

    /// Page numbers that it covers.
    pub fn pages(&self) -> Range<u64> {
        self.pages.clone()
    }

    /// Returns whether `len` bytes at `addr` are present, for writing or for reading. The hot path.
    #[inline]
    pub fn has(&self, addr: u64, len: u64, write: bool) -> bool {
        let Range { start, end } = pages_of(addr, len);
        let (word, bit) = (start / PAGES_OF_WORD, start % PAGES_OF_WORD);
        if end <= (word + 1) * PAGES_OF_WORD {
            // All pages are in one word, as the pages of a packet usually are.
            let mask = ones(end - start) << bit << if write { PAGES_OF_WORD } else { 0 };
            return self.word(start).is_some_and(|word| word.load(Ordering::Acquire) & mask == mask);
        }
        self.first_missing(start..end, write).is_none()
    }

    /// The first of these pages that is not present.
    pub fn first_missing(&self, pages: Range<u64>, write: bool) -> Option<u64> {
        let mut at = pages.start;
        while at < pages.end {
            let (first, mask, next) = step(at, pages.end);
            let value = self.word(at).map_or(0, |word| word.load(Ordering::Acquire));
            let present = if write { value >> PAGES_OF_WORD } else { value };
            let missing = mask & !present;
            if missing != 0 {
                return Some(first + u64::from(missing.trailing_zeros()));
            }
            at = next;
        }
        None
    }

    /// Allocates the chunks of these pages, so that entering them does not allocate. Returns false if there is no
    /// memory.
    #[must_use]
    pub fn make_room(&self, pages: Range<u64>) -> bool {
        let pages = self.within(pages);
        if pages.is_empty() {
            return true;
        }
        for number in pages.start / PAGES_OF_CHUNK..pages.end.div_ceil(PAGES_OF_CHUNK) {
            let entry = self.entry(number * PAGES_OF_CHUNK).expect("within bounds");
            if entry.load(Ordering::Acquire).is_null() {
                let layout = Layout::new::<Chunk>();
                // SAFETY: the size is not zero.
                let chunk = unsafe { alloc_zeroed(layout) }.cast::<Chunk>();
                if chunk.is_null() {
                    return false;
                }
                let null = std::ptr::null_mut();
                if entry.compare_exchange(null, chunk, Ordering::AcqRel, Ordering::Acquire).is_err() {
                    // SAFETY: no other thread has seen this chunk.
                    unsafe { dealloc(chunk.cast(), layout) };
                }
            }
        }
        true
    }

    /// Enters pages with existing chunks; pages out of bounds are skipped. Returns how many were not present before.
    pub fn enter(&self, pages: Range<u64>, write: bool) -> u64 {
        let pages = self.within(pages);
        let (mut at, mut new) = (pages.start, 0);
        while at < pages.end {
            let (_, mask, next) = step(at, pages.end);
            if let Some(word) = self.word(at) {
                let bits = if write { mask | mask << PAGES_OF_WORD } else { mask };
                let before = word.fetch_or(bits, Ordering::AcqRel);
                self.present.fetch_add(u64::from((mask & !before).count_ones()), Ordering::Relaxed);
                let before = if write { before >> PAGES_OF_WORD } else { before };
                new += u64::from((mask & !before).count_ones());
            }
            at = next;
        }
        new
    }

    /// Removes pages. Returns how many were present.
    pub fn clear(&self, pages: Range<u64>) -> u64 {
        let pages = self.within(pages);
        let (mut at, mut gone) = (pages.start, 0);
        while at < pages.end {
            let (_, mask, next) = step(at, pages.end);
            let Some(word) = self.word(at) else {
                // The chunk was never needed.
                at = (at / PAGES_OF_CHUNK + 1) * PAGES_OF_CHUNK;
                continue;
            };
            if word.load(Ordering::Acquire) & mask != 0 {
                let before = word.fetch_and(!(mask | mask << PAGES_OF_WORD), Ordering::AcqRel);
                gone += u64::from((before & mask).count_ones());
            }
            at = next;
        }
        self.present.fetch_sub(gone, Ordering::Relaxed);
        gone
    }

    /// Number of present pages.
    pub fn present(&self) -> u64 {
        self.present.load(Ordering::Relaxed)
    }

    fn within(&self, pages: Range<u64>) -> Range<u64> {
        let start = pages.start.max(self.pages.start);
        start..pages.end.min(self.pages.end).max(start)
    }

    #[inline]
    fn word(&self, page: u64) -> Option<&AtomicU64> {
        let chunk = self.entry(page)?.load(Ordering::Acquire);
        // SAFETY: a chunk lives as long as the table.
        let chunk = unsafe { chunk.as_ref() }?;
        Some(&chunk[(page / PAGES_OF_WORD) as usize % WORDS])
    }

    #[inline]
    fn entry(&self, page: u64) -> Option<&AtomicPtr<Chunk>> {
        let number = (page / PAGES_OF_CHUNK).checked_sub(self.pages.start / PAGES_OF_CHUNK)?;
        self.chunks().get(number as usize)
    }

    #[inline]
    fn chunks(&self) -> &[AtomicPtr<Chunk>] {
        // SAFETY: `count` pointers were allocated, and the table owns them.
        unsafe { std::slice::from_raw_parts(self.chunks.as_ptr(), self.count) }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // The whole address space has many pointers but few chunks: untouched pointers are only read.
        for entry in self.chunks() {
            let chunk = entry.load(Ordering::Acquire);
            if !chunk.is_null() {
                // SAFETY: allocated with this layout by `make_room`, and not used any more.
                unsafe { dealloc(chunk.cast(), Layout::new::<Chunk>()) };
            }
        }
        let layout = Layout::array::<AtomicPtr<Chunk>>(self.count).expect("it was allocated");
        // SAFETY: allocated with this layout by `new`.
        unsafe { dealloc(self.chunks.as_ptr().cast(), layout) };
    }
}

/// The first page of the word that contains `at`, the bits of `at .. end` in it, and the first page of the next step.
fn step(at: u64, end: u64) -> (u64, u64, u64) {
    let first = at - at % PAGES_OF_WORD;
    let next = end.min(first + PAGES_OF_WORD);
    (first, ones(next - at) << (at - first), next)
}

#[inline]
fn ones(count: u64) -> u64 {
    // `count` is at most 32.
    (1 << count) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(first: u64, pages: u64) -> Table {
        let table = Table::new(first * PAGE, pages * PAGE).unwrap();
        assert!(table.make_room(first..first + pages));
        table
    }

    #[test]
    fn pages_of_bytes_include_every_page_they_touch() {
        assert_eq!(pages_of(0, 1), 0..1);
        assert_eq!(pages_of(4095, 2), 0..2);
        assert_eq!(pages_of(8192, 4096), 2..3);
        assert_eq!(pages_of(u64::MAX - 1, 1), (1 << 52) - 1..1 << 52);
        assert!(pages_of(4096, 0).is_empty());
    }

    #[test]
    fn a_table_agrees_with_a_plain_list_for_random_ranges() {
        // Across words and across the boundary of two chunks.
        let first = PAGES_OF_CHUNK - 70;
        let table = table(first, 140);
        let (mut readable, mut writable) = ([false; 140], [false; 140]);
        let mut seed = 12345u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..20_000 {
            let start = random(140);
            let end = start + random(140 - start + 1);
            let (pages, list) = (first + start..first + end, start as usize..end as usize);
            let write = random(2) == 1;
            match random(4) {
                0 => {
                    let known = if write { &writable } else { &readable };
                    let new = known[list.clone()].iter().filter(|page| !**page).count() as u64;
                    assert_eq!(table.enter(pages, write), new);
                    readable[list.clone()].fill(true);
                    if write {
                        writable[list].fill(true);
                    }
                }
                1 => {
                    let gone = readable[list.clone()].iter().filter(|page| **page).count() as u64;
                    assert_eq!(table.clear(pages), gone);
                    readable[list.clone()].fill(false);
                    writable[list].fill(false);
                }
                _ => {
                    let known = if write { &writable } else { &readable };
                    let missing = known[list.clone()].iter().position(|page| !page).map(|at| first + start + at as u64);
                    assert_eq!(table.first_missing(pages.clone(), write), missing);
                    let bytes = (pages.end - pages.start) * PAGE;
                    assert_eq!(table.has(pages.start * PAGE, bytes, write), missing.is_none());
                }
            }
        }
        assert_eq!(table.present(), readable.iter().filter(|page| **page).count() as u64);
    }

    #[test]
    fn pages_out_of_bounds_are_never_present() {
        let table = table(100, 10);
        assert_eq!(table.enter(0..1000, true), 10);
        assert!(table.has(100 * PAGE, 10 * PAGE, true));
        for (start, end) in [(99, 101), (109, 111), (0, 1), (1 << 40, (1 << 40) + 1)] {
            assert!(!table.has(start * PAGE, (end - start) * PAGE, false), "{start}..{end}");
        }
        assert_eq!(table.clear(0..u64::MAX), 10);
    }

    #[test]
    fn a_table_of_the_whole_address_space_allocates_used_chunks_only() {
        let table = Table::new(0, 1 << 47).unwrap();
        let page = 0x7fff_1234_5678_u64 / PAGE;
        assert!(!table.has(page * PAGE, 8, false));
        assert!(table.make_room(page..page + 1));
        assert_eq!(table.enter(page..page + 1, false), 1);
        assert!(table.has(page * PAGE, 8, false));
        assert!(!table.has(page * PAGE, 8, true));
        assert_eq!((table.present(), table.clear(0..1 << 35)), (1, 1));
    }
}
