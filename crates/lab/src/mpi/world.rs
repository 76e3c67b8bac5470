//! All processes of a program on their nodes, and the simulator that runs them.

use super::costs;
use super::memory::{Memory, Taken};
use super::port::{self, Dial, Ports, name, rank_of, token};
use super::rank::{Arrived, Rank, State};
use super::script::{Op, Script};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use weir_msg::{
    Buffer, ConnectionId, Depth, Endpoint, Envelope, Event, Kind, Pattern, ReceiveCall, Registration, Remote, RmaCall,
    SendCall, Settings, Verdict,
};
use weir_sim::{App, Done, HostId, Paging, QpId, Simulation};
use weir_transport::{Chance, Instant, Profile, Queue, Status};

/// Where a program runs, and how.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub profile: Arc<Profile>,
    /// Nodes with an adapter each. Processes are dealt out to them in turn.
    pub nodes: usize,
    pub settings: Settings,
    /// How often the operating system takes a page of a buffer, 1/s.
    pub pressure: f64,
    pub seed: u64,
}

/// Processes on simulated nodes.
pub struct World {
    pub ranks: Vec<Rank>,
    by_qp: HashMap<QpId, (usize, ConnectionId)>,
    /// Pages that the operating system takes, of each process.
    going: Vec<VecDeque<Taken>>,
    chance: Chance,
    pressure: f64,
    /// Processes that may go on.
    ready: VecDeque<usize>,
    /// Sums when the first process made its second mark.
    pub warm: Option<Sums>,
}

/// Sums of all processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    /// Page faults of the adapters.
    pub faults: u64,
    /// Pages that were asked for before they were needed.
    pub prefetched: u64,
    /// Pages that the operating system took although the adapter had them.
    pub taken: u64,
}

/// Tags of messages between programs have 32 bits.
const LOCK: u64 = 1 << 40;
const GRANT: u64 = 2 << 40;
const UNLOCK: u64 = 3 << 40;
/// The context of what no operation of a script waits for.
const INTERNAL: u64 = 1 << 32;
/// Of receives of requests for the window.
const ASKED: u64 = 2 << 32;
/// Of the receive of a grant.
const GRANTED: u64 = 3 << 32;
/// Programs begin so late, when windows have been made and their pages prefetched.
const BEGINS: Duration = Duration::from_millis(1);
/// Number of operations on windows.
const RMA: u8 = 255;

impl World {
    /// Starts a process for each script.
    pub fn new(cluster: &Cluster, scripts: Vec<Script>) -> (World, Simulation) {
        let Cluster { profile, nodes, settings, pressure, seed } = cluster;
        let mut sim = Simulation::new(*seed);
        let switch = sim.add_switch(costs::SWITCH_BUFFER);
        let nodes: Vec<HostId> = (0..*nodes).map(|_| sim.add_host(profile)).collect();
        nodes.iter().for_each(|node| sim.link(*node, switch, costs::LINK));
        let hosts: Vec<HostId> = (0..scripts.len()).map(|rank| nodes[rank % nodes.len()]).collect();
        let on_demand = settings.scheme.on_demand();
        let paging = if on_demand { Paging::OnDemand } else { Paging::Pinned };
        let peers = scripts.len() as u32 - 1;
        let slots = (peers.min(MOST_PEERS) * u32::from(settings.receive_slots) + settings.send_slots, settings.slot);
        let ranks: Vec<Rank> = scripts
            .into_iter()
            .enumerate()
            .map(|(rank, script)| {
                let memory = Memory::new(&mut sim, hosts[rank], &script.buffers, paging);
                let ports = Ports::new(&mut sim, rank, &hosts, memory, slots, settings.receive_slots);
                Rank::new(Endpoint::new(*settings, name(rank)), ports, script)
            })
            .collect();
        let pressure = if on_demand { *pressure } else { 0.0 };
        let going = ranks.iter().map(|_| VecDeque::new()).collect();
        let ready = (0..ranks.len()).collect();
        let (by_qp, chance) = (HashMap::new(), Chance::seeded(seed ^ 0x5eed));
        (World { ranks, by_qp, going, chance, pressure, ready, warm: None }, sim)
    }

