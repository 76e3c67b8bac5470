//! The engine: moves packets between the QPs of a device and its carrier. Whoever holds it drives it, one turn at a
//! time: doorbells, arrivals, deadlines, departures.

mod datagram;
mod deadlines;
mod faulted;
mod flow;
mod foreign;
pub mod host;
pub mod multicast;
mod overflow;
pub mod pace;
mod peers;
pub mod quirks;
mod receive;
mod staging;
mod strangers;
mod table;
pub mod thread;
mod timers;
mod transmit;

use crate::adapter::Adapter;
use crate::config::{Config, Icrc};
use crate::hello::{self, Hello, Kind};
use crate::interfaces::DeviceInfo;
use crate::memory::region::Cached;
use crate::paging::held::Places;
use crate::qp::Shared;
use crate::route::Route;
use crate::slot::{FIRST_PORT, INDEX_BITS, Slot, slot_of};
use crate::stat::sheet;
use crate::{Errno, carrier, clock};
use foreign::Foreign;
use multicast::Groups;
use peers::Peers;
use staging::Lost;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use table::Table;
use timers::Timers;
use weir_link::{Carrier, Inbox, Outbox, Ports};
use weir_transport::{Announcer, Instant, Profile, Side};

/// What a turn does beside doorbells, deadlines and departures.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Looks for arrivals.
    receive: bool,
    /// Sends ACKs that waited for company since an earlier turn.
    earlier_acks: bool,
    /// Sends all ACKs that are owed, whoever may still take them along.
    all_acks: bool,
}

impl Turn {
    /// Something was posted.
    pub const SEND: Turn = Turn { receive: false, earlier_acks: false, all_acks: false };
    /// An empty CQ was polled.
    pub const POLL: Turn = Turn { receive: true, earlier_acks: true, all_acks: false };
    /// The engine's thread.
    pub const THREAD: Turn = Turn { receive: true, earlier_acks: false, all_acks: false };
    /// The process is about to end.
    pub const FLUSH: Turn = Turn { receive: false, earlier_acks: true, all_acks: true };
}

