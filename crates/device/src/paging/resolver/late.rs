//! Faults that take as long as those of a real adapter (`page_faults.resolve` of a profile). Pages are populated at
//! once, but *deferred*: they enter the adapter's table, and QPs that wait for them continue, when the drawn time is
//! over.
//!
//! The engine keeps that time among its deadlines and calls [`Resolver::announce`]. Pages that cannot be entered
//! then, because they were invalidated meanwhile or are not populated yet, are populated by a thread as without a
//! delay.

use super::{Job, Resolver, Stage, State, Woken, take_waiters};
use crate::clock;
use crate::paging::invalidate;
use crate::paging::populate::Trouble;
use std::ops::Range;
use weir_transport::{Chance, Delay, Instant, PageFaults, Profile, Side};

/// State of the deferral of faults.
pub(super) struct Late {
    resolve: Delay,
    serial: bool,
    /// When the last fault so far becomes due (nanoseconds). Used if the profile resolves faults one after another.
    busy: u64,
    chance: Chance,
    floods: bool,
    /// QPs with faults of their requesters, where the profile has packet flood.
    begun: Vec<u32>,
}

/// Progress of a job with deferred pages.
#[derive(Default)]
pub(super) struct Ripening {
    /// When the job becomes due (nanoseconds); 0: as soon as its pages are present.
    due: u64,
    /// The pages before this number are populated.
    fetched: u64,
    /// The region's `changes` when the first pages were populated; `None` before that.
    changes: Option<u64>,
    /// The pages must be populated again.
    spoiled: bool,
}

impl Late {
    pub fn new(profile: &Profile) -> Late {
        let PageFaults { resolve, serial, .. } = profile.page_faults;
        Late {
            resolve,
            serial,
            busy: 0,
            chance: Chance::seeded(profile.seed),
            floods: profile.flood.is_some(),
            begun: Vec::new(),
        }
    }

    /// Draws the time of a fault that is raised now.
    pub fn begin(&mut self) -> Ripening {
        if self.resolve.high.is_zero() {
            return Ripening::default();
        }
        let share = self.chance.share();
        let now = clock::now();
        let begin = if self.serial { now.max(Instant(self.busy)) } else { now };
        self.busy = (begin + self.resolve.at(share)).0;
        Ripening { due: self.busy, ..Ripening::default() }
    }

    /// Records that a side of a QP has met a fault.
    pub fn began(&mut self, num: u32, side: Side) {
        if self.floods && side == Side::Requester && self.begun.last() != Some(&num) {
            self.begun.push(num);
        }
    }

    pub fn begun(&mut self) -> &mut Vec<u32> {
        &mut self.begun
    }
}

impl Job {
    /// Whether pages that are populated now must not enter the table yet.
    pub(super) fn is_late(&self) -> bool {
        self.ripening.due > 0 && clock::now().0 < self.ripening.due
    }

    /// The pages that are not populated yet.
    pub(super) fn to_fetch(&self) -> Range<u64> {
        self.ripening.fetched.clamp(self.pages.start, self.pages.end)..self.pages.end
    }

    /// Extends the job to the page number `end`.
    pub(super) fn extend(&mut self, end: u64) {
        self.pages.end = self.pages.end.max(end);
        if self.stage == Stage::Ripening && !self.to_fetch().is_empty() {
            self.stage = Stage::Waiting;
        }
    }

    /// Defers the job if all its pages are populated but not due; returns whether it did.
    pub(super) fn ripen(&mut self) -> bool {
        let ripens = self.is_late() && self.to_fetch().is_empty();
        if ripens {
            self.stage = Stage::Ripening;
        }
        ripens
    }

    /// Enters all pages into the table; false if they must be populated again.
    fn enter(&mut self) -> bool {
        let changes = self.ripening.changes.filter(|_| !self.ripening.spoiled);
        let entered = changes.and_then(|c| invalidate::enter_late(&self.region, self.pages.clone(), self.write, c));
        let Some(new) = entered else { return false };
        self.region.counters.add(|c| &c.page_fault_pages, new);
        true
    }
}

impl Resolver {
    /// Enters the jobs that are due at `now` (nanoseconds) and calls `tell` with each side of a QP that can continue.
    /// Returns the time of the next call.
    pub fn announce(&self, now: u64, mut tell: impl FnMut(u32, Side)) -> Option<u64> {
        loop {
            let mut state = self.lock();
            let State { jobs, waiters, .. } = &mut *state;
            let ripening = jobs.iter_mut().filter(|job| job.stage == Stage::Ripening);
            let job = ripening.min_by_key(|job| job.ripening.due)?;
            if job.ripening.due > now {
                return Some(job.ripening.due);
            }
            let mut woken = Woken::default();
            if job.enter() {
                take_waiters(waiters, &mut woken, |waiter| waiter.job == job.number, |_| None);
                job.region.counters.add(|c| &c.page_faults_handled, woken.count as u64);
                if !woken.is_full() {
                    // A thread of the resolver removes the empty job.
                    job.pages.start = job.pages.end;
                }
            }
            if !woken.is_full() {
                job.ripening.due = 0;
                job.stage = Stage::Waiting;
            }
            drop(state);
            self.work.notify_one();
            for waiter in woken.list.iter().flatten() {
                tell(waiter.faults.num, waiter.side);
            }
        }
    }

    /// Takes the QPs with new faults of their requesters, where the profile has packet flood.
    pub fn take_begun(&self, tell: impl FnMut(u32)) {
        let mut begun = std::mem::take(&mut self.lock().late.begun);
        begun.drain(..).for_each(tell);
        let mut state = self.lock();
        // The list is still empty, because only the holder of the engine raises faults, and it is the caller. But it
        // may have been replaced by a larger list meanwhile (`reserve`): that is kept.
        if state.late.begun.capacity() < begun.capacity() {
            std::mem::swap(&mut state.late.begun, &mut begun);
        }
        drop(state);
    }

    /// Records that the pages up to `end` are populated, or why they are not.
    pub(super) fn fetched(&self, number: u64, end: u64, result: Result<u64, Trouble>) {
        let mut state = self.lock();
        let job = state.job(number);
        let until = job.pages.end;
        let ripening = &mut job.ripening;
        match result {
            Ok(changes) => {
                ripening.fetched = end;
                ripening.spoiled |= *ripening.changes.get_or_insert(changes) != changes;
            }
            // The thread tries again.
            Err(Trouble::Invalidated) => {
                drop(state);
                std::thread::yield_now();
            }
            // The failure is reported when the job becomes due, too.
            Err(Trouble::Unmapped) => {
                ripening.fetched = until;
                ripening.spoiled = true;
            }
        }
    }

    /// Has the engine set a deadline for the deferred job. Always true.
    pub(super) fn tell_of_ripening(&self) -> bool {
        if let Some(owner) = self.owner() {
            owner.ripens();
        }
        true
    }
}
