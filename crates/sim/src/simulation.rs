//! The simulation: what it is made of, and what drives it.

use crate::adapter::Report;
use crate::capture::Capture;
use crate::host::HostState;
use crate::link::Link;
use crate::memory::{Backing, Paging, Region};
use crate::network::{Network, Node, SwitchId};
use crate::observe::{Counts, Seen};
use crate::packet::Payload;
use crate::qp::{HostId, QpId, QpSetup, SimQp};
use crate::queue::{Event, Queue};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_transport::{
    Chance, Completion, Instant, PostError, Profile, Qp, QpEvent, Queue as WorkQueue, RecvWr, SendWr, Side,
};
use weir_wire::Headers;

/// What drives a simulation from outside of it. Whatever it does with the simulation happens at that moment, in no time.
pub trait App {
    /// A work request completed.
    fn completed(&mut self, _sim: &mut Simulation, _done: &Done) {}

    /// A timer is due that [`Simulation::set_timer`] set.
    fn timer(&mut self, _sim: &mut Simulation, _token: u64) {}

    /// A QP has an asynchronous event.
    fn event(&mut self, _sim: &mut Simulation, _qp: QpId, _event: QpEvent) {}
}

/// An [`App`] that does nothing.
pub struct Quiet;

impl App for Quiet {}

/// A completion, and whose.
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
    pub(crate) packets: u64,
    pub(crate) events: u64,
    /// What the application has not heard of.
    pub(crate) reports: VecDeque<(HostId, Report)>,
    pub(crate) observer: Option<Observer>,
    pub(crate) rule: Option<Rule>,
    /// Packets of one turn.
    pub(crate) staged: Vec<(Headers, Payload, bool)>,
}

