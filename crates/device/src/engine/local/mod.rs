//! Rings to peers of the same network namespace and user: which peers get one, and which QPs use it.
//!
//! The engine's thread makes and frees the rings (`adapter/local_links.rs`), because that takes system calls and memory.

mod egress;
mod receive;
pub mod rings;

pub use egress::{RingEgress, Written};

use crate::engine::Engine;
use crate::engine::peers::identity::{PeerId, PeerKey};
use crate::engine::peers::peer::RingState;
use crate::engine::table::Path;
use crate::local::endpoint::{Endpoint, MAX_RINGS};
use crate::local::handshake::Keys;
use crate::pace::ThreadTasks;
use crate::shared::state::AdapterState;
use crate::slot::FIRST_PORT;
use rings::{Ring, RingId, Wanted};
use std::os::fd::OwnedFd;
use std::time::Duration;
use weir_transport::{InFlight, Instant, Service};

/// Attempts to get a ring to a peer, and the wait after the first, which doubles: the peer may not have this process's
/// proof yet.
const TRIES: u32 = 8;
const WAIT: Duration = Duration::from_millis(1);

impl Engine {
    /// A QP was proven to belong to a peer: the peer gets a ring, if both sides offer it.
    pub(super) fn want_ring(&mut self, id: PeerId, now: Instant) {
        let peer = self.peers.get(id);
        if !peer.weir().is_some_and(|weir| weir.local) {
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
        // The process with the smaller slot connects.
        let peer = self.peers.get_mut(id);
        if FIRST_PORT + self.slot.number() < peer.slot_port {
            peer.ring = RingState::Wanted { tries: 0, at: now };
            self.rings.ask = true;
        }
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
                self.rings.next_try = Some(self.rings.next_try.map_or(at, |next| next.min(at)));
                continue;
            }
            if self.rings.count == MAX_RINGS {
                self.log_limit();
                self.peers.get_mut(id).ring = RingState::None;
                continue;
            }
            self.peers.get_mut(id).ring = RingState::Connecting { tries: tries + 1 };
            let own = self.peers.own_incarnation(id);
            let peer = self.peers.get(id);
            let Some(incarnation) = peer.incarnation else { continue };
            return Some(Wanted {
                key: peer.key(),
                keys: Keys { connector: own, acceptor: incarnation },
                slot: self.slot.number(),
            });
        }
        None
    }

    /// The keys with which the peer of this key connects. `None`: it is not known, or has proven nothing.
    pub fn keys_of_connector(&self, key: &PeerKey) -> Option<Keys> {
        let id = self.peers.id_of(key)?;
        let peer = self.peers.get(id);
        if !peer.weir().is_some_and(|weir| weir.local) || peer.members.is_empty() {
            return None;
        }
        Some(Keys { connector: peer.incarnation?, acceptor: self.peers.own_incarnation(id) })
    }

    /// Gives a peer its ring. `incarnation`: of the process at the other end. The ring comes back if it is not used.
    pub fn add_ring(
        &mut self,
        key: &PeerKey,
        incarnation: u64,
        endpoint: Endpoint,
        socket: OwnedFd,
        token: u64,
    ) -> Result<(), Box<Ring>> {
        let id = self.peers.id_of(key);
        let ring = Box::new(Ring { endpoint, socket, token, incarnation, peer: id.unwrap_or(0) });
        let Some(id) = id.filter(|id| self.peers.get(*id).incarnation == Some(incarnation)) else { return Err(ring) };
        if let RingState::Up(old) = self.peers.get(id).ring {
            self.close_ring(old);
        }
        match self.rings.insert(ring) {
            Ok(ring) => self.peers.get_mut(id).ring = RingState::Up(ring),
            Err(ring) => {
                self.log_limit();
                self.peers.get_mut(id).ring = RingState::None;
                return Err(ring);
            }
        }
        Ok(())
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
        let at = now + WAIT * (1 << (tries - 1));
        peer.ring = RingState::Wanted { tries, at };
        self.rings.next_try = Some(self.rings.next_try.map_or(at, |next| next.min(at)));
        self.next_due = self.next_due.min(at.0);
        false
    }

    /// The connection of a ring has ended: takes what is in the ring, and returns the ring, to be freed.
    pub fn end_ring(&mut self, adapter: &AdapterState, token: u64, now: Instant) -> Option<Box<Ring>> {
        let same = |ring: &Option<Box<Ring>>| ring.as_ref().is_some_and(|ring| ring.token == token);
        let id = self.rings.rings.iter().position(same)?;
        self.empty_ring(adapter, id, now);
        let ring = self.rings.remove(id)?;
        self.peers.get_mut(ring.peer).ring = RingState::None;
        Some(ring)
    }

    /// A ring that the engine no longer uses, to be freed, one per call.
    pub fn take_closed_ring(&mut self) -> Option<Box<Ring>> {
        self.rings.closed.pop()
    }

    /// Stops to use a ring. The thread frees it.
    pub(super) fn close_ring(&mut self, id: RingId) {
        if let Some(ring) = self.rings.remove(id) {
            self.peers.get_mut(ring.peer).ring = RingState::None;
            self.rings.closed.push(ring);
            self.rings.ask = true;
        }
    }

    /// The last QP of a peer is gone.
    pub(super) fn release_ring(&mut self, id: PeerId) {
        let peer = self.peers.get_mut(id);
        match peer.ring {
            RingState::Up(ring) => self.close_ring(ring),
            _ => peer.ring = RingState::None,
        }
    }

    /// The ring that a QP's packets take, if they take one. `incarnation`: of the process that owns the QP's peer.
    #[inline]
    pub(super) fn ring_of(&mut self, peer: PeerId, index: u16, incarnation: u64) -> Option<RingId> {
        let RingState::Up(id) = self.peers.get(peer).ring else { return None };
        let entry = self.table.get_mut(index)?;
        if self.rings.get_mut(id)?.incarnation != incarnation {
            return None;
        }
        // Packets in a ring overtake those that left by UDP before. A QP that retransmits begins to use the ring when
        // nothing is in flight; a QP that does not stays with UDP.
        let begins = match entry.path {
            Path::New | Path::Ring => true,
            Path::Udp => entry.shared.service != Service::Uc && entry.counted == InFlight::default(),
        };
        if begins {
            entry.path = Path::Ring;
        }
        begins.then_some(id)
    }

    #[cold]
    fn log_limit(&mut self) {
        if !std::mem::replace(&mut self.rings.limit_logged, true) {
            tracing::warn!(
                "this process shares memory with {MAX_RINGS} others: packets to further processes of this machine go \
                 by UDP, which is slower"
            );
        }
    }
}

#[cfg(test)]
mod tests;
