//! Guards over a simulation: what `weir run --guard` does in a program, in virtual time.
//!
//! A program registers memory, connects and posts through [`Guarded`], and passes each completion and timer to it. It
//! takes its own completions from there. Times that are not the adapter's are assumptions: [`LATE`], [`CALL`], [`MODIFY`].

mod bounce;
mod process;

pub use process::Post;

use process::{Bounced, Process, Work};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use weir_guard::{Action, Completed, Connection, Flushed, Guards, Kind, Remote, Request, SPARE, rnr_timer};
use weir_sim::{Backing, Done, HostId, Paging, QpId, QpSetup, Region, Simulation};
use weir_transport::{Data, Instant, PostError, Queue, RecvWr, SendFlags, SendOp, SendWr, Sge, Status};

/// How much later than it should the guards' thread wakes: timer slack, and the way to the processor.
pub const LATE: Duration = Duration::from_micros(60);
/// A system call that finds all pages present.
pub const CALL: Duration = Duration::from_micros(1);
/// A change of a QP's state: a command to the adapter.
pub const MODIFY: Duration = Duration::from_micros(100);
/// Changes from RTS back to RTS: to ERROR, RESET, INIT, RTR, RTS.
const CHANGES: u32 = 5;

/// What the guards have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acts {
    /// Dummies posted.
    pub dummies: u64,
    /// QPs started again.
    pub starts: u64,
    /// Calls that asked for pages.
    pub prefetches: u64,
    /// Completions that the program did not see.
    pub hidden: u64,
}

/// A request that took new PSNs: the program's, or a dummy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    pub qp: QpId,
    pub wr_id: Option<u64>,
    pub bytes: u32,
}

/// The guards of all processes of a simulation.
#[derive(Debug)]
pub struct Guarded {
    guards: Guards,
    qps: Vec<GuardedQp>,
    by_id: BTreeMap<QpId, usize>,
    processes: BTreeMap<HostId, Process>,
    acts: Acts,
    posted: Vec<Posted>,
    /// Number of requests with a `wr_id` of the guards so far.
    ids: u64,
}

#[derive(Debug)]
struct GuardedQp {
    id: QpId,
    connection: Connection<Work>,
    phase: Phase,
    /// Requests of the program that wait until the QP has started again.
    waiting: VecDeque<Post>,
    /// When the guards look at it next.
    armed: Option<Instant>,
    /// The PSN of the first request of the peer.
    rq_psn: u32,
    /// A receive was posted.
    receives: bool,
    /// Pinned memory of the current start: its block, and the offset of what is free there.
    block: Option<(u64, u64)>,
    /// A dummy has failed with this status: the program's next request gets it, and must not be the first that is flushed.
    failed: Option<Status>,
}

/// Where a QP is on its way through a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Runs,
    /// It is in ERROR.
    Flushes,
    /// It goes through RESET back to RTS.
    Starts,
}

/// Bits of the tokens of timers; the program's tokens have none of them.
const OWN: u64 = 1 << 63;
const START: u64 = 1 << 62;
const PROCESS: u64 = 1 << 61;
/// Where the `wr_id` of tracked requests and dummies begin. A program may give many requests the same.
const IDS: u64 = 0x5745_4952_0000_0000;

/// The program's side.
impl Guarded {
    /// Guards without processes.
    pub fn new(guards: Guards) -> Guarded {
        let (qps, by_id, processes, posted) = (vec![], BTreeMap::new(), BTreeMap::new(), vec![]);
        Guarded { guards, qps, by_id, processes, acts: Acts::default(), posted, ids: 0 }
    }

    /// What the guards have done so far.
    pub fn acts(&self) -> Acts {
        self.acts
    }

    /// Registers memory of a process.
    pub fn register(&mut self, sim: &mut Simulation, host: HostId, backing: Backing, paging: Paging) -> Region {
        let region = sim.register(host, backing, paging);
        self.processes.entry(host).or_default().regions.push((region, paging));
        region
    }

    /// Connects two QPs. The memory of their processes is registered.
    pub fn connect(&mut self, sim: &mut Simulation, a: HostId, b: HostId, setup: &QpSetup) -> [QpId; 2] {
        let ends = sim.connect(a, b, &self.deeper(setup));
        for (end, id) in ends.into_iter().enumerate() {
            self.add(sim, id, setup, end);
        }
        ends
    }

    /// A QP without a peer, as [`Simulation::connect_without_peer`] makes it.
    pub fn connect_without_peer(&mut self, sim: &mut Simulation, a: HostId, b: HostId, setup: &QpSetup) -> QpId {
        let id = sim.connect_without_peer(a, b, &self.deeper(setup));
        self.add(sim, id, setup, 0);
        id
    }

