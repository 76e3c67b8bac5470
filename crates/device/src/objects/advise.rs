//! `ibv_advise_mr`: checks the advice, and has its pages prefetched.

use crate::Errno;
use crate::memory::region::Kind;
use crate::objects::pd::Pd;
use crate::paging::prefetch::{enter_present, fetch};
use crate::paging::{Advice, OnDemand};
use std::ops::Range;
use std::sync::Arc;
use weir_transport::{Access, Sge};

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
            // Programs ask for the same pages again and again, because they cannot know whether they are still present.
            let write = advice == Advice::PrefetchWrite;
            let missing = region.first_missing(pages.clone(), write);
            let pages = missing.unwrap_or(pages.end)..pages.end;
            if pages.is_empty() {
                region.counters.add(|c| &c.page_prefetch_handled, 1);
            } else if advice == Advice::PrefetchNoFault {
                // It does not wait for pages, so that it is done here in any case.
                enter_present(&region, pages);
                region.counters.add(|c| &c.page_prefetch_handled, 1);
            } else if wait {
                let result = fetch(&region, pages, write);
                region.counters.add(|c| &c.page_prefetch_handled, 1);
                result?;
            } else {
                region.resolver.prefetch(&region, pages, write);
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