pub(crate) type Observer = Box<dyn FnMut(&Seen<'_>)>;
pub(crate) type Rule = Box<dyn FnMut(&Seen<'_>) -> bool>;

/// Building.
impl Simulation {
    /// Nothing, at time 0. The seed is for what links and hosts leave to chance; adapters have their profile's, each host
    /// a stream of its own.
    pub fn new(seed: u64) -> Self {
        Simulation {
            now: Instant(0),
            queue: Queue::default(),
            hosts: Vec::new(),
            network: Network::default(),
            chance: Chance::seeded(seed),
            packets: 0,
            events: 0,
            reports: VecDeque::new(),
            observer: None,
            rule: None,
            staged: Vec::new(),
        }
    }

    /// A host with one adapter, which has one port.
    pub fn add_host(&mut self, profile: &Arc<Profile>) -> HostId {
        let (id, seed) = (self.hosts.len() as u32, self.chance.bits());
        // QPs of one number on different hosts are to draw differently.
        let apart = u64::from(id) << 40;
        let profile = Profile { seed: profile.seed.wrapping_add(apart), ..Profile::clone(profile) };
        self.hosts.push(HostState::new(Arc::new(profile), seed));
        self.network.add_host();
        HostId(id)
    }

    /// A switch that stores and forwards, with so many bytes of buffer before each output; what finds it full is lost.
    pub fn add_switch(&mut self, buffer: u64) -> SwitchId {
        self.network.add_switch(buffer)
    }

    /// A link. Between two hosts there may be any number of switches, and several shortest ways.
    ///
    /// # Panics
    /// If a host has a link already.
    pub fn link(&mut self, a: impl Into<Node>, b: impl Into<Node>, link: Link) {
        self.network.connect(a.into(), b.into(), link);
    }

    /// Two connected QPs in RTS. They share a profile each with their host.
    pub fn connect(&mut self, a: HostId, b: HostId, setup: &QpSetup) -> [QpId; 2] {
        let ends = [a, b].map(|host| QpId { host, num: self.host_mut(host).number() });
        self.add_qp(ends[0], ends[1], setup, 0);
        self.add_qp(ends[1], ends[0], setup, 1);
        ends
    }

    /// A QP in RTS whose peer does not exist: what it sends to that host nobody answers.
    pub fn connect_astray(&mut self, from: HostId, to: HostId, setup: &QpSetup) -> QpId {
        let id = QpId { host: from, num: self.host_mut(from).number() };
        self.add_qp(id, QpId { host: to, num: 0xff_fffe }, setup, 0);
        id
    }

    /// Takes a QP away. Packets that are under way to it find nobody.
    pub fn destroy(&mut self, qp: QpId) {
        self.host_mut(qp.host).remove(qp.num);
        // Others may have waited for its places.
        self.look_after(qp);
    }

    /// Registers memory.
    ///
    /// # Panics
    /// If it is to be on demand and the host's profile does without.
    pub fn register(&mut self, host: HostId, backing: Backing, paging: Paging) -> Region {
        let state = self.host_mut(host);
        let able = paging == Paging::Pinned || state.profile.on_demand;
        assert!(able, "{host:?}: an adapter like {} has no memory on demand", state.profile.name);
        state.adapter.get_mut().memory.register(host, backing, paging)
    }

    /// Brings the pages of some bytes of a region on demand (a prefetch that costs nothing), or takes them away.
    ///
    /// # Panics
    /// If they lie outside.
    pub fn set_present(&mut self, region: &Region, bytes: Range<u64>, present: bool) {
        self.host_mut(region.host).adapter.get_mut().memory.set_present(region.key, bytes, present);
    }

    /// Writes a host's packets, both ways, into a pcapng file from now on. [`Simulation::finish_captures`] ends it.
    pub fn capture(&mut self, host: HostId, path: impl AsRef<Path>) -> io::Result<()> {
        let state = self.host_mut(host);
        state.capture = Some(Capture::create(path.as_ref(), host, &state.profile.name)?);
        Ok(())
    }

    /// Ends all captures; returns the number of frames in them.
    pub fn finish_captures(&mut self) -> io::Result<u64> {
        let now = self.now;
        let captures = self.hosts.iter_mut().filter_map(|host| host.capture.take());
        captures.map(|capture| capture.finish(now)).sum()
    }

    /// Calls `watch` for everything that happens to packets, in order of time. There is one observer.
    pub fn observe(&mut self, watch: impl FnMut(&Seen<'_>) + 'static) {
        self.observer = Some(Box::new(watch));
    }

    /// Loses packets for which `rule` holds, on their first link: it is shown them as they are sent.
    pub fn lose_if(&mut self, rule: impl FnMut(&Seen<'_>) -> bool + 'static) {
        self.rule = Some(Box::new(rule));
    }

    fn add_qp(&mut self, id: QpId, peer: QpId, setup: &QpSetup, end: usize) {
        let now = self.now;
        let host = self.host_mut(id.host);
        let qp = SimQp::new(id.num, peer.host, setup, &host.profile);
        host.put(id.num, qp);
        if let Some((qp, mut view)) = host.parts(now, id.num, Side::Requester) {
            qp.connect(now, peer.num, setup, end, &mut view);
        }
    }
}

/// Driving.
impl Simulation {
    /// Virtual time, from 0.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Time from now on.
    pub fn after(&self, time: Duration) -> Instant {
        self.now + time
    }

    /// Events so far: packets that leave or arrive, deadlines, timers.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Posts a send work request.
    pub fn post_send(&mut self, qp: QpId, wr: &SendWr<'_>) -> Result<(), PostError> {
        let state = self.host_mut(qp.host).get_mut(qp.num).ok_or(PostError::State)?;
        state.qp.post_send(wr)?;
        self.look_after(qp);
        Ok(())
    }

    /// Posts a receive work request.
    pub fn post_recv(&mut self, qp: QpId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let state = self.host_mut(qp.host).get_mut(qp.num).ok_or(PostError::State)?;
        state.qp.post_recv(wr)
    }

    /// Lets [`App::timer`] be called.
    pub fn set_timer(&mut self, at: Instant, token: u64) {
        self.queue.put(at.max(self.now), Event::Timer(token));
    }

    /// Runs until nothing will ever happen any more.
    pub fn run(&mut self, app: &mut dyn App) {
        while self.step(app) {}
    }

    /// Runs until then; what happens at that moment has happened.
    pub fn run_until(&mut self, until: Instant, app: &mut dyn App) {
        self.report(app);
        while self.queue.next_time().is_some_and(|at| at <= until) {
            self.step(app);
        }
        self.now = self.now.max(until);
    }

    /// Runs for so many events, between which a caller may show how far it is. False: nothing is left.
    pub fn run_events(&mut self, count: u64, app: &mut dyn App) -> bool {
        (0..count).all(|_| self.step(app))
    }

    /// A QP.
    pub fn qp(&self, qp: QpId) -> Option<&Qp> {
        self.hosts[qp.host.0 as usize].get(qp.num).map(|state| &state.qp)
    }

    /// What a host's packets did.
    pub fn counts(&self, host: HostId) -> Counts {
        self.hosts[host.0 as usize].counts
    }

    /// What all packets did.
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.hosts.iter().for_each(|host| total += host.counts);
        total
    }

    /// Page faults of a host so far; those that met one under way were none of their own.
    pub fn page_faults(&self, host: HostId) -> u64 {
        self.hosts[host.0 as usize].adapter.borrow().memory.faulted
    }

    /// Packets that found a switch's buffers full.
    pub fn drops(&self, switch: SwitchId) -> u64 {
        self.network.drops(switch)
    }

    /// Whether the page of a region's byte is there.
    pub fn is_present(&self, region: &Region, offset: u64) -> bool {
        self.hosts[region.host.0 as usize].adapter.borrow().memory.is_present(region.key, offset)
    }

    /// A region's contents; empty if it has none.
    pub fn bytes(&mut self, region: &Region) -> &[u8] {
        self.host_mut(region.host).adapter.get_mut().memory.contents(region.key).unwrap_or_default()
    }

    /// The same, to write.
    pub fn bytes_mut(&mut self, region: &Region) -> &mut [u8] {
        self.host_mut(region.host).adapter.get_mut().memory.contents_mut(region.key).unwrap_or_default()
    }

    /// Lets the next thing happen. False: there is none.
    fn step(&mut self, app: &mut dyn App) -> bool {
        self.report(app);
        let Some((at, event)) = self.queue.take() else { return false };
        self.now = at;
        self.events += 1;
        match event {
            Event::PortFree(host) => {
                self.host_mut(host).sending = false;
                self.transmit(host);
            }
            Event::Arrival(pipe) => self.arrival(pipe),
            Event::Deadline(qp) => self.deadline(qp),
            Event::FaultEnds(host, fault) => self.fault_ends(host, fault),
            Event::Announce(host) => {
                self.host_mut(host).announce = None;
                self.announce(host);
            }
            Event::Timer(token) => app.timer(self, token),
        }
        self.report(app);
        true
    }

    /// Tells the application what it has not heard of.
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
