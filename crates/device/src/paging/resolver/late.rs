//! How long the faults of an adapter take, and how far a deferred job is.

use crate::os::clock;
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
    pub faulting_requesters: Vec<u32>,
}

/// Progress of a job with deferred pages.
#[derive(Default)]
pub(super) struct Deferral {
    /// When the job becomes due (nanoseconds); 0: as soon as its pages are present.
    pub due: u64,
    /// The pages before this number are populated.
    pub fetched: u64,
    /// The region's `changes` when the first pages were populated; `None` before that.
    pub changes: Option<u64>,
    /// The pages must be populated again.
    pub invalidated: bool,
}

impl Late {
    /// Times of faults as in a profile, drawn from its seed.
    pub fn new(profile: &Profile) -> Late {
        let PageFaults { resolve, serial, .. } = profile.page_faults;
        Late {
            resolve,
            serial,
            busy: 0,
            chance: Chance::seeded(profile.seed),
            floods: profile.flood.is_some(),
            faulting_requesters: Vec::new(),
        }
    }

    /// Draws the time of a fault that is raised now.
    pub fn begin(&mut self) -> Deferral {
        if self.resolve.high.is_zero() {
            return Deferral::default();
        }
        let share = self.chance.share();
        let now = clock::now();
        let begin = if self.serial { now.max(Instant(self.busy)) } else { now };
        self.busy = (begin + self.resolve.at(share)).0;
        Deferral { due: self.busy, ..Deferral::default() }
    }

    /// Records that a side of a QP has met a fault.
    pub fn note_fault(&mut self, num: u32, side: Side) {
        if self.floods && side == Side::Requester && self.faulting_requesters.last() != Some(&num) {
            self.faulting_requesters.push(num);
        }
    }
}
