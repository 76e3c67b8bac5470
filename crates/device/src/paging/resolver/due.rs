//! Faults that take as long as those of a real adapter (`page_faults.resolve` of a profile). Pages are populated at
//! once, but *deferred*: they enter the adapter's table, and QPs that wait for them continue, when the drawn time is
//! over.
//!
//! The engine keeps that time among its deadlines and calls [`Resolver::take_due`]. Pages that cannot be entered
//! then, because they were invalidated meanwhile or are not populated yet, are populated by a thread as without a
//! delay.

use super::Resolver;
use super::jobs::{Job, Stage, State, Woken, take_waiters};
use crate::os::clock;
use crate::paging::cost::Part;
use crate::paging::invalidate;
use crate::paging::populate::PopulateError;
use crate::paging::region::Populator;
use weir_transport::{FaultEvents, Side};

impl Resolver {
    /// Enters the jobs that are due at `now` (nanoseconds) and calls `each` with each side of a QP that can continue.
    /// Returns the time of the next call.
    pub fn take_due(&self, now: u64, mut each: impl FnMut(u32, Side)) -> Option<u64> {
        loop {
            let mut state = self.lock();
            let State { jobs, waiters, .. } = &mut *state;
            let deferred = jobs.iter_mut().filter(|job| job.stage == Stage::Deferred);
            let job = deferred.min_by_key(|job| job.deferral.due)?;
            if job.deferral.due > now {
                return Some(job.deferral.due);
            }
            let mut woken = Woken::default();
            job.pass(clock::now().0);
            if job.enter() {
                job.times.pass(Part::Table, clock::now().0);
                take_waiters(waiters, &mut woken, job, |_| true, |_| None);
                job.region.counters.add(|c| &c.page_faults_handled, woken.count as u64);
                if !woken.is_full() {
                    // A thread of the resolver removes the empty job.
                    job.pages.start = job.pages.end;
                }
            }
            if !woken.is_full() {
                job.deferral.due = 0;
                job.stage = Stage::Waiting;
            }
            drop(state);
            self.work.notify_one();
            for (faults, side) in woken.list.iter().flatten() {
                each(faults.num, *side);
            }
        }
    }

    /// Calls `work` with the adapter's page-fault events.
    pub fn events<R>(&self, work: impl FnOnce(&mut FaultEvents) -> R) -> R {
        work(&mut self.lock().late.events)
    }

    /// Records at `now` (nanoseconds) that the pages up to `end` are populated, or why they are not.
    pub(super) fn fetched(&self, number: u64, end: u64, result: Result<u64, PopulateError>, now: u64) {
        let mut state = self.lock();
        let job = state.job(number);
        job.pass(now);
        let until = job.pages.end;
        let deferral = &mut job.deferral;
        match result {
            Ok(changes) => {
                deferral.fetched = end;
                deferral.invalidated |= *deferral.changes.get_or_insert(changes) != changes;
            }
            // The thread tries again.
            Err(PopulateError::Invalidated) => {
                drop(state);
                std::thread::yield_now();
            }
            // The failure is reported when the job becomes due, too.
            Err(PopulateError::Unmapped) => {
                deferral.fetched = until;
                deferral.invalidated = true;
            }
        }
    }

    /// Has the engine set a deadline for the deferred job. Always true.
    pub(super) fn report_deferral(&self) -> bool {
        if let Some(owner) = self.owner() {
            owner.pages_deferred();
        }
        true
    }
}

impl Job {
    /// Enters all pages into the table; false if they must be populated again.
    fn enter(&mut self) -> bool {
        let changes = self.deferral.changes.filter(|_| !self.deferral.invalidated);
        let entered = changes.and_then(|c| invalidate::enter_late(&self.region, self.pages.clone(), self.write, c));
        let Some(new) = entered else { return false };
        self.region.counters.add(|c| &c.page_fault_pages, new);
        true
    }
}
