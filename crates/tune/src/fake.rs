//! A model of an adapter, for tests.

use anyhow::{Result, bail};
use weir_lab::stream::equations::{BestB, signal_period};
use weir_lab::stream::{Found, Job, Measure, SideFound, Signal};

/// Random numbers (SplitMix64).
pub struct Noise(pub u64);

/// An adapter with a throughput that follows from the job, with noise.
pub struct Adapter {
    pub noise: Noise,
    /// Standard deviation of the logarithm of the throughput.
    pub deviation: f64,
    /// Throughput rises up to these numbers of outstanding messages, and falls by `drop` behind them.
    pub best: BestB,
    pub drop: f64,
    /// Factors of the throughput.
    pub misaligned: f64,
    pub polling: f64,
    pub every: f64,
    /// Each run takes as many seconds more.
    pub overhead: f64,
    /// Messages of these bytes cannot be measured.
    pub refuses: Vec<u64>,
    /// Jobs so far.
    pub jobs: Vec<Job>,
}

impl Noise {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A normal variate (Box and Muller).
    pub fn normal(&mut self, deviation: f64) -> f64 {
        let radius = (-2.0 * self.uniform().max(1e-300).ln()).sqrt();
        deviation * radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

impl Adapter {
    pub fn new(seed: u64, deviation: f64) -> Adapter {
        Adapter {
            noise: Noise(seed),
            deviation,
            best: BestB::PAPER,
            drop: 0.06,
            misaligned: 0.8,
            polling: 1.05,
            every: 0.93,
            overhead: 0.05,
            refuses: vec![],
            jobs: vec![],
        }
    }

    /// The throughput without noise, Gbit/s.
    pub fn gbits(&self, job: &Job) -> f64 {
        let (b, best) = (f64::from(job.outstanding), f64::from(self.best.of(job.size)));
        let share = if b > best { 1.0 - self.drop } else { 0.3 + 0.7 * (b / best) };
        let aligned = if job.offset.is_multiple_of(64) { 1.0 } else { self.misaligned };
        let polls = if job.polls.sender && job.polls.receiver { self.polling } else { 1.0 };
        let every = if job.signal == Signal::Every(1) { self.every } else { 1.0 };
        50.0 * share * aligned * polls * every
    }
}

impl Measure for Adapter {
    fn measure(&mut self, job: &Job) -> Result<Found> {
        self.jobs.push(job.clone());
        if self.refuses.contains(&job.size) {
            bail!("{} bytes do not fit", job.size);
        }
        let gbits = self.gbits(job) * self.noise.normal(self.deviation).exp();
        let seconds = 0.2;
        let bytes = (gbits * 1e9 / 8.0 * seconds) as u64;
        let depth = 2 * job.outstanding;
        let signal = match job.signal {
            Signal::Every(n) => n,
            Signal::Half => (job.outstanding / 2).max(1),
            Signal::Equation => signal_period(job.size, job.outstanding, depth),
        };
        let side = |polls: bool| {
            let user = if polls { seconds } else { bytes as f64 / job.size as f64 * 5e-6 };
            SideFound { user, system: 0.0, sleeps: 0 }
        };
        Ok(Found {
            messages: bytes / job.size,
            bytes,
            seconds,
            gbits,
            acks: 0,
            signal,
            depth,
            sender: side(job.polls.sender),
            receiver: side(job.polls.receiver),
            checked: 0,
            wrong: 0,
        })
    }
}

/// The findings of a whole search on this adapter.
pub fn measured(plan: crate::plan::Plan, mut adapter: Adapter) -> crate::findings::Findings {
    let mut search = crate::search::Search::new(plan);
    run(&mut search, &mut adapter, u64::MAX);
    crate::findings::Findings::of(&search, Default::default())
}

/// Runs the search to its end, and at most `runs` runs.
pub fn run(search: &mut crate::search::Search, adapter: &mut Adapter, runs: u64) {
    for _ in 0..runs {
        let Some(turn) = search.next() else { return };
        let took = turn.job.warm_up.as_secs_f64() + 0.15 + adapter.overhead;
        let result = adapter.measure(&turn.job).map_err(|error| error.to_string());
        search.record(&turn, result, took);
    }
}
