//! The engine: moves packets between the QPs of a device and its carrier. The thread that holds it drives it, one turn
//! at a time: doorbells, arrivals, deadlines, departures.

mod carrier;
mod datagram;
mod deadlines;
mod done;
mod endings;
mod failed;
mod faulted;
mod groups;
pub mod host;
mod introduce;
mod multicast;
mod order;
mod overflow;
pub mod peers;
mod port_sharing;
mod quirks;
mod receive;
mod release;
mod staging;
mod table;
mod timers;
mod transmit;
mod waiting;

use crate::Errno;
use crate::config::{Config, Icrc};
use crate::engine::peers::hello::{self, Hello};
use crate::engine::peers::proof::Secret;
use crate::memory::keys::Cached;
use crate::os::clock;
use crate::os::interfaces::DeviceInfo;
use crate::paging::held::HeldPackets;
use crate::shared::qp::QpShared;
use crate::shared::route::Route;
use crate::shared::state::AdapterState;
use crate::slot::{self, FIRST_PORT, INDEX_BITS, Slot, slot_of};
use crate::stat::sheet;
use done::Done;
use groups::Groups;
use peers::Peers;
use peers::connection::Link;
use peers::foreign::Foreign;
use peers::parked::Parked;
use peers::peer::PeerId;
use staging::Lost;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use table::{Opened, Table};
use timers::Timers;
use waiting::{WaitList, WaitReason};
use weir_link::{Carrier, Inbox, Outbox, Ports};
use weir_transport::{FaultNotifier, Instant, Profile, Psn, Side};

/// What a turn does besides doorbells, deadlines and departures.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Looks for arrivals.
    receive: bool,
    /// Sends ACKs that were delayed in an earlier turn.
    earlier_acks: bool,
}

impl Turn {
    /// A work request was posted.
    pub const SEND: Turn = Turn { receive: false, earlier_acks: false };
    /// An empty CQ was polled.
    pub const POLL: Turn = Turn { receive: true, earlier_acks: true };
    /// The engine's thread.
    pub const THREAD: Turn = Turn { receive: true, earlier_acks: false };
    /// The process is about to end.
    pub const FLUSH: Turn = Turn { receive: false, earlier_acks: true };
}

/// Staged bytes: a few bursts, so that one system call takes them all and they stay in the cache.
const OUTBOX_BYTES: usize = 256 << 10;
const OUTBOX_GROUPS: usize = 32;
/// Iovecs of payload that is sent in place: two for each packet of the shortest such payload, and many more than
/// one packet with the most SGEs has.
const OUTBOX_IOVECS: usize = 4096;
/// Receive buffers of 64 KiB each.
const INBOX_SLOTS: usize = 8;
/// Receive calls in one turn, so that departures are not starved.
const RECEIVES: usize = 4;

/// The state that only the holder touches.
pub struct Engine {
    carrier: Box<dyn Carrier>,
    outbox: Outbox,
    inbox: Inbox,
    slot: Slot,
    foreign: Foreign,
    groups: Groups,
    table: Table,
    peers: Peers,
    timers: Timers,
    /// QPs with something to send, each once.
    ready: VecDeque<u16>,
    /// QPs with datagrams to new peers, for which there is no room.
    wait_for_room: WaitList,
    /// The engine's thread was asked to make room for peers.
    room_asked: bool,
    /// QPs that owe a delayed (lazy) ACK, each once.
    lazy: Vec<u16>,
    rung: Vec<u32>,
    /// Peers that got datagrams of the QP that is worked on.
    served: Vec<PeerId>,
    cached: Cached,
    payload_cached: Cached,
    /// Datagrams that wait for their peers' hellos; made when a QP that sends datagrams is ready.
    parked: Option<Box<Parked>>,
    /// Packets that wait for pages, once there are on-demand regions.
    held: Option<Box<HeldPackets>>,
    /// Sides of QPs with resolved pages, while these are worked on.
    resolved: Vec<(u32, Side)>,
    /// Completions of this turn.
    done: Done,
    /// The fault notifier, where the profile has packet flood.
    announcer: Option<Box<FaultNotifier>>,
    /// Records packets that the adapter itself loses.
    lost: Lost,
    /// Long payload without ICRC is sent from application memory in place.
    in_place: bool,
    /// Consecutive receives that found nothing.
    empty_receives: u32,
    /// No deadline is earlier (nanoseconds): until then an empty poll only looks for arrivals.
    next_due: u64,
    /// The published traffic counters.
    shown: &'static sheet::Device,
}

