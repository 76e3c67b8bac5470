//! An endpoint: all that its parts share.

use crate::buffer::Piece;
use crate::counters::Counters;
use crate::event::Event;
use crate::flow::{SMALLEST_RECEIVES, counted};
use crate::hello::{Hello, Name};
use crate::ids::{OpId, PeerId, UnexpectedId};
use crate::matching::Matching;
use crate::ops::{Content, Op, Unexpected};
use crate::peer::{Peer, State};
use crate::port::{ConnectionId, Port, Slot};
use crate::registrar::Registrar;
use crate::settings::Settings;
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// An endpoint for reliable datagrams: messages to any number of peers, each over a connection of its own.
///
/// Times are of any clock that only goes forward.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) settings: Settings,
    pub(crate) name: Name,
    pub(crate) peers: Vec<Peer>,
    pub(crate) names: HashMap<Name, PeerId>,
    /// Peers that the program has not named.
    pub(crate) strangers: usize,
    pub(crate) connections: HashMap<ConnectionId, PeerId>,
    pub(crate) ops: Slab<Op>,
    pub(crate) tagged: Matching<OpId, UnexpectedId>,
    pub(crate) untagged: Matching<OpId, UnexpectedId>,
    pub(crate) unexpected: Slab<Unexpected>,
    /// Unexpected messages that the program has claimed, by context.
    pub(crate) claimed: HashMap<u64, UnexpectedId>,
    pub(crate) registrar: Registrar,
    /// Memory that peers may use, and that is prefetched when processes synchronise.
    pub(crate) windows: Vec<Window>,
    /// Bounce buffers that nothing uses.
    pub(crate) free_slots: Vec<Slot>,
    /// Bounce buffers for sending that there are.
    pub(crate) send_slots: u32,
    /// Bytes of injected messages that have not left.
    pub(crate) injected: usize,
    /// Peers that have something to do.
    pub(crate) busy: Vec<PeerId>,
    /// Connections that have failed while something was posted.
    pub(crate) broken: Vec<ConnectionId>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) counters: Counters,
    /// When the program called last.
    pub(crate) called: Duration,
    /// When it called last before it computed: pages that were prefetched until then may be gone.
    pub(crate) computed: Option<Duration>,
    /// It has computed, and has not waited since.
    pub(crate) has_computed: bool,
    /// When it waited last.
    pub(crate) waited: Duration,
    /// When connections were probed last.
    pub(crate) probed: Duration,
}

/// Registered memory of the program that peers may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub lkey: u32,
    pub addr: u64,
    pub len: u64,
    /// Peers may write to it.
    pub writable: bool,
    /// When its pages were prefetched last, and what the adapter's count of lost pages was then.
    pub warmed: Option<(Duration, Option<u64>)>,
}

