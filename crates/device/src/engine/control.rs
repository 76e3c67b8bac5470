//! Control calls: QPs are added, bound to their routes and removed, and room for peers grows.

use super::{Engine, Turn, entry_peer};
use crate::Errno;
use crate::engine::host::QpHost;
use crate::engine::peers::capacity::Lists;
use crate::engine::peers::connection::Link;
use crate::engine::peers::identity::PeerKey;
use crate::engine::table::{Opened, Path};
use crate::engine::waiting::WaitReason;
use crate::os::clock;
use crate::shared::qp::QpShared;
use crate::shared::route::Route;
use crate::shared::state::AdapterState;
use crate::slot::{self, FIRST_PORT, slot_of};
use std::sync::Arc;
use weir_transport::{Instant, Psn, Side};

impl Engine {
    /// Adds a QP under a new number. ENOMEM if the table is full.
    pub fn add_qp(&mut self, make: impl FnOnce(u32) -> Result<Arc<QpShared>, Errno>) -> Result<Arc<QpShared>, Errno> {
        if let Some(oldest) = self.table.retired_to_evict() {
            self.evict_retired(oldest);
        }
        let shared = self.table.insert(make)?;
        let count = self.table.len();
        self.shown.qps.set(count as u64);
        self.timers.reserve(count + 1);
        self.ready.reserve((count + 1).saturating_sub(self.ready.len()));
        self.delayed_acks.reserve((count + 1).saturating_sub(self.delayed_acks.len()));
        // A QP ends once until it is reset, and that waits for the end of the turn.
        self.endings.reserve((count + 1).saturating_sub(self.endings.len()));
        self.rung.reserve(count);
        Ok(shared)
    }

    /// The number of peers for which there must be room, if there is too little of it.
    pub fn needed_peer_capacity(&self) -> Option<usize> {
        self.peers.needed_capacity()
    }

    /// Gets the lists that [`needed_peer_capacity`](Self::needed_peer_capacity) asked for, and returns the old ones in
    /// them. `None`: there is no memory.
    pub fn provide_peer_room(&mut self, adapter: &AdapterState, larger: Option<&mut Lists>) {
        self.peers.exchange_lists(larger);
        self.room_asked = false;
        self.wake(WaitReason::Room);
        self.turn(adapter, Turn::SEND);
    }

    /// Takes a turn that looks at the deadlines of the CQs, and for CQs that have overflowed, even if there is no other work.
    pub fn follow_cqs(&mut self, adapter: &AdapterState) {
        self.next_due = 0;
        self.turn(adapter, Turn::SEND);
    }

    /// Removes a QP. It acknowledges duplicates for 300 ms more: the peer may have missed its last ACK.
    pub fn remove_qp(&mut self, adapter: &AdapterState, num: u32, opened: Opened) {
        let Some(index) = self.table.index(num) else { return };
        if !adapter.condition.works() {
            self.stop_waiting(index);
            self.table.remove(index);
            return;
        }
        // Requests that wait for others to gather leave: a program may post datagrams and destroy their QP at once.
        self.turn(adapter, Turn::SEND);
        self.table.retire(index, clock::now(), opened);
        // Requests that wait are not executed after the QP is destroyed.
        self.drop_held(index);
        self.ready(index);
        if let Some(entry) = self.table.get_mut(index) {
            let mut protocol = entry.shared.lock();
            let (cached, completions) = (&mut self.cached, &mut self.completions);
            let shared = &entry.shared;
            protocol.end_tags(&mut QpHost::in_turn(Side::Responder, shared, &adapter.regions, cached, completions));
            // Its requests end here; the turn below removes them from its peer's window.
            protocol.abandon();
        }
        self.forget_fault_events(adapter, num);
        self.turn(adapter, Turn::SEND);
        self.table_timer(index);
        // No turn may follow: the thread must wake up to remove the QP.
        adapter.pace.wake_by(Some(self.next_due));
    }