/// Staged bytes on their way out: a few bursts, so that one system call takes them all and they stay in the cache.
const OUTBOX_BYTES: usize = 256 << 10;
const OUTBOX_GROUPS: usize = 32;
/// Receive slots of 64 KiB.
const INBOX_SLOTS: usize = 8;
/// Receives in one turn, so that departures are not starved.
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
    /// QPs that want to send, each once.
    ready: VecDeque<u16>,
    /// QPs that owe an ACK which waits for company, each once.
    lazy: Vec<u16>,
    rung: Vec<u32>,
    /// Peers that a QP's datagrams went to, while it is worked on.
    served: Vec<peers::PeerId>,
    cached: Cached,
    payload_cached: Cached,
    /// Packets that wait for pages, if there are on-demand regions.
    held: Option<Box<Places>>,
    /// QPs whose pages have come, while they are worked on.
    resolved: Vec<(u32, Side)>,
    /// Whom to tell that a page is there, where the profile has packet flood.
    announcer: Option<Box<Announcer>>,
    /// Where packets are noted that the adapter itself loses.
    lost: Lost,
    /// Long payload without ICRC is sent from where it lies.
    in_place: bool,
    /// Receives in a row that found nothing.
    empty_receives: u32,
    /// No deadline is earlier: until then an empty poll has nothing to do but to look for arrivals.
    next_due: u64,
    /// Where traffic is counted, for all to see.
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
        // Who looks at packets, or damages them, needs their ICRC.
        let icrc_auto = config.icrc == Icrc::Auto && config.faults.is_none() && config.capture.is_none();
        let own = Hello {
            kind: Kind::Hello,
            icrc_auto,
            boot_id: hello::boot_id(),
            epoch: getrandom::u64().map_err(|_| Errno(libc::EAGAIN))?,
            window: 0,
            patience: config.patience,
            mark: 0,
        };
        let mut peers = Peers::new(own, ports.receive_buffer());
        if quirks::has_peers_repeat(profile) {
            peers.widen();
        }
        let carrier = carrier::wrap(ports, device, config)?;
        Ok(Engine {
            in_place: carrier.takes_pieces(),
            empty_receives: 0,
            next_due: 0,
            shown,
            announcer: quirks::announcer(profile),
            lost: Lost { shown, captured: carrier.records_fates() },
            carrier,
            outbox: Outbox::new(OUTBOX_BYTES, OUTBOX_GROUPS),
            inbox: Inbox::new(INBOX_SLOTS),
            table: Table::new(slot.number())?,
            slot,
            foreign: Foreign::default(),
            groups: Groups::default(),
            peers,
            timers: Timers::new(table::INDICES + 1),
            ready: VecDeque::with_capacity(64),
            lazy: Vec::with_capacity(64),
            rung: Vec::with_capacity(64),
            served: Vec::with_capacity(64),
            cached: Cached::default(),
            payload_cached: Cached::default(),
            held: None,
            resolved: Vec::with_capacity(64),
        })
    }

    /// What becomes readable when something arrives.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let mut descriptors = self.carrier.fds();
        descriptors.push(self.slot.as_raw_fd());
        descriptors
    }

    /// The process is about to end.
    pub fn close(&mut self) {
        self.carrier.close();
    }

    /// Enters a QP under a new number. ENOMEM if all numbers are taken.
    pub fn add_qp(&mut self, make: impl FnOnce(u32) -> Arc<Shared>) -> Result<Arc<Shared>, Errno> {
        let shared = self.table.insert(make)?;
        let count = self.table.len();
        self.shown.qps.set(count as u64);
        self.timers.reserve(count + 1);
        self.ready.reserve((count + 1).saturating_sub(self.ready.len()));
        self.lazy.reserve((count + 1).saturating_sub(self.lazy.len()));
        self.rung.reserve(count);
        Ok(shared)
    }

    /// Number of QPs.
    pub fn qps(&self) -> usize {
        self.table.len()
    }

    /// Takes a QP out. For a moment it goes on to acknowledge duplicates: the peer may have missed our last ACK.
    pub fn remove_qp(&mut self, adapter: &Adapter, num: u32) {
        let Some(index) = self.table.index(num) else { return };
        self.table.retire(index, clock::now());
        self.ready(index);
        if let Some(entry) = self.table.get_mut(index) {
            let mut protocol = entry.shared.lock();
            // Its requests end here; what is booked for them is settled by `after`.
            let places = protocol.abandon();
            if let Some(reads) = &entry.shared.reads {
                reads.give_back(places);
            }
        }
        self.forget_unaware(num);
        self.turn(adapter, Turn::SEND);
        self.table_timer(index);
    }

    /// Binds a QP to where its packets go.
    pub fn connect(&mut self, adapter: &Adapter, num: u32, route: Route, dest: u32, now: Instant) {
        let Some(index) = self.table.index(num) else { return };
        self.disconnect(num);
        let peer = self.peers.bind(route, dest, now);
        if let Some(entry) = self.table.get_mut(index) {
            entry.bind(peer);
        }
        self.ready(index);
        self.turn(adapter, Turn::SEND);
    }

    /// Forgets where a QP's packets went.
    pub fn disconnect(&mut self, num: u32) {
        let Some(index) = self.table.index(num) else { return };
        self.drop_held(index);
        self.forget_unaware(num);
        self.settle(index);
        if let Some(peer) = self.table.get_mut(index).and_then(|entry| entry.unbind()) {
            self.peers.unbind(peer, clock::now());
        }
    }

    /// One turn. Whether there was work.
    pub fn turn(&mut self, adapter: &Adapter, turn: Turn) -> bool {
        let now = clock::now();
        let mut worked = self.answer_doorbells(adapter);
        if adapter.has_resolved() {
            self.go_on(adapter, now);
            worked = true;
        }
        if turn.earlier_acks {
            self.hurry_acks(|_| true);
        }
        if turn.receive {
            for _ in 0..RECEIVES {
                let arrived = self.receive(adapter, now);
                worked |= arrived > 0;
                // Where one comes alone, another is not looked for before the answer to it is out.
                if arrived < 2 {
                    break;
                }
            }
            // However busy the carrier is: what a foreign adapter sends comes this way only.
            if self.foreign.expects() {
                worked |= self.receive_handed_over(adapter, now) > 0;
            }
        }
        // An ACK waits for company while somebody polls, whose next poll or post takes it along. While nobody does, the
        // program may look at its memory and answer: if it has been answering, its next post takes the ACK along.
        if turn.all_acks {
            self.hurry_acks(|_| true);
        } else if !adapter.pace.somebody_polls() {
            self.hurry_acks(|entry| !entry.answers);
        }
        if !worked && self.ready.is_empty() && now.0 < self.next_due && adapter.pace.somebody_polls() {
            return false;
        }
        let now = self.handle_deadlines(adapter, now);
        worked |= self.transmit(adapter, now);
        self.fail_overflown(adapter, now);
        // What a long turn left over is somebody's next turn.
        let next = if self.ready.is_empty() { self.next_deadline(adapter) } else { Some(now.0) };
        self.next_due = next.unwrap_or(u64::MAX);
        adapter.pace.wake_by(next);
        worked
    }

    fn answer_doorbells(&mut self, adapter: &Adapter) -> bool {
        let mut rung = std::mem::take(&mut self.rung);
        adapter.take_doorbells(&mut rung);
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

    fn hurry_acks(&mut self, which: impl Fn(&table::Entry) -> bool) {
        let mut lazy = std::mem::take(&mut self.lazy);
        lazy.retain(|index| {
            let Some(entry) = self.table.get_mut(*index) else { return false };
            if entry.lazy && !which(entry) {
                return true;
            }
            entry.lazy = false;
            entry.shared.lock().hurry_ack();
            self.ready(*index);
            false
        });
        self.lazy = lazy;
    }

    fn next_deadline(&self, adapter: &Adapter) -> Option<u64> {
        let next = [self.timers.next(), self.peers.next_attempt(), self.carrier.due(), self.foreign.next()];
        next.into_iter().chain([adapter.moderated.next()]).flatten().min()
    }

    /// Puts a QP among those that want to send.
    fn ready(&mut self, index: u16) {
        if let Some(entry) = self.table.get_mut(index)
            && !entry.ready
        {
            entry.ready = true;
            self.ready.push_back(index);
        }
    }

    /// Books what changed in a QP while it was worked on.
    fn after(&mut self, index: u16, protocol: &mut weir_transport::Qp) {
        let Some(entry) = self.table.get_mut(index) else { return };
        let flight = protocol.in_flight();
        let before = std::mem::replace(&mut entry.counted, flight);
        let setbacks = protocol.setbacks();
        if setbacks != entry.setbacks {
            let before = std::mem::replace(&mut entry.setbacks, setbacks);
            self.shown.traffic.setbacks(before, setbacks);
        }
        entry.shared.busy.store(flight.request_bytes + flight.read_bytes > 0, std::sync::atomic::Ordering::Relaxed);
        if protocol.owes_lazy_ack() && !entry.lazy {
            entry.lazy = true;
            self.lazy.push(index);
        }
        if let Some(due) = protocol.poll_timeout()
            && due.0 < entry.deadline
        {
            entry.deadline = due.0;
            self.timers.set(due.0, index);
        }
        // What waits for a window or an answer are requests; responses go out all the same.
        let wants = if entry.waiting { protocol.wants_respond() } else { protocol.wants_transmit() };
        let peer = entry.peer;
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

    /// Takes what a QP has under way off its peer's account.
    fn settle(&mut self, index: u16) {
        let Some(entry) = self.table.get_mut(index) else { return };
        let counted = std::mem::take(&mut entry.counted);
        if let Some(peer) = entry.peer {
            let account = self.peers.get_mut(peer);
            account.in_flight -= counted.request_bytes;
            account.reading -= counted.read_bytes;
            self.wake_waiting(Some(peer));
        }
    }

    /// QPs that waited for a peer's answer or window may try again.
    fn wake_waiting(&mut self, peer: Option<peers::PeerId>) {
        let Some(peer) = peer else { return };
        let mut waiting = std::mem::take(&mut self.peers.get_mut(peer).waiting);
        for index in waiting.drain(..) {
            if let Some(entry) = self.table.get_mut(index) {
                entry.waiting = false;
                self.ready(index);
            }
        }
        self.peers.get_mut(peer).waiting = waiting;
    }
}

fn entry_peer(table: &Table, index: u16) -> Option<peers::PeerId> {
    table.get(index).and_then(|entry| entry.peer)
}

/// Our UDP port.
fn own_port(slot: &Slot) -> u16 {
    FIRST_PORT + slot.number()
}

/// The index in a QPN, if it is one of this slot.
fn index_in(slot: &Slot, qpn: u32) -> Option<u16> {
    (slot_of(qpn) == slot.number()).then_some((qpn & ((1 << INDEX_BITS) - 1)) as u16)
}
