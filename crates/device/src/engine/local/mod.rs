//! Rings to peers of the same network namespace and user: which peers get one, and which QPs use it.
//!
//! The engine's thread makes and frees the rings (`adapter/local_links.rs`), because that takes system calls and memory.

mod egress;
mod receive;
mod receive_wait;
pub mod rings;

pub use egress::{RingEgress, Written};

use crate::engine::Engine;
use crate::engine::peers::hellos::OutgoingHello;
use crate::engine::peers::identity::{PeerId, PeerKey};
use crate::engine::peers::peer::RingState;
use crate::engine::table::Path;
use crate::local::endpoint::Endpoint;
use crate::local::handshake::Keys;
use crate::pace::ThreadTasks;
use crate::shared::state::AdapterState;
use crate::slot::FIRST_PORT;
use receive_wait::ReceiveWait;
use rings::{Ring, RingId, Use, Wanted};
use std::os::fd::OwnedFd;
use std::time::Duration;
use weir_transport::{InFlight, Instant, Service};

/// Attempts to get a ring to a peer, and the wait after the first, which doubles: the peer may not have this process's
/// proof yet.
const TRIES: u32 = 8;
const WAIT: Duration = Duration::from_millis(1);
/// A ring that has lasted this long was made successfully: when it ends, attempts are counted anew.
const LASTED: Duration = Duration::from_secs(1);
/// After the last response that a QP sent by UDP, its packets go by UDP for this time at least: the peer may not have
/// taken it from its socket, and looks at rings first.
const OVERTAKEN: Duration = Duration::from_millis(5);

impl Engine {
    /// A QP was proven to belong to a peer: the peer gets a ring, if both sides offer it.
    pub(super) fn want_ring(&mut self, id: PeerId, now: Instant) {
        let peer = self.peers.get(id);
        if !peer.may_share() {
            return;
        }
        match peer.ring {
            RingState::Up(ring)
                if self.rings.get_mut(ring).is_none_or(|ring| Some(ring.incarnation) != peer.incarnation) =>
            {
                // It leads to a process that had the peer's slot before.
                self.close_ring(ring);
            }
            RingState::None => {}
            _ => return,
        }
        if self.connects_to(id) {
            self.peers.get_mut(id).ring = RingState::Wanted { tries: 0, at: now };
            self.rings.ask = true;
        }
    }

    /// Returns whether this process connects to a peer, and not the peer to it.
    fn connects_to(&self, id: PeerId) -> bool {
        FIRST_PORT + self.slot.number() < self.peers.get(id).slot_port
    }

    /// The engine's thread is needed at this time at the latest.
    pub fn need_thread_by(&mut self, at: Instant) {
        self.rings.need_thread_by(at);
        self.next_due = self.next_due.min(at.0);
    }

    /// Has the thread do what is due.
    pub(super) fn ask_for_rings(&mut self, adapter: &AdapterState, now: Instant) {
        if self.rings.next_try.is_some_and(|due| due <= now) {
            (self.rings.next_try, self.rings.ask) = (None, true);
        }
        if std::mem::take(&mut self.rings.ask) {
            adapter.pace.ask_thread(ThreadTasks::LOCAL);
        }
    }

    /// A peer to which the thread must connect now, one per call.
    pub fn take_wanted_ring(&mut self, now: Instant) -> Option<Wanted> {
        for id in self.peers.ids() {
            let RingState::Wanted { tries, at } = self.peers.get(id).ring else { continue };
            if at > now {
                self.need_thread_by(at);
                continue;
            }
            let own = self.peers.own_incarnation(id);
            let has_room = self.has_room_for_ring();
            let peer = self.peers.get_mut(id);
            let Some(incarnation) = peer.incarnation.filter(|_| peer.may_share() && has_room) else {
                peer.ring = RingState::None;
                continue;
            };
            peer.ring = RingState::Connecting { tries: tries + 1 };
            return Some(Wanted {
                key: peer.key(),
                keys: Keys { connector: own, acceptor: incarnation },
                slot: self.slot.number(),
            });
        }
        None
    }

