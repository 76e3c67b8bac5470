//! Two hosts, four connections between them, and an application that posts random operations at random times and checks
//! each of them.

mod operation;

use operation::{Kind, Operation};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt::{self, Display, Formatter};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use weir_sim::{App, Backing, Disorder, Done, Link, Paging, QpId, QpSetup, Region, Simulation};
use weir_transport::{Data, Instant, OdpOps, QpCaps, Queue, RecvWr, SendFlags, SendWr, Status};
use weir_trials::Rng;

/// Parts of memory; an operation has one of each host for itself.
const SLOTS: usize = 64;
/// Bytes of a slot: three pages.
pub const SLOT: usize = 3 * 4096;
const CONNECTIONS: usize = 4;
/// Mean time between two operations of an end of a connection.
const GAP: Duration = Duration::from_millis(50);
/// No request stays open for longer: eight timeouts of half a second, and all page faults.
const PATIENCE: Duration = Duration::from_secs(60);
/// Mean time from one outage of the link to the next, and its mean length: a connection survives some of them.
const UP: Duration = Duration::from_secs(5);
const DOWN: Duration = Duration::from_millis(1500);
/// Tokens of timers: an end posts an operation, an end posts a receive, a connection is made anew.
const RECEIVE: u64 = 100;
const RECONNECT: u64 = 200;
/// The link goes down, or comes back.
const OUTAGE: u64 = 300;

/// What has happened.
#[derive(Clone, Debug)]
pub struct Tally {
    profile: String,
    link: Link,
    seed: u64,
    /// Operations that have succeeded.
    pub done: u64,
    /// Connections that have failed, and were made anew.
    pub failures: u64,
    outages: u64,
    page_faults: u64,
}

impl Display for Tally {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Tally { profile, link, seed, done, failures, outages, page_faults } = self;
        let (loss, disorder) = (link.loss, link.disorder);
        write!(f, "{profile}, loss {loss}, {disorder:?}, seed {seed}: {done} done, {failures} connections failed, ")?;
        write!(f, "{outages} outages, {page_faults} page faults")
    }
}

/// A simulation and its application.
pub struct World {
    sim: Simulation,
    work: Work,
}

struct Work {
    rng: Rng,
    setup: QpSetup,
    /// Of each host: slots of even numbers are in the first region, the others in the second.
    regions: [[Region; 2]; 2],
    /// The second region of each host has on-demand paging.
    has_odp: bool,
    /// What works in it.
    odp: OdpOps,
    free: Vec<usize>,
    ends: Vec<End>,
    /// The link is down.
    is_down: Rc<Cell<bool>>,
    number: u64,
    /// No operation begins any more.
    ends_now: bool,
    tally: Tally,
}

/// One end of a connection; ends 2n and 2n + 1 are peers.
struct End {
    qp: QpId,
    /// Posted, oldest first.
    open: VecDeque<Operation>,
    /// SENDs of the peer without a posted receive, and those with a receive that is not complete.
    wanted: VecDeque<Operation>,
    posted: VecDeque<Operation>,
}

