//! The peers of QPs: their entries, and the division of the receive buffer among them. A process that sends a hello,
//! and that no QP of this process is bound to, is an unbound peer, among the [`UnboundPeers`].

pub mod capacity;
pub mod connection;
pub mod expected;
pub mod flow;
pub mod foreign;
pub mod hello;
pub mod hellos;
pub mod identity;
pub mod members;
pub mod parked;
pub mod peer;
pub mod proof;
pub mod unbound_peers;

use crate::Errno;
use crate::engine::peers::flow::Flow;
use crate::engine::peers::hello::Hello;
use crate::engine::peers::identity::{EntryId, PeerId, PeerKey};
use crate::engine::peers::members::Members;
use crate::engine::peers::peer::{Peer, RingState, State, Weir};
use crate::engine::peers::proof::Secret;
use crate::engine::peers::unbound_peers::{RECENT_HELLO, UnboundPeer, UnboundPeers};
use crate::engine::waiting::WaitList;
use crate::shared::route::Route;
use crate::slot::{FIRST_PORT, is_slot_port, slot_of};
use capacity::{Lists, SPARE};
use std::net::IpAddr;
use std::time::Duration;
use weir_transport::Instant;

/// A peer that answered a hello within this time needs no new one.
const FRESH: Duration = Duration::from_millis(100);

/// The window of a foreign adapter; Soft-RoCE has a socket buffer of about 200 KiB.
const FOREIGN_WINDOW: usize = 128 << 10;

/// With fewer peers than this, idle ones are not looked for.
const FEW: usize = 64;

/// A peer that got no datagram for this long, and has no QP bound to it, is idle.
const QUIET: Duration = Duration::from_secs(60);

/// All peers, and the division of the receive buffer among them.
pub struct Peers {
    lists: Lists,
    /// There was no memory for larger lists.
    out_of_memory: bool,
    unbound_peers: UnboundPeers,
    /// The number of peers at which idle ones are looked for next.
    sweep_at: usize,
    secret: Secret,
    /// The parameters of this process in hellos; fields that depend on the peer are filled in later.
    own: Hello,
    /// Bytes that all peers together may have under way to this process.
    budget: usize,
    /// The largest window of one peer.
    most: usize,
    /// The window of each peer that QPs of this process send to.
    share: usize,
    /// The number of these peers.
    known: usize,
}

/// The smallest and the largest window of one peer: one burst; what stays in the cache.
const SHARE: std::ops::RangeInclusive<usize> = (64 << 10)..=(1 << 20);

impl Peers {
    /// `receive_buffer`: the size of the socket's receive buffer in the kernel. ENOMEM if there is no memory.
    pub fn new(secret: Secret, own: Hello, receive_buffer: usize) -> Result<Self, Errno> {
        // The kernel counts its own structures too: half of the buffer is left for them.
        let budget = receive_buffer / 2;
        Ok(Peers {
            lists: Lists::new(SPARE)?,
            out_of_memory: false,
            unbound_peers: UnboundPeers::new(),
            sweep_at: FEW,
            secret,
            own,
            budget,
            most: *SHARE.end(),
            share: share(budget, 1, *SHARE.end()),
            known: 0,
        })
    }

    /// One peer may get all of the buffer: real adapters have no windows, and a peer that retransmits all its requests
    /// must be able to have them under way. To be called before anything else.
    pub fn widen(&mut self) {
        self.most = self.budget.max(*SHARE.end());
        self.share = share(self.budget, 1, self.most);
    }

    /// The size of the socket's receive buffer in the kernel.
    pub fn receive_buffer(&self) -> usize {
        2 * self.budget
    }

    /// The limit that larger lists must have. `None`: there is enough room.
    pub fn needed_capacity(&self) -> Option<usize> {
        self.lists.needed()
    }

    /// Exchanges the lists for larger ones. `None`: there is no memory for them, and datagrams to peers without an
    /// entry are lost until there is some.
    pub fn exchange_lists(&mut self, larger: Option<&mut Lists>) {
        self.out_of_memory = larger.is_none();
        if let Some(larger) = larger {
            self.lists.move_to(larger);
        }
    }

    /// Returns whether there was no memory for larger lists.
    pub fn is_out_of_memory(&self) -> bool {
        self.out_of_memory
    }

    /// Makes room for one more peer, in a control call.
    fn make_room(&mut self) {
        if !self.lists.has_room() {
            let larger = Lists::new(self.lists.count() + SPARE);
            self.lists.move_to(&mut larger.expect("a few kilobytes, as for the QP that is bound"));
        }
    }

    /// The peer of an index. Panics if the index was never assigned.
    pub fn get(&self, id: PeerId) -> &Peer {
        &self.lists.peers[id]
    }

    /// As [`get`](Self::get), mutable.
    pub fn get_mut(&mut self, id: PeerId) -> &mut Peer {
        &mut self.lists.peers[id]
    }

