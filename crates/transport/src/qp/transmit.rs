//! Departing packets: what each QP state sends.

use super::Qp;
use crate::{Egress, Host, Instant, Limits, Progress, QpState};

impl Qp {
    /// Sends what is due, as far as limits and egress allow. `ack_order` decides what leaves first.
    #[inline]
    pub fn poll_transmit<H: Host, E: Egress>(
        &mut self,
        now: Instant,
        limits: Limits,
        host: &mut H,
        egress: &mut E,
    ) -> Progress {
        match self.config.state {
            QpState::Reset | QpState::Init => return Progress::Idle,
            QpState::Error => {
                self.flush(host);
                return if self.send_responses(now, host, egress) { Progress::Idle } else { Progress::Full };
            }
            QpState::Sqe => {
                self.flush_sends(host);
                return Progress::Idle;
            }
            _ => {}
        }
        self.responder.end_delays(now);
        self.responder.sends_leave(now, &self.config);
        self.send_in_order(now, limits, host, egress)
    }

    /// Sends the responses to READs and atomics that are due, and nothing else: a request waits for them
    /// ([`crate::Handled::AfterReads`]). `Full`: there are more than the egress takes.
    pub fn poll_responses<H: Host, E: Egress>(&mut self, now: Instant, host: &mut H, egress: &mut E) -> Progress {
        self.responder.end_delays(now);
        match self.responder.poll_responses(now, &self.config, host, egress) {
            Ok(true) => Progress::Idle,
            Ok(false) => Progress::Full,
            Err(fatal) => {
                self.fail_response(fatal, host);
                Progress::Idle
            }
        }
    }

    /// Whether a request waits for the data of earlier READs ([`crate::Handled::AfterReads`]).
    #[inline]
    pub fn awaits_reads(&self) -> bool {
        self.responder.awaits_reads()
    }

    /// A request that waits for READs was dropped: the peer is asked to retransmit it.
    pub fn refuse_waiting(&mut self) {
        self.responder.refuse_waiting();
    }

    /// Whether `poll_transmit` would do something, ignoring limits; an ACK that may still wait does not count.
    #[inline]
    pub fn has_to_send(&self) -> bool {
        let requests = match self.config.state {
            QpState::Reset | QpState::Init => return false,
            QpState::Error => !self.send_queue.is_empty() || !self.recv_queue.is_empty(),
            QpState::Rtr => false,
            QpState::Sqe => !self.send_queue.is_empty(),
            QpState::Rts | QpState::Sqd => self.requester.has_to_send(&self.send_queue, &self.config),
        };
        requests || self.responder.has_to_send()
    }

    /// Whether ACKs, NAKs or responses are due; no limit applies to them.
    #[inline]
    pub fn has_to_respond(&self) -> bool {
        self.config.state != QpState::Reset && self.responder.has_to_send()
    }

    /// Whether responses to READs and atomics, or a NAK, are to be sent: they must not change their order.
    #[inline]
    pub fn has_responses(&self) -> bool {
        self.config.state != QpState::Reset && self.responder.has_responses()
    }

    // Inlined: it has one caller and runs for every packet.
    #[inline(always)]
    pub(super) fn send_requests<H: Host, E: Egress>(
        &mut self,
        now: Instant,
        limits: Limits,
        host: &mut H,
        egress: &mut E,
    ) -> Progress {
        if !matches!(self.config.state, QpState::Rts | QpState::Sqd) {
            return Progress::Idle;
        }
        if !self.config.is_reliable() {
            return self.send_unreliable(now, host, egress);
        }
        loop {
            let polled = self.requester.poll(now, limits, &self.config, &self.send_queue, host, egress);
            let retired = self.requester.retire_local(&mut self.send_queue, &self.config, host);
            match polled {
                Ok((progress, sent)) => {
                    if sent > 0 {
                        self.requests_sent(now);
                    }
                    if retired && progress == Progress::Idle {
                        if self.draining {
                            self.check_drained(host);
                        }
                        // Work requests that waited for these may proceed.
                        continue;
                    }
                    return progress;
                }
                Err(failure) => {
                    self.fail(failure, host);
                    return Progress::Idle;
                }
            }
        }
    }

    /// False: the egress is full.
    pub(super) fn send_responses<H: Host, E: Egress>(&mut self, now: Instant, host: &mut H, egress: &mut E) -> bool {
        match self.responder.poll(now, &self.config, host, egress) {
            Ok(done) => done,
            Err(fatal) => {
                self.fail_response(fatal, host);
                // Only the NAK is left to send.
                self.responder.poll(now, &self.config, host, egress).unwrap_or(true)
            }
        }
    }
}