    /// Runs until no process has anything to do.
    pub fn run(&mut self, sim: &mut Simulation) {
        for rank in 0..self.ranks.len() {
            self.open_window(sim, rank);
        }
        let begins = Instant(0) + BEGINS;
        self.ranks.iter_mut().for_each(|rank| rank.ports.clock = begins);
        self.go_on(sim);
        sim.run(self);
    }

    /// Whether all scripts have come to their end, and no operation has failed.
    pub fn is_complete(&self) -> bool {
        self.ranks.iter().all(|rank| rank.ended.is_some() && !rank.failed)
    }

    /// When the last process ended its script.
    pub fn ended(&self) -> Option<Instant> {
        self.ranks.iter().map(|rank| rank.ended).max()?
    }

    /// Sums of all processes until now.
    pub fn sums(&self, sim: &Simulation) -> Sums {
        let mut hosts: Vec<HostId> = self.ranks.iter().map(|rank| rank.ports.host).collect();
        hosts.sort();
        hosts.dedup();
        Sums {
            faults: hosts.iter().map(|host| sim.page_faults(*host)).sum(),
            prefetched: self.ranks.iter().map(|rank| rank.endpoint.counters().prefetched_pages).sum(),
            taken: self.ranks.iter().map(|rank| rank.ports.memory.taken).sum(),
        }
    }

    /// Makes the window of a process, before its program begins.
    fn open_window(&mut self, sim: &mut Simulation, rank: usize) {
        let process = &mut self.ranks[rank];
        let Some(window) = process.script.window else { return };
        let (addr, len) = process.ports.memory.range(window);
        let on_demand = process.endpoint.settings().scheme.on_demand();
        process.pinned_window = if on_demand { 0 } else { len };
        process.quietly(sim, |endpoint, port, now| {
            let how = Registration { on_demand, writable: true };
            if let Ok(registered) = weir_msg::Port::register(port, addr, len, how) {
                endpoint.add_window(port, now, registered.lkey, weir_msg::Piece { addr, len }, true);
            }
        });
        self.ask_again(sim, rank, LOCK);
        self.ask_again(sim, rank, UNLOCK);
    }

    /// Receives the next request for the window of a process, or its return.
    fn ask_again(&mut self, sim: &mut Simulation, rank: usize, tag: u64) {
        let pattern = Pattern { tag, ignore: 0, from: None };
        let (buffer, context) = (Buffer::default(), ASKED | tag);
        let call = ReceiveCall { tagged: true, pattern, buffer, multi: None, context, report: true };
        self.ranks[rank].call(sim, |endpoint, port, now| endpoint.receive(port, now, &call));
    }

    /// Lets processes go on, and those that they connect to.
    fn go_on(&mut self, sim: &mut Simulation) {
        while let Some(rank) = self.ready.pop_front() {
            self.run_rank(sim, rank);
        }
    }

    fn run_rank(&mut self, sim: &mut Simulation, rank: usize) {
        loop {
            self.take_events(sim, rank);
            let process = &mut self.ranks[rank];
            if process.armed || process.state == State::Computes {
                return;
            }
            if process.is_satisfied() {
                process.state = State::Runs;
                match process.script.op(process.at) {
                    Some(op) => {
                        process.at += 1;
                        self.perform(sim, rank, op);
                    }
                    None => {
                        process.ended = Some(process.ports.clock.max(sim.now()));
                        process.state = State::Ended;
                    }
                }
                continue;
            }
            // It polls: at its own time, and what has come by then.
            if process.ports.clock > sim.now() {
                process.armed = true;
                sim.set_timer(process.ports.clock, token(rank, port::WAKES));
                return;
            }
            process.has_polled(sim.now());
            process.call(sim, |endpoint, port, now| endpoint.awaits(port, now));
            let Some(arrived) = process.inbox.pop_front() else {
                process.call(sim, |endpoint, port, now| endpoint.progress(port, now));
                self.dial(sim, rank);
                self.take_events(sim, rank);
                let process = &self.ranks[rank];
                if process.is_satisfied() || process.ports.clock > sim.now() {
                    continue;
                }
                return;
            };
            self.polled(sim, rank, arrived);
        }
    }

