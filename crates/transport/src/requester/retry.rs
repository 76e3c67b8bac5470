//! Going back: ACK timeouts, sequence NAKs, lost responses, RNR waits (IBTA 9.7.6.1, 9.9.2.1).

use super::{Failure, Hold, Requester, RequesterState};
use crate::completion::vendor;
use crate::config::Config;
use crate::{Instant, Status};
use std::time::Duration;
use weir_wire::RnrTimer;

/// The rnr_retry value that means infinite (IBTA 9.7.5.2.8).
const RNR_FOR_EVER: u8 = 7;

impl Requester {
    /// Goes back: sends again from the oldest unacknowledged packet on (IBTA 9.7.6.1).
    pub(super) fn go_back(&mut self) {
        self.next = self.una;
        self.ack_requested = self.una.seq;
        self.ack_deadline = None;
        if !(self.is_deaf() && self.hold == Hold::Packet) {
            self.hold = Hold::No;
        }
        self.forget_probe();
        self.gone_back_to = Some(self.una.seq);
    }

    /// A pending period: the peer responded, but its response cannot be used. Goes back, and sends again after `wait`
    /// (IBTA 9.7.5.2.8). After a page fault the profile sets the time.
    pub(super) fn go_back_after(&mut self, now: Instant, wait: Duration, config: &Config) {
        self.restart_retries(config);
        self.go_back();
        self.rnr_deadline = Some(now + wait);
    }

    /// The ACK timeout of the oldest request expired. The QP fails after `retry_cnt` + 1 expirations in a row
    /// (IBTA 9.9.2.1.1), to which the profile may add some, but not before `Config::patience` has passed.
    pub(super) fn ack_timed_out(&mut self, now: Instant, config: &Config) -> Result<(), Failure> {
        let patient = self.unanswered_since.is_some_and(|since| now - since < config.patience);
        let is_retry = config.profile.ack_timeout.is_retry(self.timeouts, config.attr.timeout);
        if is_retry && (!patient || self.retries.left > 0) {
            self.count_retry(vendor::ACK_TIMEOUT)?;
        }
        self.timeouts += 1;
        self.retransmissions.ack_timeouts = self.retransmissions.ack_timeouts.wrapping_add(1);
        self.refresh_timeout(config);
        self.go_back();
        Ok(())
    }

    /// When an ACK timeout that starts at `now` expires; `None`: never.
    #[inline]
    pub(super) fn timeout_from(&self, now: Instant, config: &Config) -> Option<Instant> {
        let t_o = self.ack_timeout?;
        let is_plain = self.timeouts == 0 && !self.adaptive;
        Some(now + if is_plain { t_o } else { config.profile.ack_timeout.in_row(self.timeouts, t_o) })
    }

    /// The responder lacks the packet at `una` (IBTA 9.7.5.2.2). Counts as a retry unless the NAK also acknowledged
    /// something.
    pub fn sequence_nak(&mut self, progress: bool) -> Result<(), Failure> {
        let already_back = self.next.seq == self.una.seq;
        // During an RNR wait no packet is in flight that could be missing.
        if already_back || self.rnr_deadline.is_some() {
            return Ok(());
        }
        if !progress {
            self.count_retry(vendor::SEQUENCE_NAK)?;
        }
        self.retransmissions.sequence_naks = self.retransmissions.sequence_naks.wrapping_add(1);
        self.timeouts = 0;
        self.go_back();
        Ok(())
    }

    /// The response to the READ or atomic at `una` is lost, because a later response has arrived:
    /// an implied NAK (IBTA 9.7.6.1). The request is sent again once; if that fails too, the ACK timeout expires.
    pub fn response_lost(&mut self) {
        if self.gone_back_to != Some(self.una.seq) {
            self.retransmissions.implied_naks = self.retransmissions.implied_naks.wrapping_add(1);
            self.go_back();
        }
    }

    /// The receiver is not ready for the request at `una` (IBTA 9.7.5.2.8).
    pub fn receiver_not_ready(&mut self, now: Instant, timer: RnrTimer, config: &Config) -> Result<(), Failure> {
        if self.rnr_deadline.is_some() {
            return Ok(());
        }
        if config.attr.rnr_retry != RNR_FOR_EVER {
            let left = self.retries.rnr_left.checked_sub(1);
            self.retries.rnr_left =
                left.ok_or(Failure { status: Status::RnrRetryExceeded, vendor: vendor::RNR_NAK })?;
        }
        self.retransmissions.rnr_naks = self.retransmissions.rnr_naks.wrapping_add(1);
        let wait = config.profile.rnr_wait.after(timer.delay(), self.chance.share());
        self.go_back_after(now, wait, config);
        self.state = RequesterState::WaitReceiver;
        Ok(())
    }

    /// The peer responded: resets the retry counter and the number of timeouts in a row (IBTA 9.9.2.1.1).
    pub(super) fn restart_retries(&mut self, config: &Config) {
        self.retries.left = config.attr.retry_cnt;
        self.timeouts = 0;
    }

    /// A retry, if there is one left (IBTA 9.9.2.1.1).
    fn count_retry(&mut self, vendor: u32) -> Result<(), Failure> {
        let left = self.retries.left.checked_sub(1);
        self.retries.left = left.ok_or(Failure { status: Status::RetryExceeded, vendor })?;
        Ok(())
    }
}
