//! `ibv_advise_mr`: pages that will be needed.

use crate::Errno;
use crate::context::Pd;
use crate::memory::region::Kind;
use crate::paging::populate::{Trouble, bring_in};
use crate::paging::region::OnDemand;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;
use weir_transport::{Access, Sge};

/// What is advised of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// It will be read.
    Prefetch,
    /// It will be written, too.
    PrefetchWrite,
    /// What the process has in memory, the adapter is to know; nothing is brought in.
    PrefetchNoFault,
}

/// Pages brought in under one look at invalidations.
const STEP: u64 = 1024;

impl Pd {
    /// Brings pages in before they are needed: before it returns, if it is to `wait`, or by and by.
    ///
    /// ENOENT for a key that is not an on-demand region's, EINVAL for a window's, EPERM for another domain's and for
    /// writing where the region is not writable, EFAULT beyond its bounds and, of those who wait, for memory that is not
    /// there; EOPNOTSUPP if the profile has no memory on demand. Whoever does not wait is not told.
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
                // There is nothing to wait for.
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

    /// The region and pages of one element.
    fn advised(&self, advice: Advice, sge: &Sge) -> Result<(Arc<OnDemand>, Range<u64>), Errno> {
        let error = |code| Err(Errno(code));
        let regions = &self.context.adapter.regions;
        // The region is kept while its key is sure to be there.
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

/// Brings pages in now.
fn fetch(region: &OnDemand, pages: Range<u64>, write: bool) -> Result<(), Errno> {
    let began = Instant::now();
    let mut at = pages.start;
    while at < pages.end {
        let step = at..pages.end.min(at + STEP);
        match bring_in(region, step.clone(), write) {
            Ok(new) => {
                region.counters.add(|c| &c.page_prefetch_pages, new);
                at = step.end;
            }
            Err(Trouble::Invalidated) => {}
            Err(Trouble::Unmapped) => return Err(Errno(libc::EFAULT)),
        }
    }
    region.counters.add_time(|c| &c.page_prefetch_ns, began.elapsed());
    Ok(())
}

/// Enters those of the pages that the process has in memory.
fn enter_present(region: &OnDemand, pages: Range<u64>) {
    /// Bits of /proc/self/pagemap.
    const PRESENT: u64 = 1 << 63;
    const OF_FILE: u64 = 1 << 61;
    const EXCLUSIVE: u64 = 1 << 56;
    let began = Instant::now();
    // Where it cannot be read, nothing is known to be present.
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
                // One's own page of anonymous memory can be written as it is; another may have to be copied first.
                let write = region.writable && entry & (OF_FILE | EXCLUSIVE) == EXCLUSIVE;
                let entered = match bring_in(region, page..page + 1, write) {
                    Err(Trouble::Unmapped) if write => bring_in(region, page..page + 1, false),
                    result => result,
                };
                region.counters.add(|c| &c.page_prefetch_pages, entered.unwrap_or(0));
            }
        }
        at += (read / 8) as u64;
    }
    region.counters.add_time(|c| &c.page_prefetch_ns, began.elapsed());
}
