//! Watchers in other processes: when the engine gets a tap, and when it gives it back.

use crate::engine::Engine;
use crate::pace::ThreadTasks;
use crate::shared::state::AdapterState;
use crate::tap::Tap;
use weir_transport::Instant;

impl Engine {
    /// A watcher watches or has watched: has the engine's thread make or free the tap.
    #[cold]
    pub(super) fn follow_watcher(&mut self, adapter: &AdapterState, now: Instant) {
        let words = &self.shown.tap;
        let watched = words.is_watched(now.0);
        if (watched != self.tapped.tap.is_some() || !watched && words.is_asked()) && !self.tapped.asked {
            self.tapped.asked = true;
            adapter.pace.ask_thread(ThreadTasks::TAP);
        }
    }

    /// Whether there is a tap.
    pub fn has_tap(&self) -> bool {
        self.tapped.tap.is_some()
    }

    /// The tap stays: a watcher has asked again meanwhile.
    pub fn keep_tap(&mut self) {
        self.tapped.asked = false;
    }

    /// Gets a new tap, or none, and returns the old one.
    pub fn exchange_tap(&mut self, new: Option<Box<Tap>>) -> Option<Box<Tap>> {
        self.tapped.asked = false;
        std::mem::replace(&mut self.tapped.tap, new)
    }
}

#[cfg(test)]
mod tests;
