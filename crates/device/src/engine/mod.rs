//! The engine: moves packets between the QPs of a device and its carrier. The thread that holds it drives it, one turn
//! at a time: doorbells, arrivals, deadlines, departures.

mod arrival_notes;
mod bookkeeping;
mod carrier;
mod completions;
mod control;
mod datagram;
mod deadlines;
mod ethernet;
pub mod ethernet_port;
mod faulted;
mod flush_all;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
mod groups;
mod handshake;
pub mod host;
mod link_rows;
pub mod local;
pub mod mads;
mod multicast;
mod overflow;
pub mod peers;
mod port_sharing;
mod qp_error_log;
mod qpn_order;
mod quirks;
mod read_order;
mod receive;
mod release;
mod sockets;
mod staging;
mod stall;
mod table;
mod tapped;
#[cfg(any(test, feature = "testing"))]
// Unit tests use more of it than the fuzz targets.
#[cfg_attr(not(test), allow(dead_code))]
mod testing;
mod timers;
mod transmit;
mod waiting;
mod watcher;

use crate::Errno;
use crate::config::{Config, Framing, Icrc, Local};
use crate::engine::peers::expected::Expected;
use crate::engine::peers::hello::{self, Hello};
use crate::engine::peers::proof::Secret;
use crate::memory::keys::Cached;
use crate::os::clock;
use crate::os::interfaces::DeviceInfo;
use crate::paging::held::HeldPackets;
use crate::shared::allowed_hosts::Senders;
use crate::shared::state::AdapterState;
use crate::slot::{FIRST_PORT, INDEX_BITS, Slot, slot_of};
use crate::stat::{publish, sheet};
use completions::PendingCompletions;
use ethernet_port::EthernetPort;
use groups::Groups;
use link_rows::LinkRows;
use local::rings::Rings;
use peers::Peers;
use peers::foreign::Foreign;
use peers::identity::PeerId;
use peers::parked::Parked;
use qp_error_log::QpError;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{Ordering, fence};
use table::Table;
use tapped::TapState;
use timers::Timers;
use waiting::WaitList;
use weir_link::{Carrier, Inbox, Outbox, Ports};
use weir_transport::{Instant, Profile, ResponderFaults, Side};

/// What a turn does besides doorbells, deadlines and departures.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Looks for arrivals.
    receive: bool,
    /// Sends ACKs that were delayed in an earlier turn.
    earlier_acks: bool,
    /// Requests may wait for others ([`crate::shared::gathering`]): a later turn takes them.
    lets_gather: bool,
}

impl Turn {
    /// A work request was posted.
    pub const SEND: Turn = Turn { receive: false, earlier_acks: false, lets_gather: false };
    /// An empty CQ was polled.
    pub const POLL: Turn = Turn { receive: true, earlier_acks: true, lets_gather: false };
    /// Arrivals besides: it does not count as a poll.
    pub const LOOK: Turn = Turn { receive: true, earlier_acks: false, lets_gather: false };
    /// The engine's thread.
    pub const THREAD: Turn = Turn { receive: true, earlier_acks: false, lets_gather: true };
    /// The process is about to end.
    pub const FLUSH: Turn = Turn { receive: false, earlier_acks: true, lets_gather: false };
}