impl World {
    /// A world with this profile, in which the seed decides everything else.
    pub fn new(profile: &str, seed: u64) -> World {
        let mut rng = Rng(seed);
        let profile = Arc::new(weir_profiles::load(profile).expect("it is embedded"));
        let mut sim = Simulation::new(rng.draw());
        let hosts = [(); 2].map(|()| sim.add_host(&profile));
        let pick = |rng: &mut Rng, values: [f64; 4]| values[rng.below(4)];
        let disorder = Disorder {
            late: pick(&mut rng, [0.0, 0.001, 0.01, 0.05]),
            by: Duration::from_micros(1 + rng.below(200) as u64),
            twice: pick(&mut rng, [0.0, 0.0, 0.001, 0.02]),
            damaged: pick(&mut rng, [0.0, 0.0, 0.001, 0.01]),
        };
        let link = Link { disorder, ..Link::FDR.lossy(pick(&mut rng, [0.0, 0.001, 0.01, 0.05])) };
        sim.link(hosts[0], hosts[1], link);
        let is_down = Rc::new(Cell::new(false));
        let paging = [Paging::Pinned, if profile.on_demand { Paging::OnDemand } else { Paging::Pinned }];
        let bytes = || Backing::Bytes(vec![0; SLOTS / 2 * SLOT]);
        let regions = hosts.map(|host| paging.map(|paging| sim.register(host, bytes(), paging)));
        let caps = QpCaps { max_send_wr: 256, max_recv_wr: 256, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let setup = QpSetup { caps, max_rd_atomic: 1 + rng.below(8) as u8, ..QpSetup::default() };
        let tally =
            Tally { profile: profile.name.clone(), link, seed, done: 0, failures: 0, outages: 0, page_faults: 0 };
        let mut work = Work {
            rng,
            setup,
            regions,
            has_odp: profile.on_demand,
            odp: if profile.on_demand { profile.device.odp.rc } else { OdpOps::all() },
            free: (0..SLOTS).collect(),
            ends: vec![],
            is_down: is_down.clone(),
            number: 0,
            ends_now: false,
            tally,
        };
        for connection in 0..CONNECTIONS {
            let qps = work.connect(&mut sim);
            work.ends.extend(qps.map(End::new));
            for end in [2 * connection, 2 * connection + 1] {
                work.set_timer(&mut sim, end as u64, GAP);
            }
        }
        work.set_timer(&mut sim, OUTAGE, UP);
        sim.lose_if(move |_| is_down.get());
        World { sim, work }
    }

    /// Goes on until so much time has passed since the beginning.
    pub fn run(&mut self, until: Duration) {
        self.sim.run_until(Instant(0) + until, &mut self.work);
    }

    /// Waits for the open operations.
    pub fn finish(mut self) -> Tally {
        self.work.ends_now = true;
        self.sim.run(&mut self.work);
        for end in &self.work.ends {
            assert!(
                end.open.iter().all(|operation| !operation.signaled),
                "{:?} is open: {}",
                end.open,
                self.work.tally
            );
            assert!(end.wanted.is_empty() && end.posted.is_empty(), "a receive is open: {}", self.work.tally);
        }
        let hosts = self.work.regions.map(|regions| regions[0].host);
        Tally { page_faults: hosts.map(|host| self.sim.page_faults(host)).iter().sum(), ..self.work.tally }
    }
}

impl End {
    fn new(qp: QpId) -> End {
        End { qp, open: VecDeque::new(), wanted: VecDeque::new(), posted: VecDeque::new() }
    }
}

impl Work {
    fn connect(&mut self, sim: &mut Simulation) -> [QpId; 2] {
        let psn = [(); 2].map(|()| self.rng.draw() as u32 & 0xff_ffff);
        let [a, b] = &self.regions;
        sim.connect(a[0].host, b[0].host, &QpSetup { psn, ..self.setup })
    }

    /// After a random time with this mean.
    fn set_timer(&mut self, sim: &mut Simulation, token: u64, mean: Duration) {
        let share = self.rng.below(2000) as f64 / 1000.0;
        sim.set_timer(sim.after(mean.mul_f64(share)), token);
    }

    /// The region of a slot on the side of an end, and where it begins.
    fn place(&self, end: usize, slot: usize) -> (Region, u64) {
        (self.regions[end % 2][slot % 2], (slot / 2 * SLOT) as u64)
    }