    fn polled(&mut self, sim: &mut Simulation, rank: usize, arrived: Arrived) {
        let Arrived { connection, queue, completion } = arrived;
        let process = &mut self.ranks[rank];
        process.ports.spend(costs::POLL);
        if completion.status != Status::Success {
            process.failed = true;
            return;
        }
        let (id, len) = (completion.wr_id, completion.byte_len);
        process.call(sim, |endpoint, port, now| match queue {
            Queue::Send => endpoint.sent(port, now, connection, id),
            _ => endpoint.received(port, now, connection, weir_msg::Slot(id as u32), len as usize),
        });
        self.dial(sim, rank);
    }

    fn perform(&mut self, sim: &mut Simulation, rank: usize, op: Op) {
        let process = &mut self.ranks[rank];
        match op {
            Op::Isend { to, tag, buffer, len, req } => {
                let buffer = process.ports.memory.buffer(buffer, len);
                process.begin(req);
                self.send(sim, rank, to, tag.into(), buffer, req.into());
            }
            Op::Irecv { from, tag, buffer, len, req } => {
                let buffer = process.ports.memory.buffer(buffer, len);
                process.begin(req);
                self.receive(sim, rank, from, tag.into(), buffer, req.into());
            }
            Op::Wait(req) => process.state = State::Waits(Some(req)),
            Op::WaitAll => process.state = State::Waits(None),
            Op::Compute(time) => self.compute(sim, rank, time),
            Op::Lock(to) => {
                process.locks.granted = false;
                process.state = State::WaitsForLock;
                self.receive(sim, rank, to, GRANT, Buffer::default(), GRANTED);
                self.send(sim, rank, to, LOCK, Buffer::default(), INTERNAL);
            }
            Op::Unlock(to) => {
                if process.all_open > 0 {
                    process.state = State::Waits(None);
                    process.at -= 1;
                } else {
                    self.send(sim, rank, to, UNLOCK, Buffer::default(), INTERNAL);
                }
            }
            Op::Put { to, buffer, at, len } => self.access(sim, rank, to, (buffer, at, len), true),
            Op::Get { from, buffer, at, len } => self.access(sim, rank, from, (buffer, at, len), false),
            Op::Mark => {
                let now = process.ports.clock.max(sim.now());
                process.marks.push(now);
                if rank == 0 && process.marks.len() == 2 {
                    self.warm = Some(self.sums(sim));
                }
            }
        }
    }

    fn send(&mut self, sim: &mut Simulation, rank: usize, to: usize, tag: u64, buffer: Buffer, context: u64) {
        let process = &mut self.ranks[rank];
        let envelope = Envelope { tag: Some(tag), data: None };
        let call = SendCall { to: process.peer(to), envelope, buffer, matched: false, context, report: true };
        process.call(sim, |endpoint, port, now| endpoint.send(port, now, &call));
        self.dial(sim, rank);
    }

    fn receive(&mut self, sim: &mut Simulation, rank: usize, from: usize, tag: u64, buffer: Buffer, context: u64) {
        let process = &mut self.ranks[rank];
        let pattern = Pattern { tag, ignore: 0, from: Some(process.peer(from)) };
        let call = ReceiveCall { tagged: true, pattern, buffer, multi: None, context, report: true };
        process.call(sim, |endpoint, port, now| endpoint.receive(port, now, &call));
        self.dial(sim, rank);
    }

    fn access(&mut self, sim: &mut Simulation, rank: usize, to: usize, what: (usize, u64, u64), write: bool) {
        let (buffer, at, len) = what;
        let target = &self.ranks[to];
        let Some(window) = target.script.window else { return };
        let (addr, rkey) = (target.ports.memory.range(window).0 + at, target.ports.memory.region.key);
        let process = &mut self.ranks[rank];
        process.begin(RMA);
        let local = process.ports.memory.buffer(buffer, len);
        let (to, remote) = (process.peer(to), Remote { addr, len, rkey });
        let call = RmaCall { to, write, local, remote, immediate: None, context: RMA.into(), report: true };
        process.call(sim, |endpoint, port, now| endpoint.rma(port, now, &call));
        self.dial(sim, rank);
    }

    fn compute(&mut self, sim: &mut Simulation, rank: usize, time: Duration) {
        let process = &mut self.ranks[rank];
        let begins = process.ports.clock.max(sim.now());
        process.state = State::Computes;
        process.ports.clock = begins + time;
        sim.set_timer(process.ports.clock, token(rank, port::WAKES));
        if self.pressure > 0.0 {
            for taken in process.ports.memory.pressure(&mut self.chance, time, self.pressure) {
                sim.set_timer(begins + taken.after, token(rank, port::PAGES_GO));
                self.going[rank].push_back(taken);
            }
        }
    }