    /// Posts a send work request of the program.
    ///
    /// # Panics
    /// If the program posts more than its send queue holds, or to a QP that was not connected here.
    pub fn post(&mut self, sim: &mut Simulation, qp: QpId, post: Post) {
        let at = self.by_id[&qp];
        self.process(at).posts.push_back((at, post));
        self.post_all(sim, qp.host);
    }

    /// Posts a receive work request of the program.
    pub fn post_recv(&mut self, sim: &mut Simulation, qp: QpId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.qps[self.by_id[&qp]].receives = true;
        sim.post_recv(qp, wr)
    }

    /// A completion of the simulation.
    pub fn completed(&mut self, sim: &mut Simulation, done: &Done) {
        let at = self.by_id[&done.qp];
        if done.queue == Queue::Receive || !self.guards.watches_requests() {
            self.process(at).done.push_back(*done);
            return;
        }
        match self.qps[at].phase {
            Phase::Runs => self.ended(sim, at, done),
            _ => self.flushed(sim, at, done),
        }
    }

    /// A timer of the simulation. False: it is the program's.
    pub fn timer(&mut self, sim: &mut Simulation, token: u64) -> bool {
        let at = (token & 0xffff_ffff) as usize;
        match token & !0xffff_ffff {
            own if own & OWN == 0 => return false,
            own if own & PROCESS != 0 => self.post_all(sim, HostId(at as u32)),
            own if own & START != 0 => self.start(sim, at),
            _ if self.qps[at].armed == Some(sim.now()) => {
                self.qps[at].armed = None;
                self.act(sim, at);
            }
            _ => {}
        }
        true
    }

    /// The next completion that a program polls at this time.
    pub fn take(&mut self, now: Instant) -> Option<Done> {
        self.processes.values_mut().filter(|process| process.busy_until <= now).find_map(|p| p.done.pop_front())
    }

    /// Until when a process's thread waits for pages; it posts nothing until then.
    pub fn busy_until(&self, host: HostId) -> Instant {
        self.processes.get(&host).map_or(Instant(0), |process| process.busy_until)
    }

    /// The requests that took new PSNs since the last call, in order for each QP.
    pub fn take_posted(&mut self) -> Vec<Posted> {
        std::mem::take(&mut self.posted)
    }
}

impl Guarded {
    fn deeper(&self, setup: &QpSetup) -> QpSetup {
        let mut deeper = *setup;
        deeper.caps.max_send_wr += if self.guards.watches_requests() { SPARE } else { 0 };
        deeper
    }

    fn add(&mut self, sim: &mut Simulation, id: QpId, setup: &QpSetup, end: usize) {
        let mut connection = Connection::new(self.guards);
        connection.connect(setup.mtu.bytes() as u32, setup.psn[end]);
        self.by_id.insert(id, self.qps.len());
        self.qps.push(GuardedQp {
            id,
            connection,
            phase: Phase::Runs,
            waiting: VecDeque::new(),
            armed: None,
            rq_psn: setup.psn[1 - end] & 0xff_ffff,
            receives: false,
            block: None,
            failed: None,
        });
        let process = self.processes.entry(id.host).or_default();
        if self.guards.rnr
            && process.pages_on_demand()
            && let Some(code) = rnr_timer(setup.min_rnr_timer, setup.rnr_retry)
        {
            sim.set_min_rnr_timer(id, code);
        }
    }

    fn next_id(&mut self) -> u64 {
        self.ids += 1;
        IDS + self.ids
    }

    fn process(&mut self, at: usize) -> &mut Process {
        self.processes.entry(self.qps[at].id.host).or_default()
    }

    /// The program's thread posts until it has to wait for a page.
    fn post_all(&mut self, sim: &mut Simulation, host: HostId) {
        loop {
            let process = self.processes.entry(host).or_default();
            let Some(&(at, post)) = process.posts.front().filter(|_| process.busy_until <= sim.now()) else { return };
            if self.guards.prefetch
                && !process.prefetched
                && let Some(region) = process.on_demand(&post.sge).copied()
                && let Sge { addr, length, lkey } = post.sge
                && let end = region.addr + region.len
                && let Some(wanted) = process.pages.enter_around(lkey, addr, length.into(), region.addr..end)
            {
                let bytes = wanted.start.saturating_sub(region.addr)..wanted.end.saturating_sub(region.addr);
                process.busy_until = sim.prefetch(&region, bytes) + CALL;
                process.prefetched = true;
                self.acts.prefetches += 1;
                sim.set_timer(process.busy_until, OWN | PROCESS | u64::from(host.0));
                return;
            }
            process.prefetched = false;
            process.posts.pop_front();
            let qp = &mut self.qps[at];
            if qp.phase != Phase::Runs {
                qp.waiting.push_back(post);
            } else {
                self.post_now(sim, at, post);
                self.arm(sim, at);
            }
        }
    }

