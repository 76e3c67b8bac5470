//! The threads of a resolver: they take jobs and populate their pages step by step.

use super::Resolver;
use super::jobs::{Stage, Waiter, Woken, take_waiters};
use crate::Errno;
use crate::os::clock;
use crate::os::panics::catch_panic;
use crate::os::threads::spawn_unwatched;
use crate::paging::cost::Part;
use crate::paging::populate::{PopulateError, fetch, populate_and_enter};
use crate::paging::region::{OnDemand, Populator};
use std::sync::Arc;

/// Maximum number of threads. Two are started, another whenever none is idle, because a page may take a long time.
const THREADS: usize = 8;
/// Pages populated at a time: QPs continue with these while the next ones are populated.
const STEP: u64 = 16;

impl Resolver {
    /// Starts a thread. EAGAIN if the system refuses.
    pub(super) fn spawn(self: &Arc<Self>) -> Result<(), Errno> {
        let resolver = self.clone();
        let run = move || {
            if !catch_panic(|| resolver.run())
                && let Some(owner) = resolver.owner()
            {
                owner.panicked();
            }
        };
        let mut state = self.lock();
        state.threads += 1;
        state.idle += 1;
        drop(state);
        if let Err(error) = spawn_unwatched(c"weir-paging", 256 << 10, run) {
            let mut state = self.lock();
            state.threads -= 1;
            state.idle -= 1;
            return Err(error);
        }
        Ok(())
    }

    fn run(self: &Arc<Self>) {
        let mut state = self.lock();
        while !state.ended {
            let Some(job) = state.jobs.iter_mut().find(|job| job.stage == Stage::Waiting) else {
                state = self.work.wait(state);
                continue;
            };
            job.pass(clock::now().0);
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
            let began = clock::now();
            if is_late {
                let result = fetch(&region, pages.clone(), write);
                let now = clock::now();
                region.counters.add_time(|c| &c.page_fault_ns, now - began);
                self.fetched(number, pages.end, result, now.0);
                continue;
            }
            let result = populate_and_enter(&region, pages.clone(), write);
            let now = clock::now();
            let new = result.as_ref().map_or(0, |entered| entered.new);
            if prefetch {
                region.counters.add_time(|c| &c.page_prefetch_ns, now - began);
                region.counters.add(|c| &c.page_prefetch_pages, new);
            } else {
                region.counters.add_time(|c| &c.page_fault_ns, now - began);
                region.counters.add(|c| &c.page_fault_pages, new);
            }
            match result {
                Ok(entered) => {
                    let passed = [(Part::Populate, entered.present), (Part::Table, now.0)];
                    self.advance(number, pages.end, &region, &passed, None);
                    step = STEP;
                }
                // Tries again. A program that keeps invalidating can starve this, as it can starve a real adapter.
                Err(PopulateError::Invalidated) => std::thread::yield_now(),
                // At least one page of the step is unmapped: goes on page by page.
                Err(PopulateError::Unmapped) if pages.end - pages.start > 1 => step = 1,
                Err(PopulateError::Unmapped) => {
                    let passed = [(Part::Populate, now.0)];
                    self.advance(number, pages.end, &region, &passed, Some((pages.start, write)));
                    step = STEP;
                }
            }
        }
    }

    /// A job has reached `end`: wakes the waiters that have all their pages. `passed`: the step's parts, and when each
    /// was over (nanoseconds). `failed`: the last page could not be populated; wakes its waiters with that failure.
    fn advance(&self, number: u64, end: u64, region: &OnDemand, passed: &[(Part, u64)], failed: Option<(u64, bool)>) {
        loop {
            let mut state = self.lock();
            let mut woken = Woken::default();
            let (job, waiters) = state.job_and_waiters(number);
            passed.iter().for_each(|(part, until)| job.times.pass(*part, *until));
            job.pages.start = end;
            let fails = |waiter: &Waiter| failed.filter(|(page, _)| waiter.pages.contains(page));
            let done = |waiter: &Waiter| waiter.pages.end <= end || fails(waiter).is_some();
            take_waiters(waiters, &mut woken, job, done, fails);
            if failed.is_some() && !waiters.iter().any(|waiter| waiter.job == number) {
                // The remaining pages are read-ahead beyond the end of the mapped memory.
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
            let (job, waiters) = state.job_and_waiters(number);
            if !job.cancelled && !job.pages.is_empty() {
                let deferred = job.defer();
                drop(state);
                return deferred && self.report_deferral();
            }
            let region = job.region.clone();
            let mut woken = Woken::default();
            job.pass(clock::now().0);
            take_waiters(waiters, &mut woken, job, |_| true, |_| None);
            let gone = if woken.is_full() { None } else { state.take(number) };
            drop(state);
            self.wake(&region, woken);
            if let Some(job) = gone {
                job.is_over();
                return true;
            }
        }
    }
}
