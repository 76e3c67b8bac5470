//! Shared by the tests of guards: a program of READs, WRITEs and SENDs that checks its completions and its bytes.
#![allow(dead_code, reason = "each test uses a part")]

use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use weir_lab::guarded::{Acts, Guarded, Post};
use weir_lab::micro::Guards;
use weir_sim::{App, Backing, Disorder, Done, Link, Paging, QpId, QpSetup, Region, Simulation};
use weir_transport::{Instant, Mtu, QpCaps, Queue, RecvWr, SendOp, Status};

const PAGE: u64 = 4096;
/// What memory has before the run, and what the program writes over memory after a completion.
const BEFORE: u8 = 0xee;
const MARK: u8 = 0x55;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Read,
    Write,
    Send,
}

#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub kind: Kind,
    pub qp: usize,
    pub len: u32,
    pub signaled: bool,
    /// Its memory begins at a page of its own.
    pub aligned: bool,
    /// Time after the post before it, µs.
    pub after: u64,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub guards: &'static str,
    pub profile: String,
    /// Client, server.
    pub odp: [bool; 2],
    pub qps: usize,
    pub works: Vec<Work>,
    pub loss: f64,
    pub disorder: f64,
    /// Times at which pages leave memory, µs, and which.
    pub leaves: Vec<(u64, u64)>,
    pub rd_atomic: u8,
    pub timeout: u8,
    pub rnr_timer: u8,
    pub psn: [u32; 2],
    pub mtu: Mtu,
    /// Several requests have the same `wr_id`.
    pub same_ids: bool,
    pub seed: u64,
    /// The peer vanishes after this time, µs.
    pub gone: Option<u64>,
    pub retry_cnt: u8,
}

pub const GUARDS: [&str; 8] = ["none", "rnr", "dummy", "reissue", "prefetch", "rnr,dummy", "dummy,reissue", "auto"];

fn works(most: usize) -> impl Strategy<Value = Vec<Work>> {
    let kind = prop_oneof![3 => Just(Kind::Read), 1 => Just(Kind::Write), 1 => Just(Kind::Send)];
    let len = prop_oneof![1 => Just(0u32), 4 => 1u32..300, 2 => 300u32..5000, 1 => 5000u32..20_000];
    let after = prop_oneof![3 => Just(0u64), 2 => 0u64..300, 2 => 300u64..5000];
    let work = (kind, 0usize..8, len, prop::bool::weighted(0.7), prop::bool::weighted(0.2), after)
        .prop_map(|(kind, qp, len, signaled, aligned, after)| Work { kind, qp, len, signaled, aligned, after });
    prop::collection::vec(work, 1..most)
}

pub fn cases() -> impl Strategy<Value = Case> {
    let profiles: Vec<String> = weir_profiles::names().map(str::to_owned).collect();
    let settings = (prop::sample::select(&GUARDS[..]), prop::sample::select(profiles), any::<[bool; 2]>());
    let rate = |most: f64| prop_oneof![Just(0.0), 0.0..most];
    let network = (rate(0.02), rate(0.02), prop::collection::vec((0u64..20_000, 0u64..64), 0..6), any::<u64>());
    let mtu = prop::sample::select(vec![Mtu::M256, Mtu::M1024, Mtu::M4096]);
    let psn = any::<[u32; 2]>()
        .prop_map(|psn| psn.map(|psn| if psn % 2 == 0 { 0xff_ffff - psn % 20 } else { psn & 0xff_ffff }));
    let attr = (1u8..=4, prop_oneof![Just(1u8), 8u8..15], 8u8..16, psn, mtu, any::<bool>());
    (settings, works(40), 1usize..=8, network, attr).prop_map(|(settings, works, qps, network, attr)| {
        let ((guards, profile, odp), (loss, disorder, leaves, seed)) = (settings, network);
        let (rd_atomic, timeout, rnr_timer, psn, mtu, same_ids) = attr;
        let able = weir_profiles::load(&profile).expect("it is embedded").on_demand;
        let mut works: Vec<Work> = works.into_iter().map(|work| Work { qp: work.qp % qps, ..work }).collect();
        for qp in 0..qps {
            // A request without a completion has to be followed by one with it.
            if let Some(last) = works.iter_mut().rev().find(|work| work.qp == qp) {
                last.signaled = true;
            }
        }
        let odp = odp.map(|odp| odp && able);
        Case {
            guards,
            profile,
            odp,
            qps,
            works,
            loss,
            disorder,
            leaves,
            rd_atomic,
            timeout,
            rnr_timer,
            psn,
            mtu,
            same_ids,
            seed,
            gone: None,
            retry_cnt: 7,
        }
    })
}