    fn post_now(&mut self, sim: &mut Simulation, at: usize, post: Post) {
        let (id, mut wr_id) = (self.qps[at].id, post.wr_id);
        if self.guards.watches_requests() {
            let (kind, remote) = described(&post.op);
            let bytes = u64::from(post.sge.length);
            let on_demand = kind == Kind::Read && self.process(at).on_demand(&post.sge).is_some();
            if self.qps[at].connection.tracks(kind) {
                wr_id = self.next_id();
                let signaled = post.signaled;
                let work = Work { post, bounced: None };
                let repeatable = true;
                self.qps[at]
                    .connection
                    .post(sim.now().0, Request { wr_id, kind, bytes, remote, signaled, on_demand, repeatable, work });
            } else {
                self.qps[at].connection.pass(kind, bytes, post.signaled);
            }
        }
        self.posted.push(Posted { qp: id, wr_id: Some(post.wr_id), bytes: post.sge.length });
        // A QP in the error state accepts it too, and flushes it.
        send(sim, id, &Post { wr_id, ..post }, post.sge).expect("a program posts no more than its send queue holds");
    }

    /// A completion of a QP that is not about to start again.
    fn ended(&mut self, sim: &mut Simulation, at: usize, done: &Done) {
        let (mut done, wr_id) = (*done, done.completion.wr_id);
        let flushed = done.completion.status == Status::WrFlushed;
        let success = done.completion.status == Status::Success;
        let mut over = vec![];
        let connection = &mut self.qps[at].connection;
        let completed = match connection.passed(success) {
            true => Completed::Unknown,
            false => connection.completed(sim.now().0, wr_id, success, |work, good| over.push((*work, good))),
        };
        if let Some((work, _)) = over.last().filter(|_| completed == Completed::Theirs) {
            done.completion.wr_id = work.post.wr_id;
        }
        let blame = &mut self.qps[at].failed;
        match completed {
            Completed::Dummy if !success && !flushed => *blame = Some(done.completion.status),
            Completed::Dummy => {}
            _ if flushed => done.completion.status = blame.take().unwrap_or(done.completion.status),
            _ => {}
        }
        self.acts.hidden += u64::from(completed == Completed::Dummy);
        let process = self.process(at);
        over.iter().for_each(|(work, good)| process.finish(sim, work, *good));
        if completed != Completed::Dummy {
            process.done.push_back(done);
        }
        self.go_on(sim, at);
    }

    /// A completion of a QP that is about to start again.
    fn flushed(&mut self, sim: &mut Simulation, at: usize, done: &Done) {
        let qp = &mut self.qps[at];
        match qp.connection.flushed(done.completion.wr_id) {
            Flushed::Kept => self.acts.hidden += 1,
            Flushed::Unknown => self.process(at).done.push_back(*done),
        }
        let qp = &mut self.qps[at];
        if qp.phase == Phase::Flushes && qp.connection.is_quiet() {
            qp.phase = Phase::Starts;
            sim.set_timer(sim.after(MODIFY * CHANGES), OWN | START | at as u64);
        }
    }

    /// What a guard does now.
    fn act(&mut self, sim: &mut Simulation, at: usize) {
        while self.qps[at].phase == Phase::Runs
            && let Some(action) = self.qps[at].connection.poll(sim.now().0)
        {
            // Pages that were present may be missing.
            self.process(at).pages.forget();
            match action {
                Action::Dummy { kind, remote, signaled } => self.post_dummy(sim, at, (kind, remote), signaled),
                Action::StartAgain => {
                    if !self.begin_start(sim, at) {
                        self.qps[at].connection.cannot_start_again();
                    }
                }
            }
        }
        self.go_on(sim, at);
    }

