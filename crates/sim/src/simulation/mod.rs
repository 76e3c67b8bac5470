//! The simulation: its parts, and the calls that drive it.

mod events;
mod intake;

use crate::adapter::Report;
use crate::capture::Capture;
use crate::host::HostState;
use crate::ids::{HostId, Node, QpId, SwitchId};
use crate::incident::{Incident, Watch};
use crate::link::Link;
use crate::memory::{Backing, Paging, Region};
use crate::network::Network;
use crate::observe::{Counts, Seen};
use crate::packet::{PacketKey, Packets};
use crate::qp::{QpSetup, SimQp};
use crate::queue::{Event, Queue};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_transport::{
    Chance, Completion, Instant, PostError, Profile, Psn, Qp, QpEvent, Queue as WorkQueue, RecvWr, SendWr, Side,
};

/// The application that drives a simulation. Its actions take no virtual time.
pub trait App {
    /// A work request has completed.
    fn completed(&mut self, _sim: &mut Simulation, _done: &Done) {}

    /// A timer of [`Simulation::set_timer`] is due.
    fn timer(&mut self, _sim: &mut Simulation, _token: u64) {}

    /// A QP has an asynchronous event.
    fn event(&mut self, _sim: &mut Simulation, _qp: QpId, _event: QpEvent) {}
}

/// An [`App`] that does nothing.
pub struct NullApp;

impl App for NullApp {}

/// A completion, and its QP and queue.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub qp: QpId,
    pub queue: WorkQueue,
    pub completion: Completion,
}

/// Hosts, switches, links, and virtual time.
pub struct Simulation {
    pub(crate) now: Instant,
    pub(crate) queue: Queue,
    pub(crate) hosts: Vec<HostState>,
    pub(crate) network: Network,
    pub(crate) chance: Chance,
    pub(crate) packets: Packets,
    pub(crate) events: u64,
    /// Reports that the application has not received yet.
    pub(crate) reports: VecDeque<(HostId, Report)>,
    pub(crate) observer: Option<Observer>,
    pub(crate) adapters: Option<Watch>,
    pub(crate) rule: Option<Rule>,
    /// The packet of a turn, until it enters the network.
    pub(crate) staged: Option<PacketKey>,
}

