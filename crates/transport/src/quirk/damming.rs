//! Packet damming: requests posted while an earlier request of the same QP is pending are lost (T 5.1).
//!
//! Observed: a READ is pending, because the responder was not ready or because its response was dropped for a missing
//! page. Meanwhile the application posts a second request. When the pending period ends, the sender's capture shows
//! both, the READ again and the second request 2 to 4 µs after it; but the responder answers only the READ. The
//! sender retransmits the second request after the ACK timeout, half a second later, and the responder then treats it
//! as new (T fig 5.3). If a third request follows later, the responder sends a sequence NAK, and the sender
//! retransmits both at once (T fig 5.6). The size of the requests, their pages, whether the second is a READ, a WRITE
//! or a SEND, and the activity of other QPs make no difference (T 5.1.3). The vendor attributes the loss to the page
//! fault processing of the ConnectX-4 (T 7.2).
//!
//! Hypothesis: when the pending period ends, the adapter takes up the requests posted during it together with the
//! retransmission, and counts packets as sent that never leave. Requests that `max_rd_atomic` or a fence keeps out of
//! that burst are taken up later and are not lost: 8192 READs on one QP succeed (T fig 5.7).
//!
//! The requester has a [`Damming`] and consults it at three points. `Requester::go_back_after`: a pending period
//! begins. `Requester::go_back`: any other retransmission ends the damming. `Requester::poll`: the period is over, and
//! `poll_dammed` sends the burst.

use crate::config::Config;
use crate::limits::{InFlight, Limits, Progress};
use crate::requester::{Dam, Damming, Failure, Requester};
use crate::send_queue::SendQueue;
use crate::{Egress, Host, Instant, Outgoing, QpState, Refused};

/// An egress that loses every packet.
struct Lost<'e, E>(&'e mut E);

impl Damming {
    /// A pending period begins; the send queue ends at `tail`. Has no effect if the profile does not have the flaw.
    #[cold]
    pub fn begin(&mut self, tail: u32, config: &Config) {
        if config.profile.damming {
            self.0 = Some(Dam { from: tail, to: None });
        }
    }

    /// Whether a pending period has ended, and the requester must poll by `poll_dammed`. `pending` is the time at
    /// which the current pending period ends.
    #[inline(always)]
    pub fn applies(&self, pending: Option<Instant>, now: Instant) -> bool {
        self.0.is_some() && pending.is_none_or(|end| end <= now)
    }
}

impl Requester {
    /// Sends as `poll` does, but loses the work requests that were posted during the pending period.
    #[cold]
    #[inline(never)]
    pub fn poll_dammed<H: Host, E: Egress>(
        &mut self,
        now: Instant,
        limits: Limits,
        config: &Config,
        queue: &SendQueue,
        host: &mut H,
        egress: &mut E,
    ) -> Result<(Progress, u32), Failure> {
        let before = self.in_flight();
        let mut count = 0;
        // In SQD, work requests posted meanwhile are not begun (IBTA 10.3.1), so none of them is in the burst.
        if let Some(Dam { from, to }) = self.damming.0
            && config.state != QpState::Sqd
        {
            let to = to.unwrap_or(queue.tail());
            let mut progress;
            (progress, count) = self.poll_until(from, now, limits, config, queue, host, egress)?;
            self.damming.0 = Some(Dam { from, to: Some(to) });
            if progress == Progress::Idle && self.next_wr() == from {
                let left = left(limits, before, self.in_flight());
                let lost;
                (progress, lost) = self.poll_until(to, now, left, config, queue, host, &mut Lost(egress))?;
                count += lost;
                self.damming.0 = Some(Dam { from: self.next_wr(), to: Some(to) });
            }
            if progress != Progress::Idle {
                return Ok((progress, count));
            }
        }
        // Work requests that did not fit into this burst, or were posted later, are sent normally.
        self.damming = Damming::default();
        let left = left(limits, before, self.in_flight());
        let end = self.end(queue, config);
        let (progress, more) = self.poll_until(end, now, left, config, queue, host, egress)?;
        Ok((progress, count + more))
    }
}

/// The rest of the limits, which applied when `before` was in flight.
fn left(limits: Limits, before: InFlight, now: InFlight) -> Limits {
    Limits {
        request_bytes: limits.request_bytes.saturating_add(before.request_bytes).saturating_sub(now.request_bytes),
        read_bytes: limits.read_bytes.saturating_add(before.read_bytes).saturating_sub(now.read_bytes),
    }
}

impl<E: Egress> Egress for Lost<'_, E> {
    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused> {
        self.0.lose(packet);
        Ok(())
    }
}
