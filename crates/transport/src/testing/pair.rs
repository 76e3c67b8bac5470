//! Two connected QPs in virtual time.

use super::host::{Staging, TestHost};
use super::memory::{Memory, Region};
use super::paging::{Paging, PagingSetup};
use super::requests::{BASE, KEY, sge};
use super::rng::Rng;
use super::wire::{Faults, Wire};
use crate::{
    Access, AttrMask, Completion, Data, Datagram, FaultEvents, Instant, Limits, Mtu, Profile, Progress, Psn, Qp,
    QpAttr, QpCaps, QpInit, QpState, Queue, RecvWr, SendFlags, SendOp, SendWr, Side, Status, Target, Tuning,
};
use std::cell::RefMut;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use weir_wire::{RnrTimer, Service};

/// The parameters of a pair.
#[derive(Clone, Debug)]
pub struct Setup {
    pub service: Service,
    /// Receives of both nodes come from shared receive queues (XRC always uses them).
    pub srq: bool,
    /// The shared receive queue of node 1 matches tags.
    pub tags: bool,
    pub mtu: Mtu,
    pub caps: QpCaps,
    pub access: Access,
    pub sq_sig_all: bool,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    /// First PSN of each node.
    pub psn: [u32; 2],
    pub tuning: Tuning,
    pub profile: Profile,
    pub latency: Duration,
    pub faults: Faults,
    pub seed: u64,
    /// The most bytes of requests, and of READ responses, in flight.
    pub window: Limits,
    /// The most packets that the egress takes per poll.
    pub burst: usize,
    /// Size of each node's region in bytes.
    pub region: usize,
    /// Payload travels in frames.
    pub frames: bool,
    /// The regions are ODP memory, with no page present at first.
    pub paging: Option<PagingSetup>,
    /// The most packets that a node holds for a side; of ODP memory: `PagingSetup::held`.
    pub most_held: usize,
    /// A request that waits for READs has their responses sent at once, as far as one poll goes, instead of being held.
    pub reads_out: bool,
}

/// One end of the connection.
pub struct Node {
    pub qp: Qp,
    pub host: TestHost,
    window: Limits,
    pub(super) burst: usize,
    /// Packets that wait for pages, or for READs: requests and responses, in order of arrival.
    pub(super) held: [VecDeque<Vec<u8>>; 2],
    /// The most packets in each of the two queues; further packets are dropped.
    pub(super) most_held: usize,
    /// READs are read out as soon as a request waits for them, if the egress takes their responses.
    pub(super) reads_out: bool,
    /// Requests are held because they wait for READs.
    pub(super) waits_for_reads: bool,
}

/// Both ends and the wire. In most tests node 0 is the requester.
pub struct Pair {
    pub now: Instant,
    pub(super) service: Service,
    pub nodes: [Node; 2],
    pub wire: Wire,
    /// The page-fault events of each node's adapter, where the profile has packet flood.
    pub(super) fault_events: [FaultEvents; 2],
}

/// Canary bytes on both sides of the region.
const MARGIN: u64 = 4096;
/// Number of the shared receive queue that a node's XRC work requests name.
pub const SRQ: u32 = 0x77;
/// Q_Key of both nodes.
pub const QKEY: u32 = 0x1111_2222;
/// The network header that precedes every received datagram.
pub const NETWORK_HEADER: [u8; 40] = [0x6e; 40];

impl Default for Setup {
    fn default() -> Self {
        Setup {
            service: Service::Rc,
            srq: false,
            tags: false,
            mtu: Mtu::M1024,
            caps: QpCaps { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 256 },
            access: Access::all(),
            sq_sig_all: false,
            timeout: 10,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            psn: [0x10_0000, 0x20_0000],
            tuning: Tuning::default(),
            profile: Profile::ideal(),
            latency: Duration::from_micros(2),
            faults: Faults::default(),
            seed: 1,
            window: Limits { request_bytes: 256 << 10, read_bytes: 256 << 10 },
            burst: 16,
            region: 1 << 20,
            frames: false,
            paging: None,
            most_held: 64,
            reads_out: false,
        }
    }
}

impl Setup {
    /// Two QPs in RTS.
    pub fn pair(&self) -> Pair {
        let mut pair = self.unconnected();
        for node in 0..2 {
            pair.connect(node, self);
        }
        pair
    }

