//! Invalidations and populates under way exclude each other: a populate waits for the end of an invalidation of its
//! pages, and an invalidation cancels the populates that it overlaps. One mutex guards both, and the list of regions.
//!
//! Only [`Exclusion::enter`], [`Exclusion::leave`] and [`Exclusion::regions`] allocate or free, and they hold no lock
//! while they do.

use crate::Errno;
use crate::os::grow::with_room;
use crate::os::locks::{RankedCondvar, RankedGuard, RankedMutex, rank};
use crate::paging::owner::Owner;
use crate::paging::region::OnDemand;
use crate::paging::table::pages_of;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Maximum number of invalidations under way, and of populates.
const AT_ONCE: usize = 64;
/// Maximum number of adapters of a process: an invalidation waits for all that may use its pages, and allocates nothing.
pub const MAX_ADAPTERS: usize = 64;

/// The on-demand regions of a process, and what is under way in them.
pub(crate) struct Exclusion {
    state: RankedMutex<State, { rank::EXCLUSION }>,
    /// An invalidation or a populate has ended.
    changed: RankedCondvar,
}

struct State {
    regions: Vec<Arc<OnDemand>>,
    /// Invalidations under way.
    active: Vec<Active>,
    /// Populates under way.
    populates: Vec<Populating>,
    /// Ranges that were being invalidated at the last [`Exclusion::quiesce_all`]: the next event may belong to one of
    /// them.
    known: Vec<Range<u64>>,
    last: u64,
}

struct Active {
    number: u64,
    pages: Range<u64>,
}

struct Populating {
    number: u64,
    pages: Range<u64>,
    /// An invalidation has begun since.
    invalidated: bool,
}

impl Exclusion {
    /// No regions, and nothing under way.
    pub fn new() -> Exclusion {
        let state = State {
            regions: Vec::new(),
            active: Vec::with_capacity(AT_ONCE),
            populates: Vec::with_capacity(AT_ONCE),
            known: Vec::with_capacity(AT_ONCE),
            last: 0,
        };
        Exclusion { state: RankedMutex::new(state), changed: RankedCondvar::new() }
    }

    fn lock(&self) -> RankedGuard<'_, State, { rank::EXCLUSION }> {
        self.state.lock()
    }

    /// Begins to invalidate `len` bytes at `addr`; `None` if no region overlaps them. Removes the pages from the
    /// tables, cancels overlapping populates, and returns when no access that began earlier is under way. Waits while
    /// `AT_ONCE` invalidations are under way.
    pub fn begin(&'static self, addr: u64, len: u64) -> Option<Guard> {
        let began = Instant::now();
        let pages = pages_of(addr, len);
        let mut state = self.lock();
        while state.active.len() == AT_ONCE {
            state = self.changed.wait(state);
        }
        // The overlapping invalidation has cleared the table, and may still be waiting for accesses to end.
        let overlaps_active = state.active.iter().any(|other| overlap(&other.pages, &pages));
        let mut owners: [Option<Arc<dyn Owner>>; MAX_ADAPTERS] = [const { None }; MAX_ADAPTERS];
        let mut overlaps = false;
        let clearing = Instant::now();
        state.clear(addr, len, |region, cleared| {
            overlaps = true;
            region.counters.add(|c| &c.page_invalidations, 1);
            if cleared > 0 || overlaps_active {
                add(&mut owners, region);
            }
        });
        if !overlaps {
            return None;
        }
        let cleared = clearing.elapsed();
        for populate in &mut state.populates {
            populate.invalidated |= overlap(&populate.pages, &pages);
        }
        state.last += 1;
        let number = state.last;
        state.active.push(Active { number, pages });
        drop(state);
        let waiting = Instant::now();
        for owner in owners.into_iter().flatten() {
            owner.quiesce();
        }
        let waited = waiting.elapsed();
        let (state, took) = (self.lock(), began.elapsed());
        for region in state.overlapping(addr, len) {
            region.counters.add_time(|c| &c.page_invalidation_ns, took);
            region.counters.add_time(|c| &c.page_invalidation_table_ns, cleared);
            region.counters.add_time(|c| &c.page_invalidation_quiesce_ns, waited);
            region.counters.add_time(|c| &c.page_invalidation_rest_ns, took.saturating_sub(cleared + waited));
            // Last: a reader that finds it has the times too.
            region.counters.add(|c| &c.page_invalidations_handled, 1);
        }
        drop(state);
        Some(Guard { exclusion: self, number })
    }

    /// Invalidates `len` bytes at `addr`, which have changed. Ignored if an invalidation of them is under way, or was
    /// at the last [`quiesce_all`](Self::quiesce_all): the change belongs to that one.
    pub fn report_change(&'static self, addr: u64, len: u64) {
        let pages = pages_of(addr, len);
        let state = self.lock();
        let active = state.active.iter().map(|active| &active.pages);
        let is_known = active.chain(&state.known).any(|known| known.start <= pages.start && pages.end <= known.end);
        drop(state);
        if !is_known {
            drop(self.begin(addr, len));
        }
    }

    /// Returns when no access to any region that began earlier is under way.
    pub fn quiesce_all(&self) {
        let mut owners: [Option<Arc<dyn Owner>>; MAX_ADAPTERS] = [const { None }; MAX_ADAPTERS];
        let mut state = self.lock();
        let State { regions, active, known, .. } = &mut *state;
        for region in regions {
            add(&mut owners, region);
        }
        known.clear();
        // At most as many as may be active: the vector has the capacity.
        known.extend(active.iter().map(|active| active.pages.clone()));
        drop(state);
        for owner in owners.into_iter().flatten() {
            owner.quiesce();
        }
    }

    fn end(&self, number: u64) {
        self.lock().active.retain(|active| active.number != number);
        self.changed.notify_all();
    }

    /// Begins to populate page numbers of a region. Waits until no invalidation of these pages is under way, and while
    /// `AT_ONCE` populates are.
    pub fn populate(&'static self, region: &OnDemand, pages: Range<u64>) -> Populate {
        let mut state = self.lock();
        let mut waited = false;
        while state.populates.len() == AT_ONCE || state.active.iter().any(|active| overlap(&active.pages, &pages)) {
            if !waited && state.populates.len() < AT_ONCE {
                waited = true;
                region.counters.add(|c| &c.page_contentions, 1);
            }
            state = self.changed.wait(state);
        }
        state.last += 1;
        let number = state.last;
        state.populates.push(Populating { number, pages, invalidated: false });
        Populate { exclusion: self, number }
    }

    /// Enters a region. ENOMEM if the list cannot grow.
    pub fn enter(&self, region: Arc<OnDemand>) -> Result<(), Errno> {
        with_room(1, || self.lock(), |state| &mut state.regions)?.regions.push(region);
        Ok(())
    }

    /// All entered regions.
    pub fn regions(&self) -> Vec<Arc<OnDemand>> {
        let count = self.lock().regions.len();
        let mut found = Vec::with_capacity(count + 16);
        let state = self.lock();
        // Regions beyond the capacity were entered after the count: the vector would grow under the lock.
        let room = found.capacity();
        found.extend(state.regions.iter().take(room).cloned());
        found
    }

    /// Removes pages that proved to be absent. Returns how many were in tables.
    pub fn missed(&self, addr: u64, len: u64) -> u64 {
        self.lock().clear(addr, len, |_, _| ())
    }

    /// Enters pages if the region's `changes` still has this value. Returns the number of new pages.
    pub fn enter_late(&self, region: &OnDemand, pages: Range<u64>, write: bool, changes: u64) -> Option<u64> {
        let _unchanged = self.lock();
        (region.changes.load(Ordering::Relaxed) == changes).then(|| region.table.enter(pages, write))
    }

    /// Removes a region; returns it, so that the caller drops it under no lock. `None` if it was not entered.
    pub fn leave(&self, region: &Arc<OnDemand>) -> Option<Arc<OnDemand>> {
        let mut state = self.lock();
        let at = state.regions.iter().position(|other| Arc::ptr_eq(other, region))?;
        Some(state.regions.swap_remove(at))
    }
}

