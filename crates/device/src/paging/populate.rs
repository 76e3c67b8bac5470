//! Populating pages of a region, for a fault or a prefetch.

use crate::memory::populate::populate;
use crate::os::clock;
use crate::paging::invalidate;
use crate::paging::region::OnDemand;
use crate::paging::table::PAGE;
use crate::userfault;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Why pages did not enter the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PopulateError {
    /// They were invalidated meanwhile: try again.
    Invalidated,
    /// At least one page is not mapped, or does not permit the access.
    Unmapped,
}

/// Pages that were populated and entered into a table.
pub struct Entered {
    /// How many are new in the table.
    pub new: u64,
    /// When they were present, before they entered the table (nanoseconds of the device's clock).
    pub present: u64,
}

/// Populates pages and enters them into a region's table. May block for as long as the memory takes.
pub fn populate_and_enter(region: &OnDemand, pages: Range<u64>, write: bool) -> Result<Entered, PopulateError> {
    let mut present = 0;
    let enter = |at: u64| {
        present = at;
        region.table.enter(pages.clone(), write)
    };
    let new = populated(region, &pages, write, enter)?;
    Ok(Entered { new, present })
}

/// Populates pages and allocates their table entries. Returns the value of the region's `changes` at that time.
pub fn fetch(region: &OnDemand, pages: Range<u64>, write: bool) -> Result<u64, PopulateError> {
    populated(region, &pages, write, |_| region.changes.load(Ordering::Relaxed))
}

/// Populates pages. Calls `done` with the time under the lock of the invalidations when all are present, and returns
/// its result.
fn populated<T>(
    region: &OnDemand,
    pages: &Range<u64>,
    write: bool,
    done: impl FnOnce(u64) -> T,
) -> Result<T, PopulateError> {
    if !region.table.make_room(pages.clone()) {
        // Treated as memory that cannot be populated.
        return Err(PopulateError::Unmapped);
    }
    let populating = invalidate::populate(region, pages.clone());
    // Memory that was mapped since the registration must be covered before it is populated.
    userfault::cover_again(region.addresses());
    let there = populate(pages.start * PAGE, (pages.end - pages.start) * PAGE, write);
    let present = clock::now().0;
    match populating.finish(|| there.then(|| done(present))) {
        None => {
            region.counters.add(|c| &c.page_contentions, 1);
            Err(PopulateError::Invalidated)
        }
        Some(None) => Err(PopulateError::Unmapped),
        Some(Some(result)) => Ok(result),
    }
}
