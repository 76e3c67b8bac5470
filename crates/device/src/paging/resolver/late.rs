//! How long the faults of an adapter take, and how far a deferred job is.

use crate::os::clock;
use weir_transport::{Chance, Delay, FaultEvents, PageFaults, Profile, Side};

/// State of the deferral of faults.
pub(super) struct Late {
    resolve: Delay,
    serial: bool,
    /// Page-fault events, which are served one after the other.
    pub events: FaultEvents,
    chance: Chance,
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
        let events = FaultEvents::new(profile.flood);
        let serial = serial || events.resume_requesters();
        Late { resolve, serial, events, chance: Chance::seeded(profile.seed) }
    }

    /// Draws the time of a fault that a side of a QP raises now.
    pub fn begin(&mut self, num: u32, side: Side) -> Deferral {
        if self.resolve.high.is_zero() {
            return Deferral::default();
        }
        let time = self.resolve.at(self.chance.share());
        let now = clock::now();
        let requester = (side == Side::Requester).then_some(num);
        let due = if self.serial { self.events.fault(now, time, requester) } else { now + time };
        Deferral { due: due.0, ..Deferral::default() }
    }
}
