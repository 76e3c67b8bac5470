//! Network page faults in the interface of a QP; requester and responder each have their own `page_fault` module.

use super::Qp;
use crate::{Instant, Side};

impl Qp {
    /// The page that a side waits for is present, or its fault failed: the side tries again, and the caller may pass
    /// in held packets. Does nothing if the side waits for no page.
    pub fn page_resolved(&mut self, now: Instant, side: Side) {
        match side {
            Side::Requester => self.requester.page_resolved(now, &self.config),
            Side::Responder => self.responder.page_resolved(now, &self.config),
        }
    }

    /// Where the profile has packet flood: the requester met a missing page since the last call, or dropped a response
    /// as if a page were missing. True: it waits for [`Qp::page_resolved`], whether the page is present or not. Pass it to
    /// [`crate::FaultEvents::met_fault`] after each packet that the requester took, and after each `poll_transmit`.
    pub fn take_fault_event(&mut self) -> Option<bool> {
        self.requester.take_fault_event()
    }
}
