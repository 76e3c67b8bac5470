//! READ credits of the requester, where the adapter limits the READs and atomics of all QPs: see `quirk::outstanding`.

use super::Requester;
use crate::Host;

impl Requester {
    /// Whether the work request at `next` has a READ credit, or gets one. It keeps the credit until it is complete,
    /// across retransmissions.
    #[cold]
    pub(super) fn take_read_credit<H: Host>(&mut self, host: &mut H) -> bool {
        let after = self.next.wr.wrapping_add(1);
        let first_try = self.next.wr == self.begun && self.read_credits.up_to != after;
        if first_try {
            if !host.take_read() {
                return false;
            }
            self.read_credits.taken += 1;
            self.read_credits.up_to = after;
        }
        true
    }

    /// A READ or an atomic is complete.
    #[inline]
    pub fn give_back_read_credit<H: Host>(&mut self, host: &mut H) {
        if self.read_credits.taken > 0 {
            self.read_credits.taken -= 1;
            host.give_back_reads(1);
        }
    }

    /// No READ or atomic is outstanding any more.
    pub fn give_back_read_credits<H: Host>(&mut self, host: &mut H) {
        let taken = self.take_read_credits();
        if taken > 0 {
            host.give_back_reads(taken);
        }
    }

    /// As `give_back_read_credits`, but the caller gives the returned number of credits back.
    pub fn take_read_credits(&mut self) -> u32 {
        std::mem::take(&mut self.read_credits).taken
    }
}
