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
/// Maximum number of adapters of a process.
const ADAPTERS: usize = 64;

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
        let mut owners: [Option<Arc<dyn Owner>>; ADAPTERS] = [const { None }; ADAPTERS];
        let mut overlaps = false;
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
        for populate in &mut state.populates {
            populate.invalidated |= overlap(&populate.pages, &pages);
        }
        state.last += 1;
        let number = state.last;
        state.active.push(Active { number, pages });
        drop(state);
        for owner in owners.into_iter().flatten() {
            owner.quiesce();
        }
        let (state, took) = (self.lock(), began.elapsed());
        for region in state.overlapping(addr, len) {
            region.counters.add(|c| &c.page_invalidations_handled, 1);
            region.counters.add_time(|c| &c.page_invalidation_ns, took);
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
        let mut owners: [Option<Arc<dyn Owner>>; ADAPTERS] = [const { None }; ADAPTERS];
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

    /// Removes pages from all tables; calls `each` with each region and its number of removed pages. Returns the sum.
    fn clear(&mut self, addr: u64, len: u64, mut each: impl FnMut(&Arc<OnDemand>, u64)) -> u64 {
        let mut sum = 0;
        for region in self.overlapping(addr, len) {
            let cleared = region.table.clear(region.overlap(addr, len));
            region.changes.fetch_add(1, Ordering::Relaxed);
            region.counters.add(|c| &c.page_invalidation_pages, cleared);
            each(region, cleared);
            sum += cleared;
        }
        sum
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

fn add(owners: &mut [Option<Arc<dyn Owner>>; ADAPTERS], region: &OnDemand) {
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
mod tests {
    use super::*;
    use crate::paging::counters::{self, Pair};
    use crate::paging::resolver::Resolver;
    use crate::paging::table::PAGE;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU32;
    use std::thread;
    use std::time::Duration;
    use weir_transport::{Profile, Side};

    #[derive(Default)]
    struct Adapter {
        quiesced: AtomicU32,
    }

    impl Owner for Adapter {
        fn quiesce(&self) {
            self.quiesced.fetch_add(1, Ordering::SeqCst);
        }

        fn resolved(&self, _: &[(u32, Side)]) {}
    }

    struct Bed {
        exclusion: &'static Exclusion,
        adapter: Arc<Adapter>,
        region: Arc<OnDemand>,
    }

    /// A region of a hundred pages from page number 1000 on, all present.
    fn bed() -> Bed {
        let exclusion: &'static Exclusion = Box::leak(Box::new(Exclusion::new()));
        let adapter = Arc::new(Adapter::default());
        let owner: std::sync::Weak<dyn Owner> = Arc::downgrade(&(adapter.clone() as Arc<dyn Owner>));
        let pair = Pair::new(counters::of_device("invalidate-test"));
        let resolver = Resolver::new(owner, &Profile::ideal());
        let region = OnDemand::new(1000 * PAGE, 100 * PAGE, true, pair, resolver).unwrap();
        let region = Arc::new(region);
        assert!(region.table.make_room(1000..1100));
        region.table.enter(1000..1100, true);
        exclusion.enter(region.clone()).unwrap();
        Bed { exclusion, adapter, region }
    }

    #[test]
    fn begin_returns_when_pages_are_removed_and_accesses_have_ended() {
        let bed = bed();
        assert!(bed.exclusion.begin(0, 1000 * PAGE).is_none(), "outside of the region");
        let guard = bed.exclusion.begin(1010 * PAGE + 5, 10).unwrap();
        assert_eq!(bed.adapter.quiesced.load(Ordering::SeqCst), 1);
        assert_eq!(bed.region.table.first_missing(1000..1100, false), Some(1010));
        drop(guard);
        // Absent pages are not in use: the engine is not quiesced.
        drop(bed.exclusion.begin(1010 * PAGE, PAGE).unwrap());
        assert_eq!(bed.adapter.quiesced.load(Ordering::SeqCst), 1);
        let values = bed.region.counters.own.read();
        assert_eq!((values.page_invalidations, values.page_invalidations_handled), (2, 2));
        assert_eq!(values.page_invalidation_pages, 1);
    }

    #[test]
    fn an_overlapping_invalidation_quiesces_although_pages_are_gone() {
        let bed = bed();
        let first = bed.exclusion.begin(1010 * PAGE, PAGE).unwrap();
        let second = bed.exclusion.begin(1010 * PAGE, PAGE).unwrap();
        assert_eq!(bed.adapter.quiesced.load(Ordering::SeqCst), 2);
        drop((first, second));
        assert!(bed.exclusion.lock().active.is_empty());
    }

    #[test]
    fn an_event_of_a_known_invalidation_is_not_counted_again() {
        let bed = bed();
        let guard = bed.exclusion.begin(1010 * PAGE, 4 * PAGE).unwrap();
        bed.exclusion.report_change(1011 * PAGE, PAGE);
        assert_eq!(bed.region.counters.own.read().page_invalidations, 1);
        bed.exclusion.report_change(1012 * PAGE, 4 * PAGE);
        drop(guard);
        bed.exclusion.report_change(1020 * PAGE, PAGE);
        assert_eq!(bed.region.counters.own.read().page_invalidations, 3);
        assert_eq!(bed.region.table.first_missing(1014..1100, false), Some(1014));
        assert_eq!(bed.region.table.present(), 100 - 6 - 1);
        let guard = bed.exclusion.begin(1030 * PAGE, PAGE).unwrap();
        bed.exclusion.quiesce_all();
        drop(guard);
        bed.exclusion.report_change(1030 * PAGE, PAGE);
        assert_eq!(bed.region.counters.own.read().page_invalidations, 4);
        bed.exclusion.quiesce_all();
        bed.exclusion.report_change(1030 * PAGE, PAGE);
        assert_eq!(bed.region.counters.own.read().page_invalidations, 5);
        assert!(bed.exclusion.lock().active.is_empty());
    }

    #[test]
    fn a_populate_that_was_invalidated_is_not_entered() {
        let bed = bed();
        let populate = bed.exclusion.populate(&bed.region, 1000..1016);
        let beside = bed.exclusion.populate(&bed.region, 1050..1051);
        drop(bed.exclusion.begin(1015 * PAGE, PAGE));
        assert_eq!(populate.finish(|| ()), None);
        assert_eq!(beside.finish(|| 7), Some(7));
        assert_eq!(bed.exclusion.populate(&bed.region, 1000..1016).finish(|| ()), Some(()));
        assert!(bed.exclusion.lock().populates.is_empty());
    }

    #[test]
    fn faults_wait_for_the_end_of_an_invalidation() {
        let bed = bed();
        let guard = bed.exclusion.begin(1010 * PAGE, PAGE).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| bed.exclusion.populate(&bed.region, 1008..1012).finish(|| ()));
            thread::sleep(Duration::from_millis(20));
            assert!(!waiter.is_finished());
            drop(guard);
            assert_eq!(waiter.join().unwrap(), Some(()));
        });
        assert_eq!(bed.region.counters.own.read().page_contentions, 1);
    }

    /// An engine that checks that it never uses a page that is changing. It holds its lock while it looks at the
    /// table and accesses memory, as a turn does.
    #[derive(Default)]
    struct Engine {
        turn: Mutex<()>,
        changing: [AtomicU32; 4],
    }

    impl Owner for Engine {
        fn quiesce(&self) {
            drop(self.turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        }

        fn resolved(&self, _: &[(u32, Side)]) {}
    }

    /// Pages are removed and populated again while other threads use them.
    #[test]
    fn no_page_is_used_while_it_changes() {
        const USES: u32 = 5000;
        let exclusion: &'static Exclusion = Box::leak(Box::new(Exclusion::new()));
        let engine = Arc::new(Engine::default());
        let owner: std::sync::Weak<dyn Owner> = Arc::downgrade(&(engine.clone() as Arc<dyn Owner>));
        let pair = Pair::new(counters::of_device("race-test"));
        let resolver = Resolver::new(owner, &Profile::ideal());
        let region = Arc::new(OnDemand::new(0, 4 * PAGE, true, pair, resolver).unwrap());
        assert!(region.table.make_room(0..4));
        exclusion.enter(region.clone()).unwrap();
        let (engine, region, used) = (&engine, &region, &AtomicU32::new(0));
        let until = Instant::now() + Duration::from_secs(60);
        let goes_on = || used.load(Ordering::SeqCst) < USES && Instant::now() < until;
        let change = |thread: u64| {
            for round in (thread..).take_while(|_| goes_on()) {
                // The ranges of the two threads overlap in part.
                let first = round % 3;
                let guard = exclusion.begin(first * PAGE, 2 * PAGE).unwrap();
                for page in &engine.changing[first as usize..][..2] {
                    page.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    page.fetch_sub(1, Ordering::SeqCst);
                }
                drop(guard);
                (0..round % 4).for_each(|_| thread::yield_now());
            }
        };
        let populate_and_enter = |pages: Range<u64>, write: bool| {
            while goes_on() {
                let populate = exclusion.populate(region, pages.clone());
                thread::yield_now();
                populate.finish(|| region.table.enter(pages.clone(), write));
            }
        };
        let turn = || {
            while goes_on() {
                let turn = engine.turn.lock().unwrap();
                for page in (0..4).filter(|page| region.table.has(page * PAGE, 8, false)) {
                    thread::yield_now();
                    assert_eq!(engine.changing[page as usize].load(Ordering::SeqCst), 0, "page {page}");
                    used.fetch_add(1, Ordering::SeqCst);
                }
                drop(turn);
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| change(0));
            scope.spawn(|| change(1));
            scope.spawn(|| populate_and_enter(0..2, true));
            scope.spawn(|| populate_and_enter(1..4, false));
            // A failure ends the other threads, too.
            let ended = scope.spawn(turn).join();
            used.store(USES, Ordering::SeqCst);
            ended.expect("no page changes while it is used");
        });
        assert!(Instant::now() < until, "pages were rarely present");
        assert!(region.counters.own.read().page_invalidation_pages > 0, "no page was ever removed");
    }

    #[test]
    fn the_list_of_regions_grows_and_shrinks() {
        let bed = bed();
        let more: Vec<_> = (0..100).map(|_| bed.region.clone()).collect();
        for region in &more {
            bed.exclusion.enter(region.clone()).unwrap();
        }
        assert_eq!(bed.exclusion.lock().regions.len(), 101);
        for region in &more {
            assert!(bed.exclusion.leave(region).is_some());
        }
        assert!(bed.exclusion.leave(&bed.region).is_some());
        assert!(bed.exclusion.leave(&bed.region).is_none());
        assert!(bed.exclusion.begin(1000 * PAGE, PAGE).is_none());
    }
}