/// What a run was about.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ran {
    pub acts: Acts,
    pub failed: bool,
}

struct Program {
    works: Vec<Work>,
    /// Offset of each work's memory in both regions.
    at: Vec<usize>,
    guarded: Guarded,
    ends: Vec<[QpId; 2]>,
    regions: [Region; 2],
    odp: [bool; 2],
    same_ids: bool,
    leaves: Vec<(u64, u64)>,
    gone: bool,
    posted: usize,
    /// For each QP: the works that the program waits for, with unsignaled ones, and the SENDs that the peer waits for.
    open: Vec<Vec<usize>>,
    sends: Vec<Vec<usize>>,
    /// A QP has failed.
    failed: Vec<bool>,
    done: Vec<bool>,
    wrong: Option<String>,
}

const POST: u64 = 1;
const LEAVE: u64 = 2;
const GONE: u64 = 3;

/// The bytes of a work's data.
fn data(work: usize, len: u32) -> Vec<u8> {
    (0..len).map(|n| (work as u32 * 31 + n * 7 + n / 251) as u8 & 0x3f | 0x80).collect()
}

impl App for Program {
    fn timer(&mut self, sim: &mut Simulation, token: u64) {
        if !self.guarded.timer(sim, token) {
            match token & 0xf {
                POST => self.post(sim),
                LEAVE => self.leave(sim, (token >> 4) as usize),
                _ => {
                    self.gone = true;
                    self.ends.iter().for_each(|ends| sim.destroy(ends[1]));
                }
            }
        }
        self.take(sim);
    }

    fn completed(&mut self, sim: &mut Simulation, done: &Done) {
        self.guarded.completed(sim, done);
        self.take(sim);
    }
}

impl Program {
    fn id(&self, work: usize) -> u64 {
        if self.same_ids { work as u64 % 3 } else { work as u64 }
    }

    fn post(&mut self, sim: &mut Simulation) {
        let n = self.posted;
        let Some(&work) = self.works.get(n) else { return };
        let [near, far] = self.regions;
        let at = self.at[n] as u64;
        let op = match work.kind {
            Kind::Read => SendOp::Read { remote_addr: far.addr + at, rkey: far.key },
            Kind::Write => SendOp::Write { remote_addr: far.addr + at, rkey: far.key },
            Kind::Send => SendOp::Send,
        };
        self.open[work.qp].push(n);
        self.posted += 1;
        let post = Post { wr_id: self.id(n), op, signaled: work.signaled, sge: near.sge(at, work.len) };
        self.guarded.post(sim, self.ends[work.qp][0], post);
        if let Some(next) = self.works.get(self.posted) {
            sim.set_timer(sim.after(Duration::from_micros(next.after)), POST);
        }
    }

    fn leave(&mut self, sim: &mut Simulation, which: usize) {
        let page = self.leaves[which].1 * PAGE;
        for (region, odp) in self.regions.into_iter().zip(self.odp) {
            if odp && page < region.len {
                sim.set_present(&region, page..(page + 4 * PAGE).min(region.len), false);
            }
        }
    }

