//! Network page faults in the interface of a QP; requester and responder each have their own `page_fault` module.

use crate::{Instant, Qp};

/// The result of handling a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// The packet was executed, or dropped.
    Done,
    /// The packet met a page fault, or follows one that did, and has changed nothing. Pass it in again after
    /// [`Qp::page_resolved`], in the order in which the requests, or the responses, arrived; or drop it, as the
    /// network might. Before requests call `poll_transmit` too, so that the response to a READ leaves before later
    /// requests are executed.
    Held,
}

/// The two halves of a QP: they share the egress, and each waits for its own pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Sends requests and takes responses.
    Requester,
    /// Takes requests and sends responses.
    Responder,
}

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
