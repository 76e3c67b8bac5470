//! Ways into the error state, and the work requests that are flushed there.

use super::Qp;
use crate::ending::Ending;
use crate::requester::Failure;
use crate::responder::Fatal;
use crate::{Host, QpEvent, QpState, Status};
use weir_wire::Service;

impl Qp {
    /// The adapter has failed: goes to ERROR from every state but RESET. Flushes all work requests, including those
    /// that were posted in ERROR.
    pub fn enter_error_state<H: Host>(&mut self, host: &mut H) {
        match self.config.state {
            QpState::Reset => return,
            QpState::Error => {}
            _ => self.halt(None),
        }
        self.flush(host);
    }

    /// As `enter_error_state`, but touches the two queues only: the rest of the QP's state may be inconsistent.
    /// All work requests complete as flushed (IBTA 10.3.1).
    pub fn flush_queues<H: Host>(&mut self, host: &mut H) {
        if self.config.state == QpState::Reset {
            return;
        }
        self.config.state = QpState::Error;
        self.flush_sends(host);
        while !self.recv_queue.is_empty() {
            self.recv_queue.fail(host, &self.config, Status::WrFlushed, 0);
        }
    }

    /// The oldest send work request failed: it completes with an error, the QP goes to ERROR (IBTA 10.3.1, 9.9.2).
    pub(super) fn fail<H: Host>(&mut self, failure: Failure, host: &mut H) {
        if !self.send_queue.is_empty() {
            self.send_queue.retire(host, &self.config, failure.status, failure.vendor);
        }
        self.ending = Some(Ending::requester(failure, &self.requester, &self.config));
        self.halt(None);
        self.flush(host);
    }

    /// A request was invalid: the peer gets a NAK, the application an event, and the QP goes to ERROR (IBTA 9.9.3).
    pub(super) fn fail_response<H: Host>(&mut self, fatal: Fatal, host: &mut H) {
        if let Some((status, vendor)) = fatal.receive {
            self.recv_queue.fail(host, &self.config, status, vendor);
        }
        if self.config.state == QpState::Error {
            // A pending response failed after the QP entered ERROR: only the peer still needs a NAK.
            self.responder.halt(Some(fatal.nak));
            return;
        }
        self.ending = Some(Ending::responder(fatal, self.responder.expected()));
        self.halt(Some(fatal));
        host.event(fatal.event());
        self.flush(host);
    }

    pub(super) fn halt(&mut self, fatal: Option<Fatal>) {
        self.config.state = QpState::Error;
        // The QP takes nothing more from its SRQ (IBTA 11.6.3.1). The SRQs of an XRC domain do not belong to a QP.
        self.last_wqe = self.recv_queue.is_shared() && self.config.init.service != Service::Xrc;
        self.draining = false;
        self.requester.halt();
        self.responder.halt(fatal.map(|fatal| fatal.nak));
    }

    /// Completes all work requests as flushed (IBTA 10.3.1).
    pub(super) fn flush<H: Host>(&mut self, host: &mut H) {
        self.flush_sends(host);
        while !self.recv_queue.is_empty() {
            self.recv_queue.fail(host, &self.config, Status::WrFlushed, 0);
        }
        if std::mem::take(&mut self.last_wqe) {
            host.event(QpEvent::LastWqeReached);
        }
    }

    /// Completes all sends as flushed (IBTA 10.3.1).
    pub(super) fn flush_sends<H: Host>(&mut self, host: &mut H) {
        while !self.send_queue.is_empty() {
            self.send_queue.retire(host, &self.config, Status::WrFlushed, 0);
        }
    }
}
