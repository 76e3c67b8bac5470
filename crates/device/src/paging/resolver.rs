//! Resolution of network page faults: a queue of missing pages, and threads that populate them.
//!
//! A fault belongs to a side of a QP and names the pages of a packet. The rest of its message is populated with it in
//! steps; each step wakes the QP sides that have all their pages. A fault on pages of a job joins that job.
//!
//! The engine raises faults and never waits here: the lock is held only briefly, and nothing is allocated or freed
//! under it where a memory hook of the program could call back.
//!
//! The pages of adapters with a resolution time are deferred: see [`late`].

mod late;

use crate::Errno;
use crate::memory::mask;
use crate::os::panics::catch_panic;
use crate::os::threads::with_signals_blocked;
use crate::paging::faults::QpFaults;
use crate::paging::populate::{PopulateError, fetch, populate_and_enter};
use crate::paging::region::OnDemand;
use crate::room::with_room;
use late::{Deferral, Late};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Instant;
use weir_transport::{Profile, Side};

/// The adapter that a resolver works for.
pub(crate) trait Owner: Send + Sync {
    /// Returns when no access that began before is under way, or after a time limit: the invalidating thread may hold
    /// a lock that the access waits for.
    fn quiesce(&self);
    /// The faults of these QP sides are over: their pages are present, or cannot be populated.
    fn resolved(&self, sides: &[(u32, Side)]);
    /// Pages are deferred: [`Resolver::take_due`] must be called when they become due.
    fn pages_deferred(&self) {}
    /// A thread of the resolver has panicked: faults may never be resolved.
    fn panicked(&self) {}
}

/// Maximum number of threads. Two are started, another whenever none is idle, because a page may take a long time.
const THREADS: usize = 8;
/// Pages populated at a time: QPs continue with these while the next ones are populated.
const STEP: u64 = 16;
/// Pages populated ahead of the needed ones, at most.
pub(crate) const AHEAD: u64 = 256;
/// Waiters woken at a time.
const WAKES: usize = 64;

/// The queue and its threads.
pub(crate) struct Resolver {
    state: Mutex<State>,
    /// There is work, or the threads must end.
    work: Condvar,
    owner: Weak<dyn Owner>,
}

struct State {
    jobs: Vec<Job>,
    waiters: Vec<Waiter>,
    threads: usize,
    idle: usize,
    last: u64,
    ended: bool,
    /// Deferral of faults.
    late: Late,
}

/// Pages to be populated for a region.
struct Job {
    number: u64,
    region: Arc<OnDemand>,
    /// The remaining pages.
    pages: Range<u64>,
    write: bool,
    /// Requested by a prefetch, not by a fault.
    prefetch: bool,
    stage: Stage,
    cancelled: bool,
    /// Populated pages that do not enter the table yet.
    deferral: Deferral,
}

/// Progress of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// No thread works on it yet.
    Waiting,
    /// A thread works on it.
    Running,
    /// Populated; it enters the table later.
    Deferred,
}

/// A side of a QP that waits for pages of a job.
struct Waiter {
    job: u64,
    pages: Range<u64>,
    faults: Arc<QpFaults>,
    side: Side,
}

/// The QP side that met a fault.
#[derive(Clone, Copy)]
pub(crate) struct FaultOrigin<'a> {
    pub faults: &'a Arc<QpFaults>,
    pub side: Side,
}

impl Resolver {
    /// A resolver without threads, for an adapter with this profile.
    pub fn new(owner: Weak<dyn Owner>, profile: &Profile) -> Arc<Resolver> {
        let late = Late::new(profile);
        let state = State { jobs: Vec::new(), waiters: Vec::new(), threads: 0, idle: 0, last: 0, ended: false, late };
        Arc::new(Resolver { state: Mutex::new(state), work: Condvar::new(), owner })
    }

    /// Its adapter; `None` if that is gone.
    pub fn owner(&self) -> Option<Arc<dyn Owner>> {
        self.owner.upgrade()
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
        drop(with_room(4 * qps, || self.lock(), |state| state.late.faulting_requesters())?);
        Ok(())
    }

    /// A QP side needs `needed`. Populates up to `ahead` pages from there; the owner is told when the QP can continue.
    pub fn raise(&self, region: &Arc<OnDemand>, needed: Range<u64>, ahead: u64, write: bool, origin: FaultOrigin<'_>) {
        if !origin.faults.begin(origin.side) {
            return;
        }
        let pages = needed.start..needed.end.max(needed.start + ahead.min(AHEAD)).min(region.pages().end);
        let mut state = self.lock();
        state.late.note_fault(origin.faults.num, origin.side);
        region.counters.add(|c| &c.page_faults, 1);
        let found = state.jobs.iter_mut().find(|job| job.covers(region, &needed, write));
        let job = match found {
            Some(job) => {
                region.counters.add(|c| &c.page_faults_merged, 1);
                job.extend(pages.end.min(job.pages.start + AHEAD));
                job.number
            }
            None => state.push(region.clone(), pages, write, false),
        };
        state.waiters.push(Waiter { job, pages: needed, faults: origin.faults.clone(), side: origin.side });
        drop(state);
        self.work.notify_one();
    }

