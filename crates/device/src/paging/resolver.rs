//! Resolution of network page faults: a queue of missing pages, and threads that populate them.
//!
//! A fault belongs to a side of a QP and names the pages of a packet. The rest of its message is populated with it in
//! steps; each step wakes the QP sides that have all their pages. A fault on pages of a job joins that job.
//!
//! The engine raises faults and never waits here: the lock is held only briefly, and nothing is allocated or freed
//! under it where a memory hook of the program could call back.
//!
//! The pages of adapters with a resolution time are deferred: see `due.rs`.

mod due;
mod jobs;
mod late;
mod worker;

use crate::Errno;
use crate::os::clock;
use crate::os::grow::with_room;
use crate::os::locks::{RankedCondvar, RankedGuard, RankedMutex, rank};
use crate::paging::cost::Cost;
use crate::paging::faults::FaultOrigin;
use crate::paging::owner::Owner;
use crate::paging::region::{OnDemand, Populator};
use jobs::{Stage, State, WAKES, Waiter, Woken, take_waiters};
use late::Late;
use std::ops::Range;
use std::sync::{Arc, Weak};
use weir_transport::{Profile, Side};

/// Pages populated ahead of the needed ones, at most.
pub(crate) const AHEAD: u64 = 256;

/// The queue and its threads.
pub(crate) struct Resolver {
    state: RankedMutex<State, { rank::PAGE_FAULTS }>,
    /// There is work, or the threads must end.
    work: RankedCondvar,
    owner: Weak<dyn Owner>,
}

impl Resolver {
    /// A resolver without threads, for an adapter with this profile.
    pub fn new(owner: Weak<dyn Owner>, profile: &Profile) -> Arc<Resolver> {
        let late = Late::new(profile);
        let state = State { jobs: Vec::new(), waiters: Vec::new(), threads: 0, idle: 0, last: 0, ended: false, late };
        Arc::new(Resolver { state: RankedMutex::new(state), work: RankedCondvar::new(), owner })
    }

    /// Starts the first threads unless they run. EAGAIN if the system refuses to start any.
    pub fn start(self: &Arc<Self>) -> Result<(), Errno> {
        while self.lock().threads < 2 {
            self.spawn()?;
        }
        Ok(())
    }

    /// Ends the threads, each after its current step.
    pub fn end(&self) {
        self.lock().ended = true;
        self.work.notify_all();
    }

    /// Allocates room for the faults of `qps` QPs, so that raising them does not allocate. ENOMEM without memory.
    pub fn reserve(&self, qps: usize) -> Result<(), Errno> {
        // A side waits for a single fault at a time; the rest is for prefetches.
        drop(with_room(2 * qps + 64, || self.lock(), |state| &mut state.jobs)?);
        drop(with_room(2 * qps, || self.lock(), |state| &mut state.waiters)?);
        Ok(())
    }

    fn wake(&self, region: &OnDemand, woken: Woken) {
        if woken.count == 0 {
            return;
        }
        region.counters.add(|c| &c.page_faults_handled, woken.count as u64);
        let mut sides = [(0, Side::Requester); WAKES];
        for (entry, (faults, side)) in sides.iter_mut().zip(woken.list.iter().flatten()) {
            *entry = (faults.num, *side);
        }
        if let Some(owner) = self.owner() {
            owner.resolved(&sides[..woken.count]);
        }
    }

    fn lock(&self) -> RankedGuard<'_, State, { rank::PAGE_FAULTS }> {
        self.state.lock()
    }
}

impl Populator for Resolver {
    fn owner(&self) -> Option<Arc<dyn Owner>> {
        self.owner.upgrade()
    }

    fn raise(&self, region: &Arc<OnDemand>, needed: Range<u64>, ahead: u64, write: bool, origin: FaultOrigin<'_>) {
        if !origin.faults.begin(origin.side) {
            return;
        }
        let raised = clock::now().0;
        let pages = needed.start..needed.end.max(needed.start + ahead.min(AHEAD)).min(region.pages().end);
        let mut state = self.lock();
        region.counters.add(|c| &c.page_faults, 1);
        let found = state.jobs.iter_mut().find(|job| job.covers(region, &needed, write));
        let job = match found {
            Some(job) => {
                region.counters.add(|c| &c.page_faults_merged, 1);
                job.pass(raised);
                job.extend(pages.end.min(job.pages.start + AHEAD));
                job
            }
            None => state.push(raised, region.clone(), pages, write, Some((origin.faults.num, origin.side))),
        };
        let (job, cost) = (job.number, Cost::begin(region.counters.clone(), raised, job.times));
        state.waiters.push(Waiter { job, pages: needed, faults: origin.faults.clone(), side: origin.side, cost });
        drop(state);
        self.work.notify_one();
    }