    /// Two QPs in RESET.
    pub fn unconnected(&self) -> Pair {
        let nodes = [0, 1].map(|node| {
            let init =
                QpInit { qp_num: qp_num(node), service: self.service, caps: self.caps, sq_sig_all: self.sq_sig_all };
            let mut qp = Qp::new(init, Arc::new(self.profile.clone()), self.tuning);
            qp.set_datagram_mtu(self.mtu);
            qp.set_frames(self.frames);
            if self.service == Service::Xrc && node == 1 {
                qp.become_xrc_target(self.caps.max_recv_sge).expect("memory for the receive slot");
            } else if self.tags && node == 1 {
                qp.match_tags(self.caps.max_recv_sge).expect("memory for the rings");
            } else if self.srq {
                qp.share_receives(self.caps.max_recv_sge).expect("memory for the receive slot");
            }
            let mut memory = Memory::new(BASE - MARGIN, self.region + 2 * MARGIN as usize);
            let mut fill = Rng(self.seed.wrapping_mul(31).wrapping_add(node as u64));
            let region = Region { key: KEY, addr: BASE, len: self.region as u64, access: Access::all(), mapped: true };
            memory.register(region, |_| fill.draw() as u8);
            let resolve_time = self.profile.page_faults.resolve;
            memory.paging = self.paging.map(|paging| Paging::new(paging, fill.draw()).resolve_time(resolve_time));
            let host = TestHost::new(memory);
            Node {
                qp,
                host,
                window: self.window,
                burst: self.burst,
                held: Default::default(),
                most_held: self.paging.map_or(self.most_held, |paging| paging.held),
                reads_out: self.reads_out,
                waits_for_reads: false,
            }
        });
        Pair {
            now: Instant(1_000_000),
            service: self.service,
            nodes,
            wire: Wire::new(self.latency, self.faults, self.seed),
            fault_events: [0, 1].map(|_| FaultEvents::new(self.profile.flood)),
        }
    }

    /// A node's attributes for the transitions to RTR and RTS.
    pub fn attr(&self, node: usize) -> QpAttr {
        QpAttr {
            path_mtu: self.mtu,
            rq_psn: Psn::new(self.psn[1 - node]),
            sq_psn: Psn::new(self.psn[node]),
            dest_qp_num: qp_num(1 - node),
            access_flags: self.access,
            qkey: if self.service == Service::Ud { QKEY } else { 0 },
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: RnrTimer::new(self.min_rnr_timer),
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            ..QpAttr::default()
        }
    }
}

