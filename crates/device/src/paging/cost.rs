//! How long a page fault takes, by part: from the access that met it until the engine lets the QP continue.
//!
//! Each part ends where the next one begins, so the parts add up to the whole time. All times are nanoseconds of the
//! device's clock, which is read at faults only.

use crate::paging::counters::{Counters, Pair};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A part of a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// No thread of the resolver works on the fault yet: on a real adapter, the interrupt.
    Notice,
    /// The operating system populates the pages.
    Populate,
    /// The pages are populated, and the time that the profile's adapter takes is not over.
    Adapter,
    /// The pages enter the table.
    Table,
    /// The pages are in the table, and the QP does not continue yet. Also: how late the engine enters deferred pages.
    Resume,
}

type Counter = fn(&Counters) -> &AtomicU64;

/// The counter of each part, in the order of [`Part`].
const COUNTERS: [Counter; 5] = [
    |c| &c.page_fault_notice_ns,
    |c| &c.page_fault_populate_ns,
    |c| &c.page_fault_adapter_ns,
    |c| &c.page_fault_table_ns,
    |c| &c.page_fault_resume_ns,
];

/// The time since a job began, by part, up to the moment `at`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeline {
    at: u64,
    spent: [u64; COUNTERS.len()],
}

impl Timeline {
    /// Begins at `now`.
    pub fn begin(now: u64) -> Timeline {
        Timeline { at: now, spent: Default::default() }
    }

    /// The time up to `until` belongs to `part`; none, if `until` has passed already.
    pub fn pass(&mut self, part: Part, until: u64) {
        self.spent[part as usize] += until.saturating_sub(self.at);
        self.at = self.at.max(until);
    }
}

/// The cost of a fault.
#[derive(Debug)]
pub(crate) struct Cost {
    counters: Arc<Pair>,
    raised: u64,
    /// Until the fault ends: its job's times when it joined the job. Then: its own times.
    times: Timeline,
}

impl Cost {
    /// A fault that was raised at `raised`, by a job with these times so far, which belong to earlier faults.
    pub fn begin(counters: Arc<Pair>, raised: u64, job: Timeline) -> Cost {
        Cost { counters, raised, times: job }
    }

    /// The fault ends at the moment of its job's times.
    pub fn end(mut self, job: &Timeline) -> Cost {
        for (before, now) in self.times.spent.iter_mut().zip(job.spent) {
            *before = now - *before;
        }
        self.times.at = job.at;
        self
    }

    /// The QP continues at `now`: adds the whole time and its parts to the counters.
    pub fn count(mut self, now: u64) {
        self.times.pass(Part::Resume, now);
        self.counters.add(|c| &c.page_fault_wait_ns, now.saturating_sub(self.raised));
        for (counter, spent) in COUNTERS.iter().zip(self.times.spent) {
            self.counters.add(counter, spent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paging::counters::{self, Values};

    fn pair() -> Arc<Pair> {
        Arc::new(Pair::new(counters::of_device("cost-test")))
    }

    fn parts(values: &Values) -> [u64; 5] {
        let v = values;
        [
            v.page_fault_notice_ns,
            v.page_fault_populate_ns,
            v.page_fault_adapter_ns,
            v.page_fault_table_ns,
            v.page_fault_resume_ns,
        ]
    }

    #[test]
    fn each_time_belongs_to_the_part_that_it_ends() {
        let pair = pair();
        let mut job = Timeline::begin(1000);
        let cost = Cost::begin(pair.clone(), 1000, job);
        job.pass(Part::Notice, 1040);
        job.pass(Part::Populate, 1043);
        job.pass(Part::Adapter, 1500);
        job.pass(Part::Table, 1502);
        cost.end(&job).count(1520);
        let values = pair.own.read();
        assert_eq!((values.page_fault_wait_ns, parts(&values)), (520, [40, 3, 457, 2, 18]));
    }

    #[test]
    fn a_fault_that_joins_a_job_has_only_the_time_from_there() {
        let pair = pair();
        let mut job = Timeline::begin(1000);
        let first = Cost::begin(pair.clone(), 1000, job);
        job.pass(Part::Notice, 1040);
        job.pass(Part::Populate, 1050);
        let second = Cost::begin(pair.clone(), 1050, job);
        job.pass(Part::Populate, 1060);
        job.pass(Part::Table, 1061);
        second.end(&job).count(1061);
        let values = pair.own.read();
        assert_eq!((values.page_fault_wait_ns, parts(&values)), (11, [0, 10, 0, 1, 0]));
        first.end(&job).count(1071);
        let values = pair.own.read();
        assert_eq!((values.page_fault_wait_ns, parts(&values)), (11 + 71, [40, 30, 0, 2, 10]));
    }

    #[test]
    fn a_moment_that_has_passed_adds_nothing() {
        let mut job = Timeline::begin(1000);
        job.pass(Part::Populate, 1010);
        job.pass(Part::Table, 1005);
        job.pass(Part::Resume, 1012);
        assert_eq!((job.at, job.spent), (1012, [0, 10, 0, 0, 2]));
    }
}