    /// The keys with which the peer of this key connects. `None`: it is not known, or has proven nothing.
    pub fn keys_of_connector(&mut self, key: &PeerKey) -> Option<Keys> {
        let id = self.peers.id_of(key)?;
        let replaces = matches!(self.peers.get(id).ring, RingState::Up(_));
        if !self.peers.get(id).may_share() || !replaces && !self.has_room_for_ring() {
            return None;
        }
        let peer = self.peers.get(id);
        Some(Keys { connector: peer.incarnation?, acceptor: self.peers.own_incarnation(id) })
    }

    /// Gives a peer its ring. `incarnation`: of the process at the other end. The ring comes back if it is not used.
    pub fn add_ring(
        &mut self,
        adapter: &AdapterState,
        key: &PeerKey,
        incarnation: u64,
        made: Made,
        now: Instant,
    ) -> Result<(), Box<Ring>> {
        let id = self.peers.id_of(key);
        let Made { endpoint, socket, token } = made;
        let mut ring = Box::new(Ring {
            endpoint,
            socket,
            token,
            incarnation,
            peer: id.unwrap_or(0),
            state: Use::Both,
            made: now,
            tries: 0,
            unreliable: false,
            wait: ReceiveWait::default(),
            answer: None,
        });
        let Some(id) = id else { return Err(ring) };
        match self.peers.get(id).ring {
            RingState::Up(old) => self.retire_ring(adapter, old, now),
            RingState::Connecting { tries } => ring.tries = tries,
            _ => {}
        }
        let peer = self.peers.get(id);
        // Its QPs may be gone by now, or belong to another process: then nothing would end the ring.
        if !peer.may_share() || peer.incarnation != Some(incarnation) {
            return Err(ring);
        }
        let inserted = self.rings.insert(ring);
        if inserted.is_err() {
            self.has_room_for_ring();
        }
        let peer = self.peers.get_mut(id);
        peer.ring = inserted.as_ref().map_or(RingState::None, |ring| RingState::Up(*ring));
        inserted.map(|_| ())
    }

    /// A peer that was to get a ring did not get it: it is tried again. Returns whether that was the last attempt.
    pub fn ring_failed(&mut self, key: &PeerKey, now: Instant) -> bool {
        let Some(id) = self.peers.id_of(key) else { return false };
        let peer = self.peers.get_mut(id);
        let RingState::Connecting { tries } = peer.ring else { return false };
        if tries >= TRIES {
            peer.ring = RingState::None;
            return true;
        }
        self.try_again(id, tries, now);
        false
    }

    /// A peer is tried again after a wait.
    fn try_again(&mut self, id: PeerId, tries: u32, now: Instant) {
        let at = now + WAIT * (1 << tries.saturating_sub(1));
        self.peers.get_mut(id).ring = RingState::Wanted { tries, at };
        self.need_thread_by(at);
    }

    /// The connection of a ring has ended: what is in the ring is taken. The peer is asked for another one: it may have
    /// ended this one with its last QP, and have others by now.
    pub fn end_ring(&mut self, adapter: &AdapterState, token: u64, now: Instant) {
        let same = |ring: &Option<Box<Ring>>| ring.as_ref().is_some_and(|ring| ring.token == token);
        let Some(id) = self.rings.rings.iter().position(same) else { return };
        let Some(ring) = self.rings.get_mut(id) else { return };
        let (peer, incarnation) = (ring.peer, ring.incarnation);
        let tries = if now - ring.made < LASTED { ring.tries } else { 0 };
        let was_up = self.peers.get(peer).ring == RingState::Up(id);
        self.retire_ring(adapter, id, now);
        let at = self.peers.get(peer);
        let same = at.may_share() && at.incarnation == Some(incarnation);
        if was_up && same && tries < TRIES && self.connects_to(peer) {
            self.try_again(peer, tries, now);
        }
    }

