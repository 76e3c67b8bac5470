//! Network page faults, as a QP's caller sees them; the two sides of a QP each have a file of their own for them.

use crate::{Instant, Qp};

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// It was executed, or had nothing to say.
    Done,
    /// It met a page fault, or comes after one that did, and has changed nothing. Hand it in again after
    /// [`Qp::page_resolved`], in the order in which requests, or responses, came; or drop it as the wire might have.
    /// Requests best after a `poll_transmit` too, so that the answer to a READ has left before what follows is executed.
    Held,
}

/// The two halves of a QP: they share the way out, and each waits for pages of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Sends requests and takes responses.
    Requester,
    /// Takes requests and sends responses.
    Responder,
}

impl Qp {
    /// The page that a side waits for is there, or never will be: what waits tries again, and packets that were held
    /// may be handed in. Nothing happens if it waits for none.
    pub fn page_resolved(&mut self, now: Instant, side: Side) {
        match side {
            Side::Requester => self.requester.page_resolved(now),
            Side::Responder => self.responder.page_resolved(),
        }
    }
    /// Where the profile has packet flood: the requester has dropped an answer for want of a page, and drops what
    /// comes until [`Qp::page_resolved`], whether the page is there or not. So many READs were outstanding then: for
    /// [`crate::Announcer::waits`].
    pub fn unaware_reads(&self) -> Option<u32> {
        self.requester.unaware_reads()
    }
}
