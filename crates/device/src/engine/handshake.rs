//! The handshake of hellos: when they are sent and answered, and the proofs of QPs in them.
//!
//! A connected QP asks the process at its peer's slot for a proof ([`crate::engine::peers::proof`]), and sends requests
//! there only when it has the proof. A peer that does not prove itself in time is treated as a foreign adapter at port
//! 4791, and still becomes a Weir process if it proves itself later.

use crate::engine::peers::connection::{Connection, Link};
use crate::engine::peers::hello::{Hello, MAX_LEN, MAX_PROOFS};
use crate::engine::peers::hellos::OutgoingHello;
use crate::engine::peers::identity::PeerId;
use crate::engine::peers::proof::{PROOF_LEN, Proof};
use crate::engine::{Engine, OUTBOX_GROUPS};
use crate::shared::route::{Route, needs_scope};
use crate::shared::state::AdapterState;
use weir_link::{Arrival, Group};
use weir_transport::Instant;
use weir_wire::ROCE_PORT;

impl Engine {
    /// Handles a received hello.
    pub(super) fn handle_hello(&mut self, adapter: &AdapterState, arrival: &Arrival, datagram: &[u8], now: Instant) {
        let Some((hello, proofs)) = Hello::decode(datagram) else { return };
        if hello.mark != 0 {
            // The answer means that all packets from before the question were taken in.
            self.empty_rings(adapter, now);
        }
        let full = proofs.clone().count() == MAX_PROOFS;
        let ifindex = if needs_scope(arrival.from.ip()) { arrival.ifindex } else { 0 };
        let route = Route { local: arrival.to, remote: arrival.from.ip(), ifindex, hops: 0 };
        let outcome = self.peers.handle_hello(route, arrival.from.port(), &hello, now);
        let Some(id) = outcome.peer else {
            if let Some(outgoing) = outcome.reply {
                self.send_hello(&outgoing, &[]);
            }
            return;
        };
        let progress = outcome.answers && self.verify(id, proofs, now);
        let (unproven, unconfirmed) = self.proof_state(id);
        if unproven && outcome.answers && (progress || full) {
            // An answer has room for some of the proofs only.
            self.ask_for_more(id, progress, now);
        } else if unproven && hello.ask != 0 && self.peers.get(id).next_attempt.is_none() {
            // The peer started or connected late.
            self.peers.ask_because_asked(id, now);
        }
        if let Some(mut outgoing) = outcome.reply {
            if unproven || unconfirmed {
                self.peers.ask_back(id, &hello, &mut outgoing);
            }
            // A flow-control question asks for no proofs.
            if hello.mark != 0 {
                if !self.answer_later(id, &outgoing) {
                    self.send_hello(&outgoing, &[]);
                }
            } else {
                self.send_proofs(id, &hello, &outgoing);
            }
        }
        if outcome.answers {
            if !unproven {
                self.peers.satisfied(id);
            }
            self.wake_waiting(Some(id));
        }
    }

    fn send_proofs(&mut self, id: PeerId, hello: &Hello, outgoing: &OutgoingHello) {
        let mut proofs = [Proof([0; PROOF_LEN]); MAX_PROOFS];
        let count = self.prove(id, hello.ask, &mut proofs);
        self.send_hello(outgoing, &proofs[..count]);
    }

    /// Asks again at once. If some QPs were proven, the time limit of those that still wait starts again.
    fn ask_for_more(&mut self, id: PeerId, progress: bool, now: Instant) {
        for index in if progress { self.peers.get(id).members.asking() } else { &[] } {
            if let Some(entry) = self.table.get_mut(*index)
                && matches!(entry.connection.link, Link::Asking { .. })
            {
                entry.connection.link = Link::Asking { since: now, tries: 0 };
            }
        }
        self.peers.ask_for_more(id, progress, now);
    }

    /// Sends the hellos that are due.
    pub(super) fn send_due_hellos(&mut self, adapter: &AdapterState, now: Instant) {
        while let Some((peer, outgoing)) = self.peers.ask_again(now) {
            match outgoing {
                Some(outgoing) => self.send_hello(&outgoing, &[]),
                None => self.wake_waiting(Some(peer)),
            }
        }
        while let Some((peer, outgoing, mut foreign)) = self.peers.next_due_hello(now) {
            self.send_hello(&outgoing, &[]);
            for at in 0..self.peers.get(peer).members.asking().len() {
                let index = self.peers.get(peer).members.asking()[at];
                foreign |= self.count_try(adapter, peer, index, now);
            }
            if foreign {
                self.foreign.note_foreign_peer(now);
            }
            if foreign || self.peers.get(peer).is_silent() {
                self.wake_waiting(Some(peer));
            }
        }
    }

