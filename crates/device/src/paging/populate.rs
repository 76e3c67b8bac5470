//! Bringing pages in: what a fault thread, or a prefetch, does for a range of pages.

use crate::memory::populate::populate;
use crate::paging::invalidate;
use crate::paging::region::OnDemand;
use crate::paging::table::PAGE;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Why pages did not enter the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// They were invalidated meanwhile: try again.
    Invalidated,
    /// At least one is not there, or may not be used that way.
    Unmapped,
}

/// Brings pages in and enters them into a region's table. The number of those that are new there. May block for as long
/// as memory takes.
pub fn bring_in(region: &OnDemand, pages: Range<u64>, write: bool) -> Result<u64, Trouble> {
    populated(region, &pages, write, || region.table.enter(pages.clone(), write))
}

/// Brings pages in, and makes room for them in the table. How often something in the region was invalidated until then.
pub fn fetch(region: &OnDemand, pages: Range<u64>, write: bool) -> Result<u64, Trouble> {
    populated(region, &pages, write, || region.changes.load(Ordering::Relaxed))
}

/// What `done` returns, which is called when all pages are there, under the lock of invalidations.
fn populated<T>(region: &OnDemand, pages: &Range<u64>, write: bool, done: impl FnOnce() -> T) -> Result<T, Trouble> {
    if !region.table.make_room(pages.clone()) {
        // As memory that cannot be had.
        return Err(Trouble::Unmapped);
    }
    let populating = invalidate::populate(region, pages.clone());
    let there = populate(pages.start * PAGE, (pages.end - pages.start) * PAGE, write);
    match populating.finish(|| there.then(done)) {
        None => {
            region.counters.add(|c| &c.page_contentions, 1);
            Err(Trouble::Invalidated)
        }
        Some(None) => Err(Trouble::Unmapped),
        Some(Some(result)) => Ok(result),
    }
}