impl Endpoint {
    /// An endpoint that peers know by this name.
    ///
    /// # Panics
    /// If a bounce buffer is smaller than [`crate::SMALLEST_SLOT`].
    pub fn new(settings: Settings, name: Name) -> Endpoint {
        assert!(settings.slot as usize >= crate::SMALLEST_SLOT);
        let receive_slots = settings.receive_slots.max(SMALLEST_RECEIVES);
        let settings = Settings {
            receive_slots,
            first_receives: settings.first_receives.clamp(SMALLEST_RECEIVES, receive_slots),
            send_slots: settings.send_slots.max(1),
            // Differences of counts modulo 2³² have a sign.
            unexpected: settings.unexpected.min(i32::MAX as u32),
            ..settings
        };
        Endpoint {
            settings,
            name,
            peers: Vec::new(),
            names: HashMap::new(),
            strangers: 0,
            connections: HashMap::new(),
            ops: Slab::new(),
            tagged: Matching::default(),
            untagged: Matching::default(),
            unexpected: Slab::new(),
            claimed: HashMap::new(),
            registrar: Registrar::new(&settings),
            windows: Vec::new(),
            free_slots: Vec::new(),
            send_slots: 0,
            injected: 0,
            busy: Vec::new(),
            broken: Vec::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            called: Duration::ZERO,
            computed: None,
            has_computed: false,
            waited: Duration::ZERO,
            probed: Duration::ZERO,
        }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The peer that the program names; the endpoint itself may be its own peer.
    pub fn peer(&mut self, name: &Name) -> PeerId {
        if let Some(&known) = self.names.get(name) {
            self.becomes_named(known);
            return known;
        }
        self.add_peer(Peer::new(*name))
    }

    /// A peer of a new name.
    pub(crate) fn add_peer(&mut self, peer: Peer) -> PeerId {
        let id = PeerId(self.peers.len() as u32);
        self.names.insert(peer.name, id);
        self.peers.push(peer);
        id
    }

    /// The name of a peer: one that the program has named, or that an event tells of which the program has just taken.
    ///
    /// # Panics
    /// If the id is of another endpoint.
    pub fn name_of(&self, peer: PeerId) -> Name {
        self.peers[peer.0 as usize].name
    }

    /// The oldest event that the program has not taken.
    pub fn take_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What the endpoint has done.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Operations of the program that have not ended, posted receives included.
    pub fn open_operations(&self) -> usize {
        self.ops.len()
    }

    /// Messages that have not matched, and messages that the program has claimed.
    pub fn unexpected_messages(&self) -> usize {
        self.unexpected.len()
    }

    /// Whether all that the program has sent, and all answers to peers, have left and are acknowledged. Of messages
    /// that have not matched, injected ones count: the program cannot know that they are still here.
    pub fn is_drained(&self) -> bool {
        let drained = |peer: &Peer| match &peer.state {
            State::Connected(connected) => connected.queue.is_empty() && !peer.has_work(),
            _ => !peer.has_work(),
        };
        let injected = |op: &Op| matches!(op, Op::Send(send) if send.source.buffer().is_none());
        self.peers.iter().all(drained) && !self.ops.iter().any(|(_, op)| injected(op))
    }

    /// The program registers memory that peers may use.
    pub fn add_window(&mut self, port: &mut impl Port, now: Duration, lkey: u32, buffer: Piece, writable: bool) {
        if self.windows.iter().any(|window| window.lkey == lkey) {
            return;
        }
        let Piece { addr, len } = buffer;
        self.windows.push(Window { lkey, addr, len, writable, warmed: None });
        self.prefetch_registered(port, now, lkey);
    }

    /// The program's registration ends.
    pub fn remove_window(&mut self, lkey: u32) {
        self.windows.retain(|window| window.lkey != lkey);
    }

    /// Memory of the program goes away, or becomes other memory: registrations of it end.
    pub fn invalidate(&mut self, port: &mut impl Port, addr: u64, len: u64) {
        self.registrar.invalidate(port, &mut self.counters, addr, len);
    }

    /// Ends all connections and registrations, and gives back all bounce buffers. Operations end without events, and peers
    /// and events that the program has not taken are forgotten.
    pub fn close(&mut self, port: &mut impl Port) {
        for id in (0..self.peers.len() as u32).map(PeerId) {
            self.disconnect(port, id);
        }
        self.registrar.clear(port, &mut self.counters);
        let slots = std::mem::take(&mut self.free_slots);
        self.free_slots(port, slots);
        let counters = Counters { unexpected_bytes: 0, ..self.counters };
        *self = Endpoint { counters, called: self.called, ..Endpoint::new(self.settings, self.name) };
    }

    /// What this endpoint says of itself to a peer.
    pub(crate) fn hello(&mut self, to: PeerId) -> Hello {
        let waiting = self.unexpected_of(to);
        self.peer_mut(to).told_unexpected = waiting;
        let Settings { first_receives, slot, unexpected, announced, .. } = self.settings;
        let unexpected = unexpected.saturating_sub(waiting);
        Hello { name: self.name, receives: first_receives, slot, unexpected, announced }
    }

    /// Bytes of a peer's messages that are here and have not matched, as its sender counts them.
    pub(crate) fn unexpected_of(&self, peer: PeerId) -> u32 {
        let here = |waiting: &&Unexpected| waiting.from == peer && matches!(waiting.content, Content::Here(_));
        self.unexpected
            .iter()
            .map(|(_, waiting)| waiting)
            .filter(here)
            .fold(0, |sum: u32, waiting| sum.saturating_add(counted(waiting.len)))
    }

    /// The program has waited for this endpoint until now, or a call has worked until now: it has computed nothing.
    pub fn has_waited(&mut self, now: Duration) {
        self.called = self.called.max(now);
    }

    /// The program calls.
    pub(crate) fn calls(&mut self, now: Duration) {
        if now > self.called + self.settings.computes {
            (self.computed, self.has_computed) = (Some(self.called), true);
        }
        self.called = self.called.max(now);
    }

    /// Gives back bounce buffers.
    pub(crate) fn free_slots(&mut self, port: &mut impl Port, slots: Vec<Slot>) {
        for slot in slots {
            self.counters.pinned_bytes -= u64::from(self.settings.slot);
            port.free_slot(slot);
        }
    }

    pub(crate) fn peer_mut(&mut self, peer: PeerId) -> &mut Peer {
        &mut self.peers[peer.0 as usize]
    }

    /// The peer has something to do at the next progress.
    pub(crate) fn wake(&mut self, id: PeerId) {
        let peer = &mut self.peers[id.0 as usize];
        if !peer.busy {
            peer.busy = true;
            self.busy.push(id);
        }
    }

    pub(crate) fn insert(&mut self, op: Op) -> OpId {
        self.ops.insert(op) as OpId
    }

    pub(crate) fn matching(&mut self, tagged: bool) -> &mut Matching<OpId, UnexpectedId> {
        if tagged { &mut self.tagged } else { &mut self.untagged }
    }

    /// A bounce buffer for what is sent to a connected peer. `None`: all are in use, or those that one peer may have in use:
    /// a peer that takes nothing must not keep messages to others from leaving.
    pub(crate) fn take_slot(&mut self, port: &mut impl Port, to: PeerId) -> Option<Slot> {
        let most = self.settings.send_slots.div_ceil(2);
        if self.peer_mut(to).connected().is_none_or(|connected| connected.queue.slots() >= most) {
            return None;
        }
        if let Some(slot) = self.free_slots.pop() {
            return Some(slot);
        }
        if self.send_slots >= self.settings.send_slots {
            return None;
        }
        self.add_send_slot(port)?;
        self.free_slots.pop()
    }

    /// Another bounce buffer for sending, that nothing uses. `None`: there is no memory for it.
    pub(crate) fn add_send_slot(&mut self, port: &mut impl Port) -> Option<()> {
        let slot = self.new_slot(port)?;
        self.send_slots += 1;
        self.free_slots.push(slot);
        Some(())
    }

    /// Another bounce buffer. If no memory may be pinned any more, registrations that no operation uses make room.
    pub(crate) fn new_slot(&mut self, port: &mut impl Port) -> Option<Slot> {
        loop {
            if let Some(slot) = port.new_slot() {
                self.counters.pin(self.settings.slot.into());
                return Some(slot);
            }
            if !self.registrar.evict(port, &mut self.counters) {
                return None;
            }
        }
    }

    /// An operation has ended.
    pub(crate) fn end(&mut self, event: Event) {
        self.events.push_back(event);
    }
}
