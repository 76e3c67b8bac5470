//! Changes of a QP's attributes and state by its owner.

use super::Qp;
use crate::{AttrMask, Host, Instant, ModifyError, QpAttr, QpEvent, QpState, state};

impl Qp {
    /// Changes attributes and state (IBTA 11.2.5.2). To ERROR: flushes all work requests. To RESET: discards them, except
    /// what a TM SRQ gave; the caller must purge their completions.
    pub fn modify<H: Host>(
        &mut self,
        _now: Instant,
        attr: &QpAttr,
        mask: AttrMask,
        host: &mut H,
    ) -> Result<(), ModifyError> {
        let mask = state::applicable_mask(self.config.class(), mask);
        let to = state::check(self.config.class(), self.config.state, attr, mask, &self.config.profile.device)?;
        let from = self.config.state;
        state::apply(&mut self.config.attr, attr, mask);
        self.config.state = to;
        self.config.derive();
        match (from, to) {
            (_, QpState::Reset) => {
                self.end_tags(host);
                self.reset();
            }
            // A NAK that is still owed is sent.
            (QpState::Error, QpState::Error) => {}
            (_, QpState::Error) => {
                self.halt(None);
                self.flush(host);
            }
            (QpState::Init, QpState::Rtr) => self.responder.start(&self.config),
            (QpState::Rtr, QpState::Rts) => self.requester.start(&self.config),
            (QpState::Rts, QpState::Sqd) => {
                self.draining = true;
                self.check_drained(host);
            }
            (QpState::Sqd, QpState::Rts) => self.draining = false,
            (QpState::Sqe, QpState::Rts) => {
                // Work requests posted before this are flushed; later ones are not.
                self.flush_sends(host);
                self.requester.resume(&self.send_queue);
            }
            _ => {}
        }
        if to == QpState::Sqd && mask.contains(AttrMask::MAX_DEST_RD_ATOMIC) {
            self.responder.resize(&self.config);
        }
        if mask.contains(AttrMask::TIMEOUT) {
            self.requester.refresh_timeout(&self.config);
        }
        if mask.intersects(AttrMask::RETRY_CNT | AttrMask::RNR_RETRY) {
            self.requester.refresh_retries(&self.config);
        }
        Ok(())
    }

    /// SQD: raises an event once when every begun work request is acknowledged (IBTA 10.3.1).
    pub(super) fn check_drained<H: Host>(&mut self, host: &mut H) {
        if self.config.state == QpState::Sqd && self.draining && self.requester.is_drained() {
            self.draining = false;
            if self.config.attr.en_sqd_async_notify {
                host.event(QpEvent::SendQueueDrained);
            }
        }
    }

    pub(super) fn reset(&mut self) {
        let Qp { config, .. } = self;
        config.attr = QpAttr { caps: config.init.caps, ..QpAttr::default() };
        config.state = QpState::Reset;
        config.derive();
        self.send_queue.reset();
        self.recv_queue.reset();
        self.requester.leave_off();
        self.requester.start(&self.config);
        self.completer.reset();
        self.responder.start(&self.config);
        self.ack_order.reset();
        self.draining = false;
        self.last_wqe = false;
        self.ending = None;
    }
}
