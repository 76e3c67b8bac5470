//! A contest: settings that are measured in turns until it is clear which is the best.

use crate::statistics::{Confidence, Estimate, Ratio, estimate, log_ratios, ratio};
use serde::{Deserialize, Serialize};
use weir_lab::stream::{Found, Job};

/// What the candidates of a contest differ in. The stages of a search, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Number of outstanding messages (B).
    Outstanding,
    /// Signalling period (S).
    Signal,
    /// Offset of messages from a page.
    Offset,
    /// Sleeping or polling.
    Wake,
    /// CPUs and NUMA nodes.
    Place,
}

/// Settings with messages of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contest {
    pub stage: Stage,
    pub size: u64,
    /// The first is the reference.
    pub candidates: Vec<Candidate>,
    /// It needs no more rounds.
    pub done: bool,
}

/// A setting and its results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    pub name: String,
    pub job: Job,
    /// By rounds; `None` where the run failed.
    pub runs: Vec<Option<Found>>,
    pub out: Option<Out>,
}

/// Why a candidate has no more runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Out {
    /// It is clearly slower than the fastest.
    Slower,
    /// It cannot be measured.
    Failed(String),
}

/// When a contest needs no more rounds.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub least_rounds: usize,
    pub most_rounds: usize,
    pub precision: f64,
}

/// A candidate below this share of the fastest in each round is out. The reference stays until this is certain: how much
/// the best number of outstanding messages gains over it is a result, too.
const HOPELESS: f64 = 0.8;
/// A number of outstanding messages is as good as the best within this loss.
const SAME: f64 = 0.99;
/// The same if the interval contains equality.
const MAYBE_SAME: f64 = 0.98;

impl Candidate {
    pub fn new(name: impl Into<String>, job: Job) -> Candidate {
        Candidate { name: name.into(), job, runs: vec![], out: None }
    }

    /// Throughput of each round, Gbit/s.
    pub fn gbits(&self) -> Vec<Option<f64>> {
        self.runs.iter().map(|run| run.as_ref().map(|found| found.gbits)).collect()
    }

    /// The throughput, Gbit/s.
    pub fn throughput(&self) -> Option<Estimate> {
        estimate(&self.gbits().into_iter().flatten().collect::<Vec<_>>())
    }

    /// Throughput over that of another candidate.
    pub fn over(&self, other: &Candidate) -> Option<Ratio> {
        ratio(&self.gbits(), &other.gbits(), Confidence::P95)
    }

    /// CPU time of both sides, seconds per GB.
    pub fn cpu_per_gb(&self) -> Option<f64> {
        let bytes: u64 = self.found().map(|found| found.bytes).sum();
        let cpu: f64 = self.found().map(|found| found.cpu()).sum();
        (bytes > 0).then(|| cpu / (bytes as f64 / 1e9))
    }

    /// Successful runs.
    pub fn found(&self) -> impl Iterator<Item = &Found> {
        self.runs.iter().flatten()
    }

    fn active(&self) -> bool {
        self.out.is_none()
    }
}

impl Contest {
    pub fn new(stage: Stage, size: u64, candidates: Vec<Candidate>) -> Contest {
        Contest { stage, size, done: candidates.is_empty(), candidates }
    }

    /// The round that is not complete, from 0.
    pub fn round(&self) -> usize {
        self.active().map(|(_, candidate)| candidate.runs.len()).min().unwrap_or(0)
    }

    /// The candidate that has its turn. Each second round has the reverse order, so that drift affects all alike.
    pub fn turn(&self) -> Option<usize> {
        let round = self.round();
        let mut waiting = self.active().filter(|(_, candidate)| candidate.runs.len() == round).map(|(at, _)| at);
        let next = if round.is_multiple_of(2) { waiting.next() } else { waiting.last() };
        next.filter(|_| !self.done)
    }