    /// The peer of a key.
    pub fn id_of(&self, key: &PeerKey) -> Option<PeerId> {
        match self.lists.by_key.get(key)? {
            EntryId::Peer(id) => Some(*id),
            EntryId::Unbound(_) => None,
        }
    }

    /// The indices of all entries, free ones too.
    pub fn ids(&self) -> std::ops::Range<PeerId> {
        0..self.lists.peers.len()
    }

    /// The peer at an address, by the slot of a QPN; the QP `index` is bound to it.
    pub fn bind(&mut self, route: Route, dest_qpn: u32, index: u16, now: Instant) -> PeerId {
        self.make_room();
        let id = self.entry(route, FIRST_PORT + slot_of(dest_qpn), now).expect("there is room");
        self.lists.peers[id].members.add(index);
        self.divide(now);
        id
    }

    /// A QP has missed an ACK: the peer must show that it is still alive.
    pub fn suspect(&mut self, id: PeerId, now: Instant) {
        let peer = &mut self.lists.peers[id];
        peer.suspected.get_or_insert(0);
        if peer.suspected == Some(0) || peer.next_attempt.is_none() {
            self.ask_soon(id, now);
        }
    }

    /// A QP was proven to belong to the process with this incarnation. If the hello with the proof came from another
    /// process than the one before, its parameters are used from now on.
    pub fn proven(&mut self, id: PeerId, incarnation: u64) {
        let peer = &mut self.lists.peers[id];
        (peer.incarnation, peer.suspected) = (Some(incarnation), None);
        if let Some(weir) = peer.unidentified.take() {
            peer.state = State::Weir(weir);
        }
    }

    /// The number that identifies this process to a peer.
    pub fn own_incarnation(&self, id: PeerId) -> u64 {
        self.secret.incarnation(&self.lists.peers[id].key())
    }

    /// The nonce that a peer's answers repeat.
    pub fn nonce(&self, id: PeerId) -> u64 {
        self.secret.nonce(&self.lists.peers[id].key())
    }

    /// The tag that packets to a QP must carry in its `connection`-th connection.
    pub fn tag(&self, qpn: u32, connection: u64) -> u32 {
        self.secret.tag(qpn, connection)
    }

    /// Returns whether packets may omit the ICRC if the peer agrees.
    pub fn leaves_icrc_out(&self) -> bool {
        self.own.icrc_auto
    }

    /// Returns whether peers may send frames.
    pub fn accepts_frames(&self) -> bool {
        self.own.frames
    }

    /// The peer that a datagram goes to. A new peer gets a hello; a known peer gets one when its last answer is 100 ms
    /// old, because it may have restarted. `None` if the peer is new and there is no room for its entry.
    pub fn peer_of_datagram(&mut self, route: Route, dest_qpn: u32, now: Instant) -> Option<PeerId> {
        let id = self.entry(route, FIRST_PORT + slot_of(dest_qpn), now)?;
        let peer = &mut self.lists.peers[id];
        if !is_slot_port(peer.slot_port) {
            // No Weir process has QPNs of this slot.
            peer.state = State::Foreign;
            return Some(id);
        }
        let stale = peer.confirmed.is_none_or(|confirmed| now - confirmed >= FRESH);
        let first = peer.datagrams.replace(now).is_none();
        if stale && (first || (peer.next_attempt.is_none() && matches!(peer.state, State::Weir(_)))) {
            peer.attempts = 0;
            peer.next_attempt = Some(now);
        }
        Some(id)
    }

    /// Bytes of unacknowledged packets (UC, UD) that may still go to a peer.
    pub fn unreliable_room(&self, id: PeerId) -> usize {
        let peer = &self.lists.peers[id];
        match peer.state {
            State::Weir(weir) => peer.flow.room(weir.window),
            State::Foreign => usize::MAX,
            State::Unknown => 0,
        }
    }

    /// Unbinds a QP from a peer.
    pub fn unbind(&mut self, id: PeerId, index: u16, now: Instant) {
        self.lists.peers[id].members.remove(index);
        self.leave_if_idle(id, now);
        self.divide(now);
    }

