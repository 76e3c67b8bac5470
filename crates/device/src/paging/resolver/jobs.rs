//! The queue of a resolver: pages to populate, and the QP sides that wait for them.

use super::late::{Deferral, Late};
use crate::os::clock;
use crate::paging::cost::{Cost, Part, Timeline};
use crate::paging::faults::QpFaults;
use crate::paging::region::OnDemand;
use std::ops::Range;
use std::sync::Arc;
use weir_transport::Side;

/// Waiters woken at a time.
pub const WAKES: usize = 64;

/// The queue, and the threads that work on it.
pub struct State {
    pub jobs: Vec<Job>,
    pub waiters: Vec<Waiter>,
    pub threads: usize,
    pub idle: usize,
    pub last: u64,
    pub ended: bool,
    /// Deferral of faults.
    pub late: Late,
}

/// Pages to be populated for a region.
pub struct Job {
    pub number: u64,
    pub region: Arc<OnDemand>,
    /// The remaining pages.
    pub pages: Range<u64>,
    pub write: bool,
    /// Requested by a prefetch, not by a fault.
    pub prefetch: bool,
    pub stage: Stage,
    pub cancelled: bool,
    /// Populated pages that do not enter the table yet.
    pub deferral: Deferral,
    /// What its time was spent on.
    pub times: Timeline,
}

/// Progress of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// No thread works on it yet.
    Waiting,
    /// A thread works on it.
    Running,
    /// Populated; it enters the table later.
    Deferred,
}

/// A side of a QP that waits for pages of a job.
pub struct Waiter {
    pub job: u64,
    pub pages: Range<u64>,
    pub faults: Arc<QpFaults>,
    pub side: Side,
    pub cost: Cost,
}

impl State {
    /// Appends a job that begins at `now` (nanoseconds). `origin`: the QP and the side that raise the fault; `None`: a
    /// prefetch.
    pub fn push(
        &mut self,
        now: u64,
        region: Arc<OnDemand>,
        pages: Range<u64>,
        write: bool,
        origin: Option<(u32, Side)>,
    ) -> &mut Job {
        self.last += 1;
        let number = self.last;
        let prefetch = origin.is_none();
        let deferral = origin.map_or_else(Deferral::default, |(num, side)| self.late.begin(num, side));
        let (stage, times) = (Stage::Waiting, Timeline::begin(now));
        self.jobs.push(Job { number, region, pages, write, prefetch, stage, cancelled: false, deferral, times });
        self.jobs.last_mut().expect("a job was pushed")
    }

    /// The running job with this number.
    pub fn job(&mut self, number: u64) -> &mut Job {
        self.job_and_waiters(number).0
    }

    /// The running job with this number, and the waiters of all jobs.
    pub fn job_and_waiters(&mut self, number: u64) -> (&mut Job, &mut Vec<Waiter>) {
        let job = self.jobs.iter_mut().find(|job| job.number == number);
        (job.expect("the thread that runs a job removes it"), &mut self.waiters)
    }

    /// Removes the job with this number.
    pub fn take(&mut self, number: u64) -> Option<Job> {
        let at = self.jobs.iter().position(|job| job.number == number)?;
        Some(self.jobs.remove(at))
    }
}

impl Job {
    /// Returns whether the job covers these pages.
    pub fn covers(&self, region: &Arc<OnDemand>, pages: &Range<u64>, write: bool) -> bool {
        Arc::ptr_eq(&self.region, region)
            && (self.write || !write)
            && !self.cancelled
            && self.pages.start <= pages.start
            && pages.end <= self.pages.end
    }

    /// The time up to `now` (nanoseconds) was spent on what the job's stage waits for.
    pub fn pass(&mut self, now: u64) {
        match self.stage {
            Stage::Waiting => self.times.pass(Part::Notice, now),
            Stage::Running => self.times.pass(Part::Populate, now),
            Stage::Deferred => {
                self.times.pass(Part::Adapter, now.min(self.deferral.due));
                // The engine is late.
                self.times.pass(Part::Resume, now);
            }
        }
    }

    /// Returns whether pages that are populated now must not enter the table yet.
    pub fn is_late(&self) -> bool {
        self.deferral.due > 0 && clock::now().0 < self.deferral.due
    }

    /// The pages that are not populated yet.
    pub fn to_fetch(&self) -> Range<u64> {
        self.deferral.fetched.clamp(self.pages.start, self.pages.end)..self.pages.end
    }

    /// Extends the job to the page number `end`.
    pub fn extend(&mut self, end: u64) {
        self.pages.end = self.pages.end.max(end);
        if self.stage == Stage::Deferred && !self.to_fetch().is_empty() {
            self.stage = Stage::Waiting;
        }
    }

    /// Defers the job if all its pages are populated but not due; returns whether it did.
    pub fn defer(&mut self) -> bool {
        let deferred = self.is_late() && self.to_fetch().is_empty();
        if deferred {
            self.stage = Stage::Deferred;
        }
        deferred
    }

    /// Counts the job, if it is a prefetch, as handled.
    pub fn is_over(&self) {
        if self.prefetch {
            self.region.counters.add(|c| &c.page_prefetch_handled, 1);
        }
    }
}

/// Waiters that can continue; at most [`WAKES`].
pub struct Woken {
    pub list: [Option<(Arc<QpFaults>, Side)>; WAKES],
    pub count: usize,
    pub failed: usize,
}

impl Default for Woken {
    fn default() -> Self {
        Woken { list: [const { None }; WAKES], count: 0, failed: 0 }
    }
}

impl Woken {
    /// There may be more of them.
    pub fn is_full(&self) -> bool {
        self.count == WAKES
    }
}

/// Ends the waits of a job's waiters and records failures.
pub fn take_waiters(
    waiters: &mut Vec<Waiter>,
    woken: &mut Woken,
    job: &Job,
    which: impl Fn(&Waiter) -> bool,
    fails: impl Fn(&Waiter) -> Option<(u64, bool)>,
) {
    let mut at = 0;
    while at < waiters.len() && !woken.is_full() {
        if waiters[at].job == job.number && which(&waiters[at]) {
            let waiter = waiters.swap_remove(at);
            let failed = fails(&waiter);
            woken.failed += usize::from(failed.is_some());
            waiter.faults.keep_cost(waiter.side, waiter.cost.end(&job.times));
            waiter.faults.end(waiter.side, failed);
            woken.list[woken.count] = Some((waiter.faults, waiter.side));
            woken.count += 1;
        } else {
            at += 1;
        }
    }
}
