//! Prefetch of pages, before a fault needs them.

use crate::Errno;
use crate::paging::populate::{PopulateError, populate_and_enter};
use crate::paging::region::OnDemand;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// Advice on a range (`ibv_advise_mr_advice`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Populate it for reading.
    Prefetch,
    /// Populate it for reading and writing.
    PrefetchWrite,
    /// Enter pages that are already in memory into the table; populate nothing.
    PrefetchNoFault,
}

/// Pages populated at a time; an invalidation of any of them has this many populated again.
const STEP: u64 = 1024;

/// Populates pages now.
pub fn fetch(region: &OnDemand, pages: Range<u64>, write: bool) -> Result<(), Errno> {
    let began = Instant::now();
    let mut at = pages.start;
    while at < pages.end {
        let step = at..pages.end.min(at + STEP);
        match populate_and_enter(region, step.clone(), write) {
            Ok(entered) => {
                region.counters.add(|c| &c.page_prefetch_pages, entered.new);
                at = step.end;
            }
            Err(PopulateError::Invalidated) => {}
            Err(PopulateError::Unmapped) => return Err(Errno(libc::EFAULT)),
        }
    }
    region.counters.add_time(|c| &c.page_prefetch_ns, began.elapsed());
    Ok(())
}

/// Enters the pages that are in memory, according to /proc/self/pagemap.
pub fn enter_present(region: &OnDemand, pages: Range<u64>) {
    /// Bits of /proc/self/pagemap.
    const PRESENT: u64 = 1 << 63;
    const OF_FILE: u64 = 1 << 61;
    const EXCLUSIVE: u64 = 1 << 56;
    let began = Instant::now();
    // If it cannot be read, no page counts as present.
    let Ok(map) = File::open("/proc/self/pagemap") else { return };
    let mut entries = [0u8; 512 * 8];
    let mut at = pages.start;
    while at < pages.end {
        let count = (pages.end - at).min(512) as usize;
        let Ok(read) = map.read_at(&mut entries[..count * 8], at * 8) else { return };
        if read < 8 {
            return;
        }
        for (page, entry) in (at..).zip(entries[..read].chunks_exact(8)) {
            let entry = u64::from_ne_bytes(entry.try_into().expect("chunks of 8"));
            if entry & PRESENT != 0 {
                // An exclusive anonymous page can be written in place; any other may have to be copied first.
                let write = region.writable && entry & (OF_FILE | EXCLUSIVE) == EXCLUSIVE;
                let entered = match populate_and_enter(region, page..page + 1, write) {
                    Err(PopulateError::Unmapped) if write => populate_and_enter(region, page..page + 1, false),
                    result => result,
                };
                region.counters.add(|c| &c.page_prefetch_pages, entered.map_or(0, |entered| entered.new));
            }
        }
        at += (read / 8) as u64;
    }
    region.counters.add_time(|c| &c.page_prefetch_ns, began.elapsed());
}