    /// Counts a hello to a QP's peer. Returns whether the peer is treated as foreign because of it.
    fn count_try(&mut self, adapter: &AdapterState, peer: PeerId, index: u16, now: Instant) -> bool {
        let Some(entry) = self.table.get_mut(index) else { return false };
        let peer = self.peers.get_mut(peer);
        let foreign = entry.connection.asked(now, peer.weir().is_some());
        if foreign && peer.weir().is_some() && !std::mem::replace(&mut peer.unproven_reported, true) {
            tracing::warn!(
                "{}, QP {:#08x}: the process at {} answers, but does not prove that it owns the QP's peer; packets go to \
                 port {ROCE_PORT}, as to a foreign adapter (said once for this process). Its QP may not be connected \
                 yet, or a firewall drops UDP ports 20480 to 21503 in one direction",
                adapter.device.name,
                entry.shared.num,
                peer.to(false),
            );
        }
        foreign
    }

    /// Checks the proofs of an answer. Returns whether they proved the ownership of a QP.
    fn verify(&mut self, id: PeerId, proofs: impl Iterator<Item = Proof> + Clone, now: Instant) -> bool {
        let (nonce, mut progress) = (self.peers.nonce(id), false);
        for proof in proofs {
            let Some(index) = self.expected.of(id, proof.id()) else { continue };
            let Some(entry) = self.table.get_mut(index) else { continue };
            let before = entry.connection.link;
            // The peer may have connected anew, with another tag, and has sent nothing yet.
            let again = matches!(before, Link::Weir(_)) && entry.connection.is_unconfirmed();
            if !entry.connection.needs_proof() && !again {
                continue;
            }
            if let Some(demand) = entry.connection.verify(nonce, proof)
                && before != Link::Weir(demand)
            {
                entry.connection.link = Link::Weir(demand);
                self.peers.get_mut(id).members.proven(index);
                self.peers.proven(id, demand.incarnation);
                self.ready(index);
                progress = true;
            }
        }
        if progress {
            self.want_ring(id, now);
        }
        progress
    }

    /// Makes the proofs that a peer may not have yet; returns their number. The next call begins with other QPs.
    fn prove(&mut self, id: PeerId, nonce: u64, into: &mut [Proof; MAX_PROOFS]) -> usize {
        let (incarnation, table, mut count) = (self.peers.own_incarnation(id), &self.table, 0);
        self.peers.get_mut(id).members.choose(MAX_PROOFS, |index| {
            let Some(entry) = table.get(index) else { return false };
            let Some(proof) = entry.connection.prove(nonce, incarnation) else { return false };
            into[count] = proof;
            count += 1;
            true
        });
        count
    }

    /// Returns whether a QP still waits for a proof of this peer, and whether the peer may lack the proof of a QP that it
    /// has proven itself for.
    fn proof_state(&mut self, id: PeerId) -> (bool, bool) {
        let (table, members) = (&self.table, &mut self.peers.get_mut(id).members);
        let is = |fits: fn(&Connection) -> bool| {
            move |index: u16| table.get(index).is_some_and(|entry| fits(&entry.connection))
        };
        (members.any_asking(is(Connection::needs_proof)), members.any_unconfirmed(is(Connection::may_prove)))
    }

    /// Adds a hello with proofs to the outbox, as a group of its own; flushes the outbox first if it is full.
    pub(super) fn send_hello(&mut self, outgoing: &OutgoingHello, proofs: &[Proof]) {
        if self.outbox.len + MAX_LEN > self.outbox.bytes.len() || self.outbox.groups.len() >= OUTBOX_GROUPS {
            self.flush();
        }
        let start = self.outbox.len;
        let len = outgoing.hello.encode(proofs, &mut self.outbox.bytes[start..]);
        self.outbox.len += len;
        let group = Group::new(outgoing.to, outgoing.route.local, outgoing.route.ifindex);
        // It must not overtake the packets before it, nor they it: so it leaves by the same socket.
        self.outbox.groups.push(Group { start, len, segment: len, any_id: true, ..group });
    }
}

#[cfg(test)]
mod tests;