    /// Takes the result of a candidate's turn. A second failure, or one in the first round, is its last run.
    pub fn record(&mut self, at: usize, result: Result<Found, String>, limits: Limits) {
        let candidate = &mut self.candidates[at];
        let failed = candidate.runs.iter().any(Option::is_none) || candidate.runs.is_empty();
        match result {
            Ok(found) => candidate.runs.push(Some(found)),
            Err(why) => {
                candidate.runs.push(None);
                candidate.out = failed.then_some(Out::Failed(why));
            }
        }
        let rounds: Vec<usize> = self.active().map(|(_, candidate)| candidate.runs.len()).collect();
        if rounds.iter().all(|n| Some(n) == rounds.first()) {
            self.end_round(rounds.first().copied().unwrap_or(0), limits);
        }
    }

    /// The candidate with the highest throughput; candidates with most rounds count.
    pub fn fastest(&self) -> Option<usize> {
        let mean = |at: usize| Some((at, self.candidates[at].throughput()?.mean));
        let all = |in_contest: bool| {
            let candidates = self.candidates.iter().enumerate().filter(move |(_, c)| c.active() || !in_contest);
            candidates.filter_map(|(at, _)| mean(at)).max_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
        };
        all(true).or_else(|| all(false))
    }

    /// The setting to use. Of numbers of outstanding messages: the smallest that is not clearly slower than the
    /// fastest. Of others: the fastest if it is clearly faster than the reference, else the reference.
    pub fn best(&self) -> Option<usize> {
        let fastest = self.fastest()?;
        if self.stage == Stage::Outstanding {
            let good = |at: &usize| {
                let candidate = &self.candidates[*at];
                let ratio = candidate.over(&self.candidates[fastest]);
                let same = |r: Ratio| {
                    r.mean >= SAME || r.mean >= MAYBE_SAME && r.interval.is_some_and(|[_, high]| high >= 1.0)
                };
                *at == fastest || (candidate.out.is_none() && ratio.is_some_and(same))
            };
            return (0..self.candidates.len()).filter(good).min_by_key(|at| self.candidates[*at].job.outstanding);
        }
        let reference = self.candidates.first().filter(|reference| reference.found().next().is_some());
        let faster = |reference: &Candidate| {
            let ratio = self.candidates[fastest].over(reference);
            ratio.and_then(|r| r.interval).is_some_and(|[low, _]| low > 1.0)
        };
        Some(if reference.is_some_and(|reference| !faster(reference)) { 0 } else { fastest })
    }

    fn active(&self) -> impl Iterator<Item = (usize, &Candidate)> {
        self.candidates.iter().enumerate().filter(|(_, candidate)| candidate.active())
    }

    /// Leaves out candidates of a search for the best number that are clearly slower, and decides whether more rounds
    /// help.
    fn end_round(&mut self, rounds: usize, limits: Limits) {
        let Some(fastest) = self.fastest().filter(|_| rounds >= limits.least_rounds) else {
            let empty = self.active().next().is_none();
            self.done = empty;
            return;
        };
        if self.stage == Stage::Outstanding {
            let leader = self.candidates[fastest].gbits();
            for (at, candidate) in self.candidates.iter_mut().enumerate() {
                let slower = ratio(&candidate.gbits(), &leader, Confidence::P99)
                    .and_then(|r| r.interval)
                    .is_some_and(|[_, high]| high < 1.0);
                let hopeless = || log_ratios(&candidate.gbits(), &leader).iter().all(|log| *log < HOPELESS.ln());
                if at != fastest && candidate.active() && (slower || at > 0 && hopeless()) {
                    candidate.out = Some(Out::Slower);
                }
            }
        }
        let against = if self.stage == Stage::Outstanding { fastest } else { 0 };
        let known = |candidate: &Candidate| {
            candidate.over(&self.candidates[against]).is_some_and(|r| r.half_width() <= limits.precision)
        };
        let open = self.active().any(|(at, candidate)| at != against && !known(candidate));
        self.done = rounds >= limits.most_rounds || !open;
    }
}
