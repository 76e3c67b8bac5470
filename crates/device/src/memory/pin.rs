//! Pinning: registered memory is there, and stays as far as RLIMIT_MEMLOCK allows.
//!
//! `munlock` does not nest, and regions overlap: pages are counted, and unlocked when the last region goes.

use crate::Errno;
use crate::config::Memlock;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Populates and locks `len` bytes at `addr`. Errors: EFAULT if they are not mapped as needed; ENOMEM beyond the limit
/// where `memlock` is strict.
pub fn pin(addr: u64, len: u64, write: bool, memlock: Memlock) -> Result<Pinned, Errno> {
    let (start, end) = pages(addr, len);
    populate(start, end, write)?;
    let mut counts = COUNTS.lock().expect("no panic under this lock");
    // SAFETY: locking pages changes nothing but where they may go.
    let locked = start < end && unsafe { libc::mlock(start as *const libc::c_void, (end - start) as usize) } == 0;
    if !locked && memlock == Memlock::Strict && start < end {
        return Err(Errno(libc::ENOMEM));
    }
    if locked {
        counts.add(start, end);
    }
    Ok(Pinned { start, end, locked })
}

/// Pages that a region holds; dropping it lets them go.
#[derive(Debug)]
pub struct Pinned {
    start: u64,
    end: u64,
    locked: bool,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.locked {
            COUNTS.lock().expect("no panic under this lock").remove(self.start, self.end, |start, end| {
                // SAFETY: unlocking pages, mapped or not, touches no memory.
                unsafe { libc::munlock(start as *const libc::c_void, (end - start) as usize) };
            });
        }
    }
}

const PAGE: u64 = 4096;

fn pages(addr: u64, len: u64) -> (u64, u64) {
    let end = addr.saturating_add(len).div_ceil(PAGE).saturating_mul(PAGE);
    if len == 0 { (addr & !(PAGE - 1), addr & !(PAGE - 1)) } else { (addr & !(PAGE - 1), end) }
}

fn populate(start: u64, end: u64, write: bool) -> Result<(), Errno> {
    if start == end {
        return Ok(());
    }
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        // SAFETY: populating faults pages in, as touching them would, and reports instead of signalling.
        if unsafe { libc::madvise(start as *mut libc::c_void, (end - start) as usize, advice) } == 0 {
            return Ok(());
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // A kernel before 5.14 does not know the advice: pages come when they are first touched. One that does means
            // memory that must not be touched that way.
            Some(libc::EINVAL) if !advice_is_known(advice) => return Ok(()),
            _ => return Err(Errno(libc::EFAULT)),
        }
    }
}

fn advice_is_known(advice: libc::c_int) -> bool {
    // SAFETY: no bytes.
    unsafe { libc::madvise(PAGE as *mut libc::c_void, 0, advice) == 0 }
}

static COUNTS: Mutex<Counts> = Mutex::new(Counts { edges: BTreeMap::new() });

/// How many regions cover each page: at each key the count changes to the value, until the next key.
struct Counts {
    edges: BTreeMap<u64, u32>,
}

impl Counts {
    fn add(&mut self, start: u64, end: u64) {
        self.split(start);
        self.split(end);
        for (_, count) in self.edges.range_mut(start..end) {
            *count += 1;
        }
    }

    fn remove(&mut self, start: u64, end: u64, mut gone: impl FnMut(u64, u64)) {
        let edges: Vec<(u64, u32)> = self.edges.range(start..=end).map(|(at, count)| (*at, *count)).collect();
        for pair in edges.windows(2) {
            let [(from, count), (to, _)] = *pair else { unreachable!("windows of two") };
            self.edges.insert(from, count - 1);
            if count == 1 {
                gone(from, to);
            }
        }
        self.join(start, end);
    }

    fn split(&mut self, at: u64) {
        let count = self.edges.range(..=at).next_back().map_or(0, |(_, count)| *count);
        self.edges.entry(at).or_insert(count);
    }

    /// Drops edges at which nothing changes any more.
    fn join(&mut self, start: u64, end: u64) {
        let mut before = self.edges.range(..start).next_back().map_or(0, |(_, count)| *count);
        let inside: Vec<(u64, u32)> = self.edges.range(start..=end).map(|(at, count)| (*at, *count)).collect();
        for (at, count) in inside {
            if count == before {
                self.edges.remove(&at);
            }
            before = count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_regions_unlock_when_the_last_goes() {
        let mut counts = Counts { edges: BTreeMap::new() };
        let mut gone = Vec::new();
        counts.add(0x1000, 0x5000);
        counts.add(0x3000, 0x8000);
        counts.add(0x3000, 0x4000);
        counts.remove(0x1000, 0x5000, |a, b| gone.push((a, b)));
        assert_eq!(gone, [(0x1000, 0x3000)]);
        counts.remove(0x3000, 0x8000, |a, b| gone.push((a, b)));
        assert_eq!(gone[1..], [(0x4000, 0x8000)]);
        counts.remove(0x3000, 0x4000, |a, b| gone.push((a, b)));
        assert_eq!(gone[2..], [(0x3000, 0x4000)]);
        assert!(counts.edges.is_empty(), "{:?}", counts.edges);
    }

    #[test]
    fn what_is_not_mapped_is_refused() {
        assert_eq!(pin(4096, 10, true, Memlock::Lax).unwrap_err(), Errno(libc::EFAULT));
    }
}