    /// The entry of a peer, made if there is none. `None` if there is no room for it.
    fn entry(&mut self, route: Route, port: u16, now: Instant) -> Option<PeerId> {
        let key = (route.local, route.remote, port);
        if let Some(EntryId::Peer(id)) = self.lists.by_key.get(&key) {
            return Some(*id);
        }
        if self.lists.count() >= self.sweep_at {
            (0..self.lists.peers.len()).for_each(|id| self.leave_if_idle(id, now));
            self.sweep_at = FEW.max(2 * (self.lists.count()));
        }
        if !self.lists.has_room() {
            return None;
        }
        let known = match self.lists.by_key.get(&key) {
            Some(EntryId::Unbound(index)) => self.unbound_peers.take(*index),
            _ => None,
        };
        let mut peer = Peer {
            route,
            slot_port: port,
            state: known.filter(|known| known.proven).map_or(State::Unknown, |known| State::Weir(known.weir)),
            incarnation: None,
            unidentified: None,
            members: Members::default(),
            unproven_reported: false,
            suspected: None,
            in_flight: 0,
            reading: 0,
            flow: Flow::default(),
            waiting: WaitList::default(),
            attempts: 0,
            rounds: 0,
            next_attempt: None,
            confirmed: known.filter(|known| known.proven).map(|known| known.last_hello),
            announced_window: known.map_or(0, |known| known.announced_window),
            datagrams: None,
            ring: RingState::None,
            lied: None,
        };
        let id = match self.lists.vacant.pop() {
            Some(id) => {
                // The lists of members are empty; their memory is kept rather than freed here.
                peer.members = std::mem::take(&mut self.lists.peers[id].members);
                self.lists.peers[id] = peer;
                id
            }
            None => {
                self.lists.peers.push(peer);
                self.lists.peers.len() - 1
            }
        };
        self.lists.by_key.insert(key, EntryId::Peer(id));
        Some(id)
    }

    /// Turns a peer without bound QPs and recent datagrams into an unbound peer.
    fn leave_if_idle(&mut self, id: PeerId, now: Instant) {
        let peer = &mut self.lists.peers[id];
        let (key, announced_window) = (peer.key(), peer.announced_window);
        let sends = peer.datagrams.is_some_and(|last| now - last < QUIET) || peer.flow.due().is_some();
        let idle = peer.members.is_empty() && !sends && peer.waiting.is_empty();
        if !idle || self.lists.by_key.get(&key) != Some(&EntryId::Peer(id)) {
            return;
        }
        debug_assert_eq!((peer.in_flight, peer.reading), (0, 0), "all requests have ended");
        peer.next_attempt = None;
        let known = peer.for_datagrams().zip(peer.confirmed);
        self.lists.by_key.remove(&key);
        self.lists.vacant.push(id);
        if let Some((weir, last_hello)) = known {
            self.remember(UnboundPeer { key, weir, last_hello, announced_window, proven: true });
        }
    }

    /// Enters an unbound peer, if there is an entry for it.
    fn remember(&mut self, unbound: UnboundPeer) -> Option<usize> {
        let (index, gone) = self.unbound_peers.enter(unbound)?;
        if let Some(gone) = gone {
            self.lists.by_key.remove(&gone);
        }
        self.lists.by_key.insert(unbound.key, EntryId::Unbound(index));
        Some(index)
    }

    /// When the next hello is due (nanoseconds).
    pub fn next_attempt(&self) -> Option<u64> {
        let due = |peer: &Peer| [peer.next_attempt, peer.flow.due()].into_iter().flatten().min();
        self.lists.peers.iter().filter_map(due).map(|instant| instant.0).min()
    }

    /// Divides the receive buffer anew among the peers that QPs of this process send to.
    fn divide(&mut self, now: Instant) {
        let talks = |peer: &&Peer| {
            let lately = peer.datagrams.is_some_and(|last| now - last < RECENT_HELLO);
            peer.weir().is_some() && (!peer.members.is_empty() || lately)
        };
        self.known = self.lists.peers.iter().filter(talks).count();
        self.share = share(self.budget, self.known, self.most);
    }

    /// Bytes of requests that may still go to a peer.
    pub fn room(&self, id: PeerId, foreign: bool) -> usize {
        let peer = &self.lists.peers[id];
        let window = match peer.weir() {
            _ if foreign => FOREIGN_WINDOW,
            Some(weir) => weir.window,
            None => 0,
        };
        window.saturating_sub(peer.in_flight)
    }

    /// The agreed parameters of the process at a port of an address, if it has answered this process's nonce: those
    /// that datagrams use.
    pub fn find(&self, local: IpAddr, remote: IpAddr, port: u16) -> Option<Weir> {
        match *self.lists.by_key.get(&(local, remote, port))? {
            EntryId::Peer(id) => self.lists.peers[id].for_datagrams(),
            EntryId::Unbound(index) => self.unbound_peers.get(index).filter(|peer| peer.proven).map(|peer| peer.weir),
        }
    }

    /// Bytes of READ responses that may still be requested from a peer.
    pub fn read_room(&self, id: PeerId) -> usize {
        self.share.min(*SHARE.end()).saturating_sub(self.lists.peers[id].reading)
    }
}

/// The share of each of `count` peers in a budget, `most` at the most.
fn share(budget: usize, count: usize, most: usize) -> usize {
    (budget / count.max(1)).clamp(*SHARE.start(), most)
}

#[cfg(test)]
mod tests;