impl Engine {
    /// Error: a capture file that cannot be written.
    pub fn new(
        device: &DeviceInfo,
        config: &Config,
        profile: &Profile,
        slot: Slot,
        ports: Ports,
        shown: &'static sheet::Device,
    ) -> Result<Engine, Errno> {
        // Captures and fault injection need the packets' ICRC.
        let icrc_auto = config.icrc == Icrc::Auto && config.faults.is_none() && config.capture.is_none();
        let own = Hello {
            ask: 0,
            answer: 0,
            alive: 0,
            icrc_auto,
            boot_id: hello::boot_id()?,
            window: 0,
            patience: config.patience,
            mark: 0,
        };
        let secret = Secret::new().map_err(|_| Errno(libc::EAGAIN))?;
        let mut peers = Peers::new(secret, own, ports.receive_buffer())?;
        if quirks::makes_peers_repeat(profile) {
            peers.widen();
        }
        let carrier = carrier::wrap(ports, device, config)?;
        Ok(Engine {
            in_place: carrier.supports_iovecs(),
            empty_receives: 0,
            next_due: 0,
            shown,
            announcer: quirks::announcer(profile),
            lost: Lost { shown, captured: carrier.records_fates() },
            carrier,
            outbox: Outbox::with_iovecs(OUTBOX_BYTES, OUTBOX_GROUPS, OUTBOX_IOVECS),
            inbox: Inbox::new(INBOX_SLOTS),
            table: Table::new(slot.number())?,
            slot,
            foreign: Foreign::default(),
            groups: Groups::default(),
            peers,
            timers: Timers::new(table::INDICES + 1),
            ready: VecDeque::with_capacity(64),
            wait_for_room: WaitList::default(),
            room_asked: false,
            lazy: Vec::with_capacity(64),
            rung: Vec::with_capacity(64),
            served: Vec::with_capacity(64),
            cached: Cached::default(),
            payload_cached: Cached::default(),
            parked: None,
            held: None,
            resolved: Vec::with_capacity(64),
            done: Done::new(),
        })
    }