    fn populate_ahead(&self, region: &Arc<OnDemand>, page: u64, ahead: u64, write: bool) {
        let mut state = self.lock();
        if let Some(job) = state.jobs.iter_mut().find(|job| job.covers(region, &(page..page + 1), write)) {
            let end = (page + ahead).min(job.pages.start + AHEAD).min(region.pages().end);
            job.pass(clock::now().0);
            job.extend(end);
            drop(state);
            self.work.notify_one();
        }
    }

    fn prefetch(&self, region: &Arc<OnDemand>, pages: Range<u64>, write: bool) {
        let Ok(mut state) = with_room(1, || self.lock(), |state| &mut state.jobs) else {
            // Without memory for the job, the pages are populated by faults.
            return;
        };
        state.push(clock::now().0, region.clone(), pages, write, None);
        drop(state);
        self.work.notify_one();
    }

    fn cancel(&self, region: &Arc<OnDemand>) {
        loop {
            let mut state = self.lock();
            let mut woken = Woken::default();
            let State { jobs, waiters, .. } = &mut *state;
            for job in jobs.iter_mut().filter(|job| Arc::ptr_eq(&job.region, region)) {
                job.cancelled = true;
                job.pass(clock::now().0);
                take_waiters(waiters, &mut woken, job, |_| true, |_| None);
            }
            // The thread that works on a running job removes it.
            let idle = jobs.iter().position(|job| job.cancelled && job.stage != Stage::Running);
            let gone = idle.map(|at| jobs.swap_remove(at));
            drop(state);
            let more = gone.is_some() || woken.is_full();
            if let Some(job) = &gone {
                job.is_over();
            }
            self.wake(region, woken);
            if !more {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paging::counters::{self, Pair};
    use crate::paging::faults::QpFaults;
    use crate::paging::invalidate;
    use crate::paging::table::PAGE;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;
    use weir_transport::Delay;

    struct Adapter(Mutex<Sender<(u32, Side)>>);

    impl Owner for Adapter {
        fn quiesce(&self) {}

        fn resolved(&self, sides: &[(u32, Side)]) {
            let sender = self.0.lock().unwrap();
            sides.iter().for_each(|side| sender.send(*side).unwrap());
        }
    }

    struct Bed {
        _adapter: Arc<dyn Owner>,
        resolver: Arc<Resolver>,
        region: Arc<OnDemand>,
        woken: Receiver<(u32, Side)>,
        first: u64,
    }

    /// A region of this many fresh pages. Nothing is populated before `start`.
    fn bed(pages: u64) -> Bed {
        bed_of(pages, &Profile::ideal())
    }

    fn bed_of(pages: u64, profile: &Profile) -> Bed {
        // SAFETY: a new mapping, which stays.
        let start = unsafe {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), (pages * PAGE) as usize, protection, flags, -1, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        let (sender, woken) = channel();
        let adapter: Arc<dyn Owner> = Arc::new(Adapter(Mutex::new(sender)));
        let resolver = Resolver::new(Arc::downgrade(&adapter), profile);
        resolver.reserve(8).unwrap();
        let pair = Pair::new(counters::of_device("resolver-test"));
        let region = OnDemand::new(start as u64, pages * PAGE, true, pair, resolver.clone()).unwrap();
        Bed { _adapter: adapter, resolver, region: Arc::new(region), woken, first: start as u64 / PAGE }
    }

    impl Bed {
        fn raise(&self, qp: &Arc<QpFaults>, pages: Range<u64>, ahead: u64) {
            let pages = self.first + pages.start..self.first + pages.end;
            self.resolver.raise(&self.region, pages, ahead, true, FaultOrigin { faults: qp, side: Side::Responder });
        }

        fn next(&self) -> u32 {
            self.woken.recv_timeout(Duration::from_secs(10)).expect("a waiter is woken").0
        }

        /// The times of a single fault, where the QP continues now: the whole, and the parts in their order.
        fn cost(&self, qp: &QpFaults) -> (Duration, [Duration; 5]) {
            qp.resume(Side::Responder);
            let v = self.region.counters.own.read();
            let parts = [
                v.page_fault_notice_ns,
                v.page_fault_populate_ns,
                v.page_fault_adapter_ns,
                v.page_fault_table_ns,
                v.page_fault_resume_ns,
            ];
            // What the lock of the queue took before the fault had a job is in the whole only.
            let sum: u64 = parts.iter().sum();
            let whole = v.page_fault_wait_ns;
            assert!(sum <= whole && whole - sum <= whole / 100, "{whole} ns, parts {parts:?}");
            (Duration::from_nanos(whole), parts.map(Duration::from_nanos))
        }

        fn protect(&self, page: u64) {
            let addr = (self.first + page) * PAGE;
            // SAFETY: a page of the mapping.
            assert_eq!(unsafe { libc::mprotect(addr as *mut libc::c_void, PAGE as usize, libc::PROT_NONE) }, 0);
        }

        fn failed(&self, qp: &QpFaults, pages: Range<u64>) -> bool {
            qp.take_failed(Side::Responder, &(self.first + pages.start..self.first + pages.end), true)
        }
    }

    impl Drop for Bed {
        fn drop(&mut self) {
            self.resolver.end();
        }
    }

    fn qps(count: u32) -> Vec<Arc<QpFaults>> {
        (0..count).map(|num| Arc::new(QpFaults::new(num))).collect()
    }

    #[test]
    fn each_waiter_is_woken_once_with_its_pages_present() {
        let (bed, qps) = (bed(600), qps(3));
        bed.raise(&qps[0], 0..1, 100);
        bed.raise(&qps[0], 0..1, 100);
        bed.raise(&qps[1], 90..92, 0);
        bed.raise(&qps[2], 500..501, 1000);
        assert_eq!(bed.resolver.lock().jobs.len(), 2, "a fault that joins a job adds none");
        bed.resolver.populate_ahead(&bed.region, bed.first, 400, true);
        bed.resolver.start().unwrap();
        let mut woken = [bed.next(), bed.next(), bed.next()];
        woken.sort();
        assert_eq!(woken, [0, 1, 2]);
        let pending = || !bed.resolver.lock().jobs.is_empty();
        while pending() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(bed.woken.try_recv().is_err());
        let missing =
            |pages: Range<u64>| bed.region.table.first_missing(bed.first + pages.start..bed.first + pages.end, true);
        assert_eq!(missing(0..AHEAD), None, "the limit of read-ahead");
        assert_eq!(missing(0..AHEAD + 1), Some(bed.first + AHEAD));
        assert_eq!(missing(500..600), None, "to the end of the region");
        let values = bed.region.counters.own.read();
        assert_eq!((values.page_faults, values.page_faults_merged, values.page_faults_handled), (3, 1, 3));
        assert_eq!(values.page_fault_pages, AHEAD + 100);
    }

    #[test]
    fn an_unmapped_page_fails_only_the_faults_that_need_it() {
        let (bed, qps) = (bed(64), qps(4));
        bed.protect(20);
        bed.raise(&qps[0], 0..1, 64);
        bed.raise(&qps[1], 19..21, 0);
        bed.raise(&qps[2], 20..21, 0);
        bed.raise(&qps[3], 40..41, 0);
        bed.resolver.start().unwrap();
        let mut woken = [bed.next(), bed.next(), bed.next(), bed.next()];
        woken.sort();
        assert_eq!(woken, [0, 1, 2, 3]);
        assert!(!bed.failed(&qps[0], 0..1) && !bed.failed(&qps[3], 40..41));
        assert!(bed.failed(&qps[1], 19..21) && bed.failed(&qps[2], 20..21));
        assert_eq!(bed.region.table.first_missing(bed.first..bed.first + 64, true), Some(bed.first + 20));
        assert_eq!(bed.region.counters.own.read().page_faults_failed, 2);
    }

    #[test]
    fn waiters_of_a_cancelled_region_are_woken_and_may_wait_again() {
        let (bed, qps) = (bed(8), qps(2));
        bed.raise(&qps[0], 0..1, 0);
        bed.raise(&qps[1], 4..5, 0);
        bed.resolver.cancel(&bed.region);
        assert_eq!(bed.next() + bed.next(), 1);
        assert!(bed.resolver.lock().jobs.is_empty() && bed.resolver.lock().waiters.is_empty());
        // It may wait again.
        bed.raise(&qps[0], 0..1, 0);
        bed.resolver.start().unwrap();
        assert_eq!(bed.next(), 0);
        assert!(!bed.failed(&qps[0], 0..1));
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_fault_that_no_thread_has_noticed_and_a_qp_that_does_not_continue_take_time() {
        let (bed, qps) = (bed(1), qps(1));
        bed.raise(&qps[0], 0..1, 0);
        std::thread::sleep(20 * MS);
        bed.resolver.start().unwrap();
        bed.next();
        assert_eq!(bed.region.counters.own.read().page_fault_wait_ns, 0, "the QP has not continued yet");
        std::thread::sleep(20 * MS);
        let (whole, [notice, populate, adapter, table, resume]) = bed.cost(&qps[0]);
        assert!(whole >= 40 * MS && notice >= 20 * MS && resume >= 20 * MS, "{whole:?}: {notice:?}, {resume:?}");
        assert!(!populate.is_zero() && !table.is_zero() && adapter.is_zero(), "{populate:?}, {table:?}, {adapter:?}");
        let before = bed.region.counters.own.read();
        qps[0].resume(Side::Responder);
        assert_eq!(bed.region.counters.own.read(), before, "a fault is counted once");
    }

    #[test]
    fn memory_that_is_being_invalidated_takes_its_time_to_populate() {
        let (bed, qps) = (bed(1), qps(1));
        invalidate::enter(&bed.region).unwrap();
        let guard = invalidate::begin(bed.first * PAGE, PAGE).expect("the region overlaps");
        bed.resolver.start().unwrap();
        bed.raise(&qps[0], 0..1, 0);
        // The thread has noticed the fault when it waits for the end of the invalidation.
        let raised = clock::now();
        while bed.region.counters.own.read().page_contentions == 0 {
            assert!(clock::now() - raised < 10_000 * MS, "no thread waits for the end of the invalidation");
            std::thread::sleep(MS);
        }
        std::thread::sleep(50 * MS);
        drop(guard);
        bed.next();
        let (whole, [_, populate, adapter, table, _]) = bed.cost(&qps[0]);
        assert!(populate >= 50 * MS && adapter.is_zero() && !table.is_zero(), "{whole:?}: {populate:?}, {adapter:?}");
        invalidate::leave(&bed.region);
    }

    #[test]
    fn the_adapter_takes_the_time_of_its_profile_and_an_engine_that_is_late_the_rest() {
        const RESOLVE: Duration = Duration::from_millis(200);
        let mut profile = Profile::ideal();
        profile.page_faults.resolve = Delay::exactly(RESOLVE);
        // If the threads get no core before the page is due, it is not deferred: then another page is tried.
        let deferred = (0..20).find_map(|_| {
            let (bed, qps) = (bed_of(1, &profile), qps(1));
            bed.resolver.start().unwrap();
            let raised = clock::now();
            bed.raise(&qps[0], 0..1, 0);
            let mut woken = vec![];
            while woken.is_empty() {
                if bed.woken.try_recv().is_ok() {
                    return None;
                }
                assert!(clock::now() - raised < 10_000 * MS, "the QP does not continue");
                std::thread::sleep(MS);
                // The engine looks 20 ms after the page is due.
                bed.resolver.take_due((clock::now().0).saturating_sub(20_000_000), |num, _| woken.push(num));
            }
            let (whole, parts) = bed.cost(&qps[0]);
            assert!(whole >= RESOLVE + 20 * MS && whole <= clock::now() - raised, "{whole:?}");
            Some(parts)
        });
        let [notice, populate, adapter, table, resume] = deferred.expect("a page is deferred");
        assert!(adapter + notice + populate >= RESOLVE && adapter <= RESOLVE, "{adapter:?}, {notice:?}, {populate:?}");
        assert!(!adapter.is_zero() && !table.is_zero() && resume >= 20 * MS, "{adapter:?}, {table:?}, {resume:?}");
    }

    #[test]
    fn a_side_that_meets_its_next_fault_has_continued() {
        let (bed, qps) = (bed(2), qps(1));
        bed.resolver.start().unwrap();
        bed.raise(&qps[0], 0..1, 0);
        bed.next();
        bed.raise(&qps[0], 1..2, 0);
        let first = bed.region.counters.own.read().page_fault_wait_ns;
        assert!(first > 0, "the first fault is counted when the second begins");
        bed.next();
        assert!(bed.cost(&qps[0]).0 > Duration::from_nanos(first));
    }
}
