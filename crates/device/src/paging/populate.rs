//! Bringing pages in: what a fault thread, or a prefetch, does for a range of pages.

use crate::memory::copy;
use crate::memory::populate::{Populated, populate};
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
    region.table.make_room(pages.clone());
    let populating = invalidate::populate(region, pages.clone());
    let there = populate_pages(pages, write);
    match populating.finish(|| there.then(done)) {
        None => {
            region.counters.add(|c| &c.page_contentions, 1);
            Err(Trouble::Invalidated)
        }
        Some(None) => Err(Trouble::Unmapped),
        Some(Some(result)) => Ok(result),
    }
}

/// Whether all of the pages are there now and may be used that way.
fn populate_pages(pages: &Range<u64>, write: bool) -> bool {
    match populate(pages.start * PAGE, (pages.end - pages.start) * PAGE, write) {
        Populated::There => true,
        Populated::NotThere => false,
        Populated::Unknown => pages.clone().all(|page| touch(page, write)),
    }
}

/// The same for one page, the way of a program.
fn touch(page: u64, write: bool) -> bool {
    let addr = page * PAGE;
    let mut byte = 0;
    // SAFETY: `byte` is ours; the page may be in any state, and adding nothing does not change it.
    unsafe {
        if write {
            copy::fetch_add(addr as *mut u64, 0).is_ok()
        } else {
            copy::copy(&mut byte, addr as *const u8, 1).is_ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_tells_what_populating_does() {
        copy::install_handler();
        let map = |protection| {
            // SAFETY: a new mapping.
            let start = unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                libc::mmap(std::ptr::null_mut(), 2 * PAGE as usize, protection, flags, -1, 0)
            };
            assert_ne!(start, libc::MAP_FAILED);
            start as u64 / PAGE
        };
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        for (protection, read, write) in
            [(writable, true, true), (libc::PROT_READ, true, false), (libc::PROT_NONE, false, false)]
        {
            for (wanted, can) in [(false, read), (true, write)] {
                let page = map(protection);
                assert_eq!(touch(page, wanted), can);
                let page = map(protection);
                assert_eq!(populate_pages(&(page..page + 2), wanted), can);
            }
        }
        assert!(!populate_pages(&(1..2), false), "never mapped");
    }
}
