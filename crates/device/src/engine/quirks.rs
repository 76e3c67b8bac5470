//! What an adapter with flaws keeps for all its QPs: whom it has still to tell that a page is there, and how many READs
//! they have outstanding together. An adapter without has none of it.

use crate::adapter::Adapter;
use crate::engine::Engine;
use std::sync::{Mutex, MutexGuard, Weak};
use weir_transport::{Announcer, Instant, Outstanding, Profile, ResponderFaults, Side};

/// A limit to the READs and atomics of all QPs together. Whoever holds the engine asks it; ending a QP gives places back.
pub struct Reads {
    places: Mutex<Outstanding>,
    adapter: Weak<Adapter>,
}

impl Reads {
    /// `None` where the profile has no such limit.
    pub fn new(profile: &Profile, adapter: Weak<Adapter>) -> Option<Reads> {
        let limit = profile.outstanding_reads?;
        Some(Reads { places: Mutex::new(Outstanding::new(Some(limit))), adapter })
    }

    /// A place for one more, if there is one.
    pub fn take(&self) -> bool {
        self.places().take()
    }

    /// So many are over. QPs that waited for a place try again.
    pub fn give_back(&self, count: u32) {
        if self.places().give_back(count)
            && let Some(adapter) = self.adapter.upgrade()
        {
            adapter.look_at_resolved();
        }
    }

    fn places(&self) -> MutexGuard<'_, Outstanding> {
        self.places.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Whether peers may have to repeat all that they have under way, time and again.
pub(super) fn has_peers_repeat(profile: &Profile) -> bool {
    profile.page_faults.responder != ResponderFaults::Wait
}

/// Whom to tell that a page is there, where the profile has packet flood.
pub(super) fn announcer(profile: &Profile) -> Option<Box<Announcer>> {
    profile.flood.map(|flood| Box::new(Announcer::new(Some(flood))))
}

impl Engine {
    /// Of those whose pages are there, leaves the ones that hear of it now. When to look again.
    pub(super) fn announce(&mut self, adapter: &Adapter, now: Instant, resolved: &mut Vec<(u32, Side)>) -> Option<u64> {
        let mut announcer = self.announcer.take()?;
        adapter.take_unaware(|num| {
            let entry = self.table.index(num).and_then(|index| self.table.get(index));
            if let Some(reads) = entry.and_then(|entry| entry.shared.lock().unaware_reads()) {
                announcer.waits(num, reads);
            }
        });
        resolved.retain(|(num, side)| {
            if *side == Side::Requester {
                announcer.resolved(now, *num);
            }
            *side != Side::Requester
        });
        while let Some(num) = announcer.poll(now) {
            resolved.push((num, Side::Requester));
        }
        let next = announcer.next();
        self.announcer = Some(announcer);
        next.map(|next| next.0)
    }

    /// A QP is no more, or begins afresh.
    pub(super) fn forget_unaware(&mut self, num: u32) {
        if let Some(announcer) = &mut self.announcer {
            announcer.forget(num);
        }
    }

    /// All QPs that wait for a window, or for a place for a READ, try again.
    pub(super) fn wake_all(&mut self) {
        for peer in self.peers.ids() {
            self.wake_waiting(Some(peer));
        }
    }
}
