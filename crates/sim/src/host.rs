//! A host: its adapter, its QPs, and the order in which they send.

use crate::adapter::{Adapter, Out, View};
use crate::capture::Capture;
use crate::ids::{HostId, QpId};
use crate::machine::Machine;
use crate::memory::{Accessor, Memory};
use crate::observe::Counts;
use crate::packet::{PacketKey, Packets};
use crate::qp::{Sent, SimQp};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use weir_transport::{Handled, Instant, Limits, Profile, Progress, Side};

/// The host's own time for a page fault: about the cost of a first touch by a processor.
const FAULT: Duration = Duration::from_micros(1);

/// The window is unlimited: posted requests are sent at once.
const UNLIMITED: Limits = Limits { request_bytes: 1 << 60, read_bytes: 1 << 60 };

/// Bits of a QP number that are the table index. The bits above count the QPs that used the index, so that packets
/// for a destroyed QP do not reach a new QP.
const INDEX_BITS: u32 = 16;

pub(crate) struct HostState {
    pub profile: Arc<Profile>,
    pub adapter: RefCell<Adapter>,
    qps: Vec<Slot>,
    free: Vec<u32>,
    /// QPs that are ready to send, in the order of their turns.
    ready: VecDeque<u32>,
    /// A packet is being sent; an event follows when the port is free.
    pub sending: bool,
    /// Time at which the simulation next resumes requesters; events at other times are obsolete.
    pub resume_at: Option<Instant>,
    pub counts: Counts,
    pub capture: Option<Capture>,
}

/// A QP, and what it uses of its host.
pub(crate) struct QpInHost<'a> {
    num: u32,
    pub qp: &'a mut SimQp,
    adapter: &'a RefCell<Adapter>,
    ready: &'a mut VecDeque<u32>,
    pub counts: &'a mut Counts,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    qp: Option<Box<SimQp>>,
}

impl HostState {
    /// A host without QPs and without memory.
    pub fn new(profile: Arc<Profile>, seed: u64) -> Self {
        let machine = profile.host.map(|model| Box::new(Machine::new(model)));
        let adapter = Adapter { memory: Memory::new(&profile, FAULT, seed), machine, reports: VecDeque::new() };
        HostState {
            profile,
            adapter: RefCell::new(adapter),
            qps: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            sending: false,
            resume_at: None,
            counts: Counts::default(),
            capture: None,
        }
    }

