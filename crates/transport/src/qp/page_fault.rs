//! Network page faults in the interface of a QP; requester and responder each have their own `page_fault` module.

use super::Qp;
use crate::{Instant, Side};

impl Qp {
    /// The page that a side waits for is present, or its fault failed: the side tries again, and the caller may pass
    /// in held packets. Does nothing if the side waits for no page.
    pub fn page_resolved(&mut self, now: Instant, side: Side) {
        match side {
            Side::Requester => self.requester.page_resolved(now),
            Side::Responder => self.responder.page_resolved(),
        }
    }

    /// Where the profile has packet flood: the requester has dropped a response because a page is missing, and drops
    /// further responses until [`Qp::page_resolved`], whether the page is present or not. Returns the number of READs
    /// that were outstanding at that time, for [`crate::FaultNotifier::waits`].
    pub fn unnotified_reads(&self) -> Option<u32> {
        self.requester.unnotified_reads()
    }
}