    fn take(&mut self, sim: &mut Simulation) {
        while let Some(done) = self.guarded.take(sim.now()) {
            if let Err(wrong) = self.check(sim, &done) {
                self.wrong.get_or_insert(format!("{wrong}, at {:?}: {done:?}", sim.now()));
            }
        }
    }

    /// Checks a completion that the program sees.
    fn check(&mut self, sim: &mut Simulation, done: &Done) -> Result<(), String> {
        let qp = self.ends.iter().position(|ends| ends.contains(&done.qp)).ok_or("another QP")?;
        let (wr_id, status) = (done.completion.wr_id, done.completion.status);
        if done.queue == Queue::Receive {
            if status != Status::Success {
                return if self.gone { Ok(()) } else { Err("a receive has failed".into()) };
            }
            if self.sends[qp].is_empty() {
                return Err("a message that was not sent".into());
            }
            let work = self.sends[qp].remove(0);
            return self.holds(sim, 1, work, "the message");
        }
        let success = status == Status::Success;
        if success && self.failed[qp] {
            return Err("a success after an error".into());
        }
        // Of a failed QP, the requests without a completion complete too, unless they had succeeded before.
        let shows = |work: usize| self.works[work].signaled || !success;
        let at = match self.failed[qp] {
            true => Some(0),
            false => self.open[qp].iter().position(|work| shows(*work) && self.id(*work) == wr_id),
        };
        let at = at.filter(|at| self.open[qp].get(*at).is_some_and(|work| self.id(*work) == wr_id));
        let at = at.ok_or("another request is the next")?;
        if self.open[qp][..at].iter().any(|work| self.works[*work].signaled) {
            return Err("an earlier request has no completion".into());
        }
        if !success && !self.failed[qp] && status == Status::WrFlushed {
            return Err("a request is flushed although none has failed".into());
        }
        self.failed[qp] |= !success;
        let over: Vec<usize> = self.open[qp].drain(..=at).collect();
        for (place, work) in over.into_iter().enumerate() {
            if std::mem::replace(&mut self.done[work], true) {
                return Err(format!("request {work} is over twice"));
            }
            self.over(sim, work, success || place < at)?;
        }
        Ok(())
    }

    /// A request is over: its data is there, and the program uses its memory for something else.
    fn over(&mut self, sim: &mut Simulation, work: usize, success: bool) -> Result<(), String> {
        match self.works[work].kind {
            Kind::Read if success => self.holds(sim, 0, work, "a READ")?,
            Kind::Write if success && !self.gone => self.holds(sim, 1, work, "a WRITE")?,
            _ => {}
        }
        let (at, len) = (self.at[work], self.works[work].len as usize);
        sim.bytes_mut(&self.regions[0])[at..at + len].fill(MARK);
        Ok(())
    }

    fn holds(&self, sim: &mut Simulation, side: usize, work: usize, what: &str) -> Result<(), String> {
        let (at, len) = (self.at[work], self.works[work].len);
        let right = sim.bytes(&self.regions[side])[at..at + len as usize] == data(work, len);
        if right { Ok(()) } else { Err(format!("{what} of request {work} has other bytes")) }
    }
}

