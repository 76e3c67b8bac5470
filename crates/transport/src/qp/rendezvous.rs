//! QPs with a TM SRQ: the adapter does a rendezvous itself.

use super::Qp;
use crate::recv_queue::RecvQueue;
use crate::send_queue::SendQueue;
use crate::{Host, Status};
use std::collections::TryReserveError;

impl Qp {
    /// Makes the QP take its receives from a TM SRQ ([`crate::Host::take_tagged`]), of at most `max_sges` SGEs each. Call
    /// it before any other function. Error: the memory for its rings cannot be allocated.
    pub fn match_tags(&mut self, max_sges: u32) -> Result<(), TryReserveError> {
        self.send_queue = SendQueue::with_rendezvous(&self.config.init.caps, max_sges)?;
        self.recv_queue = RecvQueue::tagged(max_sges)?;
        Ok(())
    }

    /// The QP is reset or abandoned: each tag that a message has taken completes as flushed, and so does the receive of a
    /// message under way (IBTA 10.3.1). The program's own requests do not complete. Without a TM SRQ it does nothing.
    pub fn end_tags<H: Host>(&mut self, host: &mut H) {
        if !self.recv_queue.is_tagged() {
            return;
        }
        self.send_queue.discard(host, &self.config);
        while !self.recv_queue.is_empty() {
            self.recv_queue.fail(host, &self.config, Status::WrFlushed, 0);
        }
    }

    /// The packet that was executed may be a rendezvous request that matched a tag: posts what fetches its data.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_rendezvous(&mut self) {
        let Qp { config, send_queue, recv_queue, .. } = self;
        if let Some((rendezvous, sges)) = recv_queue.take_rendezvous() {
            send_queue.post_rendezvous(&rendezvous, sges, config);
        }
    }
}
