//! What leaves first in a poll: requests, or what the responder owes.
//!
//! The packets of one poll leave in one UDP_SEGMENT send if they have one size; only the last may be shorter. (Full
//! packets have one size if they are frames, [`weir_wire::frame`]; otherwise those in the middle of messages.) So an ACK
//! can end a burst of equal-sized request packets without a system call of its own. It cannot begin that burst, nor
//! follow a packet that is itself shorter than the others: it would need a burst of its own and be late.
//!
//! Therefore an ACK alone leaves after the requests where it can end their burst, and before them where the next
//! message ends short, or where the adapter asks for it ([`Qp::set_acks_first`]). An ACK that has waited for a reply
//! leaves after the last packet of the reply, in a burst of its own if need be: the peer's program may stop polling as
//! soon as it sees its completion. That is so while the application polls ([`Qp::set_program_polls`]). Responses and NAKs always leave before requests. A side that found the egress full
//! because of the other side leaves first at the next poll.

use super::Qp;
use crate::{Egress, Host, Instant, Limits, Progress, QpState, Side};

impl Qp {
    /// Whether an ACK leaves before requests of the same poll, as on hardware adapters: the peer may then see its send
    /// complete before it receives this side's reply. Otherwise the ACK follows the requests, if it fits their burst or
    /// has waited for them.
    pub fn set_acks_first(&mut self, first: bool) {
        self.ack_order.acks_first = first;
    }

    /// Sends responses and requests in their order.
    // Inlined: it has one caller and runs for every packet.
    #[inline(always)]
    pub(super) fn send_in_order<H: Host, E: Egress>(
        &mut self,
        now: Instant,
        limits: Limits,
        host: &mut H,
        egress: &mut E,
    ) -> Progress {
        let responses_first = match self.ack_order.starved.take() {
            Some(side) => side == Side::Responder,
            None => self.responder.has_responses() || self.ack_leads(),
        };
        if responses_first && !self.send_responses(now, host, egress) {
            self.ack_order.starved = Some(Side::Requester);
            return Progress::Full;
        }
        let progress = self.send_requests(now, limits, host, egress);
        if progress == Progress::Full {
            if !responses_first && self.responder.has_to_send() {
                self.ack_order.starved = Some(Side::Responder);
            }
            return progress;
        }
        if self.responder.has_to_send() && !self.send_responses(now, host, egress) {
            return Progress::Full;
        }
        progress
    }

    /// Requests were sent in this poll: after the last posted one, a waiting ACK joins their burst.
    #[inline]
    pub(super) fn requests_sent(&mut self, now: Instant) {
        // An ACK in the first burst of a reply arrives before the reply is complete.
        let all = self.requester.has_sent_all(&self.send_queue) || !self.config.program_polls;
        self.responder.sends_left(now, all, self.requester.unacknowledged(), &self.config);
    }

    /// Whether an ACK is owed and must leave before the requests of this poll. If so, it waits no longer.
    fn ack_leads(&mut self) -> bool {
        let leads = self.responder.owes_ack()
            && matches!(self.config.state, QpState::Rts | QpState::Sqd)
            && self.requester.has_to_send(&self.send_queue, &self.config)
            && (self.ack_order.acks_first
                || !(self.responder.has_waiting_ack() && self.config.program_polls)
                    && self.requester.next_ends_short(&self.send_queue, &self.config));
        if leads {
            self.responder.send_ack_with_requests();
        }
        leads
    }
}