impl Pair {
    /// Takes a node from RESET to RTS.
    pub fn connect(&mut self, node: usize, setup: &Setup) {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.modify_from(node, state, setup.attr(node));
        }
    }

    /// One transition on the way to RTS, or any transition that needs no attributes.
    pub fn modify_from(&mut self, node: usize, state: QpState, attr: QpAttr) {
        let mask = match state {
            QpState::Init if self.service == Service::Ud => AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY,
            QpState::Rtr if self.service == Service::Ud => AttrMask::empty(),
            QpState::Rtr if self.service == Service::Xrc && node == 0 => {
                AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN
            }
            QpState::Rts
                if self.nodes[node].qp.state() == QpState::Rtr && self.service == Service::Xrc && node == 1 =>
            {
                AttrMask::TIMEOUT | AttrMask::SQ_PSN
            }
            QpState::Rtr if self.service == Service::Uc => {
                AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN
            }
            QpState::Rts
                if self.nodes[node].qp.state() == QpState::Rtr && matches!(self.service, Service::Uc | Service::Ud) =>
            {
                AttrMask::SQ_PSN
            }
            QpState::Init => AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS,
            QpState::Rtr => {
                AttrMask::AV
                    | AttrMask::PATH_MTU
                    | AttrMask::DEST_QPN
                    | AttrMask::RQ_PSN
                    | AttrMask::MAX_DEST_RD_ATOMIC
                    | AttrMask::MIN_RNR_TIMER
            }
            QpState::Rts if self.nodes[node].qp.state() == QpState::Rtr => {
                AttrMask::TIMEOUT
                    | AttrMask::RETRY_CNT
                    | AttrMask::RNR_RETRY
                    | AttrMask::SQ_PSN
                    | AttrMask::MAX_QP_RD_ATOMIC
            }
            _ => AttrMask::empty(),
        };
        let attr = QpAttr { qp_state: state, ..attr };
        let Node { qp, host, .. } = &mut self.nodes[node];
        qp.modify(self.now, &attr, mask | AttrMask::STATE, host).expect("a valid transition");
    }

    /// Posts a signalled send of node 0's bytes `local..local + len`.
    pub fn post(&mut self, wr_id: u64, op: SendOp, local: usize, len: usize) {
        self.post_as(0, wr_id, op, local, len, SendFlags::SIGNALED);
    }

    /// As `post`, with a node and flags.
    pub fn post_as(&mut self, node: usize, wr_id: u64, op: SendOp, local: usize, len: usize, flags: SendFlags) {
        let sges = [sge(local, len)];
        let sges = if len == 0 { &sges[..0] } else { &sges[..] };
        let wr = SendWr { wr_id, op, flags, data: Data::Gather(sges) };
        let to = self.target(node);
        self.nodes[node].qp.post_send_to(&wr, to).expect("room in the send queue");
    }

    /// The destination of a node's work requests: the other node.
    pub fn target(&self, node: usize) -> Target {
        match self.service {
            Service::Ud => Target::Datagram(Datagram { address: 7, dest_qp: qp_num(1 - node), qkey: QKEY }),
            Service::Xrc => Target::Srq(SRQ),
            _ => Target::Peer,
        }
    }

    /// Posts a receive of node 1's bytes `local..local + len`.
    pub fn post_recv(&mut self, wr_id: u64, local: usize, len: usize) {
        let wr = RecvWr { wr_id, sges: &[sge(local, len)] };
        self.nodes[1].qp.post_recv(&wr).expect("room in the receive queue");
    }

    /// Posts a receive of node 1's bytes to a shared receive queue, which is created if necessary.
    pub fn post_srq_recv(&mut self, srq: u32, wr_id: u64, local: usize, len: usize) {
        let mut srqs = self.nodes[1].host.srqs.borrow_mut();
        srqs.entry(srq).or_default().push_back((wr_id, vec![sge(local, len)]));
    }

    /// Posts a buffer of node 1's bytes for messages with this tag.
    pub fn post_tag(&mut self, tag: u64, wr_id: u64, local: usize, len: usize) {
        self.nodes[1].host.tags.push((tag, wr_id, vec![sge(local, len)]));
    }

    /// Changes the most bytes of requests, and of READ responses, that a node may have in flight.
    pub fn set_window(&mut self, node: usize, window: Limits) {
        self.nodes[node].window = window;
    }

    /// Bytes of a node's region.
    pub fn memory(&self, node: usize, at: usize, len: usize) -> Vec<u8> {
        self.nodes[node].host.memory.borrow().bytes(BASE + at as u64, len).to_vec()
    }

    /// Overwrites bytes of a node's region.
    pub fn fill(&mut self, node: usize, at: usize, bytes: &[u8]) {
        self.nodes[node].host.memory.borrow_mut().bytes_mut(BASE + at as u64, bytes.len()).copy_from_slice(bytes);
    }

    /// Completions of a node as `wr_id` and status.
    pub fn outcomes(&self, node: usize, queue: Queue) -> Vec<(u64, Status)> {
        self.nodes[node].host.outcomes(queue)
    }

    /// Completions of a node.
    pub fn completions(&self, node: usize, queue: Queue) -> Vec<Completion> {
        self.nodes[node].host.completions(queue)
    }

    /// Both nodes send what is due; time does not advance.
    pub fn transmit(&mut self) {
        for from in 0..2 {
            self.transmit_from(from);
        }
    }

    fn transmit_from(&mut self, from: usize) {
        self.set_paging_time(from);
        loop {
            let (staging, progress) = self.nodes[from].transmit(self.now);
            if let Some(resumes) = self.nodes[from].qp.take_fault_event() {
                self.fault_events[from].met_fault(self.now, qp_num(from), resumes);
            }
            self.send(from, staging);
            if progress != Progress::Full && !self.continue_after_reads(from) {
                break;
            }
        }
    }

    pub(super) fn send(&mut self, from: usize, staging: Staging) {
        for packet in staging.packets {
            self.wire.send(self.now, from, packet);
        }
    }

    /// Sends, then advances to the next event and processes it. False: there is no further event.
    pub fn step(&mut self) -> bool {
        self.transmit();
        let Some(next) = self.next_event() else { return false };
        self.now = self.now.max(next);
        while let Some((from, bytes)) = self.wire.receive(self.now) {
            self.deliver(1 - from, &bytes);
        }
        for node in &mut self.nodes {
            if node.qp.poll_timeout().is_some_and(|at| at <= self.now) {
                node.qp.handle_timeout(self.now, &mut node.host);
            }
        }
        for node in 0..2 {
            self.resolve_pages(node);
        }
        true
    }

    /// The time of the next event.
    pub fn next_event(&self) -> Option<Instant> {
        let timeouts = self.nodes.iter().filter_map(|node| node.qp.poll_timeout());
        let pages = self.nodes.iter().filter_map(|node| node.host.memory.borrow().paging.as_ref()?.next_event());
        let events = self.fault_events.iter().filter_map(FaultEvents::next);
        timeouts.chain(pages).chain(events).chain(self.wire.next_arrival()).min()
    }

    /// Steps until there is no further event.
    ///
    /// # Panics
    /// After a million steps, because the protocol does not become idle.
    pub fn run_until_idle(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("still busy at {:?}", self.now);
    }

    /// Steps until `done` holds; false if there is no further event before that.
    pub fn run_until(&mut self, mut done: impl FnMut(&Pair) -> bool) -> bool {
        for _ in 0..1_000_000 {
            if done(self) {
                return true;
            }
            if !self.step() {
                return done(self);
            }
        }
        panic!("still busy at {:?}", self.now);
    }

    /// The number of packets that wait for pages of a node's side.
    pub fn held(&self, node: usize, side: Side) -> usize {
        self.nodes[node].held[side as usize].len()
    }

    /// A node's translation table.
    ///
    /// # Panics
    /// If its memory is not ODP memory.
    pub fn paging(&self, node: usize) -> RefMut<'_, Paging> {
        let memory = self.nodes[node].host.memory.borrow_mut();
        let mut paging = RefMut::map(memory, |memory| memory.paging.as_mut().expect("paged on demand"));
        paging.now = self.now;
        paging
    }

    pub(super) fn set_paging_time(&mut self, node: usize) {
        if let Some(paging) = &mut self.nodes[node].host.memory.borrow_mut().paging {
            paging.now = self.now;
        }
    }

    /// Resolves the pages that are due, and continues the sides that waited for them.
    fn resolve_pages(&mut self, node: usize) {
        let Some(sides) = self.nodes[node].host.memory.borrow_mut().paging.as_mut().map(|p| p.advance(self.now)) else {
            return;
        };
        for side in sides {
            if side == Side::Responder || !self.fault_events[node].resume_requesters() {
                self.notify(node, side);
            }
        }
        while self.fault_events[node].poll(self.now).is_some() {
            self.notify(node, Side::Requester);
        }
    }

    /// Notifies a side of a node that its page is present.
    pub fn notify(&mut self, node: usize, side: Side) {
        self.nodes[node].qp.page_resolved(self.now, side);
        // Responses first, so that a READ does not return data of later requests.
        self.transmit_from(node);
        for bytes in std::mem::take(&mut self.nodes[node].held[side as usize]) {
            self.deliver(node, &bytes);
        }
    }

    /// Whether no node wrote outside of its regions.
    pub fn canaries_live(&self) -> bool {
        self.nodes.iter().all(|node| node.host.memory.borrow().canaries_live())
    }
}

impl Node {
    fn transmit(&mut self, now: Instant) -> (Staging, Progress) {
        let flight = self.qp.in_flight();
        let limits = Limits {
            request_bytes: self.window.request_bytes.saturating_sub(flight.request_bytes),
            read_bytes: self.window.read_bytes.saturating_sub(flight.read_bytes),
        };
        let wanted = self.qp.has_to_send();
        let mut staging = Staging::new(self.host.memory.clone(), self.burst);
        let progress = self.qp.poll_transmit(now, limits, &mut self.host, &mut staging);
        assert!(wanted || staging.packets.is_empty(), "packets left although has_to_send() was false");
        assert!(
            progress != Progress::Idle || !self.qp.has_to_send(),
            "poll_transmit() returned Idle although has_to_send() is true"
        );
        (staging, progress)
    }
}

fn qp_num(node: usize) -> u32 {
    0x11 + node as u32
}