    /// Binds a QP to a route. With `rq_psn`, a new connection begins, and the first packet from the peer carries this
    /// PSN.
    pub fn connect(
        &mut self,
        adapter: &AdapterState,
        num: u32,
        route: Route,
        dest: u32,
        rq_psn: Option<Psn>,
        now: Instant,
    ) {
        let Some(index) = self.table.index(num) else { return };
        let key = (route.local, route.remote, FIRST_PORT + slot_of(dest));
        if rq_psn.is_none() && entry_peer(&self.table, index).is_some_and(|peer| self.peers.get(peer).key() == key) {
            // Only the way to the same peer was set again: the connection stays.
            return;
        }
        if rq_psn.is_some_and(|psn| self.resume(index, key, dest, psn, now)) {
            self.ready(index);
            self.turn(adapter, Turn::SEND);
            return;
        }
        self.disconnect(num);
        let peer = self.peers.bind(route, dest, index, now);
        let Some(entry) = self.table.get_mut(index) else { return };
        entry.peer = Some(peer);
        if let Some(psn) = rq_psn {
            entry.connection.count += 1;
            (entry.path, entry.responded_by_udp, entry.without_receive) = (Path::New, None, false);
            entry.connection.begin(dest, psn, self.peers.tag(num, entry.connection.count));
        }
        self.expected.enter(peer, entry.connection.expected(self.peers.nonce(peer)), index);
        if slot::is_used(slot_of(dest)) {
            entry.connection.ask(now);
            self.peers.get_mut(peer).members.ask(index);
            self.peers.ask_soon(peer, now);
        } else {
            // No Weir process has QPNs of this slot.
            entry.connection.link = Link::Foreign;
            self.foreign.note_foreign_peer(now);
        }
        if self.peers.get(peer).weir().is_none() {
            // The peer may be a foreign adapter, which may send at once.
            self.expect_foreign(adapter);
        }
        self.ready(index);
        self.turn(adapter, Turn::SEND);
    }

    /// Goes on with the connection that a QP had before RESET, if this is the same: the peer's QP may not have been reset.
    /// Then the peer sees retransmissions only, and proves nothing anew.
    fn resume(&mut self, index: u16, key: PeerKey, dest: u32, rq_psn: Psn, now: Instant) -> bool {
        let Some(peer) = entry_peer(&self.table, index).filter(|peer| self.peers.get(*peer).key() == key) else {
            return false;
        };
        let nonce = self.peers.nonce(peer);
        let Some(entry) = self.table.get_mut(index) else { return false };
        let before = entry.connection.expected(nonce);
        if !entry.connection.resume(dest, rq_psn) {
            return false;
        }
        (entry.path, entry.responded_by_udp, entry.without_receive) = (Path::New, None, false);
        self.expected.remove(peer, before, index);
        self.expected.enter(peer, entry.connection.expected(nonce), index);
        self.peers.get_mut(peer).members.proven(index);
        // If the peer's QP has begun anew, it answers with its new proof.
        self.peers.ask_soon(peer, now);
        true
    }

    /// A QP was reset. It stays bound to a proven peer until it is connected again.
    pub fn rest(&mut self, num: u32) {
        let Some(index) = self.table.index(num) else { return };
        if self.table.get(index).is_some_and(|entry| matches!(entry.connection.link, Link::Weir(_))) {
            self.drop_held(index);
            self.release_in_flight(index);
        } else {
            self.disconnect(num);
        }
    }

    /// A connected QP will send, and `psn` is its first PSN: with that, too, its peer can prove itself.
    pub fn send_from(&mut self, adapter: &AdapterState, num: u32, psn: Psn, now: Instant) {
        let Some(index) = self.table.index(num) else { return };
        let Some(entry) = self.table.get_mut(index) else { return };
        let Some(peer) = entry.peer else { return entry.connection.send_from(psn) };
        let nonce = self.peers.nonce(peer);
        self.expected.remove(peer, entry.connection.expected(nonce), index);
        entry.connection.send_from(psn);
        self.expected.enter(peer, entry.connection.expected(nonce), index);
        if entry.connection.needs_proof() {
            // The time limit of the proof starts again, however long the QP was in RTR: nothing has been sent yet.
            entry.connection.ask(now);
            self.peers.get_mut(peer).members.ask(index);
            self.peers.ask_soon(peer, now);
        }
        self.turn(adapter, Turn::SEND);
    }

    /// Unbinds a QP from its route.
    pub fn disconnect(&mut self, num: u32) {
        let Some(index) = self.table.index(num) else { return };
        self.drop_held(index);
        self.release_in_flight(index);
        let Some(entry) = self.table.get_mut(index) else { return };
        if let Some(peer) = entry.peer.take() {
            self.expected.remove(peer, entry.connection.expected(self.peers.nonce(peer)), index);
            self.peers.unbind(peer, index, clock::now());
            if self.peers.get(peer).members.is_empty() {
                self.release_ring(peer);
            }
        }
    }
}