    /// The message that met a fault at `page` continues for `ahead` pages: its job may populate them, too.
    pub fn expect(&self, region: &Arc<OnDemand>, page: u64, ahead: u64, write: bool) {
        let mut state = self.lock();
        if let Some(job) = state.jobs.iter_mut().find(|job| job.covers(region, &(page..page + 1), write)) {
            let end = (page + ahead).min(job.pages.start + AHEAD).min(region.pages().end);
            job.extend(end);
            drop(state);
            self.work.notify_one();
        }
    }

    /// Populates pages in the background. Must not be called from within the engine.
    pub fn prefetch(&self, region: &Arc<OnDemand>, pages: Range<u64>, write: bool) {
        let Ok(mut state) = with_room(1, || self.lock(), |state| &mut state.jobs) else {
            // Without memory for the job, the pages are populated by faults.
            return;
        };
        state.push(region.clone(), pages, write, true);
        drop(state);
        self.work.notify_one();
    }

    /// Cancels the jobs of a region that is deregistered, and wakes their waiters.
    pub fn cancel(&self, region: &Arc<OnDemand>) {
        loop {
            let mut state = self.lock();
            let mut woken = Woken::default();
            for job in state.jobs.iter_mut().filter(|job| Arc::ptr_eq(&job.region, region)) {
                job.cancelled = true;
            }
            let State { jobs, waiters, .. } = &mut *state;
            let cancelled = |number| jobs.iter().any(|job| job.number == number && job.cancelled);
            take_waiters(waiters, &mut woken, |waiter| cancelled(waiter.job), |_| None);
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

    fn wake(&self, region: &OnDemand, woken: Woken) {
        if woken.count == 0 {
            return;
        }
        region.counters.add(|c| &c.page_faults_handled, woken.count as u64);
        let mut sides = [(0, Side::Requester); WAKES];
        for (entry, waiter) in sides.iter_mut().zip(woken.list.iter().flatten()) {
            *entry = (waiter.faults.num, waiter.side);
        }
        if let Some(owner) = self.owner() {
            owner.resolved(&sides[..woken.count]);
        }
    }

    fn spawn(self: &Arc<Self>) -> Result<(), Errno> {
        let resolver = self.clone();
        let run = move || {
            mask::assume_unblocked();
            if !catch_panic(|| resolver.run())
                && let Some(owner) = resolver.owner()
            {
                owner.panicked();
            }
        };
        let builder = || std::thread::Builder::new().name("weir-paging".into()).stack_size(256 << 10);
        let mut state = self.lock();
        state.threads += 1;
        state.idle += 1;
        drop(state);
        if with_signals_blocked(|| builder().spawn(run)).is_err() {
            let mut state = self.lock();
            state.threads -= 1;
            state.idle -= 1;
            return Err(Errno(libc::EAGAIN));
        }
        Ok(())
    }

    fn run(self: &Arc<Self>) {
        let mut state = self.lock();
        while !state.ended {
            let Some(job) = state.jobs.iter_mut().find(|job| job.stage == Stage::Waiting) else {
                state = self.work.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                continue;
            };
            job.stage = Stage::Running;
            let number = job.number;
            state.idle -= 1;
            let none_idle = state.idle == 0 && state.threads < THREADS;
            drop(state);
            if none_idle {
                // Otherwise the next fault would wait for this job.
                let _ = self.spawn();
            }
            loop {
                self.work_on(number);
                if self.finish(number) {
                    break;
                }
            }
            state = self.lock();
            state.idle += 1;
        }
        state.idle -= 1;
        state.threads -= 1;
    }

    /// Populates the pages of a job, step by step.
    fn work_on(&self, number: u64) {
        let mut step = STEP;
        loop {
            let mut state = self.lock();
            let job = state.job(number);
            let is_late = job.is_late();
            let left = if is_late { job.to_fetch() } else { job.pages.clone() };
            if job.cancelled || left.is_empty() {
                break;
            }
            let (region, write, prefetch) = (job.region.clone(), job.write, job.prefetch);
            drop(state);
            let pages = left.start..left.end.min(left.start + step);
            let began = Instant::now();
            if is_late {
                let result = fetch(&region, pages.clone(), write);
                region.counters.add_time(|c| &c.page_fault_ns, began.elapsed());
                self.fetched(number, pages.end, result);
                continue;
            }
            let result = populate_and_enter(&region, pages.clone(), write);
            let new = *result.as_ref().unwrap_or(&0);
            if prefetch {
                region.counters.add_time(|c| &c.page_prefetch_ns, began.elapsed());
                region.counters.add(|c| &c.page_prefetch_pages, new);
            } else {
                region.counters.add_time(|c| &c.page_fault_ns, began.elapsed());
                region.counters.add(|c| &c.page_fault_pages, new);
            }
            match result {
                Ok(_) => {
                    self.advance(number, pages.end, &region, None);
                    step = STEP;
                }
                // Tries again. A program that keeps invalidating can starve this, as it can starve a real adapter.
                Err(PopulateError::Invalidated) => std::thread::yield_now(),
                // At least one page of the step is unmapped: goes on page by page.
                Err(PopulateError::Unmapped) if pages.end - pages.start > 1 => step = 1,
                Err(PopulateError::Unmapped) => {
                    self.advance(number, pages.end, &region, Some((pages.start, write)));
                    step = STEP;
                }
            }
        }
    }

    /// A job has reached `end`: wakes the waiters that have all their pages. `failed`: the last page could not be
    /// populated; wakes its waiters with that failure.
    fn advance(&self, number: u64, end: u64, region: &OnDemand, failed: Option<(u64, bool)>) {
        loop {
            let mut state = self.lock();
            let mut woken = Woken::default();
            let job = state.job(number);
            job.pages.start = end;
            let fails = |waiter: &Waiter| failed.filter(|(page, _)| waiter.pages.contains(page));
            let done = |waiter: &Waiter| waiter.job == number && (waiter.pages.end <= end || fails(waiter).is_some());
            take_waiters(&mut state.waiters, &mut woken, done, fails);
            if failed.is_some() && !state.waiters.iter().any(|waiter| waiter.job == number) {
                // The remaining pages are read-ahead beyond the end of the mapped memory.
                let job = state.job(number);
                job.pages.start = job.pages.end;
            }
            drop(state);
            let more = woken.is_full();
            if failed.is_some() {
                region.counters.add(|c| &c.page_faults_failed, woken.failed as u64);
            }
            self.wake(region, woken);
            if !more {
                return;
            }
        }
    }

    /// Removes a completed job and wakes its waiters, which try again; false if a fault has just extended the job.
    fn finish(&self, number: u64) -> bool {
        loop {
            let mut state = self.lock();
            let job = state.job(number);
            if !job.cancelled && !job.pages.is_empty() {
                let deferred = job.defer();
                drop(state);
                return deferred && self.report_deferral();
            }
            let region = job.region.clone();
            let mut woken = Woken::default();
            take_waiters(&mut state.waiters, &mut woken, |waiter| waiter.job == number, |_| None);
            let gone = if woken.is_full() { None } else { state.take(number) };
            drop(state);
            self.wake(&region, woken);
            if let Some(job) = gone {
                job.is_over();
                return true;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    fn push(&mut self, region: Arc<OnDemand>, pages: Range<u64>, write: bool, prefetch: bool) -> u64 {
        self.last += 1;
        let number = self.last;
        let deferral = if prefetch { Deferral::default() } else { self.late.begin() };
        let stage = Stage::Waiting;
        self.jobs.push(Job { number, region, pages, write, prefetch, stage, cancelled: false, deferral });
        number
    }

    /// The running job with this number.
    fn job(&mut self, number: u64) -> &mut Job {
        self.jobs.iter_mut().find(|job| job.number == number).expect("the thread that runs a job removes it")
    }

    fn take(&mut self, number: u64) -> Option<Job> {
        let at = self.jobs.iter().position(|job| job.number == number)?;
        Some(self.jobs.remove(at))
    }
}

impl Job {
    /// Whether the job covers these pages.
    fn covers(&self, region: &Arc<OnDemand>, pages: &Range<u64>, write: bool) -> bool {
        Arc::ptr_eq(&self.region, region)
            && (self.write || !write)
            && !self.cancelled
            && self.pages.start <= pages.start
            && pages.end <= self.pages.end
    }

    fn is_over(&self) {
        if self.prefetch {
            self.region.counters.add(|c| &c.page_prefetch_handled, 1);
        }
    }
}

/// Waiters that can continue; at most [`WAKES`].
struct Woken {
    list: [Option<Waiter>; WAKES],
    count: usize,
    failed: usize,
}

impl Default for Woken {
    fn default() -> Self {
        Woken { list: [const { None }; WAKES], count: 0, failed: 0 }
    }
}

impl Woken {
    /// There may be more of them.
    fn is_full(&self) -> bool {
        self.count == WAKES
    }
}

/// Ends waits and records failures.
fn take_waiters(
    waiters: &mut Vec<Waiter>,
    woken: &mut Woken,
    which: impl Fn(&Waiter) -> bool,
    fails: impl Fn(&Waiter) -> Option<(u64, bool)>,
) {
    let mut at = 0;
    while at < waiters.len() && !woken.is_full() {
        if which(&waiters[at]) {
            let waiter = waiters.swap_remove(at);
            let failed = fails(&waiter);
            woken.failed += usize::from(failed.is_some());
            waiter.faults.end(waiter.side, failed);
            woken.list[woken.count] = Some(waiter);
            woken.count += 1;
        } else {
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paging::counters::{self, Pair};
    use crate::paging::table::PAGE;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

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
        // SAFETY: a new mapping, which stays.
        let start = unsafe {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), (pages * PAGE) as usize, protection, flags, -1, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        let (sender, woken) = channel();
        let adapter: Arc<dyn Owner> = Arc::new(Adapter(Mutex::new(sender)));
        let resolver = Resolver::new(Arc::downgrade(&adapter), &Profile::ideal());
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
        bed.resolver.expect(&bed.region, bed.first, 400, true);
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
}