    /// No packet is sent by a ring any more. What is in it is taken, and it is closed when it is empty: a UC packet may
    /// wait for a receive.
    fn retire_ring(&mut self, adapter: &AdapterState, id: RingId, now: Instant) {
        let Some(ring) = self.rings.get_mut(id) else { return };
        ring.state = Use::Rest;
        let owner = ring.peer;
        let peer = self.peers.get_mut(owner);
        if peer.ring == RingState::Up(id) {
            peer.ring = RingState::None;
        }
        // A peer that fills its old rings for ever has one of them.
        self.close_rings(|other, ring| ring.peer == owner && ring.state == Use::Rest && other != id);
        self.empty_ring(adapter, id, now);
        // The next turn moves completions to their CQs.
        self.next_due = 0;
    }

    /// A ring that the engine no longer uses, to be freed, one per call.
    pub fn take_closed_ring(&mut self) -> Option<Box<Ring>> {
        self.rings.closed.pop()
    }

    /// Stops to use a ring. The thread frees it.
    pub(super) fn close_ring(&mut self, id: RingId) {
        if let Some(ring) = self.rings.remove(id) {
            let peer = self.peers.get_mut(ring.peer);
            if peer.ring == RingState::Up(id) {
                peer.ring = RingState::None;
            }
            self.rings.closed.push(ring);
            self.rings.ask = true;
        }
    }

    /// The last QP of a peer is gone.
    pub(super) fn release_ring(&mut self, id: PeerId) {
        self.close_rings(|_, ring| ring.peer == id);
        self.peers.get_mut(id).ring = RingState::None;
    }

    fn close_rings(&mut self, which: impl Fn(RingId, &Ring) -> bool) {
        for id in self.rings.ids() {
            if self.rings.get_mut(id).is_some_and(|ring| which(id, ring)) {
                self.close_ring(id);
            }
        }
    }

    /// How a QP's packets travel now. `incarnation`: of the process that owns the QP's peer.
    #[inline]
    pub(super) fn way_of(&mut self, peer: PeerId, index: u16, incarnation: u64, now: Instant) -> Way {
        let RingState::Up(id) = self.peers.get(peer).ring else { return Way::Udp };
        let Some(entry) = self.table.get_mut(index) else { return Way::Udp };
        if self.rings.get_mut(id).is_none_or(|ring| ring.incarnation != incarnation) {
            return Way::Udp;
        }
        // Packets in a ring overtake those that left by UDP before. A QP that retransmits begins to use the ring when
        // nothing is in flight; a QP that does not stays with UDP.
        if entry.path == Path::Udp {
            let responses_arrived = entry.responded_by_udp.is_none_or(|last| now - last > OVERTAKEN);
            if entry.shared.service == Service::Uc || !responses_arrived {
                return Way::Udp;
            }
            if entry.counted != InFlight::default() {
                return Way::Drain;
            }
        }
        entry.path = Path::Ring;
        Way::Ring(id)
    }

    /// Returns whether a ring can be added. If not, the thread is asked to say so in the log.
    fn has_room_for_ring(&mut self) -> bool {
        let has_room = self.rings.has_room();
        if !has_room && !std::mem::replace(&mut self.rings.limit_reached, true) {
            self.rings.ask = true;
        }
        has_room
    }

    /// Returns whether there was no room for a ring at some time.
    pub fn ring_limit_was_reached(&self) -> bool {
        self.rings.limit_reached
    }

    /// Keeps an answer to a question of flow control until all packets that came before the question are taken, if one
    /// of them waits for a receive. Returns whether it does.
    pub(super) fn answer_later(&mut self, peer: PeerId, answer: &OutgoingHello) -> bool {
        let waits = |ring: &&mut Box<Ring>| ring.peer == peer && ring.wait.is_waiting();
        let ring = self.rings.rings.iter_mut().flatten().find(waits);
        let later = ring.is_some();
        if let Some(ring) = ring {
            ring.answer = Some(*answer);
        }
        later
    }
}

/// How the packets of a QP travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Ring(RingId),
    Udp,
    /// By UDP, but without further requests until those in flight are acknowledged: then the QP takes its ring. A QP that
    /// always has more to send would otherwise stay with UDP.
    Drain,
}

/// The parts of a ring that was agreed on.
pub struct Made {
    pub endpoint: Endpoint,
    /// The connection by which it was made.
    pub socket: OwnedFd,
    /// Its number in the thread's lists.
    pub token: u64,
}

#[cfg(test)]
mod tests;