    /// Allocates a number for a new QP. The first is 0x010000; 0 and 1 are reserved.
    pub fn number(&mut self) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.qps.push(Slot::default());
            self.qps.len() as u32 - 1
        });
        let generation = &mut self.qps[index as usize].generation;
        *generation = *generation % 0xff + 1;
        *generation << INDEX_BITS | index
    }

    /// Inserts a QP at the index of its number.
    pub fn put(&mut self, num: u32, qp: SimQp) {
        self.qps[slot_index(num)].qp = Some(Box::new(qp));
    }

    /// The QP with this number; `None` if it was destroyed.
    pub fn get(&self, num: u32) -> Option<&SimQp> {
        let at = self.qps.get(slot_index(num))?;
        at.qp.as_deref().filter(|_| at.generation == num >> INDEX_BITS)
    }

    /// The QP with this number; `None` if it was destroyed.
    pub fn get_mut(&mut self, num: u32) -> Option<&mut SimQp> {
        self.at(num).map(|at| at.qp)
    }

    /// The QP with this number in its host; `None` if it was destroyed.
    #[inline]
    pub fn at(&mut self, num: u32) -> Option<QpInHost<'_>> {
        let HostState { qps, adapter, ready, counts, .. } = self;
        let at = qps.get_mut(slot_index(num))?;
        let qp = at.qp.as_deref_mut().filter(|_| at.generation == num >> INDEX_BITS)?;
        Some(QpInHost { num, qp, adapter, ready, counts })
    }

    /// Destroys a QP and frees its number's index. The packets that it holds are lost.
    pub fn remove(&mut self, num: u32, packets: &mut Packets) {
        if let Some(qp) = self.get_mut(num) {
            qp.qp.abandon();
            self.clear(num, packets);
            self.qps[slot_index(num)].qp = None;
            self.free.push(slot_index(num) as u32);
        }
    }

    /// Forgets what the adapter holds for a QP: packets, which are lost, deadlines, page faults that it waits for.
    pub fn clear(&mut self, num: u32, packets: &mut Packets) {
        let Some(qp) = self.get_mut(num) else { return };
        qp.held.iter_mut().flat_map(std::mem::take).for_each(|key| packets.remove(key));
        (qp.waits_for_reads, qp.armed, qp.sent) = (false, None, Sent::default());
        self.adapter.get_mut().memory.forget(num);
    }

    /// Whether the port is free, and a QP has a turn.
    #[inline]
    pub fn may_send(&self) -> bool {
        !self.sending && !self.ready.is_empty()
    }

    /// Lets the next QP of this host, number `host`, send a packet, which it puts into `staged`. Returns that QP, and
    /// the time of the event that its deadline needs.
    #[inline]
    pub fn turn(
        &mut self,
        now: Instant,
        host: HostId,
        packets: &mut Packets,
        staged: &mut Option<PacketKey>,
    ) -> Option<(u32, Option<Instant>)> {
        let num = self.ready.pop_front()?;
        let HostState { qps, adapter, ready, .. } = self;
        let at = &mut qps[slot_index(num)];
        let qp = at.qp.as_deref_mut().filter(|_| at.generation == num >> INDEX_BITS);
        let Some(qp) = qp else { return Some((num, None)) };
        qp.ready = false;
        let accessor = Accessor { now, qp: num, side: Side::Requester };
        let from = QpId { host, num };
        let mut out = Out { adapter, accessor, from, to: qp.peer, sent: &mut qp.sent, packets, staged, full: false };
        let mut view = View { adapter, accessor };
        match qp.qp.poll_transmit(now, UNLIMITED, &mut view, &mut out) {
            Progress::Idle => {}
            Progress::Full => {
                qp.ready = true;
                ready.push_back(num);
            }
            // The window is unlimited.
            Progress::Limited => {}
        }
        if let Some(resumes) = qp.qp.take_fault_event() {
            adapter.borrow_mut().memory.events.met_fault(now, num, resumes);
        }
        Some((num, qp.arm(now)))
    }
}

impl<'a> QpInHost<'a> {
    /// The adapter, as a side of the QP accesses it.
    #[inline]
    pub fn view(&self, now: Instant, side: Side) -> View<'a> {
        View { adapter: self.adapter, accessor: Accessor { now, qp: self.num, side } }
    }

    /// Number of accesses to the host's memory so far that met a missing page.
    pub fn missed(&self) -> u64 {
        self.adapter.borrow().memory.missed
    }

    /// Passes a packet to the QP, and keeps it if it has to wait for a page, or for READs. False: the adapter loses it;
    /// the caller removes it.
    #[inline]
    pub fn receive(&mut self, now: Instant, key: PacketKey, packets: &mut Packets) -> bool {
        let packet = &packets[key];
        let side = if packet.headers.bth.opcode.is_response() { Side::Requester } else { Side::Responder };
        let handled = self.qp.qp.handle_packet(now, &packet.view(), &mut self.view(now, side));
        self.qp.qp.end_ack_delay();
        match handled {
            Handled::Held => self.qp.held[side as usize].push_back(key),
            Handled::AfterReads => {
                self.qp.held[side as usize].push_back(key);
                self.qp.waits_for_reads = true;
            }
            Handled::Done => packets.remove(key),
            Handled::Dammed => return false,
        }
        if side == Side::Requester
            && let Some(resumes) = self.qp.qp.take_fault_event()
        {
            self.adapter.borrow_mut().memory.events.met_fault(now, self.num, resumes);
        }
        true
    }

    /// The QP has changed: queues it for its turn, if it has something to send. Returns the time of the event that its
    /// deadline needs.
    #[inline]
    pub fn settle(&mut self, now: Instant) -> Option<Instant> {
        self.queue_turn();
        self.qp.arm(now)
    }

    /// Queues the QP for its turn, if it has something to send.
    #[inline]
    pub fn queue_turn(&mut self) {
        if !self.qp.ready && self.qp.qp.has_to_send() {
            self.qp.ready = true;
            self.ready.push_back(self.num);
        }
    }
}

fn slot_index(num: u32) -> usize {
    (num & ((1 << INDEX_BITS) - 1)) as usize
}
