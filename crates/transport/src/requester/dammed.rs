//! Packet damming in the requester: see `quirk::damming`.

use super::{Failure, Requester};
use crate::config::Config;
use crate::limits::{InFlight, Limits, Progress};
use crate::quirk::{Dam, Lost};
use crate::send_queue::SendQueue;
use crate::{Egress, Host, Instant, QpState};

impl Requester {
    /// A pending period begins; the send queue ends at `tail`.
    #[cold]
    pub(super) fn begin_damming_period(&mut self, tail: u32, config: &Config) {
        if config.profile.damming {
            self.dam = Some(Dam::begin(tail));
        }
    }

    /// Whether a pending period has ended and work requests may have been posted during it.
    #[inline]
    pub fn is_dammed(&self, now: Instant) -> bool {
        self.dam.is_some() && self.rnr_deadline.is_none_or(|deadline| deadline <= now)
    }

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
        let Some(Dam { from, to }) = self.dam else { return Ok((Progress::Idle, 0)) };
        if config.state == QpState::Sqd {
            // Work requests posted meanwhile are not begun (IBTA 10.3.1.6), so none of them is in the burst.
            self.dam = None;
            return self.poll(now, limits, config, queue, host, egress);
        }
        let to = to.unwrap_or(queue.tail());
        let before = self.in_flight();
        let (mut progress, mut count) = self.poll_until(from, now, limits, config, queue, host, egress)?;
        self.dam = Some(Dam { from, to: Some(to) });
        if progress == Progress::Idle && self.next.wr == from {
            let left = self.left(limits, before);
            let lost;
            (progress, lost) = self.poll_until(to, now, left, config, queue, host, &mut Lost(egress))?;
            count += lost;
            self.dam = Some(Dam { from: self.next.wr, to: Some(to) });
        }
        if progress != Progress::Idle {
            return Ok((progress, count));
        }
        // Work requests that did not fit into this burst, or were posted later, are sent normally.
        self.dam = None;
        let left = self.left(limits, before);
        let (progress, more) = self.poll(now, left, config, queue, host, egress)?;
        Ok((progress, count + more))
    }

    /// The rest of the limits, which applied when `before` was in flight.
    fn left(&self, limits: Limits, before: InFlight) -> Limits {
        let under_way = self.in_flight();
        Limits {
            request_bytes: limits
                .request_bytes
                .saturating_add(before.request_bytes)
                .saturating_sub(under_way.request_bytes),
            read_bytes: limits.read_bytes.saturating_add(before.read_bytes).saturating_sub(under_way.read_bytes),
        }
    }
}
