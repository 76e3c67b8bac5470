//! Places for outstanding READs and atomics, where the adapter has a limit to those of all QPs: see `quirk::outstanding`.

use super::Requester;
use crate::Host;

/// What the requester has of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Places {
    /// So many.
    taken: u32,
    /// The last one is that of the work request before this number.
    up_to: u32,
}

impl Requester {
    /// Whether the work request at `next` has a place, or gets one. It keeps it until it is done, however often it is
    /// repeated.
    #[cold]
    pub(super) fn has_place<H: Host>(&mut self, host: &mut H) -> bool {
        let after = self.next.wr.wrapping_add(1);
        let first_try = self.next.wr == self.begun && self.places.up_to != after;
        if first_try {
            if !host.take_read() {
                return false;
            }
            self.places.taken += 1;
            self.places.up_to = after;
        }
        true
    }

    /// A READ or an atomic is done.
    #[inline]
    pub fn give_back_one<H: Host>(&mut self, host: &mut H) {
        if self.places.taken > 0 {
            self.places.taken -= 1;
            host.give_back_reads(1);
        }
    }

    /// Nothing is outstanding any more.
    pub fn give_back_all<H: Host>(&mut self, host: &mut H) {
        let taken = self.leave_places();
        if taken > 0 {
            host.give_back_reads(taken);
        }
    }

    /// The same, where the caller gives them back.
    pub fn leave_places(&mut self) -> u32 {
        std::mem::take(&mut self.places).taken
    }
}
