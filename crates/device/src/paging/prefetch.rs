//! `ibv_advise_mr`: prefetch of pages.

use crate::Errno;
use crate::context::Pd;
use crate::memory::region::Kind;
use crate::paging::populate::{PopulateError, populate_and_enter};
use crate::paging::region::OnDemand;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;
use weir_transport::{Access, Sge};

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

impl Pd {
    /// Populates pages before they are needed: before it returns if `wait`, otherwise in the background.
    ///
    /// ENOENT for a key that belongs to no on-demand region, EINVAL for a window's key, EPERM for another protection
    /// domain and for writing to a region that is not writable, EFAULT for a range out of bounds and, with `wait`,
    /// for unmapped memory; EOPNOTSUPP if the profile has no on-demand paging. Background prefetches report no
    /// errors.
    pub fn advise_mr(&self, advice: Advice, wait: bool, list: &[Sge]) -> Result<(), Errno> {
        let adapter = &self.context.adapter;
        adapter.check()?;
        if !adapter.profile.on_demand {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let ranges = list.iter().map(|sge| self.advised(advice, sge)).collect::<Result<Vec<_>, _>>()?;
        for (region, pages) in ranges {
            region.counters.add(|c| &c.page_prefetch, 1);
            if pages.is_empty() {
                region.counters.add(|c| &c.page_prefetch_handled, 1);
            } else if advice == Advice::PrefetchNoFault {
                // It does not wait for pages, so that it is done here in any case.
                enter_present(&region, pages);
                region.counters.add(|c| &c.page_prefetch_handled, 1);
            } else if wait {
                let result = fetch(&region, pages, advice == Advice::PrefetchWrite);
                region.counters.add(|c| &c.page_prefetch_handled, 1);
                result?;
            } else {
                region.resolver.prefetch(&region, pages, advice == Advice::PrefetchWrite);
            }
        }
        Ok(())
    }

    /// The region and pages of a list element.
    fn advised(&self, advice: Advice, sge: &Sge) -> Result<(Arc<OnDemand>, Range<u64>), Errno> {
        let error = |code| Err(Errno(code));
        let regions = &self.context.adapter.regions;
        // The reference is taken under the read lock, which keeps the region alive.
        let found = regions.with(sge.lkey, |region| (*region, region.paged.map(|paged| paged.region())));
        let Some((region, paged)) = found else { return error(libc::ENOENT) };
        if matches!(region.kind, Kind::Window { .. }) {
            return error(libc::EINVAL);
        }
        let Some(paged) = paged else { return error(libc::ENOENT) };
        let writable = region.access.contains(Access::LOCAL_WRITE);
        if region.pd != self.number || (advice == Advice::PrefetchWrite && !writable) {
            return error(libc::EPERM);
        }
        let len = u64::from(sge.length);
        if !region.holds(sge.addr, len) {
            return error(libc::EFAULT);
        }
        let pages = paged.overlap(region.addr.wrapping_add(sge.addr - region.iova), len);
        Ok((paged, pages))
    }
}

/// Populates pages now.
fn fetch(region: &OnDemand, pages: Range<u64>, write: bool) -> Result<(), Errno> {
    let began = Instant::now();
    let mut at = pages.start;
    while at < pages.end {
        let step = at..pages.end.min(at + STEP);
        match populate_and_enter(region, step.clone(), write) {
            Ok(new) => {
                region.counters.add(|c| &c.page_prefetch_pages, new);
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
fn enter_present(region: &OnDemand, pages: Range<u64>) {
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
                region.counters.add(|c| &c.page_prefetch_pages, entered.unwrap_or(0));
            }
        }
        at += (read / 8) as u64;
    }
    region.counters.add_time(|c| &c.page_prefetch_ns, began.elapsed());
}
