//! End-to-end credits: the number of receives that the peer advertises (IBTA 9.7.7.2).
//!
//! A message that needs a receive but has no credit leaves one packet at a time, and each packet requests an ACK: that
//! brings new credits, or an RNR NAK. Most responders advertise no limit, so that no message is held back.

use super::{Requester, RequesterState};
use crate::SendOp;
use crate::send_queue::SendSlot;
use weir_wire::{Psn, Syndrome};

impl Requester {
    /// Whether the message at `next` has no credit (IBTA 9.7.7.2).
    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.credits.limit.is_some_and(|limit| self.next.messages().wrapping_sub(limit) as i32 >= 0)
    }

    /// The reason why the packet at `next`, which has no credit, cannot leave: another such packet is in flight
    /// (IBTA 9.7.7.2).
    #[cold]
    pub(super) fn credit_obstacle(&self, slot: &SendSlot) -> Option<RequesterState> {
        (self.takes_receive(slot) && self.credits.probed > self.una.seq).then_some(RequesterState::WaitCredit)
    }

    /// The packet at `next` leaves without credit (IBTA 9.7.7.2).
    #[cold]
    pub(super) fn probe(&mut self, slot: &SendSlot) {
        if self.takes_receive(slot) {
            self.credits.probed = self.next.seq + 1;
        }
    }

    /// No packet without credit is in flight, so that one may leave (IBTA 9.7.7.2).
    pub(super) fn forget_probe(&mut self) {
        self.credits.probed = 0;
    }

    /// Whether the packet at `next` may consume a receive: in an RDMA WRITE only the one with the immediate data
    /// does (IBTA 9.4, 9.7.7.2).
    fn takes_receive(&self, slot: &SendSlot) -> bool {
        match slot.op {
            SendOp::Send | SendOp::SendImm { .. } | SendOp::SendInvalidate { .. } => true,
            SendOp::WriteImm { .. } => self.next.packet + 1 == slot.packets,
            _ => false,
        }
    }

    /// A positive acknowledgement with this MSN arrived: its credits count from that MSN on (IBTA 9.7.7.2).
    #[inline]
    pub fn credited(&mut self, syndrome: Syndrome, msn: u32) {
        match syndrome.credits() {
            None => self.credits.limit = None,
            Some(credits) => self.limit_to(credits, msn),
        }
    }

    /// The peer has receives for `credits` messages after the first `msn` ones (IBTA 9.7.7.2).
    #[cold]
    fn limit_to(&mut self, credits: u32, msn: u32) {
        // MSN and the message counter both count modulo 2^24.
        let ahead = Psn::new(msn).since(Psn::new(self.una.messages()));
        let finished = self.una.messages().wrapping_add_signed(ahead);
        let had_credit = !self.is_limited();
        self.credits.limit = Some(finished.wrapping_add(credits));
        if had_credit && self.next.packet > 0 && self.is_limited() {
            // The message in flight has consumed its receive already: the peer no longer counts that receive.
            self.credits.limit = Some(self.next.messages().wrapping_add(1));
        }
    }

    /// An acknowledgement arrived for a packet that is acknowledged already: if it repeats the newest ACK, it may
    /// bring credits: an unsolicited acknowledge (IBTA 9.7.7.2).
    #[cold]
    pub fn credited_again(&mut self, psn: Psn, syndrome: Syndrome, msn: u32) {
        if psn.next() == self.una_psn() {
            self.credited(syndrome, msn);
        }
    }
}
