//! The order of a READ and the requests after it: no later SEND, WRITE or atomic of the QP is executed before the READ's
//! data has been read out.
//!
//! The specification lets a responder execute them before (IBTA 10.8.3.3), unless a fence is between them. But
//! adapters work on one request after the other, and programs rely on it. A profile can choose the other order
//! ([`Profile::late_reads`](crate::Profile::late_reads)).
//!
//! A response leaves only at the next `poll_transmit`, so such a request goes back to the caller
//! ([`Handled::AfterReads`](crate::Handled::AfterReads)), which has the responses sent and passes it in again. Responses
//! wait for no window; what can delay them is a missing page, or a profile's delay of repeated READs.

use super::opcode_order::Request;
use super::{Order, Responder, Waits};
use crate::config::Config;

impl Responder {
    /// Whether requests wait until the data of earlier READs has been read out.
    #[inline]
    pub fn awaits_reads(&self) -> bool {
        self.waits == Waits::Reads && self.resources.reads_memory()
    }

    /// A request that waits for READs, or follows one that does, was dropped: the peer retransmits it when it has the
    /// responses (IBTA 9.7.5.2.2).
    #[cold]
    pub fn refuse_waiting(&mut self) {
        if self.waits == Waits::Reads && self.order == Order::Kept {
            self.owe_sequence_nak();
        }
    }

    /// Whether a request that is next in order must wait for the data of earlier READs. READs do not.
    #[cold]
    #[inline(never)]
    pub(super) fn must_follow_reads(&mut self, request: Request, config: &Config) -> bool {
        let must = request != Request::Read && !config.profile.late_reads && self.resources.reads_memory();
        if must {
            self.waits = Waits::Reads;
        }
        must
    }
}
