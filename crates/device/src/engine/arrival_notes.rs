//! Notes for the log about packets that do not reach their QP as they should: from another address, changed on the way, or
//! without a hello; and about messages that QPs drop.

use crate::engine::Engine;
use crate::os::clock;
use crate::pace::ThreadTasks;
use crate::shared::arrival_errors::{ArrivalError, ArrivalErrorKind};
use crate::shared::state::AdapterState;
use weir_link::Arrival;
use weir_transport::{Instant, Service};

impl Engine {
    /// A packet for a QP was dropped because of its addresses. While nothing else comes from its peer, they may have been
    /// translated.
    #[cold]
    pub(super) fn note_other_sender(&self, adapter: &AdapterState, (index, arrival): (u16, &Arrival), now: Instant) {
        let Some(entry) = self.table.get(index) else { return };
        let Some(peer) = entry.peer.map(|peer| self.peers.get(peer)) else { return };
        if entry.shared.service == Service::Ud || arrival.from.ip() == peer.route.remote {
            return;
        }
        self.shown.traffic.wrong_sender.bump(1);
        if entry.retired.is_none() && entry.connection.is_unheard() {
            self.note(adapter, ArrivalErrorKind::Translated, (index, arrival), now);
        }
    }

    /// A packet for a QP had a wrong ICRC.
    #[cold]
    pub(super) fn note_wrong_icrc(&self, adapter: &AdapterState, at: (u16, &Arrival), now: Instant) {
        self.note(adapter, ArrivalErrorKind::Changed, at, now);
    }

    /// A packet came from a slot's port to port 4791.
    #[cold]
    pub(super) fn note_no_hello(&self, adapter: &AdapterState, (index, arrival): (u16, &Arrival), now: Instant) {
        let Some(entry) = self.table.get(index) else { return };
        let heard = entry.peer.is_none_or(|peer| self.peers.get(peer).weir().is_some());
        if !heard && entry.connection.is_unheard() {
            self.note(adapter, ArrivalErrorKind::NoHello, (index, arrival), now);
        }
    }

    /// QPs have dropped messages of UC and UD.
    #[cold]
    pub(super) fn note_drops(&mut self, adapter: &AdapterState) {
        let now = clock::now();
        for note in self.completions.drops.drain(..) {
            if adapter.dropped.note(note, now) {
                adapter.pace.ask_thread(ThreadTasks::LOG);
            }
        }
    }

    fn note(&self, adapter: &AdapterState, kind: ArrivalErrorKind, (index, arrival): (u16, &Arrival), now: Instant) {
        let Some(entry) = self.table.get(index) else { return };
        let peer = entry.peer.map_or(arrival.from.ip(), |peer| self.peers.get(peer).route.remote);
        let (qp, from, to_port) = (entry.shared.num, arrival.from, arrival.to_port);
        if adapter.arrival_errors.note(ArrivalError { kind, qp, from, to_port, peer }, now) {
            adapter.pace.ask_thread(ThreadTasks::LOG);
        }
    }
}

#[cfg(test)]
mod tests;
