//! Times to pin pages and to remap them, by their number. All pages are present, of 4096 bytes each, and no huge pages.

use super::timing::median;
use anyhow::{Result, ensure};
use serde::Serialize;
use std::ffi::c_void;
use std::io;
use std::ptr;
use std::time::Instant;

const PAGE: usize = 4096;
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
    let (here, there) = (Area::new(pages)?, Area::new(pages)?);
    let (mut pins, mut unpins, mut remaps) = (vec![], vec![], vec![]);
    for _ in 0..RUNS {
        // SAFETY: pinning changes neither the bytes nor the mapping.
        let (pin, result) = timed(|| unsafe { libc::mlock(here.start, here.bytes()) });
        if result != 0 {
            break;
        }
        // SAFETY: as above.
        let (unpin, result) = timed(|| unsafe { libc::munlock(here.start, here.bytes()) });
        ensure!(result == 0, "munlock: {}", io::Error::last_os_error());
        pins.push(pin);
        unpins.push(unpin);
    }
    for _ in 0..RUNS {
        // There and back. What was at the new address goes first, which is not part of the time.
        for (from, to) in [(&here, &there), (&there, &here)] {
            remaps.push(from.moved_to(to)?);
        }
    }
    let us = |times: Vec<f64>| (!times.is_empty()).then(|| median(times) * 1e6);
    let remap = us(remaps).unwrap_or(f64::NAN);
    ensure!(here.first() == 1 && there.first() == 0, "remapped pages have other bytes than before");
    Ok(Pages { pages, pin: us(pins), unpin: us(unpins), remap })
}

fn timed<T>(job: impl FnOnce() -> T) -> (f64, T) {
    let begin = Instant::now();
    let value = job();
    (begin.elapsed().as_secs_f64(), value)
}

/// Pages that are present.
struct Area {
    start: *mut c_void,
    pages: usize,
}

impl Area {
    fn new(pages: usize) -> Result<Area> {
        let start = mapped(ptr::null_mut(), pages * PAGE)?;
        let area = Area { start, pages };
        // SAFETY: the area is mapped for writing, and used here only.
        unsafe { start.cast::<u8>().write_bytes(1, area.bytes()) };
        Ok(area)
    }

    fn bytes(&self) -> usize {
        self.pages * PAGE
    }

    fn first(&self) -> u8 {
        // SAFETY: the area is mapped.
        unsafe { self.start.cast::<u8>().read() }
    }

    /// Moves its pages to another area, whose own pages go; seconds of the call. Its address is mapped again.
    fn moved_to(&self, to: &Area) -> Result<f64> {
        // SAFETY: the other area is mapped again by the move.
        let result = unsafe { libc::munmap(to.start, to.bytes()) };
        ensure!(result == 0, "munmap: {}", io::Error::last_os_error());
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both ranges are those of areas, and no reference to them is held.
        let (taken, moved) = timed(|| unsafe { libc::mremap(self.start, self.bytes(), self.bytes(), flags, to.start) });
        ensure!(moved == to.start, "mremap: {}", io::Error::last_os_error());
        mapped(self.start, self.bytes())?;
        Ok(taken)
    }
}

/// New pages without huge ones, at this address if it is not null: there must be nothing.
fn mapped(at: *mut c_void, bytes: usize) -> Result<*mut c_void> {
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED_NOREPLACE };
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed);
    // SAFETY: a new mapping that replaces none.
    let start = unsafe { libc::mmap(at, bytes, protection, flags, -1, 0) };
    ensure!(start != libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
    // SAFETY: the advice does not change the bytes. A kernel without huge pages refuses it, and it is not needed there.
    unsafe { libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) };
    Ok(start)
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the area is used no more.
        unsafe { libc::munmap(self.start, self.bytes()) };
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
