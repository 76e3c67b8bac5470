//! End-to-end credits: how many receives the peer says it has (IBTA 9.7.7.2).
//!
//! A message that takes a receive and for which there is no credit goes out one packet at a time, each of which asks for
//! an acknowledgement: that brings new credits, or an RNR NAK. Most responders advertise no limit, and are sent all.

use super::{Requester, RequesterState};
use crate::SendOp;
use crate::send_queue::SendSlot;
use weir_wire::{Psn, Syndrome};

/// What the peer allows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credits {
    /// Messages, from the first on, for which it has receives, wrapping: the limit sequence number. `None`: no limit.
    limit: Option<u32>,
    /// Where a packet without credit ends that is under way: another waits until it is acknowledged.
    probed: u64,
}

impl Requester {
    /// Whether there is no credit for the message at `next`.
    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.credits.limit.is_some_and(|limit| self.next.messages().wrapping_sub(limit) as i32 >= 0)
    }

    /// What keeps the packet at `next` back, which has no credit.
    #[cold]
    pub(super) fn credit_obstacle(&self, slot: &SendSlot) -> Option<RequesterState> {
        (self.takes_receive(slot) && self.credits.probed > self.una.seq).then_some(RequesterState::WaitCredit)
    }

    /// The packet at `next` leaves without credit.
    #[cold]
    pub(super) fn probe(&mut self, slot: &SendSlot) {
        if self.takes_receive(slot) {
            self.credits.probed = self.next.seq + 1;
        }
    }

    /// Nothing is under way.
    pub(super) fn forget_probe(&mut self) {
        self.credits.probed = 0;
    }

    /// Whether the packet at `next` may take a receive: of an RDMA WRITE only the one with the immediate data does.
    fn takes_receive(&self, slot: &SendSlot) -> bool {
        match slot.op {
            SendOp::Send | SendOp::SendImm { .. } | SendOp::SendInvalidate { .. } => true,
            SendOp::WriteImm { .. } => self.next.packet + 1 == slot.packets,
            _ => false,
        }
    }

    /// A positive acknowledgement came, with this MSN.
    #[inline]
    pub fn credited(&mut self, syndrome: Syndrome, msn: u32) {
        match syndrome.credits() {
            None => self.credits.limit = None,
            Some(credits) => self.limit_to(credits, msn),
        }
    }

    #[cold]
    fn limit_to(&mut self, credits: u32, msn: u32) {
        // Both count messages in 24 bits.
        let ahead = Psn::new(msn).since(Psn::new(self.una.messages()));
        let finished = self.una.messages().wrapping_add_signed(ahead);
        let had_credit = !self.is_limited();
        self.credits.limit = Some(finished.wrapping_add(credits));
        if had_credit && self.next.packet > 0 && self.is_limited() {
            // The message under way has its receive already: that is missing in what the peer still has.
            self.credits.limit = Some(self.next.messages().wrapping_add(1));
        }
    }

    /// An acknowledgement came of what is acknowledged already: if it is the newest again, it may bring credits
    /// (IBTA 9.7.7.2.3, unsolicited acknowledge).
    #[cold]
    pub fn credited_again(&mut self, psn: Psn, syndrome: Syndrome, msn: u32) {
        if psn.next() == self.una_psn() {
            self.credited(syndrome, msn);
        }
    }
}