/// Staged bytes: a few bursts, so that one system call takes them all and they stay in the cache.
const OUTBOX_BYTES: usize = 256 << 10;
const OUTBOX_GROUPS: usize = 32;
/// Iovecs of payload that is sent in place: two for each packet of the shortest such payload, and many more than
/// one packet with the most SGEs has.
const OUTBOX_IOVECS: usize = 4096;
/// Receive buffers of 64 KiB each: enough for a few bursts in one system call, and few enough to stay in the cache.
const INBOX_SLOTS: usize = 4;
/// Bytes for packets that came earlier, over other links. They take no memory until they are used.
const INBOX_SPARE: usize = 512 << 10;
/// Outboxes full of responses that one turn sends for requests that wait: a foreign adapter may READ 2 GiB.
const READ_OUTS: usize = 16;
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
    /// For raw QPs.
    ethernet: Option<Box<EthernetPort>>,
    table: Table,
    peers: Peers,
    /// The proofs that QPs expect of their peers.
    expected: Expected,
    rings: Rings,
    timers: Timers,
    /// QPs with something to send, each once.
    ready: VecDeque<u16>,
    /// QPs with datagrams to new peers, for which there is no room.
    wait_for_room: WaitList,
    /// The engine's thread was asked to make room for peers.
    room_asked: bool,
    /// QPs that owe a delayed ACK, each once.
    delayed_acks: Vec<u16>,
    /// QPs that went to the error state in this turn and are not in the log yet.
    endings: Vec<QpError>,
    rung: Vec<u32>,
    /// Peers that got datagrams of the QP that is worked on.
    served: Vec<PeerId>,
    cached: Cached,
    payload_cached: Cached,
    /// Datagrams that wait for their peers' hellos; made when a QP that sends datagrams is ready.
    parked: Option<Box<Parked>>,
    /// Packets that wait for pages, once there are on-demand regions; or for READs, once one had to wait.
    held: Option<Box<HeldPackets>>,
    /// Sides of QPs with resolved pages, while these are worked on.
    resolved: Vec<(u32, Side)>,
    /// Completions of this turn.
    completions: PendingCompletions,
    /// The profile has packet flood.
    floods: bool,
    /// Page-fault events of requesters since the last turn: the QP, and whether it waits for the event.
    fault_events: Vec<(u32, bool)>,
    /// Long payload without ICRC is sent from application memory in place.
    in_place: bool,
    /// In this turn a QP has become idle: nothing of it is in flight any more.
    fell_idle: bool,
    /// How often this turn may still empty the outbox because requests wait for READs.
    read_outs: usize,
    /// Consecutive receives that found nothing.
    empty_receives: u32,
    /// No deadline is earlier (nanoseconds): until then an empty poll only looks for arrivals.
    next_due: u64,
    /// The published traffic counters.
    shown: &'static sheet::Device,
    /// The published state of links, if the device joins several interfaces.
    link_rows: Option<LinkRows>,
    /// What a watcher sees of the packets.
    tapped: TapState,
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
        offers_local: bool,
    ) -> Result<Engine, Errno> {
        let peers = own_peers(config, profile, ports.receive_buffer(), offers_local)?;
        let mut engine = Engine::over(carrier::wrap(ports, device, config)?, slot, peers, profile, shown)?;
        engine.foreign.senders = Senders::of(config.allowed.clone());
        if device.is_joined() {
            let interfaces = device.links.all.iter().map(|interface| interface.name.as_str());
            engine.link_rows = LinkRows::new(publish::links(&device.name, interfaces));
        }
        Ok(engine)
    }

    /// An engine with this carrier. `peers`: see [`own_peers`].
    fn over(
        carrier: Box<dyn Carrier>,
        slot: Slot,
        peers: Peers,
        profile: &Profile,
        shown: &'static sheet::Device,
    ) -> Result<Engine, Errno> {
        Ok(Engine {
            in_place: carrier.supports_iovecs(),
            fell_idle: false,
            read_outs: READ_OUTS,
            empty_receives: 0,
            next_due: 0,
            shown,
            link_rows: None,
            tapped: TapState::default(),
            floods: profile.flood.is_some(),
            fault_events: Vec::new(),
            carrier,
            outbox: Outbox::with_iovecs(OUTBOX_BYTES, OUTBOX_GROUPS, OUTBOX_IOVECS),
            inbox: Inbox::with_spare(INBOX_SLOTS, INBOX_SPARE),
            table: Table::new(slot.number())?,
            slot,
            foreign: Foreign::default(),
            groups: Groups::default(),
            ethernet: None,
            peers,
            expected: Expected::default(),
            rings: Rings::new(),
            timers: Timers::new(table::INDICES + 1),
            ready: VecDeque::with_capacity(64),
            wait_for_room: WaitList::default(),
            room_asked: false,
            delayed_acks: Vec::with_capacity(64),
            endings: Vec::with_capacity(64),
            rung: Vec::with_capacity(64),
            served: Vec::with_capacity(64),
            cached: Cached::default(),
            payload_cached: Cached::default(),
            parked: None,
            held: None,
            resolved: Vec::with_capacity(64),
            completions: PendingCompletions::new(),
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

    /// Number of QPs.
    pub fn qps(&self) -> usize {
        self.table.len()
    }

    /// Takes one turn. Returns whether there was work.
    pub fn turn(&mut self, adapter: &AdapterState, turn: Turn) -> bool {
        if !adapter.condition.works() {
            return false;
        }
        let mut now = clock::now();
        self.read_outs = READ_OUTS;
        if self.shown.tap.is_asked() || self.has_tap() {
            self.follow_watcher(adapter, now);
        }
        if turn.receive && turn.earlier_acks {
            adapter.pace.polls(now.0);
        }
        let rang = !self.lets_gather(adapter, turn, now) && self.take_doorbells(adapter);
        let mut worked = rang;
        if adapter.has_resolved() {
            self.continue_resolved(adapter, now);
            worked = true;
        }
        // A delayed ACK waits for the program's next post or poll, because the program answers each message.
        if turn.earlier_acks {
            self.end_ack_delays(now, turn.receive);
        }
        if turn.receive {
            worked |= self.receive_by_rings(adapter, now);
        }
        if turn.receive && self.rings.leaves_time_for_sockets(now) {
            for _ in 0..RECEIVES {
                let arrived = self.receive(adapter, now);
                worked |= arrived > 0;
                // After a single buffer, its response is sent before another buffer is looked for.
                if arrived < 2 {
                    break;
                }
                // A reply to a message counts as one in time from now on: several buffers take long.
                now = clock::now();
            }
            // Even if the carrier is busy: packets of foreign adapters may come this way only.
            if self.expects_handed_over(now) {
                worked |= self.receive_handed_over(adapter, now).count > 0;
            }
        }
        if turn.receive {
            worked |= self.receive_ethernet(adapter);
        }
        // Handed over packets that their receivers could not take earlier, or that had none.
        self.retry_held_requests(now);
        self.foreign.flush(now);
        let idle = !worked && self.ready.is_empty() && now.0 < self.next_due && !self.rings.needs_thread();
        if idle && adapter.pace.program_polls() {
            return false;
        }
        let now = self.handle_deadlines(adapter, now);
        let mut sent = self.transmit(adapter, now);
        let mut rang = rang;
        while self.takes_deferred(adapter) {
            rang = true;
            sent |= self.transmit(adapter, now);
        }
        if sent && rang && !adapter.pace.program_polls() {
            adapter.gathering.burst_left(clock::now().0);
        }
        worked |= sent;
        self.publish_completions(adapter);
        self.fail_overflown(adapter, now);
        self.publish_completions(adapter);
        self.ask_for_rings(adapter, now);
        if let Some(rows) = &mut self.link_rows {
            rows.turn(&*self.carrier, now.0);
        }
        // If a long turn left work over, the next turn is due at once.
        let next = if self.ready.is_empty() { self.next_deadline(adapter) } else { Some(now.0) };
        self.next_due = next.unwrap_or(u64::MAX);
        adapter.pace.wake_by(next);
        worked
    }

    /// Whether this turn leaves doorbells alone, so that requests gather: the engine's thread takes them later.
    fn lets_gather(&self, adapter: &AdapterState, turn: Turn, now: Instant) -> bool {
        turn.lets_gather && adapter.gathering.gathers(now.0) && !adapter.pace.program_polls()
    }

    /// Takes the doorbells of requests that wait because their QPs were busy, if a QP is no longer busy: the turn that
    /// ends this state must see them. Returns whether there were any.
    fn takes_deferred(&mut self, adapter: &AdapterState) -> bool {
        if !std::mem::take(&mut self.fell_idle) {
            return false;
        }
        fence(Ordering::SeqCst);
        self.take_doorbells(adapter)
    }

    fn take_doorbells(&mut self, adapter: &AdapterState) -> bool {
        let mut rung = std::mem::take(&mut self.rung);
        adapter.doorbells.take(&mut rung);
        for num in &rung {
            if let Some(index) = self.table.index(*num) {
                if let Some(entry) = self.table.get_mut(index) {
                    entry.clear_doorbell();
                }
                self.ready(index);
            }
        }
        let any = !rung.is_empty();
        rung.clear();
        self.rung = rung;
        any
    }

    /// ACKs that were delayed in an earlier turn leave. `polled`: because the program polls; an ACK then stays that the
    /// protocol wants to leave later.
    fn end_ack_delays(&mut self, now: Instant, polled: bool) {
        let mut delayed = std::mem::take(&mut self.delayed_acks);
        delayed.retain(|index| {
            let Some(entry) = self.table.get_mut(*index) else { return false };
            let mut protocol = entry.shared.lock();
            if polled {
                protocol.program_polled(now);
            } else {
                protocol.end_ack_delay();
            }
            let waits = protocol.has_waiting_ack();
            drop(protocol);
            entry.ack_delayed = waits;
            if !waits {
                self.ready(*index);
            }
            waits
        });
        self.delayed_acks = delayed;
    }

    fn next_deadline(&self, adapter: &AdapterState) -> Option<u64> {
        let next =
            [self.timers.next(), self.peers.next_attempt(), self.carrier.due(), self.foreign.next(), self.rings.next()];
        let rows = self.link_rows.as_ref().and_then(LinkRows::next);
        next.into_iter().chain([adapter.cqs.moderated.next(), rows]).flatten().min()
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
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(rows) = &mut self.link_rows {
            rows.end(&*self.carrier);
        }
    }
}

/// A list of peers without an entry, with what hellos say about this process. `receive_buffer`: as for [`Peers::new`];
/// `offers_local`: peers can connect to this process for shared memory.
fn own_peers(config: &Config, profile: &Profile, receive_buffer: usize, offers_local: bool) -> Result<Peers, Errno> {
    let icrc_auto = !config.needs_icrc();
    // What reads a capture, and what is tested by faults, is RoCE.
    let frames = match config.framing {
        Framing::Auto => config.faults.is_none() && config.capture.is_none(),
        Framing::Roce => false,
        Framing::Weir => true,
    };
    let own = Hello {
        ask: 0,
        answer: 0,
        alive: 0,
        icrc_auto,
        frames,
        local: offers_local && may_be_local(config, profile),
        boot_id: hello::boot_id()?,
        window: 0,
        patience: config.patience,
        mark: 0,
    };
    let secret = Secret::new().map_err(|_| Errno(libc::EAGAIN))?;
    let mut peers = Peers::new(secret, own, receive_buffer)?;
    // Page faults may make peers repeat all that they have under way.
    if profile.page_faults.responder != ResponderFaults::Wait {
        peers.widen();
    }
    Ok(peers)
}

/// Returns whether packets of this process may go through shared memory. Captures, fault injection, `--icrc always` and
/// a framing that was chosen are about packets on a wire. Where page faults make peers repeat all that they have in
/// flight, their windows may be larger than a ring.
pub fn may_be_local(config: &Config, profile: &Profile) -> bool {
    let plain = config.icrc == Icrc::Auto
        && config.framing == Framing::Auto
        && config.faults.is_none()
        && config.capture.is_none();
    config.local == Local::Auto && plain && profile.page_faults.responder == ResponderFaults::Wait
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
