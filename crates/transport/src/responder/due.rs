//! When what the responder owes is due: ACKs that wait for a reply to leave with, delayed NAKs and late responses.

use super::ack::Owed;
use super::{Responder, Waits};
use crate::Instant;
use crate::config::Config;

impl Responder {
    /// The time at which a waiting ACK, a delayed NAK or a delayed response is due.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        match (self.owed.deadline(), self.late) {
            (owed, None) => owed,
            (None, late) => late,
            (Some(owed), Some(late)) => Some(owed.min(late)),
        }
    }

    /// Whether an ACK waits for requests to leave with.
    #[inline]
    pub fn has_waiting_ack(&self) -> bool {
        self.owed.is_waiting()
    }

    /// Whether an ACK is owed, including a waiting one.
    #[inline]
    pub fn owes_ack(&self) -> bool {
        matches!(self.owed, Owed::DelayedAck { .. } | Owed::Ack)
    }

    /// A send was posted.
    #[inline]
    pub fn posted(&mut self) {
        self.reply_pattern.send_posted();
    }

    /// The posted sends leave now, and an owed ACK may leave with them.
    #[inline]
    pub fn sends_leave(&mut self, now: Instant, config: &Config) {
        self.reply_pattern.sends_leave(now, config);
    }

    /// Posted sends have left, `all` of them or a part; `unacknowledged`: their number. A waiting ACK leaves after the
    /// last of them (IBTA 9.7.5.1.2).
    #[inline]
    pub fn sends_left(&mut self, now: Instant, all: bool, unacknowledged: u32, config: &Config) {
        self.reply_pattern.sends_left(all, unacknowledged);
        if all {
            self.send_ack_with_requests();
        } else if self.owed.is_waiting() {
            self.owed.extend_ack_delay(self.reply_pattern.rest_of_reply(now, config));
        }
    }

    /// A waiting ACK leaves now, together with requests (IBTA 9.7.5.1.2).
    #[inline]
    pub fn send_ack_with_requests(&mut self) {
        if self.owed.end_ack_delay() {
            self.reply_pattern.ack_left_with_reply();
        }
    }

    /// The program polled, and its poll found nothing: a waiting ACK stops waiting, unless its reply is leaving, or may
    /// still be posted when the peer's ACK of an `unacknowledged` request has arrived.
    pub fn program_polled(&mut self, now: Instant, unacknowledged: bool, config: &Config) {
        if !self.reply_pattern.waits_beyond_poll(now, unacknowledged, config) {
            self.end_ack_delay();
        }
    }

    /// A waiting ACK stops waiting: no request came in time (IBTA 9.7.5.1.2).
    pub fn end_ack_delay(&mut self) {
        if self.owed.end_ack_delay() {
            self.reply_pattern.waited_in_vain();
        }
    }

    /// What has waited until `now` is due: an ACK (IBTA 9.7.5.1.2), a NAK or a response.
    #[inline]
    pub fn end_delays(&mut self, now: Instant) {
        if self.owed.end_delays(now) {
            self.reply_pattern.reply_late();
        }
        if self.late.is_some_and(|late| late <= now) {
            self.late = None;
        }
    }

    /// Whether a duplicate READ is being replayed, or will be.
    pub fn replays_read(&self) -> bool {
        self.resources.in_replay()
    }

    /// Whether requests wait for a page.
    pub fn waits_for_page(&self) -> bool {
        self.waits != Waits::No
    }

    /// Whether something is due now; an ACK that may still wait does not count.
    #[inline]
    pub fn has_to_send(&self) -> bool {
        (self.owed.is_due() || self.resources.is_pending()) && self.late.is_none()
    }

    /// Whether more than an ACK is due; an ACK alone can follow the QP's own requests.
    #[inline]
    pub fn has_responses(&self) -> bool {
        matches!(self.owed, Owed::Nak(_)) || self.resources.is_pending()
    }
}
