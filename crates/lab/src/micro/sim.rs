//! The micro-benchmark on the simulator: two hosts with an adapter of the profile each, and a link of InfiniBand FDR.
//!
//! It does the same as `weir-micro`, with these differences: a post takes 0.2 µs of the client's time, and sleeping
//! takes exactly the requested time. Memory has no contents. A run ends after at most ten minutes of virtual time; its
//! ladder has the first 100,000 packets.

mod log;

use self::log::{Log, Posts};
use super::{Micro, Operation, Outcome, Runner, Sides, Workaround};
use crate::guarded::{Guarded, Post};
use anyhow::{Context, Result, ensure};
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use weir_sim::{App, Backing, Done, Link, Paging, QpId, QpSetup, Region, Simulation};
use weir_transport::{DeviceAttributes, Instant, Mtu, Profile, QpCaps, Queue, RecvWr, SendOp, Status};

/// Runs in virtual time: a run takes only the time of simulating its packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Simulated;

impl Runner for Simulated {
    fn run(&mut self, micro: &Micro, profile: &str, seed: u64) -> Result<Outcome> {
        let mut rig = Rig::of(micro, profile, seed, Link::FDR)?;
        rig.run();
        Ok(rig.outcome())
    }
}

impl Simulated {
    /// Runs it on a link that loses packets with this probability.
    pub fn run_lossy(&mut self, micro: &Micro, profile: &str, seed: u64, loss: f64) -> Result<Outcome> {
        let mut rig = Rig::of(micro, profile, seed, Link::FDR.lossy(loss))?;
        rig.run();
        Ok(rig.outcome())
    }

    /// Runs it, and writes the packets of both sides to `client.pcapng` and `server.pcapng` in a folder.
    pub fn run_captured(&mut self, micro: &Micro, profile: &str, seed: u64, folder: &Path) -> Result<Outcome> {
        let mut rig = Rig::of(micro, profile, seed, Link::FDR)?;
        rig.capture(folder)?;
        rig.run();
        rig.sim.finish_captures().with_context(|| folder.display().to_string())?;
        Ok(rig.outcome())
    }
}

/// How much later than asked `usleep` returns: 50 µs of timer slack, Linux's default, and the way to the processor.
const LATE: Duration = Duration::from_micros(60);
/// Least time between the beginnings of two posts: a few hundred instructions and a doorbell. This is an assumption; it
/// decides whether an operation is posted before the response to the previous one arrives.
const POST: Duration = Duration::from_nanos(200);
/// Work requests of each QP in the papers' benchmark.
const DEPTH: u32 = 8192;
/// Limit of a run, in virtual time.
const LIMIT: Duration = Duration::from_secs(600);

/// Tokens of timers.
const NEXT: u64 = 0;
const WORKAROUND: u64 = 1;
/// Flags in a wr_id, beside the operation's number.
const DUMMY: u64 = 1 << 40;
const AGAIN: u64 = 1 << 41;

/// Both hosts and the benchmark's own state.
struct Rig {
    sim: Simulation,
    client: Client,
    log: Rc<RefCell<Log>>,
}

/// The client process.
struct Client {
    micro: Micro,
    /// The QPs of the operations, then the separate QP of [`Workaround::Again`].
    qps: Vec<QpId>,
    local: Region,
    remote: Region,
    outstanding: Vec<u32>,
    /// Maximum of outstanding work requests on each QP.
    depth: u32,
    /// Number of operations posted.
    posted: u32,
    /// The send queue of the next operation's QP is full.
    blocked: bool,
    /// For each operation: time of its last post; time of its completion, and whether it was successful.
    issued: Vec<Instant>,
    ended: Vec<Option<(Instant, bool)>>,
    open: u32,
    last: Instant,
    status: Option<Status>,
    posts: Rc<RefCell<Log>>,
    guarded: Guarded,
}

impl Rig {
    fn of(micro: &Micro, profile: &str, seed: u64, link: Link) -> Result<Rig> {
        micro.check()?;
        ensure!(micro.invalidate == 0, "the simulator has no operating system that takes pages: invalidate live only");
        let mut profile = weir_profiles::load(profile).with_context(|| format!("profile {profile}"))?;
        profile.seed = profile.seed.wrapping_add(seed);
        let Sides { client, server } = micro.odp;
        ensure!(
            profile.on_demand || !(client || server),
            "{} has no on-demand paging; choose another profile, or no side with ODP",
            profile.name
        );
        Ok(Rig::new(micro, profile, seed, link))
    }