impl State {
    fn overlapping(&self, addr: u64, len: u64) -> impl Iterator<Item = &Arc<OnDemand>> {
        self.regions.iter().filter(move |region| !region.overlap(addr, len).is_empty())
    }

    /// Removes pages from all tables; calls `each` with each region and its number of removed pages.
    /// Returns the number of all removed pages.
    fn clear(&mut self, addr: u64, len: u64, mut each: impl FnMut(&Arc<OnDemand>, u64)) -> u64 {
        let mut pages = 0;
        for region in self.overlapping(addr, len) {
            let cleared = region.table.clear(region.overlap(addr, len));
            region.changes.fetch_add(1, Ordering::Relaxed);
            region.counters.add(|c| &c.page_invalidation_pages, cleared);
            each(region, cleared);
            pages += cleared;
        }
        pages
    }

    fn take_populate(&mut self, number: u64) -> Option<Populating> {
        let at = self.populates.iter().position(|populate| populate.number == number)?;
        Some(self.populates.swap_remove(at))
    }
}

/// An invalidation under way. Dropping it ends the invalidation.
#[must_use = "faults in the range wait until it is dropped"]
pub struct Guard {
    exclusion: &'static Exclusion,
    number: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.exclusion.end(self.number);
    }
}

/// A populate under way.
pub(crate) struct Populate {
    exclusion: &'static Exclusion,
    number: u64,
}

impl Populate {
    /// Ends the populate. Calls `enter` and returns its result, unless an invalidation overlapped the populate.
    pub fn finish<T>(self, enter: impl FnOnce() -> T) -> Option<T> {
        let mut state = self.exclusion.lock();
        let invalidated = state.take_populate(self.number).is_none_or(|populate| populate.invalidated);
        (!invalidated).then(enter)
    }
}

impl Drop for Populate {
    fn drop(&mut self) {
        self.exclusion.lock().take_populate(self.number);
        self.exclusion.changed.notify_all();
    }
}

fn overlap(range: &Range<u64>, other: &Range<u64>) -> bool {
    range.start < other.end && other.start < range.end
}

fn add(owners: &mut [Option<Arc<dyn Owner>>; MAX_ADAPTERS], region: &OnDemand) {
    let Some(owner) = region.resolver.owner() else { return };
    for entry in owners {
        match entry {
            Some(known) if std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(&owner)) => return,
            Some(_) => {}
            None => {
                *entry = Some(owner);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