    /// Descriptors that become readable when a packet arrives.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let mut descriptors = self.carrier.fds();
        descriptors.push(self.slot.incoming.as_raw_fd());
        descriptors
    }

    /// The process is about to end.
    pub fn close(&mut self) {
        self.carrier.close();
    }

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
        self.lazy.reserve((count + 1).saturating_sub(self.lazy.len()));
        self.rung.reserve(count);
        Ok(shared)
    }

    /// The number of peers for which there must be room, if there is too little of it.
    pub fn wanted_peer_room(&self) -> Option<usize> {
        self.peers.wanted_room()
    }

    /// Gets the lists that [`wanted_peer_room`](Self::wanted_peer_room) asked for, and returns the old ones in them.
    /// `None`: there is no memory.
    pub fn provide_peer_room(&mut self, adapter: &AdapterState, larger: Option<&mut peers::room::Lists>) {
        self.peers.exchange_lists(larger);
        self.room_asked = false;
        self.wake(WaitReason::Room);
        self.turn(adapter, Turn::SEND);
    }

    /// Number of QPs.
    pub fn qps(&self) -> usize {
        self.table.len()
    }

    /// Removes a QP. It acknowledges duplicates for 300 ms more: the peer may have missed its last ACK.
    pub fn remove_qp(&mut self, adapter: &AdapterState, num: u32, opened: Opened) {
        let Some(index) = self.table.index(num) else { return };
        if !adapter.condition.works() {
            self.stop_waiting(index);
            self.table.remove(index);
            return;
        }
        self.table.retire(index, clock::now(), opened);
        self.ready(index);
        if let Some(entry) = self.table.get_mut(index) {
            let mut protocol = entry.shared.lock();
            // Its requests end here; the turn below removes them from its peer's account.
            let credits = protocol.abandon();
            if let Some(reads) = &entry.shared.reads {
                reads.give_back(credits);
            }
        }
        self.forget_fault_notification(num);
        self.turn(adapter, Turn::SEND);
        self.table_timer(index);
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
        self.disconnect(num);
        let peer = self.peers.bind(route, dest, index, now);
        let Some(entry) = self.table.get_mut(index) else { return };
        entry.peer = Some(peer);
        if let Some(psn) = rq_psn {
            entry.connection.count += 1;
            entry.connection.begin(dest, psn, self.peers.tag(num, entry.connection.count));
        }
        if slot::is_used(slot_of(dest)) {
            entry.connection.ask(now);
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

    /// A connected QP will send, and `psn` is its first PSN: with that, too, its peer can prove itself.
    pub fn send_from(&mut self, adapter: &AdapterState, num: u32, psn: Psn, now: Instant) {
        let Some(index) = self.table.index(num) else { return };
        let Some(entry) = self.table.get_mut(index) else { return };
        entry.connection.send_from(psn);
        if let Some(peer) = entry.peer
            && entry.connection.wants_proof()
        {
            // The time limit of the proof starts again, however long the QP was in RTR: nothing has been sent yet.
            entry.connection.ask(now);
            self.peers.ask_soon(peer, now);
        }
        self.turn(adapter, Turn::SEND);
    }

    /// Unbinds a QP from its route.
    pub fn disconnect(&mut self, num: u32) {
        let Some(index) = self.table.index(num) else { return };
        self.drop_held(index);
        self.forget_fault_notification(num);
        self.release_in_flight(index);
        if let Some(peer) = self.table.get_mut(index).and_then(|entry| entry.peer.take()) {
            self.peers.unbind(peer, index, clock::now());
        }
    }

    /// One turn. Whether there was work.
    pub fn turn(&mut self, adapter: &AdapterState, turn: Turn) -> bool {
        if !adapter.condition.works() {
            return false;
        }
        let now = clock::now();
        let mut worked = self.answer_doorbells(adapter);
        if adapter.has_resolved() {
            self.continue_resolved(adapter, now);
            worked = true;
        }
        // A delayed ACK waits for the program's next post or poll, because the program answers each message.
        if turn.earlier_acks {
            self.hurry_acks();
        }
        if turn.receive {
            for _ in 0..RECEIVES {
                let arrived = self.receive(adapter, now);
                worked |= arrived > 0;
                // After a single buffer, its response is sent before another buffer is looked for.
                if arrived < 2 {
                    break;
                }
            }
            // Even if the carrier is busy: packets of foreign adapters may come this way only.
            if self.expects_handed_over(now) {
                worked |= self.receive_handed_over(adapter, now) > 0;
            }
        }
        // Handed over packets that their receivers could not take earlier.
        self.foreign.flush(now);
        if !worked && self.ready.is_empty() && now.0 < self.next_due && adapter.pace.program_polls() {
            return false;
        }
        let now = self.handle_deadlines(adapter, now);
        worked |= self.transmit(adapter, now);
        self.done.publish();
        self.fail_overflown(adapter, now);
        self.done.publish();
        // If a long turn left work over, the next turn is due at once.
        let next = if self.ready.is_empty() { self.next_deadline(adapter) } else { Some(now.0) };
        self.next_due = next.unwrap_or(u64::MAX);
        adapter.pace.wake_by(next);
        worked
    }

    fn answer_doorbells(&mut self, adapter: &AdapterState) -> bool {
        let mut rung = std::mem::take(&mut self.rung);
        adapter.doorbells.take(&mut rung);
        for num in &rung {
            if let Some(index) = self.table.index(*num) {
                if let Some(entry) = self.table.get_mut(index) {
                    entry.answer();
                }
                self.ready(index);
            }
        }
        let any = !rung.is_empty();
        rung.clear();
        self.rung = rung;
        any
    }

    fn hurry_acks(&mut self) {
        let mut lazy = std::mem::take(&mut self.lazy);
        for index in lazy.drain(..) {
            let Some(entry) = self.table.get_mut(index) else { continue };
            entry.lazy = false;
            entry.shared.lock().hurry_ack();
            self.ready(index);
        }
        self.lazy = lazy;
    }

    fn next_deadline(&self, adapter: &AdapterState) -> Option<u64> {
        let next = [self.timers.next(), self.peers.next_attempt(), self.carrier.due(), self.foreign.next()];
        next.into_iter().chain([adapter.cqs.moderated.next()]).flatten().min()
    }

    /// Puts a QP on the ready list.
    fn ready(&mut self, index: u16) {
        if let Some(entry) = self.table.get_mut(index)
            && !entry.ready
        {
            entry.ready = true;
            self.ready.push_back(index);
        }
    }

    /// Updates the bookkeeping after a QP was worked on: counters, bytes in flight, deadline, ready list.
    fn after(&mut self, index: u16, protocol: &mut weir_transport::Qp) {
        let Some(entry) = self.table.get_mut(index) else { return };
        let flight = protocol.in_flight();
        let before = std::mem::replace(&mut entry.counted, flight);
        let retransmissions = protocol.retransmissions();
        if retransmissions != entry.retransmissions {
            let before = std::mem::replace(&mut entry.retransmissions, retransmissions);
            self.shown.traffic.retransmissions(before, retransmissions);
            if retransmissions.ack_timeouts != before.ack_timeouts {
                self.missed_ack(index);
            }
        }
        let Some(entry) = self.table.get_mut(index) else { return };
        entry.shared.busy.store(flight.request_bytes + flight.read_bytes > 0, std::sync::atomic::Ordering::Relaxed);
        if protocol.has_waiting_ack() && !entry.lazy {
            entry.lazy = true;
            self.lazy.push(index);
        }
        if let Some(due) = protocol.poll_timeout()
            && due.0 < entry.deadline
        {
            entry.deadline = due.0;
            self.timers.set(due.0, index);
        }
        // Only requests wait for a window or a hello; responses are sent nevertheless.
        let wants = if entry.waiting.is_some() { protocol.wants_respond() } else { protocol.wants_transmit() };
        let peer = entry.peer;
        if let Some(ending) = protocol.take_ending() {
            let to = peer.map(|peer| self.peers.get(peer).route.remote);
            endings::log_ending(&protocol.attr(), entry.shared.num, to, &ending);
        }
        if wants {
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

    /// A QP has missed an ACK. Where packets carry an ICRC, an ACK does not show which process sent it: the peer has
    /// to show that it is still the process that proved itself.
    #[cold]
    fn missed_ack(&mut self, index: u16) {
        let Some(entry) = self.table.get(index) else { return };
        let Some(peer) = entry.peer else { return };
        let at = self.peers.get(peer);
        match entry.connection.link {
            Link::Weir(_) if at.weir().is_none_or(|weir| weir.icrc) => self.peers.suspect(peer, clock::now()),
            // It may be a Weir process that started late.
            Link::Foreign if entry.connection.wants_proof() && at.next_attempt.is_none() => {
                self.peers.ask_soon(peer, clock::now());
            }
            _ => {}
        }
    }

    /// Removes a QP's bytes in flight from its peer's account.
    fn release_in_flight(&mut self, index: u16) {
        let Some(entry) = self.table.get_mut(index) else { return };
        let counted = std::mem::take(&mut entry.counted);
        if let Some(peer) = entry.peer {
            let account = self.peers.get_mut(peer);
            account.in_flight -= counted.request_bytes;
            account.reading -= counted.read_bytes;
            self.wake_waiting(Some(peer));
        }
    }

    /// QPs that waited for a peer's hello or window try again.
    fn wake_waiting(&mut self, peer: Option<PeerId>) {
        let Some(peer) = peer else { return };
        if self.parked.is_some() {
            self.release(peer, clock::now());
        }
        self.wake(WaitReason::Peer(peer));
    }
}

fn entry_peer(table: &Table, index: u16) -> Option<PeerId> {
    table.get(index).and_then(|entry| entry.peer)
}

/// This process's UDP port.
fn own_port(slot: &Slot) -> u16 {
    FIRST_PORT + slot.number()
}

/// The index in a QPN, if the QPN belongs to this slot.
fn index_in(slot: &Slot, qpn: u32) -> Option<u16> {
    (slot_of(qpn) == slot.number()).then_some((qpn & ((1 << INDEX_BITS) - 1)) as u16)
}
