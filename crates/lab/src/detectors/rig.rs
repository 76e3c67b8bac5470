//! Runs a scenario on the simulator: hosts, connections, and what posts their operations.

use super::draw::Draw;
use super::log::{Failed, HalfEnds, Log};
use super::scenario::{Ending, Operation, Scenario};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::Arc;
use weir_sim::{App, Backing, Done, HostId, Link, Paging, QpId, QpSetup, Region, Simulation};
use weir_transport::{Data, Instant, QpCaps, Queue, RecvWr, SendFlags, SendOp, SendWr, Status};

/// What a run leaves: the captures of client and server as pcapng, and what the simulator did.
pub struct Recording {
    pub captures: [Vec<u8>; 2],
    pub log: Log,
}

/// Client and server are the first hosts.
pub const SIDES: [HostId; 2] = [HostId(0), HostId(1)];

/// A run ends after so much virtual time, ns, or events: floods and wrong peers take long.
const LIMIT: u64 = 60_000_000_000;
const EVENTS: u64 = 400_000;
/// Bytes of a capture.
const BYTES: usize = 48 << 20;
/// Bytes of a load host's WRITE, and of a witness's message.
const LOAD: u32 = 16_384;
const WITNESS: u32 = 64;

/// The requests of one end of a connection.
struct Stream {
    qp: QpId,
    local: Region,
    remote: Region,
    ops: Vec<Op>,
    depth: u32,
    posted: usize,
    open: u32,
    /// It counts for the end of the run.
    awaited: bool,
}

#[derive(Clone, Copy)]
struct Op {
    operation: Operation,
    offset: u64,
    size: u32,
    wrong_key: bool,
}

struct Driver<'a> {
    scenario: &'a Scenario,
    streams: Vec<Stream>,
    /// QPs that receive, with the regions of their receives, and the SENDs that still need one.
    receivers: Vec<(QpId, Region, VecDeque<Op>)>,
    log: Rc<RefCell<Log>>,
    /// Operations that are neither completed nor failed.
    open: usize,
    done: usize,
    stop_at: Option<usize>,
    ended: bool,
}

/// Timers: what, and of which stream.
const POST: u64 = 0;
const RECEIVE: u64 = 1 << 32;
const WITNESS_POST: u64 = 2 << 32;

