//! Bookkeeping of QPs and their peers: what is in flight, which QPs wait, and which try again.

use super::qp_error_log::{Hint, QpError};
use super::{Engine, entry_peer};
use crate::engine::peers::Peers;
use crate::engine::peers::connection::Link;
use crate::engine::peers::identity::PeerId;
use crate::engine::waiting::{WaitList, WaitReason};
use crate::os::clock;
use crate::shared::state::AdapterState;
use std::sync::atomic::Ordering;
use weir_transport::QpState;

impl Engine {
    /// Updates the bookkeeping after a QP was worked on: counters, bytes in flight, deadline, ready list.
    pub(super) fn after(&mut self, index: u16, protocol: &mut weir_transport::Qp) {
        let floods = self.floods;
        let Some(entry) = self.table.get_mut(index) else { return };
        if floods {
            let num = entry.shared.num;
            self.note_fault_event(num, protocol);
        }
        let Some(entry) = self.table.get_mut(index) else { return };
        let flight = protocol.in_flight();
        let before = std::mem::replace(&mut entry.counted, flight);
        let retransmissions = protocol.retransmissions();
        if retransmissions != entry.retransmissions {
            let before = std::mem::replace(&mut entry.retransmissions, retransmissions);
            self.shown.traffic.retransmissions(before, retransmissions);
            self.mark_stall(index, protocol, before, retransmissions);
            if retransmissions.ack_timeouts != before.ack_timeouts {
                self.missed_ack(index);
            }
        }
        let Some(entry) = self.table.get_mut(index) else { return };
        let busy = flight.request_bytes + flight.read_bytes > 0;
        self.fell_idle |= entry.shared.busy.swap(busy, Ordering::Relaxed) && !busy;
        if protocol.has_waiting_ack() && !entry.ack_delayed {
            entry.ack_delayed = true;
            self.delayed_acks.push(index);
        }
        if let Some(due) = protocol.poll_timeout()
            && due.0 < entry.deadline
        {
            entry.deadline = due.0;
            self.timers.set(due.0, index);
        }
        // Only requests wait for a window or a hello; responses are sent nevertheless.
        let has_to_send = if entry.waiting.is_some() { protocol.has_to_respond() } else { protocol.has_to_send() };
        let peer = entry.peer;
        if let Some(ending) = protocol.take_ending() {
            let to = peer.map(|peer| self.peers.get(peer).route.remote);
            let refusal =
                entry.shared.faults.take_refusal(ending.side).filter(|refusal| QpError::is_about(&ending, refusal));
            let (num, dest) = (entry.shared.num, protocol.attr().dest_qp_num);
            let sends_only = protocol.state() == QpState::Sqe;
            let hint = peer.map_or(Hint::None, |peer| Hint::of(&entry.connection, self.peers.get(peer)));
            let error = QpError { num, dest, peer: to, ending, refusal, sends_only, hint };
            self.carrier.mark(&error);
            // There is room for all QPs: `add_qp` has reserved it.
            self.endings.push(error);
        }
        if has_to_send {
            self.ready(index);
        }
        if let Some(peer) = peer
            && flight != before
        {
            let peer = self.peers.get_mut(peer);
            peer.in_flight = peer.in_flight + flight.request_bytes - before.request_bytes;
            peer.reading = peer.reading + flight.read_bytes - before.read_bytes;
            let freed = flight.request_bytes < before.request_bytes || flight.read_bytes < before.read_bytes;
            if freed && !peer.waiting.is_empty() {
                self.wake_waiting(entry_peer(&self.table, index));
            }
        }
    }

    /// Moves the completions of the turn to their CQs. The log lines of failed QPs come first: a program that sees a
    /// failed completion may end at once.
    pub(super) fn publish_completions(&mut self, adapter: &AdapterState) {
        self.endings.drain(..).for_each(|error| error.log(&adapter.device.name, adapter.config.faults.as_ref()));
        if !self.completions.drops.is_empty() {
            self.note_drops(adapter);
        }
        self.completions.publish();
    }

    /// A QP has missed an ACK. Where packets carry an ICRC, an ACK does not show which process sent it: the peer has
    /// to show that it is still the process that proved itself.
    #[cold]
    pub(super) fn missed_ack(&mut self, index: u16) {
        let Some(entry) = self.table.get(index) else { return };
        let Some(peer) = entry.peer else { return };
        let at = self.peers.get(peer);
        match entry.connection.link {
            Link::Weir(_) if at.weir().is_none_or(|weir| weir.icrc) => self.peers.suspect(peer, clock::now()),
            // It may be a Weir process that started late.
            Link::Foreign if entry.connection.needs_proof() && at.next_attempt.is_none() => {
                self.peers.ask_soon(peer, clock::now());
            }
            _ => {}
        }
    }

    /// Removes a QP's bytes in flight from its peer's window.
    pub(super) fn release_in_flight(&mut self, index: u16) {
        let Some(entry) = self.table.get_mut(index) else { return };
        self.fell_idle |= entry.shared.busy.swap(false, Ordering::Relaxed);
        let counted = std::mem::take(&mut entry.counted);
        if let Some(peer) = entry.peer {
            let bound = self.peers.get_mut(peer);
            bound.in_flight -= counted.request_bytes;
            bound.reading -= counted.read_bytes;
            self.wake_waiting(Some(peer));
        }
    }

    /// QPs that waited for a peer's hello or window try again.
    pub(super) fn wake_waiting(&mut self, peer: Option<PeerId>) {
        let Some(peer) = peer else { return };
        if self.parked.is_some() {
            self.release(peer, clock::now());
        }
        self.wake(WaitReason::Peer(peer));
    }

    /// A QP waits, unless it waits already.
    pub(super) fn wait_for(&mut self, reason: WaitReason, index: u16) {
        if self.table.get(index).is_some_and(|entry| entry.waiting.is_none()) {
            wait_list(&mut self.peers, &mut self.wait_for_room, reason).push(&mut self.table, index, reason);
        }
    }

    /// QPs that waited for this try again.
    pub(super) fn wake(&mut self, reason: WaitReason) {
        let mut list = std::mem::take(wait_list(&mut self.peers, &mut self.wait_for_room, reason));
        while let Some(index) = list.pop(&mut self.table) {
            self.ready(index);
        }
    }

    /// A QP is about to be removed from the table.
    pub(super) fn stop_waiting(&mut self, index: u16) {
        let Some(waiting) = self.table.get(index).and_then(|entry| entry.waiting) else { return };
        wait_list(&mut self.peers, &mut self.wait_for_room, waiting.reason).remove(&mut self.table, index);
    }
}

/// The QPs that wait for this.
fn wait_list<'a>(peers: &'a mut Peers, room: &'a mut WaitList, reason: WaitReason) -> &'a mut WaitList {
    match reason {
        WaitReason::Peer(peer) => &mut peers.get_mut(peer).waiting,
        WaitReason::Room => room,
    }
}
