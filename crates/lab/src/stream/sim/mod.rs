//! The stream in virtual time: two programs that need time for their work.
//!
//! | file | |
//! | --- | --- |
//! | `program` | a program's time: it works, polls, sleeps and is woken |
//! | `sides` | what the sender's and the receiver's program do with completions |

mod program;
mod sides;

use super::equations::signal_period;
use super::{Amount, Areas, Found, Job, Measure, SideFound, Signal};
use anyhow::{Context, Result, ensure};
use program::Program;
use sides::{Does, Receiver, Sender};
use std::sync::Arc;
use std::time::Duration;
use weir_sim::{App, Backing, Done, Link, Paging, QpSetup, Region, Simulation};
use weir_transport::{Profile, QpCaps};

/// The adapter of F.
pub const ADAPTER: &str = "connectx3-fdr";

/// Page-aligned areas begin at multiples of this.
const PAGE: u64 = 4096;
/// Bytes that a measurement has at least, and messages: enough for each throughput to settle.
const LEAST_BYTES: u64 = 32 << 20;
const LEAST_MESSAGES: u64 = 24;
/// Half of the cable between two hosts, and half of 0.2 µs for the switch (assumed: F's Mellanox SX6036 forwards a packet
/// before it has all of it). The simulator's switch stores a packet first, which adds to this.
const TO_SWITCH: Link = Link { latency: Duration::from_nanos(600), ..Link::FDR };
/// The NUMA node of the adapter.
const OWN_NODE: u32 = 0;

/// How the hosts are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    BackToBack,
    Switch,
}

/// Measures jobs in virtual time.
pub struct Simulated {
    profile: Arc<Profile>,
    route: Route,
}

impl Simulated {
    /// On hosts with this adapter.
    pub fn new(profile: Arc<Profile>, route: Route) -> Simulated {
        Simulated { profile, route }
    }
}

impl Measure for Simulated {
    fn measure(&mut self, job: &Job) -> Result<Found> {
        World::new(&self.profile, self.route, job)?.run()
    }
}

/// Both programs and their simulation.
struct World<'a> {
    job: &'a Job,
    sim: Simulation,
    programs: Programs,
}

/// The sender, and the receiver.
struct Programs([Program; 2]);

impl World<'_> {
    fn new<'a>(profile: &Arc<Profile>, route: Route, job: &'a Job) -> Result<World<'a>> {
        let costs = profile.host.with_context(|| format!("{} has no model of a host", profile.name))?;
        ensure!(job.sender.cpus.is_none() && job.receiver.cpus.is_none(), "simulated hosts have no list of CPUs");
        ensure!(!job.verify, "simulated messages have no contents");
        ensure!((1..=1 << 30).contains(&job.size) && job.outstanding > 0, "1 byte ..= 1 GiB, and a message at least");
        let mut sim = Simulation::new(1);
        let hosts = [(); 2].map(|()| sim.add_host(profile));
        match route {
            Route::BackToBack => sim.link(hosts[0], hosts[1], Link::FDR),
            Route::Switch => {
                let switch = sim.add_switch(u64::MAX);
                hosts.iter().for_each(|host| sim.link(*host, switch, TO_SWITCH));
            }
        }
        let areas = if job.areas == Areas::One { 1 } else { u64::from(job.outstanding) };
        let stride = (u64::from(job.offset) + job.size).next_multiple_of(PAGE);
        let regions = hosts.map(|host| sim.register(host, Backing::Phantom(areas * stride), Paging::Pinned));
        let depth = if job.depth == 0 { 2 * job.outstanding } else { job.depth };
        ensure!(depth > job.outstanding, "a send queue of {depth} is too short for {} messages", job.outstanding);
        let signal = match job.signal {
            Signal::Every(n) => n,
            Signal::Half => (job.outstanding / 2).max(1),
            Signal::Equation => signal_period(job.size, job.outstanding, depth),
        };
        ensure!((1..=depth).contains(&signal), "a signal every {signal} of {depth} work requests");
        let caps = QpCaps {
            max_send_wr: depth.max(sides::ACK_DEPTH as u32),
            max_recv_wr: job.outstanding + 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qps = sim.connect(hosts[0], hosts[1], &QpSetup { caps, ..QpSetup::default() });
        let places = [&job.sender, &job.receiver].map(|place| place.node.unwrap_or(OWN_NODE) != OWN_NODE);
        for (region, remote) in regions.iter().zip(places) {
            sim.set_remote(region, remote);
        }
        let at = |region: &Region| sides::Areas { first: region.addr + u64::from(job.offset), stride, number: areas };
        let messages = match job.amount {
            Amount::Bytes(bytes) => bytes.div_ceil(job.size),
            Amount::Time(_) => LEAST_BYTES.div_ceil(job.size).max(LEAST_MESSAGES).max(8 * u64::from(job.outstanding)),
        };
        let sender = Sender {
            from: at(&regions[0]),
            lkey: regions[0].key,
            to: at(&regions[1]),
            rkey: regions[1].key,
            size: job.size,
            outstanding: job.outstanding.into(),
            depth: depth.into(),
            signal: signal.into(),
            // Caches are warm, and all areas were used.
            warm: 3 * u64::from(job.outstanding),
            messages,
            ..Sender::default()
        };
        let receiver = Receiver {
            ack_every: (u64::from(job.outstanding) / 2).max(1),
            warm: sender.warm,
            messages,
            ..Receiver::default()
        };
        let new = |does: Does, side: usize, polls: bool| Program::new(does, qps[side], polls, places[side], &costs);
        let programs = Programs([
            new(Does::Send(sender), 0, job.polls.sender),
            new(Does::Receive(receiver), 1, job.polls.receiver),
        ]);
        Ok(World { job, sim, programs })
    }

    fn run(mut self) -> Result<Found> {
        let World { job, sim, programs } = &mut self;
        programs.0[1].receive_all(sim, job.outstanding + 1)?;
        programs.0[0].receive_all(sim, job.outstanding + 1)?;
        programs.start(sim);
        sim.run(programs);
        let [sender, receiver] = &programs.0;
        for program in [sender, receiver] {
            ensure!(program.failed().is_none(), "{}", program.failed().unwrap_or_default());
        }
        let Does::Send(sent) = &sender.does else { unreachable!("the sender is the first") };
        let (began, ended) = sent.measured.zip(sent.ended).with_context(|| format!("{job:?} did not end"))?;
        let seconds = (ended.0 - began.0) as f64 / 1e9;
        let bytes = sent.messages * job.size;
        let used = |program: &Program, polls: bool| {
            let cpu = if polls { seconds } else { program.used() };
            // A wake-up is the kernel's work; the simulated programs' own is not divided.
            SideFound { user: cpu, system: 0.0, sleeps: program.sleeps }
        };
        Ok(Found {
            messages: sent.messages,
            bytes,
            seconds,
            gbits: bytes as f64 * 8.0 / seconds / 1e9,
            acks: sent.acks,
            signal: sent.signal as u32,
            depth: sent.depth as u32,
            sender: used(sender, job.polls.sender),
            receiver: used(receiver, job.polls.receiver),
            checked: 0,
            wrong: 0,
        })
    }
}

