//! Packet damming: what is posted while an earlier request of the same QP is pending is lost (T 5.1).
//!
//! Seen: a READ is pending, because the responder was not ready or because its answer was dropped for want of a page. A
//! second request is posted meanwhile. When the time is over, the sender's capture shows both, the READ again and the
//! second 2 to 4 µs after it; but only the READ is answered. The second is repeated after the ACK timeout, half a second
//! later, and then answered like one that the responder has never seen (T fig 5.3). If a third request comes later, the
//! responder says that something is missing, and both are repeated at once (T fig 5.6). It does not matter how large the
//! requests are, on which pages they work, whether the second is a READ, a WRITE or a SEND, and what other QPs do
//! (T 5.1.3). The vendor says that it comes of how the ConnectX-4 processes page faults (T 7.2).
//!
//! Supposed: when the pending period ends, the adapter takes up what was posted during it together with what it
//! repeats, and counts as sent what never leaves. What has no place in that burst, because of `max_rd_atomic` or a fence,
//! is taken up later and is not lost: 8192 READs on one QP go well (T fig 5.7).

use crate::{Egress, Outgoing, Refused};

/// The work requests that were posted during a pending period: their first packets are still to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dam {
    /// The first of them.
    pub from: u32,
    /// The one after the last, once the period is over.
    pub to: Option<u32>,
}

impl Dam {
    /// A pending period begins: what is posted from now on gets this number and those after it.
    pub fn begin(from: u32) -> Dam {
        Dam { from, to: None }
    }
}

/// Loses all that is sent.
pub(crate) struct Lost<'e, E>(pub &'e mut E);

impl<E: Egress> Egress for Lost<'_, E> {
    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused> {
        self.0.lose(packet);
        Ok(())
    }
}