    /// Takes what the endpoint tells the program.
    fn take_events(&mut self, sim: &mut Simulation, rank: usize) {
        while let Some(event) = self.ranks[rank].endpoint.take_event() {
            self.happened(sim, rank, &event);
        }
    }

    fn happened(&mut self, sim: &mut Simulation, rank: usize, event: &Event) {
        let process = &mut self.ranks[rank];
        process.failed |= event.result.is_err();
        match event.context {
            req @ 0..256 if event.kind != Kind::WrittenByPeer => process.end(req as u8),
            GRANTED => process.locks.granted = true,
            context if context & ASKED == ASKED => self.window_asked(sim, rank, event),
            _ => {}
        }
    }

    /// A process asks for the window of this one, or gives it back.
    fn window_asked(&mut self, sim: &mut Simulation, rank: usize, event: &Event) {
        let process = &mut self.ranks[rank];
        let Some(from) = event.from.map(|from| rank_of(&process.endpoint.name_of(from))) else { return };
        let tag = event.tag.unwrap_or_default();
        if tag == LOCK {
            process.locks.waiting.push_back(from);
        } else {
            process.locks.holder = None;
        }
        let next = if process.locks.holder.is_none() { process.locks.waiting.pop_front() } else { None };
        self.ask_again(sim, rank, tag);
        if let Some(next) = next {
            self.ranks[rank].locks.holder = Some(next);
            self.send(sim, rank, next, GRANT, Buffer::default(), INTERNAL);
        }
    }

    /// Connections are established at once, because they are not what is measured.
    fn dial(&mut self, sim: &mut Simulation, rank: usize) {
        while let Some(Dial { connection, to, far, hello }) = self.ranks[rank].ports.dials.pop() {
            let peer = rank_of(&to);
            let near = self.ranks[rank].ports.qps[connection.0 as usize];
            let there = self.ranks[peer].ports.add(far);
            self.by_qp.insert(near, (rank, connection));
            self.by_qp.insert(far, (peer, there));
            let depth = Depth { requests: costs::DEPTH, inline: costs::INLINE };
            let verdict =
                self.ranks[peer].quietly(sim, |endpoint, port, _| endpoint.incoming(port, there, Some(&hello)));
            let accepted = self.ranks[peer].ports.accepted.take();
            if verdict != Verdict::Accepted || accepted.is_none() {
                self.ranks[rank].failed = true;
                continue;
            }
            self.ranks[peer].quietly(sim, |endpoint, port, now| endpoint.established(port, now, there, None, depth));
            self.ranks[rank].call(sim, |endpoint, port, now| {
                endpoint.established(port, now, connection, accepted.as_ref(), depth);
            });
            self.ready.push_back(peer);
        }
    }
}

/// Bounce buffers are provided for so many connections of a process.
const MOST_PEERS: u32 = 32;

impl Rank {
    fn begin(&mut self, req: u8) {
        self.open[usize::from(req)] += 1;
        self.all_open += 1;
    }

    fn end(&mut self, req: u8) {
        self.open[usize::from(req)] -= 1;
        self.all_open -= 1;
    }
}

impl App for World {
    fn completed(&mut self, sim: &mut Simulation, done: &Done) {
        let Some(&(rank, connection)) = self.by_qp.get(&done.qp) else { return };
        let arrived = Arrived { connection, queue: done.queue, completion: done.completion };
        self.ranks[rank].inbox.push_back(arrived);
        self.ready.push_back(rank);
        self.go_on(sim);
    }

    fn timer(&mut self, sim: &mut Simulation, token: u64) {
        let rank = (token >> 2) as usize;
        let process = &mut self.ranks[rank];
        match token & 3 {
            port::WAKES => {
                process.armed = false;
                if process.state == State::Computes {
                    process.state = State::Runs;
                }
                self.ready.push_back(rank);
                self.go_on(sim);
            }
            port::POSTS => process.ports.post_next(sim),
            port::PAGES_COME => process.ports.pages_come(sim),
            _ => {
                if let Some(taken) = self.going[rank].pop_front() {
                    process.ports.memory.take(sim, &taken.pages);
                }
            }
        }
    }
}
