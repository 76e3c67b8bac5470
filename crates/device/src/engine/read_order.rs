//! Requests that wait for the data of earlier READs of their QP ([`Handled::AfterReads`]).
//!
//! The READs' responses are staged at once: the data is then in the outbox, or in the ring, and the request is executed.
//! The responses leave with the others of the turn. Where they cannot be staged (they are very long, their peer has to
//! prove itself first, the profile delays them) the request is held, like one that met a page fault.

use crate::engine::Engine;
use crate::engine::host::QpHost;
use crate::engine::receive::handle;
use crate::engine::transmit::Departing;
use crate::pace::ThreadTasks;
use crate::paging::held::{Kept, Waiting};
use crate::shared::qp::QpShared;
use crate::shared::state::AdapterState;
use std::sync::Arc;
use weir_transport::{Handled, Instant, Qp, Side};
use weir_wire::Packet;

impl Engine {
    /// Stages the responses of a QP, because a request waits for the data of READs.
    #[cold]
    #[inline(never)]
    pub(super) fn read_out(&mut self, adapter: &AdapterState, index: u16, now: Instant) {
        while self.read_outs > 0 && self.transmit_one(adapter, index, now, Departing::Responses) {
            self.flush();
            self.read_outs -= 1;
        }
    }

    /// Handles a request again that waits for READs, after their responses were staged. The caller does not hold the QP.
    #[cold]
    #[inline(never)]
    pub(super) fn handle_after_reads(
        &mut self,
        adapter: &AdapterState,
        (index, shared): (u16, &Arc<QpShared>),
        packet: (&Packet<'_>, bool),
        now: Instant,
    ) -> Handled {
        if self.holds_after_reads(index) {
            // Earlier requests come first.
            return Handled::AfterReads;
        }
        self.read_out(adapter, index, now);
        let mut protocol = shared.lock();
        let mut host =
            QpHost::in_turn(Side::Responder, shared, &adapter.regions, &mut self.cached, &mut self.completions);
        handle(&mut protocol, now, packet, &mut host)
    }

    /// Whether a QP holds requests that wait for READs.
    #[inline]
    pub(super) fn holds_after_reads(&self, index: u16) -> bool {
        self.table.get(index).is_some_and(|entry| entry.holds_after_reads)
    }

    /// A request still waits for READs: it is kept, or the peer is asked to repeat it.
    #[cold]
    #[inline(never)]
    pub(super) fn hold_after_reads(
        &mut self,
        adapter: &AdapterState,
        (index, protocol): (u16, &mut Qp),
        packet: Waiting<'_>,
    ) {
        if self.keep(index, Side::Responder, packet) == Kept::NoRoom {
            protocol.refuse_waiting();
            if self.held.is_none() {
                adapter.pace.ask_thread(ThreadTasks::HELD_BUFFERS);
            }
        } else if let Some(entry) = self.table.get_mut(index) {
            entry.holds_after_reads = true;
        }
    }

    /// Packets of a QP have left: requests that waited for READs are executed if these have been read out.
    #[cold]
    #[inline(never)]
    pub(super) fn continue_after_reads(&mut self, adapter: &AdapterState, index: u16, now: Instant) {
        let Some(shared) = self.table.get(index).map(|entry| entry.shared.clone()) else { return };
        let mut protocol = shared.lock();
        if protocol.awaits_reads() {
            return;
        }
        self.pass_in_held(adapter, (index, &shared, &mut protocol), Side::Responder, now);
        self.after(index, &mut protocol);
    }
}

#[cfg(test)]
mod tests;