    fn capture(&mut self, folder: &Path) -> Result<()> {
        for (host, name) in [(self.client.local.host, "client.pcapng"), (self.client.remote.host, "server.pcapng")] {
            let path = folder.join(name);
            self.sim.capture(host, &path).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    fn new(micro: &Micro, profile: Profile, seed: u64, link: Link) -> Rig {
        let mut sim = Simulation::new(seed);
        let profile = Arc::new(profile);
        let [client, server] = [(); 2].map(|()| sim.add_host(&profile));
        sim.link(client, server, link);
        let mut guarded = Guarded::new(micro.guards);
        let mut region = |host, on_demand| {
            let paging = if on_demand { Paging::OnDemand } else { Paging::Pinned };
            let region = guarded.register(&mut sim, host, Backing::Phantom(micro.bytes()), paging);
            let first = u64::from(micro.size).next_multiple_of(4096);
            if micro.present {
                sim.set_present(&region, 0..region.len, true);
            } else if micro.touched && first < region.len {
                sim.set_present(&region, first..region.len, true);
            }
            region
        };
        let (local, remote) = (region(client, micro.odp.client), region(server, micro.odp.server));

        let again = matches!(micro.workaround, Some(Workaround::Again { .. }));
        let extra = if micro.workaround.is_some() { DEPTH } else { 0 };
        let depth = (micro.num_ops.div_ceil(micro.num_qps) + extra).min(DEPTH);
        let receives = (0..micro.num_ops).any(|i| micro.kind(i) == Operation::Send);
        // Both ends of a simulated connection have the same value.
        let DeviceAttributes { max_qp_rd_atom, max_qp_init_rd_atom, .. } = profile.device;
        let setup = QpSetup {
            mtu: Mtu::M4096,
            caps: QpCaps {
                max_send_wr: depth,
                max_recv_wr: if receives { depth } else { 0 },
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            timeout: micro.ack_timeout,
            retry_cnt: micro.retry_cnt,
            rnr_retry: 7,
            min_rnr_timer: micro.rnr_timer,
            max_rd_atomic: micro.max_rd_atomic.clamp(1, max_qp_rd_atom.min(max_qp_init_rd_atom)),
            psn: [0, 0],
        };
        let log = Rc::new(RefCell::new(Log::new(client)));
        let mut qps = Vec::new();
        for n in 0..micro.num_qps + u32::from(again) {
            let (near, far) = if micro.wrong_peer {
                (guarded.connect_without_peer(&mut sim, client, server, &setup), 0)
            } else {
                let [near, far] = guarded.connect(&mut sim, client, server, &setup);
                if receives {
                    post_receives(&mut sim, micro, n, far, &remote, depth);
                }
                (near, far.num)
            };
            log.borrow_mut().qps.push(Posts::new([near.num, far]));
            qps.push(near);
        }
        let watched = log.clone();
        sim.observe(move |seen| watched.borrow_mut().take(seen));
        let client = Client {
            outstanding: vec![0; qps.len()],
            qps,
            local,
            remote,
            depth,
            posted: 0,
            blocked: false,
            issued: vec![Instant(0); micro.num_ops as usize],
            ended: vec![None; micro.num_ops as usize],
            open: micro.num_ops,
            last: Instant(0),
            status: None,
            posts: log.clone(),
            guarded,
            micro: micro.clone(),
        };
        Rig { sim, client, log }
    }

    fn run(&mut self) {
        let Rig { sim, client, .. } = self;
        sim.set_timer(Instant(0), NEXT);
        if let Some(interval) = client.tick() {
            sim.set_timer(sim.after(interval), WORKAROUND);
        }
        while client.open > 0 && sim.now() < Instant(0) + LIMIT && sim.run_events(1, client) {}
    }

    fn outcome(self) -> Outcome {
        let Rig { sim, client, log } = self;
        let log = log.borrow();
        let since = |at: Instant| at - Instant(0);
        let retransmissions = client.qps.iter().filter_map(|&qp| sim.qp(qp)).map(|qp| qp.retransmissions());
        let failed = client.status.map(|status| words(status).to_owned());
        Outcome {
            time: since(client.last),
            completions: client.ended.iter().map(|end| end.filter(|end| end.1).map(|end| since(end.0))).collect(),
            status: failed.or((client.open > 0).then(|| "not done in time".to_owned())),
            packets: log.packets,
            timeouts: retransmissions.map(|retransmissions| u64::from(retransmissions.ack_timeouts)).sum(),
            steps: log.steps(),
            wakeup: None,
            cpu: None,
            paging: None,
        }
    }
}

/// Posts the server's receives on a QP: those of its operations in order, then some for workarounds.
fn post_receives(sim: &mut Simulation, micro: &Micro, n: u32, qp: QpId, region: &Region, depth: u32) {
    let own = (n..micro.num_ops).step_by(micro.num_qps as usize).filter(|_| n < micro.num_qps);
    let own = own.filter(|&i| micro.kind(i) == Operation::Send).map(|i| micro.offset(i));
    let spare = if micro.workaround.is_some() { 1024 } else { 0 };
    for offset in own.chain(std::iter::repeat_n(0, spare)).take(depth as usize) {
        let wr = RecvWr { wr_id: 0, sges: &[region.sge(offset, micro.size)] };
        sim.post_recv(qp, &wr).expect("a receive queue of that depth");
    }
}

impl App for Client {
    fn timer(&mut self, sim: &mut Simulation, token: u64) {
        if self.guarded.timer(sim, token) {
            return self.go_on(sim);
        }
        match token {
            NEXT => self.post_next(sim),
            _ => {
                match self.micro.workaround {
                    Some(Workaround::Dummy { .. }) => self.post_dummies(sim),
                    Some(Workaround::Again { after }) => self.post_again(sim, after),
                    None => {}
                }
                if let Some(interval) = self.tick() {
                    sim.set_timer(sim.after(interval), WORKAROUND);
                }
            }
        }
    }

    fn completed(&mut self, sim: &mut Simulation, done: &Done) {
        self.guarded.completed(sim, done);
        self.go_on(sim);
    }
}

impl Client {
    /// After the guards: takes completions, and tells the log what was posted.
    fn go_on(&mut self, sim: &mut Simulation) {
        while let Some(done) = self.guarded.take(sim.now()) {
            self.polled(sim, &done);
        }
        self.log_posts();
    }

    fn log_posts(&mut self) {
        for posted in self.guarded.take_posted() {
            let qp = self.qps.iter().position(|qp| *qp == posted.qp).unwrap_or_default();
            let operation = posted.wr_id.filter(|wr_id| wr_id & DUMMY == 0).map(|wr_id| wr_id as u32);
            self.posts.borrow_mut().qps[qp].post(posted.bytes, operation);
        }
    }

    fn polled(&mut self, sim: &mut Simulation, done: &Done) {
        if done.queue == Queue::Receive {
            return;
        }
        let (wr_id, status) = (done.completion.wr_id, done.completion.status);
        let operation = wr_id as u32;
        let qp = self.qps.iter().position(|qp| *qp == done.qp).unwrap_or_default();
        self.outstanding[qp] -= 1;
        if status != Status::Success {
            self.status.get_or_insert(status);
        }
        let good = status == Status::Success;
        let counts = wr_id & DUMMY == 0 && (good || wr_id & AGAIN == 0);
        if counts && self.ended[operation as usize].is_none() {
            self.ended[operation as usize] = Some((sim.now(), good));
            self.open -= 1;
            self.last = sim.now();
            if self.micro.in_turn && self.posted < self.micro.num_ops {
                sim.set_timer(sim.after(self.micro.interval.max(POST)), NEXT);
            }
        }
        if std::mem::take(&mut self.blocked) {
            self.post_next(sim);
        }
    }

    fn post_next(&mut self, sim: &mut Simulation) {
        let busy = self.guarded.busy_until(self.local.host);
        if busy > sim.now() {
            return sim.set_timer(busy + POST, NEXT);
        }
        let operation = self.posted;
        let qp = self.micro.qp(operation);
        if self.outstanding[qp as usize] == self.depth {
            self.blocked = true;
            return;
        }
        self.posted += 1;
        self.issued[operation as usize] = sim.now();
        let size = self.micro.size;
        self.post(sim, qp, u64::from(operation), operation, size);
        if self.posted < self.micro.num_ops && !self.micro.in_turn {
            let late = if self.micro.interval.is_zero() { Duration::ZERO } else { LATE };
            sim.set_timer(sim.after((self.micro.interval + late).max(POST)), NEXT);
        }
    }

    /// Posts a dummy to each QP with outstanding operations: a byte, with the kind and address of its first operation.
    fn post_dummies(&mut self, sim: &mut Simulation) {
        for qp in 0..self.micro.num_qps.min(self.posted) {
            if (1..self.depth).contains(&self.outstanding[qp as usize]) {
                self.post(sim, qp, DUMMY | u64::from(qp), qp, 1);
            }
        }
    }

    /// Posts operations again that have been open for `after`.
    fn post_again(&mut self, sim: &mut Simulation, after: Duration) {
        let aside = self.micro.num_qps;
        for operation in 0..self.posted {
            let at = operation as usize;
            let late = self.ended[at].is_none() && sim.now() - self.issued[at] >= after;
            if late && self.outstanding[aside as usize] < self.depth {
                self.issued[at] = sim.now();
                let size = self.micro.size;
                self.post(sim, aside, AGAIN | u64::from(operation), operation, size);
            }
        }
    }

    /// The period of the workaround's timer.
    fn tick(&self) -> Option<Duration> {
        match self.micro.workaround? {
            Workaround::Dummy { every } => Some(every),
            Workaround::Again { after } => Some(after / 4),
        }
    }

    fn post(&mut self, sim: &mut Simulation, qp: u32, wr_id: u64, operation: u32, size: u32) {
        let (at, far) = (self.micro.offset(operation), &self.remote);
        let op = match self.micro.kind(operation) {
            Operation::Read => SendOp::Read { remote_addr: far.addr + at, rkey: far.key },
            Operation::Write => SendOp::Write { remote_addr: far.addr + at, rkey: far.key },
            Operation::Send => SendOp::Send,
        };
        let post = Post { wr_id, op, signaled: true, sge: self.local.sge(at, size) };
        self.guarded.post(sim, self.qps[qp as usize], post);
        self.log_posts();
        self.outstanding[qp as usize] += 1;
    }
}

/// The text of ibv_wc_status_str.
fn words(status: Status) -> &'static str {
    match status {
        Status::Success => "success",
        Status::LocalLength => "local length error",
        Status::LocalQpOperation => "local QP operation error",
        Status::LocalEecOperation => "local EE context operation error",
        Status::LocalProtection => "local protection error",
        Status::WrFlushed => "Work Request Flushed Error",
        Status::MwBind => "memory management operation error",
        Status::BadResponse => "bad response error",
        Status::LocalAccess => "local access error",
        Status::RemoteInvalidRequest => "remote invalid request error",
        Status::RemoteAccess => "remote access error",
        Status::RemoteOperation => "remote operation error",
        Status::RetryExceeded => "transport retry counter exceeded",
        Status::RnrRetryExceeded => "RNR retry counter exceeded",
        Status::TagError => "TM error",
        Status::RendezvousIncomplete => "TM software rendezvous",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::ladder::{self, CaptureContext};
    use crate::micro::{Packets, Step};

    /// Live runs get their packets from captures only. This test reads captures of simulated runs in the same way.
    #[test]
    fn captures_have_the_packets_of_the_run() {
        let odp = Sides { client: true, server: true };
        let interval = Duration::from_millis(1);
        let runs = [
            ("ideal", Micro { num_ops: 64, num_qps: 8, odp, ..Micro::default() }),
            ("connectx4", Micro { num_ops: 3, interval, odp, ..Micro::default() }),
            ("connectx4", Micro { num_ops: 64, num_qps: 8, odp, ack_timeout: 18, ..Micro::default() }),
            (
                "connectx4",
                Micro { operation: Operation::Write, num_ops: 2, interval, odp, size: 9000, ..Micro::default() },
            ),
            ("connectx4", Micro { operation: Operation::Send, num_ops: 20, num_qps: 2, odp, ..Micro::default() }),
            ("connectx5", Micro { wrong_peer: true, ..Micro::default() }),
        ];
        let folder = tempfile::tempdir().expect("a folder");
        for (profile, micro) in runs {
            let mut rig = Rig::of(&micro, profile, 1, Link::FDR).expect("it can run");
            rig.capture(folder.path()).expect("two files");
            rig.run();
            rig.sim.finish_captures().expect("room on the disk");
            // A peer that does not exist has this number in the captures.
            let far = |far| if micro.wrong_peer { 0xff_fffe } else { far };
            let qps = rig.log.borrow().qps.iter().map(|qp| [qp.numbers[0], far(qp.numbers[1])]).collect();
            let address = rig.client.remote.addr;
            let context = CaptureContext { micro: &micro, qps, mtu: 4096, address, start: Some(0) };
            let paths = ["client.pcapng", "server.pcapng"].map(|name| folder.path().join(name));
            let read = ladder::read(&[&paths[0], &paths[1]], &context).expect("captures");
            let outcome = rig.outcome();
            // A capture does not tell which of the requests behind a lost one were lost, too.
            let same = |a: &Step, b: &Step| {
                (a.time, &a.what, a.operation, a.from_client) == (b.time, &b.what, b.operation, b.from_client)
            };
            assert_eq!(read.steps.len(), outcome.steps.len(), "{profile}, {micro:?}");
            for (read, seen) in read.steps.iter().zip(&outcome.steps) {
                assert!(same(read, seen) && (seen.lost || !read.lost), "{profile}, {micro:?}: {read:?}, {seen:?}");
            }
            let lost = |steps: &[Step]| steps.iter().any(|step| step.lost);
            assert_eq!(lost(&read.steps), lost(&outcome.steps), "{profile}, {micro:?}");
            assert_eq!(read.timeouts, outcome.timeouts, "{profile}, {micro:?}");
            let (read, seen) = (read.packets, outcome.packets);
            assert_eq!(Packets { lost: 0, ..read }, Packets { lost: 0, ..seen }, "{profile}, {micro:?}");
        }
    }
}