pub(crate) type Observer = Box<dyn FnMut(&Seen<'_>)>;
pub(crate) type Rule = Box<dyn FnMut(&Seen<'_>) -> bool>;

/// Construction.
impl Simulation {
    /// An empty simulation at time 0. The seed is for the random draws of links and hosts. Adapters use the seed of
    /// their profile, with a separate stream for each host.
    pub fn new(seed: u64) -> Self {
        Simulation {
            now: Instant(0),
            queue: Queue::default(),
            hosts: Vec::new(),
            network: Network::default(),
            chance: Chance::seeded(seed),
            packets: Packets::default(),
            events: 0,
            reports: VecDeque::new(),
            observer: None,
            adapters: None,
            rule: None,
            staged: None,
        }
    }

    /// Adds a host with an adapter of one port.
    pub fn add_host(&mut self, profile: &Arc<Profile>) -> HostId {
        let (id, seed) = (self.hosts.len() as u32, self.chance.bits());
        // QPs with the same number on different hosts must draw differently.
        let apart = u64::from(id) << 40;
        let profile = Profile { seed: profile.seed.wrapping_add(apart), ..Profile::clone(profile) };
        self.hosts.push(HostState::new(Arc::new(profile), seed));
        self.network.add_host();
        HostId(id)
    }

    /// Adds a store-and-forward switch with `buffer` bytes before each output. A packet that does not fit is lost.
    pub fn add_switch(&mut self, buffer: u64) -> SwitchId {
        self.network.add_switch(buffer)
    }

    /// A switch marks packets (congestion experienced) that enter a queue in which more than `bytes` bytes wait.
    pub fn mark_above(&mut self, switch: SwitchId, bytes: u64) {
        self.network.mark_above(switch, bytes);
    }

    /// Adds a link. Between two hosts there may be any number of switches, and several shortest routes.
    ///
    /// # Panics
    /// If a host has a link already.
    pub fn link(&mut self, a: impl Into<Node>, b: impl Into<Node>, link: Link) {
        self.network.connect(a.into(), b.into(), link);
    }

    /// Connects two new QPs, which are in RTS. Each uses the profile of its host.
    pub fn connect(&mut self, a: HostId, b: HostId, setup: &QpSetup) -> [QpId; 2] {
        let ends = [a, b].map(|host| QpId { host, num: self.host_mut(host).number() });
        self.add_qp(ends[0], ends[1], setup, 0);
        self.add_qp(ends[1], ends[0], setup, 1);
        ends
    }

    /// Creates a QP in RTS without an existing peer: its packets are lost on arrival at `to`, and it gets no
    /// response.
    pub fn connect_without_peer(&mut self, from: HostId, to: HostId, setup: &QpSetup) -> QpId {
        let id = QpId { host: from, num: self.host_mut(from).number() };
        self.add_qp(id, QpId { host: to, num: 0xff_fffe }, setup, 0);
        id
    }

    /// Destroys a QP. Packets that are on their way to it are lost.
    pub fn destroy(&mut self, qp: QpId) {
        self.hosts[qp.host.0 as usize].remove(qp.num, &mut self.packets);
    }

    /// Changes the RNR delay (code 0 to 31) that a QP in RTS asks its peer for.
    ///
    /// # Panics
    /// If the QP is not in RTS.
    pub fn set_min_rnr_timer(&mut self, qp: QpId, code: u8) {
        let now = self.now;
        if let Some(at) = self.host_mut(qp.host).at(qp.num) {
            let mut view = at.view(now, Side::Requester);
            at.qp.set_min_rnr_timer(now, code, &mut view);
        }
    }

    /// Moves a QP to ERROR: its open work requests complete as flushed.
    pub fn fail(&mut self, qp: QpId) {
        let now = self.now;
        if let Some(at) = self.host_mut(qp.host).at(qp.num) {
            let mut view = at.view(now, Side::Requester);
            at.qp.fail(now, &mut view);
            self.follow_up(qp);
        }
    }

    /// Moves a QP through RESET back to RTS, with the attributes that it had, except that it sends from `sq_psn` on. Open
    /// work requests are discarded. A packet that is still on its way to the QP arrives as any other.
    pub fn start_again(&mut self, qp: QpId, sq_psn: u32) {
        let Simulation { now, hosts, packets, .. } = self;
        let host = &mut hosts[qp.host.0 as usize];
        host.clear(qp.num, packets);
        if let Some(at) = host.at(qp.num) {
            let mut view = at.view(*now, Side::Requester);
            at.qp.start_again(*now, Psn::new(sq_psn), &mut view);
        }
    }

    /// Registers memory.
    ///
    /// # Panics
    /// If it is ODP memory and the host's profile has no on-demand paging.
    pub fn register(&mut self, host: HostId, backing: Backing, paging: Paging) -> Region {
        let state = self.host_mut(host);
        let able = paging == Paging::Pinned || state.profile.on_demand;
        assert!(able, "{host:?}: profile {} has no on-demand paging", state.profile.name);
        state.adapter.get_mut().memory.register(host, backing, paging)
    }

    /// Makes the pages of a range of an on-demand region present (a prefetch that costs nothing), or absent.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn set_present(&mut self, region: &Region, bytes: Range<u64>, present: bool) {
        self.host_mut(region.host).adapter.get_mut().memory.set_present(region.key, bytes, present);
    }

    /// Begins to make the pages of a range of a region present, as a thread of the host that asks for it (ibv_advise_mr), in
    /// the time of a page fault. Returns when they are present: now, if they are already.
    pub fn prefetch(&mut self, region: &Region, bytes: Range<u64>) -> Instant {
        let now = self.now;
        let present = self.host_mut(region.host).adapter.get_mut().memory.prefetch(now, region.key, bytes);
        self.collect(region.host);
        present
    }

    /// Starts writing a host's packets, both ways, into a pcapng file. [`Simulation::finish_captures`] ends it.
    pub fn capture(&mut self, host: HostId, path: impl AsRef<Path>) -> io::Result<()> {
        self.capture_to(host, File::create(path)?);
        Ok(())
    }

    /// The same, to any writer.
    pub fn capture_to(&mut self, host: HostId, out: impl Write + 'static) {
        let state = self.host_mut(host);
        state.capture = Some(Capture::new(Box::new(out), host, &state.profile.name));
    }

    /// Ends all captures; returns the number of frames in them.
    pub fn finish_captures(&mut self) -> io::Result<u64> {
        let now = self.now;
        let captures = self.hosts.iter_mut().filter_map(|host| host.capture.take());
        captures.map(|capture| capture.finish(now)).sum()
    }

    /// Calls `watch` for every event of a packet, in order of time. There is a single observer.
    pub fn observe(&mut self, watch: impl FnMut(&Seen<'_>) + 'static) {
        self.observer = Some(Box::new(watch));
    }

    /// Calls `watch` for every incident of an adapter, in order of time. There is a single such observer.
    pub fn observe_adapters(&mut self, watch: impl FnMut(Instant, Incident) + 'static) {
        self.adapters = Some(Box::new(watch));
    }

    /// Loses packets for which `rule` holds, on their first link. The rule is called when they are sent.
    pub fn lose_if(&mut self, rule: impl FnMut(&Seen<'_>) -> bool + 'static) {
        self.rule = Some(Box::new(rule));
    }

    fn add_qp(&mut self, id: QpId, peer: QpId, setup: &QpSetup, end: usize) {
        let now = self.now;
        let host = self.host_mut(id.host);
        let qp = SimQp::new(id.num, peer.host, setup, &host.profile);
        host.put(id.num, qp);
        if let Some(at) = host.at(id.num) {
            let mut view = at.view(now, Side::Requester);
            at.qp.connect(now, peer.num, setup, end, &mut view);
        }
    }
}

/// Running.
impl Simulation {
    /// Virtual time, from 0.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The time `time` after now.
    pub fn after(&self, time: Duration) -> Instant {
        self.now + time
    }

    /// Number of events so far: packets that leave or arrive, deadlines, timers.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Posts a send work request.
    pub fn post_send(&mut self, qp: QpId, wr: &SendWr<'_>) -> Result<(), PostError> {
        let state = self.host_mut(qp.host).get_mut(qp.num).ok_or(PostError::State)?;
        state.qp.post_send(wr)?;
        self.follow_up(qp);
        Ok(())
    }

    /// Posts a receive work request.
    pub fn post_recv(&mut self, qp: QpId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let state = self.host_mut(qp.host).get_mut(qp.num).ok_or(PostError::State)?;
        state.qp.post_recv(wr)
    }

    /// Has [`App::timer`] called at `at`.
    pub fn set_timer(&mut self, at: Instant, token: u64) {
        self.queue.put(at.max(self.now), Event::Timer(token));
    }

    /// Runs until no event is left.
    pub fn run(&mut self, app: &mut dyn App) {
        self.report(app);
        while self.step(app) {}
    }

    /// Runs until `until`, including events at that time.
    pub fn run_until(&mut self, until: Instant, app: &mut dyn App) {
        self.report(app);
        while self.queue.next_time().is_some_and(|at| at <= until) {
            self.step(app);
        }
        self.now = self.now.max(until);
    }

    /// Runs for `count` events, between which a caller may show its progress. False if no event is left.
    pub fn run_events(&mut self, count: u64, app: &mut dyn App) -> bool {
        self.report(app);
        (0..count).all(|_| self.step(app))
    }

    /// The state of a QP; `None` after it was destroyed.
    pub fn qp(&self, qp: QpId) -> Option<&Qp> {
        self.hosts[qp.host.0 as usize].get(qp.num).map(|state| &state.qp)
    }

    /// Counts of a host's packets.
    pub fn counts(&self, host: HostId) -> Counts {
        self.hosts[host.0 as usize].counts
    }

    /// Counts of all packets.
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.hosts.iter().for_each(|host| total += host.counts);
        total
    }

    /// Number of page faults of a host so far; an access that joins a fault under way is not counted.
    pub fn page_faults(&self, host: HostId) -> u64 {
        self.hosts[host.0 as usize].adapter.borrow().memory.faulted
    }

    /// Number of packets that were lost because a switch's buffer was full.
    pub fn drops(&self, switch: SwitchId) -> u64 {
        self.network.drops(switch)
    }

    /// Whether the page at `offset` of a region is present.
    pub fn is_present(&self, region: &Region, offset: u64) -> bool {
        self.hosts[region.host.0 as usize].adapter.borrow().memory.is_present(region.key, offset)
    }

    /// A region's contents; empty if it has none.
    pub fn bytes(&mut self, region: &Region) -> &[u8] {
        self.host_mut(region.host).adapter.get_mut().memory.contents(region.key).unwrap_or_default()
    }

    /// A region's contents, for writing; empty if it has none.
    pub fn bytes_mut(&mut self, region: &Region) -> &mut [u8] {
        self.host_mut(region.host).adapter.get_mut().memory.contents_mut(region.key).unwrap_or_default()
    }

    /// Handles the next event, and passes its reports to the application. False if there is no event.
    fn step(&mut self, app: &mut dyn App) -> bool {
        let Some((at, event)) = self.queue.take() else { return false };
        self.now = at;
        self.events += 1;
        match event {
            Event::PortFree(host) => {
                self.host_mut(host).sending = false;
                self.transmit(host);
            }
            Event::Arrival(pipe) => self.arrival(pipe),
            Event::Straggler(pipe, packet) => self.straggler(pipe, packet),
            Event::Deadline(qp) => self.deadline(qp),
            Event::FaultEnds(host, fault) => self.fault_ends(host, fault),
            Event::ResumeRequesters(host) => {
                self.host_mut(host).resume_at = None;
                self.resume_requesters(host);
            }
            Event::Written(host) => self.written(host),
            Event::Timer(token) => app.timer(self, token),
        }
        if !self.reports.is_empty() {
            self.report(app);
        }
        true
    }

    /// Passes pending reports to the application.
    #[inline(never)]
    fn report(&mut self, app: &mut dyn App) {
        while let Some((host, report)) = self.reports.pop_front() {
            match report {
                Report::Completion { qp: num, queue, completion } => {
                    app.completed(self, &Done { qp: QpId { host, num }, queue, completion });
                }
                Report::Event { qp: num, event } => app.event(self, QpId { host, num }, event),
            }
        }
    }

    pub(crate) fn host_mut(&mut self, host: HostId) -> &mut HostState {
        &mut self.hosts[host.0 as usize]
    }
}