/// Runs a case to its end. Error: what is wrong.
pub fn run(case: &Case) -> Result<Ran, String> {
    let profile = Arc::new(weir_profiles::load(&case.profile).expect("it is embedded"));
    let mut sim = Simulation::new(case.seed);
    let hosts = [(); 2].map(|()| sim.add_host(&profile));
    let disorder =
        Disorder { late: case.disorder, twice: case.disorder, damaged: case.disorder, by: Duration::from_micros(50) };
    sim.link(hosts[0], hosts[1], Link { disorder, ..Link::FDR.lossy(case.loss) });
    let guards = if case.guards == "none" { Guards::default() } else { case.guards.parse().expect("a list") };
    let mut guarded = Guarded::new(guards);
    let mut at = vec![];
    let mut end = 0;
    for work in &case.works {
        end = if work.aligned { (end as u64).next_multiple_of(PAGE) as usize } else { end };
        at.push(end);
        end += work.len as usize;
    }
    let regions = [0, 1].map(|side| {
        let mut bytes = vec![BEFORE; end.max(1)];
        for (n, work) in case.works.iter().enumerate() {
            if (work.kind == Kind::Read) == (side == 1) {
                bytes[at[n]..][..work.len as usize].copy_from_slice(&data(n, work.len));
            }
        }
        let paging = if case.odp[side] { Paging::OnDemand } else { Paging::Pinned };
        guarded.register(&mut sim, hosts[side], Backing::Bytes(bytes), paging)
    });
    let works_of = |qp: usize| (0..case.works.len()).filter(move |n| case.works[*n].qp == qp);
    let mut ends = vec![];
    let mut sends = vec![];
    for qp in 0..case.qps {
        let sent: Vec<usize> = works_of(qp).filter(|n| case.works[*n].kind == Kind::Send).collect();
        let caps = QpCaps {
            // Not one place more than the program needs: dummies have their own.
            max_send_wr: works_of(qp).count().max(1) as u32,
            max_recv_wr: sent.len() as u32,
            ..QpSetup::default().caps
        };
        let setup = QpSetup {
            mtu: case.mtu,
            caps,
            timeout: case.timeout,
            retry_cnt: case.retry_cnt,
            min_rnr_timer: case.rnr_timer,
            max_rd_atomic: case.rd_atomic,
            psn: case.psn,
            ..QpSetup::default()
        };
        let pair = guarded.connect(&mut sim, hosts[0], hosts[1], &setup);
        for &n in &sent {
            let sges = [regions[1].sge(at[n] as u64, case.works[n].len)];
            guarded.post_recv(&mut sim, pair[1], &RecvWr { wr_id: n as u64, sges: &sges }).expect("room");
        }
        ends.push(pair);
        sends.push(sent);
    }
    let count = case.works.len();
    let mut program = Program {
        works: case.works.clone(),
        at,
        guarded,
        ends,
        regions,
        odp: case.odp,
        same_ids: case.same_ids,
        leaves: case.leaves.clone(),
        gone: false,
        posted: 0,
        open: vec![vec![]; case.qps],
        sends,
        failed: vec![false; case.qps],
        done: vec![false; count],
        wrong: None,
    };
    sim.set_timer(Instant(0), POST);
    for (which, (time, _)) in case.leaves.iter().enumerate() {
        sim.set_timer(Instant(time * 1000), LEAVE | (which as u64) << 4);
    }
    if let Some(time) = case.gone {
        sim.set_timer(Instant(time * 1000), GONE);
    }
    sim.run(&mut program);
    end_of(case, &mut sim, program)
}

fn end_of(case: &Case, sim: &mut Simulation, program: Program) -> Result<Ran, String> {
    if let Some(wrong) = &program.wrong {
        return Err(wrong.clone());
    }
    let failed = program.failed.iter().any(|failed| *failed);
    if failed && case.gone.is_none() {
        return Err("a QP has failed".into());
    }
    if let Some(open) = program.done.iter().position(|done| !done) {
        return Err(format!("request {open} has not completed"));
    }
    if case.gone.is_none() && program.sends.iter().any(|sends| !sends.is_empty()) {
        return Err("a message has not arrived".into());
    }
    for (n, work) in case.works.iter().enumerate() {
        let (at, len) = (program.at[n], work.len as usize);
        if sim.bytes(&program.regions[0])[at..at + len].iter().any(|&byte| byte != MARK) && !failed {
            return Err(format!("the memory of request {n} has changed after its completion"));
        }
        if work.kind == Kind::Write && !failed {
            program.holds(sim, 1, n, "at the end, a WRITE")?;
        }
    }
    Ok(Ran { acts: program.guarded.acts(), failed })
}
