//! Packet damming: requests posted while an earlier request of the same QP is pending are lost (T 5.1).
//!
//! Observed: a READ is pending, because the responder was not ready or because its response was dropped for a missing
//! page. Meanwhile the application posts a second request. When the pending period ends, the sender's capture shows
//! both, the READ again and the second request 2 to 4 µs after it; but the responder answers only the READ. The
//! sender retransmits the second request after the ACK timeout, half a second later, and the responder then treats it
//! as new (T fig 5.3). If a third request follows later, the responder sends a sequence NAK, and the sender
//! retransmits both at once (T fig 5.6). The size of the requests, their pages, whether the second is a READ, a WRITE
//! or a SEND, and the activity of other QPs make no difference (T 5.1.3). The vendor attributes the loss to the page
//! fault processing of the ConnectX-4 (T 7.2).
//!
//! Hypothesis: when the pending period ends, the adapter takes up the requests posted during it together with the
//! retransmission, and counts packets as sent that never leave. Requests that `max_rd_atomic` or a fence keeps out of
//! that burst are taken up later and are not lost: 8192 READs on one QP succeed (T fig 5.7).

use crate::{Egress, Outgoing, Refused};

/// The work requests that were posted during a pending period: their first packets will be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dam {
    /// Index of the first of them.
    pub from: u32,
    /// The index after the last of them, set when the period is over.
    pub to: Option<u32>,
}

impl Dam {
    /// A pending period begins: `from` is the index of the next work request that is posted.
    pub fn begin(from: u32) -> Dam {
        Dam { from, to: None }
    }
}

/// An egress that loses every packet.
pub(crate) struct Lost<'e, E>(pub &'e mut E);

impl<E: Egress> Egress for Lost<'_, E> {
    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused> {
        self.0.lose(packet);
        Ok(())
    }
}
