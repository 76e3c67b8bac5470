//! The limit of outstanding READs over all QPs, of a profile that has one.

use crate::os::locks::{RankedGuard, RankedMutex, rank};
use std::sync::Weak;
use weir_transport::{Outstanding, Profile};

/// A limit of the READs and atomics of all QPs together. The holder of the engine takes credits; ending a QP returns
/// them.
pub struct Reads {
    credits: RankedMutex<Outstanding, { rank::READS }>,
    engine: Weak<dyn ScheduleResolved>,
}

/// The adapter, which takes a turn when QPs that waited can go on.
pub trait ScheduleResolved: Send + Sync {
    /// Has the engine process resolved pages, and wake the QPs that wait for a READ credit, in a turn.
    fn schedule_resolved(&self);
}

impl Reads {
    /// `None` where the profile has no such limit.
    pub fn new(profile: &Profile, engine: Weak<dyn ScheduleResolved>) -> Option<Reads> {
        let limit = profile.outstanding_reads?;
        Some(Reads { credits: RankedMutex::new(Outstanding::new(Some(limit))), engine })
    }

    /// Takes one READ credit, if there is one.
    pub fn take(&self) -> bool {
        self.credits().take()
    }

    /// Returns `count` credits. QPs that waited for a credit try again.
    pub fn give_back(&self, count: u32) {
        if self.credits().give_back(count)
            && let Some(engine) = self.engine.upgrade()
        {
            engine.schedule_resolved();
        }
    }

    fn credits(&self) -> RankedGuard<'_, Outstanding, { rank::READS }> {
        self.credits.lock()
    }
}