impl Programs {
    fn start(&mut self, sim: &mut Simulation) {
        (0..2).for_each(|side| sim.set_timer(sim.now(), side));
    }
}

impl App for Programs {
    fn completed(&mut self, sim: &mut Simulation, done: &Done) {
        if let Some(side) = self.0.iter().position(|program| program.qp == done.qp) {
            self.0[side].completed(sim, done, side as u64);
        }
    }

    fn timer(&mut self, sim: &mut Simulation, side: u64) {
        self.0[side as usize].step(sim, side);
        if let Does::Send(sender) = &mut self.0[0].does
            && std::mem::take(&mut sender.just_measured)
        {
            self.0.iter_mut().for_each(Program::measured_from_now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(job: &Job) -> Result<Found> {
        Simulated::new(Arc::new(weir_profiles::load(ADAPTER)?), Route::BackToBack).measure(job)
    }

    #[test]
    fn messages_acknowledgements_and_signals_are_counted() {
        let job = Job { amount: Amount::Bytes(100 << 20), outstanding: 8, signal: Signal::Every(5), ..Job::default() };
        let found = measure(&job).unwrap();
        assert_eq!((found.messages, found.bytes, found.signal, found.depth), (100, 100 << 20, 5, 16));
        // Four messages for an acknowledgement.
        assert_eq!(found.acks, 25);
        assert!(found.sender.sleeps > 0 && found.receiver.sleeps > 0 && found.cpu() < found.seconds, "{found:?}");
        let polling = measure(&Job { polls: super::super::Sides::BOTH, ..job }).unwrap();
        assert_eq!((polling.sender.sleeps, polling.receiver.sleeps), (0, 0));
        assert_eq!(polling.cpu(), 2.0 * polling.seconds);
    }

    #[test]
    fn the_send_queue_limits_messages_that_are_not_retired() {
        // Every 64th of 65 is signalled: the queue is full before the first signal comes.
        let job = Job { size: 4096, outstanding: 64, depth: 65, signal: Signal::Every(64), ..Job::default() };
        let narrow = measure(&job).unwrap();
        let wide = measure(&Job { depth: 256, ..job }).unwrap();
        assert!(narrow.gbits < 0.9 * wide.gbits, "{} {}", narrow.gbits, wide.gbits);
    }

    #[test]
    fn what_cannot_be_simulated_is_an_error() {
        let wrong = [
            (Job { depth: 4, ..Job::default() }, "too short"),
            (Job { signal: Signal::Every(9), ..Job::default() }, "a signal every 9"),
            (Job { verify: true, ..Job::default() }, "no contents"),
            (Job { size: 0, ..Job::default() }, "1 byte"),
        ];
        for (job, text) in wrong {
            let error = measure(&job).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        let ideal = Arc::new(weir_profiles::load("ideal").unwrap());
        assert!(Simulated::new(ideal, Route::Switch).measure(&Job::default()).is_err());
    }
}