    fn bytes<'a>(&self, sim: &'a mut Simulation, end: usize, slot: usize) -> &'a mut [u8] {
        let (region, at) = self.place(end, slot);
        &mut sim.bytes_mut(&region)[at as usize..][..SLOT]
    }

    fn post(&mut self, sim: &mut Simulation, end: usize) {
        self.number += 1;
        let mut operation = Operation::random(&mut self.rng, self.number, sim.now());
        // Some adapters have no ODP for some operations.
        let fits = |slot: &usize| slot.is_multiple_of(2) || self.odp.contains(operation.odp());
        let Some(at) = self.free.iter().position(fits) else { return };
        let slot = self.free.swap_remove(at);
        operation.slot = slot;
        for (end, contents) in [(end, operation.before(false)), (end ^ 1, operation.before(true))] {
            self.bytes(sim, end, slot).copy_from_slice(&contents);
        }
        self.take_pages_away(sim);
        let ((near, at), (far, far_at)) = (self.place(end, slot), self.place(end ^ 1, slot));
        let op = operation.send_op(far.addr + far_at + operation.at, far.key);
        let data = [near.sge(at + operation.at, operation.len)];
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, operation.signaled);
        flags.set(SendFlags::FENCE, operation.fenced);
        let wr = SendWr { wr_id: operation.number, op, flags, data: Data::Gather(&data) };
        if sim.post_send(self.ends[end].qp, &wr).is_err() {
            // The QP has failed, and its connection will be made anew.
            self.free.push(slot);
            return;
        }
        if operation.kind == Kind::Send {
            self.ends[end ^ 1].wanted.push_back(operation.clone());
            // Sometimes the receiver is not ready.
            match self.rng.below(8) {
                0 => self.set_timer(sim, RECEIVE + (end ^ 1) as u64, Duration::from_millis(3)),
                _ => self.post_receive(sim, end ^ 1),
            }
        }
        self.ends[end].open.push_back(operation);
    }

    /// The oldest that is wanted.
    fn post_receive(&mut self, sim: &mut Simulation, end: usize) {
        let Some(operation) = self.ends[end].wanted.pop_front() else { return };
        let (region, at) = self.place(end, operation.slot);
        let wr = RecvWr { wr_id: operation.number, sges: &[region.sge(at + operation.at, operation.len)] };
        // An error: the QP has failed.
        if sim.post_recv(self.ends[end].qp, &wr).is_ok() {
            self.ends[end].posted.push_back(operation);
        }
    }

    /// Some pages of on-demand memory, whether in use or not.
    fn take_pages_away(&mut self, sim: &mut Simulation) {
        if self.has_odp && self.rng.below(3) == 0 {
            let region = self.regions[self.rng.below(2)][1];
            let from = self.rng.below(region.len as usize / 4096) as u64 * 4096;
            sim.set_present(&region, from..(from + 8192).min(region.len), false);
        }
    }

    fn check(&mut self, sim: &mut Simulation, end: usize, operation: &Operation) {
        let tally = &self.tally;
        let far = self.bytes(sim, end ^ 1, operation.slot) == operation.after(true);
        assert!(far, "remote bytes of {operation:?}: {tally}");
        assert!(
            self.bytes(sim, end, operation.slot) == operation.after(false),
            "local bytes of {operation:?}: {tally}"
        );
        self.tally.done += 1;
        self.free.push(operation.slot);
    }

    fn sent(&mut self, sim: &mut Simulation, end: usize, number: u64) {
        loop {
            let oldest = self.ends[end].open.pop_front();
            let operation = oldest.unwrap_or_else(|| panic!("{number} is not open: {}", self.tally));
            // Those without a completion of their own are complete with the next that has one.
            assert!(operation.number == number || !operation.signaled, "{operation:?}, not {number}: {}", self.tally);
            self.check(sim, end, &operation);
            if operation.number == number {
                return;
            }
        }
    }

    /// The requests of both ends are given up.
    fn reconnect(&mut self, sim: &mut Simulation, connection: usize) {
        let qps = self.connect(sim);
        for (end, qp) in [2 * connection, 2 * connection + 1].into_iter().zip(qps) {
            let old = std::mem::replace(&mut self.ends[end], End::new(qp));
            sim.destroy(old.qp);
            self.free.extend(old.open.iter().map(|operation| operation.slot));
        }
        self.tally.failures += 1;
    }
}

impl Work {
    /// The link goes down, or comes back.
    fn switch_link(&mut self, sim: &mut Simulation) {
        let goes_down = !self.is_down.get() && !self.ends_now;
        self.is_down.set(goes_down);
        self.tally.outages += u64::from(goes_down);
        if !self.ends_now {
            self.set_timer(sim, OUTAGE, if goes_down { DOWN } else { UP });
        }
    }
}

impl App for Work {
    fn completed(&mut self, sim: &mut Simulation, done: &Done) {
        let Some(end) = self.ends.iter().position(|end| end.qp == done.qp) else { return };
        let (number, status) = (done.completion.wr_id, done.completion.status);
        match (done.queue, status) {
            (Queue::Send, Status::Success) => self.sent(sim, end, number),
            (Queue::Receive, Status::Success) => {
                let operation = self.ends[end].posted.pop_front().expect("a receive is posted");
                let right = operation.number == number && done.completion.byte_len == operation.len;
                assert!(right, "{operation:?}, not {:?}: {}", done.completion, self.tally);
                let bytes = self.bytes(sim, end, operation.slot) == operation.after(true);
                assert!(bytes, "received bytes of {operation:?}: {}", self.tally);
            }
            (Queue::Send, Status::RetryExceeded) => {
                let link = self.tally.link;
                let is_lossy = link.loss + link.disorder.damaged > 0.0 || self.tally.outages > 0;
                assert!(is_lossy, "without loss nothing fails: {}", self.tally);
                sim.set_timer(sim.after(Duration::from_millis(1)), RECONNECT + end as u64 / 2);
            }
            (_, Status::WrFlushed) => {}
            _ => panic!("{number}: {status:?}: {}", self.tally),
        }
    }

    fn timer(&mut self, sim: &mut Simulation, token: u64) {
        match token {
            OUTAGE.. => return self.switch_link(sim),
            RECONNECT.. => return self.reconnect(sim, (token - RECONNECT) as usize),
            RECEIVE.. => return self.post_receive(sim, (token - RECEIVE) as usize),
            _ => {}
        }
        let end = token as usize;
        if let Some(oldest) = self.ends[end].open.front() {
            let age = sim.now() - oldest.posted;
            assert!(age < PATIENCE, "{oldest:?} is open for {age:?}: {}", self.tally);
        }
        if !self.ends_now {
            self.post(sim, end);
            self.set_timer(sim, token, GAP);
        }
    }
}