    fn post_dummy(&mut self, sim: &mut Simulation, at: usize, (kind, remote): (Kind, Remote), signaled: bool) {
        let Remote { addr: remote_addr, rkey } = remote;
        let op = match kind {
            Kind::Write => SendOp::Write { remote_addr, rkey },
            _ => SendOp::Read { remote_addr, rkey },
        };
        let wr_id = self.next_id();
        let post = Post { wr_id, op, signaled, sge: Sge::default() };
        let request = Request {
            wr_id,
            kind,
            bytes: 0,
            remote,
            signaled,
            on_demand: false,
            repeatable: true,
            work: Work { post, bounced: None },
        };
        let GuardedQp { id, connection, .. } = &mut self.qps[at];
        connection.posted_dummy(sim.now().0, request);
        match send(sim, *id, &post, post.sge) {
            Ok(()) => {
                self.acts.dummies += 1;
                self.posted.push(Posted { qp: *id, wr_id: None, bytes: 0 });
            }
            Err(_) => connection.refused(kind, 0, signaled),
        }
    }

    /// Takes a QP to ERROR, if it can start again and there is pinned memory for its READs.
    fn begin_start(&mut self, sim: &mut Simulation, at: usize) -> bool {
        let GuardedQp { id, ref connection, rq_psn, receives, .. } = self.qps[at];
        let untouched = sim.qp(id).is_some_and(|qp| qp.attr().rq_psn.get() == rq_psn);
        if receives || !untouched || !connection.may_start_again(sim.now().0) {
            return false;
        }
        let bytes = connection.into_pinned().map(|request| request.bytes).sum();
        let Some(block) = self.process(at).bounce(sim).and_then(|bounce| bounce.take(bytes)) else { return false };
        let qp = &mut self.qps[at];
        (qp.phase, qp.block) = (Phase::Flushes, Some((block, block)));
        sim.fail(id);
        true
    }

    /// The QP is back in RTS.
    fn start(&mut self, sim: &mut Simulation, at: usize) {
        let mut over = vec![];
        let psn = self.qps[at].connection.resume(|work| over.push(*work));
        let process = self.process(at);
        over.iter().for_each(|work| process.finish(sim, work, true));
        sim.start_again(self.qps[at].id, psn);
        self.qps[at].phase = Phase::Runs;
        self.acts.starts += 1;
        self.post_again(sim, at);
        self.go_on(sim, at);
    }

    /// Posts the open requests again.
    fn post_again(&mut self, sim: &mut Simulation, at: usize) {
        let GuardedQp { id, ref mut connection, ref mut block, .. } = self.qps[at];
        let process = self.processes.entry(id.host).or_default();
        for request in connection.again(sim.now().0) {
            let Work { post, bounced } = &mut request.work;
            if request.on_demand
                && bounced.is_none()
                && let (Some((block, free)), Some(bounce)) = (block.as_mut(), &mut process.bounce)
            {
                *bounced = Some(Bounced { block: *block, offset: *free });
                *free += request.bytes;
                bounce.hold(*block);
            }
            let sge = match (*bounced, &process.bounce) {
                (Some(bounced), Some(bounce)) => bounce.region.sge(bounced.offset, post.sge.length),
                _ => post.sge,
            };
            send(sim, id, &Post { wr_id: request.wr_id, ..*post }, sge).expect("the send queue has held them before");
        }
        if let (Some((block, _)), Some(bounce)) = (block.take(), &mut process.bounce) {
            bounce.release(block);
        }
    }

    /// After a completion or an act: posts what waits for it, and sets the timer.
    fn go_on(&mut self, sim: &mut Simulation, at: usize) {
        if self.qps[at].phase == Phase::Runs {
            while let Some(post) = self.qps[at].waiting.pop_front() {
                self.post_now(sim, at, post);
            }
            self.arm(sim, at);
        }
    }

    fn arm(&mut self, sim: &mut Simulation, at: usize) {
        let qp = &mut self.qps[at];
        let Some(next) = qp.connection.next().filter(|_| self.guards.watches_requests()) else { return };
        let wake = Instant(next).max(sim.now()) + LATE;
        // A timer that is too early looks again.
        if qp.armed.is_none_or(|armed| wake < armed) {
            qp.armed = Some(wake);
            sim.set_timer(wake, OWN | at as u64);
        }
    }
}

fn described(op: &SendOp) -> (Kind, Remote) {
    match *op {
        SendOp::Read { remote_addr: addr, rkey } => (Kind::Read, Remote { addr, rkey }),
        SendOp::Write { remote_addr: addr, rkey } => (Kind::Write, Remote { addr, rkey }),
        _ => (Kind::Send, Remote::default()),
    }
}

fn send(sim: &mut Simulation, qp: QpId, post: &Post, sge: Sge) -> Result<(), PostError> {
    let flags = if post.signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
    sim.post_send(qp, &SendWr { wr_id: post.wr_id, op: post.op, flags, data: Data::Gather(&[sge]) })
}
