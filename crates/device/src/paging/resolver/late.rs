//! Faults that take as long as those of a real adapter (`page_faults.resolve` of a profile): pages are brought in at
//! once, and *ripen*. Only when the time has come do they enter the adapter's table, and those who wait go on.
//!
//! The time is the engine's to keep, among its deadlines: it calls [`Resolver::announce`]. What it cannot enter, because
//! something was invalidated meanwhile or has not come yet, a thread brings in as ever.

use super::{Job, Resolver, Stage, State, Woken, take_waiters};
use crate::clock;
use crate::paging::invalidate;
use crate::paging::populate::Trouble;
use std::ops::Range;
use weir_transport::{Chance, Delay, Instant, PageFaults, Profile, Side};

/// How late faults are resolved.
pub(super) struct Late {
    resolve: Delay,
    serial: bool,
    /// When the last of the faults so far is due (nanoseconds).
    busy: u64,
    chance: Chance,
    floods: bool,
    /// QPs whose requesters have met faults, where the profile has packet flood.
    begun: Vec<u32>,
}

/// How far a job has come that is to be told later.
#[derive(Default)]
pub(super) struct Ripening {
    /// Not to be told before (nanoseconds); 0: as soon as pages are there.
    due: u64,
    /// The page up to which all is there.
    fetched: u64,
    /// Its region's changes when the first pages came; `None` if there are none.
    changes: Option<u64>,
    /// They are to be brought in again.
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

    /// For a fault that is raised now.
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

    /// A side of a QP has met a fault.
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
    /// What comes now is not to be told yet.
    pub(super) fn is_late(&self) -> bool {
        self.ripening.due > 0 && clock::now().0 < self.ripening.due
    }

    /// What is still to be brought in.
    pub(super) fn to_fetch(&self) -> Range<u64> {
        self.ripening.fetched.clamp(self.pages.start, self.pages.end)..self.pages.end
    }

    /// It goes on to `end`.
    pub(super) fn extend(&mut self, end: u64) {
        self.pages.end = self.pages.end.max(end);
        if self.stage == Stage::Ripening && !self.to_fetch().is_empty() {
            self.stage = Stage::Waiting;
        }
    }

    /// Whether all of it is there, so that it is left alone until its time has come.
    pub(super) fn ripen(&mut self) -> bool {
        let ripens = self.is_late() && self.to_fetch().is_empty();
        if ripens {
            self.stage = Stage::Ripening;
        }
        ripens
    }

    /// Enters all of it into the table; false if it must be brought in again.
    fn enter(&mut self) -> bool {
        let changes = self.ripening.changes.filter(|_| !self.ripening.spoiled);
        let entered = changes.and_then(|c| invalidate::enter_late(&self.region, self.pages.clone(), self.write, c));
        let Some(new) = entered else { return false };
        self.region.counters.add(|c| &c.page_fault_pages, new);
        true
    }
}

impl Resolver {
    /// Tells of what is ripe by `now` (nanoseconds): each side of a QP that can go on. When to call again.
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
                    // A thread clears it away.
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

    /// Takes the QPs whose requesters have met faults, where the profile has packet flood.
    pub fn take_begun(&self, tell: impl FnMut(u32)) {
        let mut begun = std::mem::take(&mut self.lock().late.begun);
        begun.drain(..).for_each(tell);
        let mut state = self.lock();
        // Nobody has raised one meanwhile: that is for whoever holds the engine, as this is. But there may be more room.
        if state.late.begun.capacity() < begun.capacity() {
            std::mem::swap(&mut state.late.begun, &mut begun);
        }
        drop(state);
    }

    /// Pages up to `end` have come, or are not to be had.
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
            // Once more.
            Err(Trouble::Invalidated) => {
                drop(state);
                std::thread::yield_now();
            }
            // That is told in due time, too.
            Err(Trouble::Unmapped) => {
                ripening.fetched = until;
                ripening.spoiled = true;
            }
        }
    }

    /// Always true.
    pub(super) fn tell_of_ripening(&self) -> bool {
        if let Some(owner) = self.owner() {
            owner.ripens();
        }
        true
    }
}
