//! Times to pin pages and to remap them, by their number. All pages are present, of 4096 bytes each, and no huge pages.

use super::timing::median;
use anyhow::{Result, ensure};
use serde::Serialize;
use std::ffi::c_void;
use std::io;
use std::ptr;
use std::time::Instant;

const PAGE: usize = 4096;
/// What one page table describes: 512 pages.
const TABLE: usize = 512 * PAGE;
/// Pages lie so much further in the one table than in the other.
const ASIDE: usize = 17 * PAGE;
/// Numbers of pages.
const COUNTS: [usize; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
/// Runs of each, of which the median counts.
const RUNS: usize = 101;

/// Times of so many pages in one call, microseconds.
#[derive(Debug, Serialize)]
pub struct Pages {
    pub pages: usize,
    /// mlock(2). `None`: more than this process may lock.
    pub pin: Option<f64>,
    /// munlock(2).
    pub unpin: Option<f64>,
    /// mremap(2) to another address.
    pub remap: f64,
}

/// Measures all of it.
pub fn measure() -> Result<Vec<Pages>> {
    COUNTS.iter().map(|&pages| of(pages)).collect()
}

fn of(pages: usize) -> Result<Pages> {
    let range = Range::new()?;
    // If both had the same place in a page table and filled it, the kernel would move the table in place of its entries.
    let (here, there) = (range.area(0, pages), range.area(TABLE + ASIDE, pages));
    here.fill();
    let (mut pins, mut unpins, mut remaps) = (vec![], vec![], vec![]);
    for _ in 0..RUNS {
        // SAFETY: pinning changes neither the bytes nor the mapping.
        let (pin, result) = timed(|| unsafe { libc::mlock(here.start, here.bytes) });
        if result != 0 {
            break;
        }
        // SAFETY: as above.
        let (unpin, result) = timed(|| unsafe { libc::munlock(here.start, here.bytes) });
        ensure!(result == 0, "munlock: {}", io::Error::last_os_error());
        pins.push(pin);
        unpins.push(unpin);
    }
    for _ in 0..RUNS {
        // There and back.
        for (from, to) in [(&here, &there), (&there, &here)] {
            remaps.push(from.moved_to(to)?);
        }
    }
    ensure!(here.first() == 1, "remapped pages have other bytes than before");
    let us = |times: Vec<f64>| (!times.is_empty()).then(|| median(times) * 1e6);
    Ok(Pages { pages, pin: us(pins), unpin: us(unpins), remap: us(remaps).unwrap_or(f64::NAN) })
}

fn timed<T>(job: impl FnOnce() -> T) -> (f64, T) {
    let begin = Instant::now();
    let value = job();
    (begin.elapsed().as_secs_f64(), value)
}

/// Addresses that are mapped, without pages and without huge ones.
struct Range {
    start: *mut c_void,
}

impl Range {
    /// Room for an area at the beginning of a table, and another one behind it.
    const BYTES: usize = 5 * TABLE;

    fn new() -> Result<Range> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), Self::BYTES, protection, flags, -1, 0) };
        ensure!(start != libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        // SAFETY: the advice does not change the bytes. A kernel without huge pages refuses it, and it is not needed there.
        unsafe { libc::madvise(start, Self::BYTES, libc::MADV_NOHUGEPAGE) };
        Ok(Range { start })
    }

    /// So many pages, so far from the beginning of a table.
    fn area(&self, at: usize, pages: usize) -> Area<'_> {
        let first = self.start.wrapping_byte_add(self.start.cast::<u8>().align_offset(TABLE));
        Area { start: first.wrapping_byte_add(at), bytes: pages * PAGE, _range: self }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range is used no more.
        unsafe { libc::munmap(self.start, Self::BYTES) };
    }
}

/// Some pages of a range. They are always mapped, so that no other thread maps something there.
struct Area<'a> {
    start: *mut c_void,
    bytes: usize,
    _range: &'a Range,
}

impl Area<'_> {
    /// Makes its pages present.
    fn fill(&self) {
        // SAFETY: the area is mapped for writing, and used here only.
        unsafe { self.start.cast::<u8>().write_bytes(1, self.bytes) };
    }

    fn first(&self) -> u8 {
        // SAFETY: the area is mapped.
        unsafe { self.start.cast::<u8>().read() }
    }

    /// Moves its pages to another area that has none; seconds of the call.
    fn moved_to(&self, to: &Area<'_>) -> Result<f64> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: both are mapped areas of one range, and no reference to them is held.
        let (taken, moved) = timed(|| unsafe { libc::mremap(self.start, self.bytes, self.bytes, flags, to.start) });
        ensure!(moved == to.start, "mremap, which needs Linux 5.7: {}", io::Error::last_os_error());
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_pinned_and_remapped() {
        let few = of(4).unwrap();
        assert!(few.remap > 0.0 && few.pin.is_none_or(|us| us > 0.0), "{few:?}");
    }
}