/// Bytes in memory that a capture and its reader share.
#[derive(Clone, Default)]
struct Shared(Rc<RefCell<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a scenario.
pub fn run(scenario: &Scenario) -> anyhow::Result<Recording> {
    let mut profile = weir_profiles::load(scenario.profile)?;
    profile.seed = scenario.seed;
    if let Some(time) = scenario.slow_pages {
        (profile.page_faults.resolve.low, profile.page_faults.resolve.high) = (time, time.mul_f64(1.4));
    }
    let profile = Arc::new(profile);
    let mut sim = Simulation::new(scenario.seed);
    let network = &scenario.network;
    let switch = sim.add_switch(network.buffer);
    if let Some(bytes) = network.mark_above {
        sim.mark_above(switch, bytes);
    }
    let link = Link { latency: network.latency, ..Link::ethernet(network.gbit) };
    let faulty = Link { loss: network.loss, disorder: network.disorder, ..link };
    let hosts: Vec<HostId> = (0..3 + network.load.0).map(|_| sim.add_host(&profile)).collect();
    for host in &hosts {
        sim.link(*host, switch, if *host == SIDES[0] { faulty } else { link });
    }
    let captures = [Shared::default(), Shared::default()];
    for (host, shared) in SIDES.into_iter().zip(&captures) {
        sim.capture_to(host, shared.clone());
    }
    let log = Rc::new(RefCell::new(Log::default()));
    let mut driver = Driver {
        scenario,
        streams: vec![],
        receivers: vec![],
        log: log.clone(),
        open: 0,
        done: 0,
        stop_at: None,
        ended: false,
    };
    driver.set_up(&mut sim, &hosts);
    watch(&mut sim, &log);
    if let Some((length, between)) = network.burst {
        lose_bursts(&mut sim, scenario.seed, length, between);
    }
    driver.begin(&mut sim);
    let full = || captures.iter().any(|shared| shared.0.borrow().len() > BYTES);
    while driver.open > 0 && sim.now().0 < LIMIT && sim.events() < EVENTS && !full() {
        if !sim.run_events(1, &mut driver) {
            break;
        }
    }
    sim.run_until(sim.after(scenario.tail), &mut driver);
    driver.ended = true;
    sim.finish_captures()?;
    drop((sim, driver));
    let log = Rc::try_unwrap(log).map(RefCell::into_inner).unwrap_or_default();
    Ok(Recording { captures: captures.map(|shared| shared.0.take()), log })
}

fn watch(sim: &mut Simulation, log: &Rc<RefCell<Log>>) {
    let packets = log.clone();
    sim.observe(move |seen| packets.borrow_mut().packet(seen));
    let incidents = log.clone();
    sim.observe_adapters(move |at, incident| incidents.borrow_mut().incident(at, incident));
}

/// The client's link loses some packets in a row, now and then.
fn lose_bursts(sim: &mut Simulation, seed: u64, length: u64, between: u64) {
    let mut draw = Draw::new(seed ^ 0xb5);
    let (mut left, mut until) = (0, draw.between(1, 2 * between));
    sim.lose_if(move |seen| {
        if seen.from.host != SIDES[0] && seen.to != SIDES[0] {
            return false;
        }
        if left == 0 && until == 0 {
            (left, until) = (draw.between(1, 2 * length), draw.between(1, 2 * between));
        }
        if left > 0 {
            left -= 1;
            return true;
        }
        until -= 1;
        false
    });
}

/// Set-up.
impl Driver<'_> {
    fn set_up(&mut self, sim: &mut Simulation, hosts: &[HostId]) {
        let scenario = self.scenario;
        let mut draw = Draw::new(scenario.seed ^ 0xd1);
        let ways = if scenario.two_way { 2 } else { 1 };
        let plans: Vec<Vec<Vec<Op>>> = (0..ways).map(|_| plan(scenario, &mut draw)).collect();
        let bytes = |plan: &Vec<Vec<Op>>| {
            let ends = plan.iter().flatten().map(|op| op.offset + u64::from(op.size));
            ends.max().unwrap_or(1).next_multiple_of(4096)
        };
        let size = plans.iter().map(bytes).max().unwrap_or(4096);
        let mut region = |sim: &mut Simulation, side: usize| {
            let paging = if scenario.odp[side] { Paging::OnDemand } else { Paging::Pinned };
            let region = sim.register(SIDES[side], Backing::Phantom(size), paging);
            if scenario.odp[side] {
                for page in 0..size / 4096 {
                    let present = draw.chance(scenario.touched);
                    sim.set_present(&region, page * 4096..(page + 1) * 4096, present);
                }
            }
            region
        };
        let regions: Vec<[Region; 2]> = (0..ways).map(|_| [region(sim, 0), region(sim, 1)]).collect();
        let mut draw = Draw::new(scenario.seed ^ 0xd2);
        for qp in 0..scenario.qps as usize {
            let setup = self.attributes(&mut draw);
            let ends = if scenario.end == Ending::WrongPeer {
                [sim.connect_without_peer(SIDES[0], SIDES[1], &setup), QpId { host: SIDES[1], num: 0xff_fffe }]
            } else {
                sim.connect(SIDES[0], SIDES[1], &setup)
            };
            for (way, plan) in plans.iter().enumerate() {
                let (from, to) = (ends[way], ends[1 - way]);
                let [local, remote] = [regions[way][way], regions[way][1 - way]];
                let ops = plan[qp].clone();
                let sends: VecDeque<Op> = ops.iter().filter(|op| op.operation == Operation::Send).copied().collect();
                if !sends.is_empty() && scenario.end != Ending::WrongPeer {
                    self.receivers.push((to, remote, sends));
                }
                self.add(from, to, local, remote, ops, scenario.depth, true);
            }
        }
        self.set_up_others(sim, hosts, &mut draw);
    }

    /// Hosts with load, and the witnesses of client and server.
    fn set_up_others(&mut self, sim: &mut Simulation, hosts: &[HostId], draw: &mut Draw) {
        let op = |size| Op { operation: Operation::Write, offset: 0, size, wrong_key: false };
        let pair = |sim: &mut Simulation, from, to, size: u32| {
            [from, to].map(|host| sim.register(host, Backing::Phantom(size.into()), Paging::Pinned))
        };
        for host in &hosts[3..] {
            let [local, remote] = pair(sim, *host, SIDES[1], LOAD);
            let [from, to] = sim.connect(*host, SIDES[1], &self.attributes(draw));
            let ops = vec![op(LOAD); self.scenario.network.load.1 as usize];
            self.add(from, to, local, remote, ops, 16, true);
        }
        for side in SIDES.into_iter().filter(|_| self.scenario.witness.is_some()) {
            let [local, remote] = pair(sim, side, hosts[2], WITNESS);
            let [from, to] = sim.connect(side, hosts[2], &self.attributes(draw));
            self.add(from, to, local, remote, vec![op(WITNESS); 1 << 14], 1, false);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of a stream")]
    fn add(&mut self, qp: QpId, to: QpId, local: Region, remote: Region, ops: Vec<Op>, depth: u32, awaited: bool) {
        let buffers = ops.iter().map(|op| (local.addr + op.offset, op.size)).collect();
        let ends = HalfEnds { requester: qp, responder: to, mtu: self.scenario.mtu.bytes() as u32 };
        self.log.borrow_mut().half(ends, depth, buffers);
        self.open += if awaited { ops.len() } else { 0 };
        self.streams.push(Stream { qp, local, remote, ops, depth, posted: 0, open: 0, awaited });
    }

    fn attributes(&self, draw: &mut Draw) -> QpSetup {
        let scenario = self.scenario;
        let mut psn = || scenario.psn.unwrap_or((draw.bits() & 0xff_ffff) as u32);
        QpSetup {
            mtu: scenario.mtu,
            caps: QpCaps { max_send_wr: 256, max_recv_wr: 4096, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
            timeout: scenario.ack_timeout,
            retry_cnt: scenario.retry_cnt,
            rnr_retry: scenario.rnr_retry,
            min_rnr_timer: scenario.rnr_timer,
            max_rd_atomic: scenario.max_rd_atomic,
            psn: [psn(), psn()],
        }
    }
}

/// The operations of each QP. The first operations of all QPs are next to each other in memory, then the second, …
fn plan(scenario: &Scenario, draw: &mut Draw) -> Vec<Vec<Op>> {
    let mut plan = vec![vec![]; scenario.qps as usize];
    let mut offset = 0u64;
    let wrong = draw.between(0, u64::from(scenario.ops) - 1) as u32;
    for n in 0..scenario.ops {
        for (qp, ops) in plan.iter_mut().enumerate() {
            let operation = draw.one_of(scenario.mix);
            let [least, most] = scenario.sizes.map(u64::from);
            let atomic = operation == Operation::FetchAdd;
            let size = if atomic { 8 } else { draw.log(least, most) as u32 };
            let align = if scenario.apart {
                4096
            } else if atomic {
                8
            } else {
                1
            };
            offset = offset.next_multiple_of(align);
            let wrong_key = scenario.end == Ending::WrongKey && qp == 0 && n == wrong && operation != Operation::Send;
            ops.push(Op { operation, offset, size, wrong_key });
            offset += u64::from(size);
        }
    }
    plan
}

/// Running.
impl Driver<'_> {
    fn begin(&mut self, sim: &mut Simulation) {
        let scenario = self.scenario;
        if let Ending::PeerStops(share) = scenario.end {
            self.stop_at = Some((self.open as f64 * share) as usize);
        }
        match scenario.receive_every {
            None => {
                for (qp, region, sends) in std::mem::take(&mut self.receivers) {
                    sends.iter().for_each(|op| receive(sim, qp, &region, op));
                }
            }
            Some(every) => {
                (0..self.receivers.len()).for_each(|at| sim.set_timer(sim.after(every), RECEIVE | at as u64));
            }
        }
        for at in 0..self.streams.len() {
            let kind = if self.streams[at].awaited { POST } else { WITNESS_POST };
            // QPs of a program do not begin at the same moment: a post takes some 200 ns.
            sim.set_timer(Instant(200 * (at as u64 + 1)), kind | at as u64);
        }
        self.stop_if_due(sim);
    }

    fn post(&mut self, sim: &mut Simulation, at: usize) {
        let stream = &mut self.streams[at];
        let Some(op) = stream.ops.get(stream.posted).copied().filter(|_| stream.open < stream.depth) else { return };
        let (remote_addr, rkey) = (stream.remote.addr + op.offset, stream.remote.key);
        let rkey = if op.wrong_key { rkey ^ 0x5500_0000 } else { rkey };
        let send = match op.operation {
            Operation::Read => SendOp::Read { remote_addr, rkey },
            Operation::Write => SendOp::Write { remote_addr, rkey },
            Operation::Send => SendOp::Send,
            Operation::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
        };
        let data = [stream.local.sge(op.offset, op.size)];
        let wr_id = (at as u64) << 32 | stream.posted as u64;
        let wr = SendWr { wr_id, op: send, flags: SendFlags::SIGNALED, data: Data::Gather(&data) };
        // A QP in the error state accepts it too, and flushes it. One that has vanished does not.
        match sim.post_send(stream.qp, &wr) {
            Ok(()) => (stream.posted, stream.open) = (stream.posted + 1, stream.open + 1),
            Err(_) => stream.posted = stream.ops.len(),
        }
    }

    /// Posts what may be posted now, or the next one and a timer if posts have an interval.
    fn go_on(&mut self, sim: &mut Simulation, at: usize) {
        let gap = self.scenario.gap;
        if !gap.is_zero() && self.streams[at].awaited {
            self.post(sim, at);
            if self.streams[at].posted < self.streams[at].ops.len() {
                sim.set_timer(sim.after(gap), POST | at as u64);
            }
            return;
        }
        let stream = &self.streams[at];
        let room = (stream.depth - stream.open).min((stream.ops.len() - stream.posted) as u32);
        (0..room).for_each(|_| self.post(sim, at));
    }

    /// The server's QPs vanish, if it is time.
    fn stop_if_due(&mut self, sim: &mut Simulation) {
        if self.stop_at.is_some_and(|count| self.done >= count) {
            self.stop_at = None;
            self.log.borrow_mut().stopped = Some(sim.now().0);
            let ends: Vec<QpId> = self.log.borrow().ends_on(SIDES[1]);
            ends.into_iter().for_each(|qp| sim.destroy(qp));
            // What the server itself asked for will not complete.
            for stream in self.streams.iter_mut().filter(|stream| stream.awaited && stream.qp.host == SIDES[1]) {
                self.open -= stream.ops.len() - (stream.posted - stream.open as usize);
                stream.awaited = false;
                stream.posted = stream.ops.len();
            }
        }
    }
}

fn receive(sim: &mut Simulation, qp: QpId, region: &Region, op: &Op) {
    let wr = RecvWr { wr_id: u64::MAX, sges: &[region.sge(op.offset, op.size)] };
    // A QP that has failed or vanished takes none.
    let _ = sim.post_recv(qp, &wr);
}

impl App for Driver<'_> {
    fn timer(&mut self, sim: &mut Simulation, token: u64) {
        let at = token as u32 as usize;
        match token & !0xffff_ffff {
            RECEIVE => {
                let (qp, region, sends) = &mut self.receivers[at];
                if let (Some(op), Some(every)) = (sends.pop_front(), self.scenario.receive_every) {
                    receive(sim, *qp, region, &op);
                    sim.set_timer(sim.after(every), token);
                }
            }
            WITNESS_POST => {
                self.post(sim, at);
                if let (false, Some(every)) = (self.ended, self.scenario.witness) {
                    sim.set_timer(sim.after(every), token);
                }
            }
            _ => self.go_on(sim, at),
        }
    }

    fn completed(&mut self, sim: &mut Simulation, done: &Done) {
        if done.queue == Queue::Receive {
            return;
        }
        let at = (done.completion.wr_id >> 32) as usize;
        let stream = &mut self.streams[at];
        stream.open -= 1;
        let awaited = stream.awaited;
        match done.completion.status {
            Status::Success => self.log.borrow_mut().completed(at, done.completion.wr_id as u32, sim.now()),
            Status::RetryExceeded => self.log.borrow_mut().failed(at, Failed::Retries, sim.now()),
            Status::RnrRetryExceeded => self.log.borrow_mut().failed(at, Failed::RnrRetries, sim.now()),
            Status::WrFlushed => {}
            _ => self.log.borrow_mut().failed(at, Failed::Refused, sim.now()),
        }
        if !awaited {
            return;
        }
        (self.open, self.done) = (self.open - 1, self.done + 1);
        self.stop_if_due(sim);
        if self.scenario.gap.is_zero() {
            self.go_on(sim, at);
        }
    }
}
