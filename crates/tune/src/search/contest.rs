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
    /// About how many settings the search compares with another one, in all contests: the more, the more of them seem
    /// to have an effect by chance.
    pub comparisons: usize,
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

/// A candidate below this share of the fastest in each round is out. The first and the last stay until this is certain:
/// how the best number of outstanding messages compares with them is a result, too.
const HOPELESS: f64 = 0.8;
/// A smaller effect does not matter, however certain it is.
const SMALL: f64 = 0.01;
/// A number of outstanding messages is as good as the best within this loss.
const SAME: f64 = 0.99;
/// The same if the interval contains equality.
const MAYBE_SAME: f64 = 0.98;

impl Candidate {
    /// A setting that has no runs yet.
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
    /// A contest of these settings, the reference first. It is the only one of its search.
    pub fn new(stage: Stage, size: u64, candidates: Vec<Candidate>) -> Contest {
        let comparisons = candidates.len().saturating_sub(1);
        Contest { stage, size, done: candidates.is_empty(), candidates, comparisons }
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
                self.leave_out_larger(at);
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

    /// Whether one candidate is clearly faster or slower than the other: by at least 1 %, and with 95 % confidence for
    /// all comparisons of the search together: hardly any search has an effect that is clear by chance.
    pub fn clear(&self, candidate: &Candidate, against: &Candidate) -> bool {
        let ratio = self.ratio_of_many(candidate, against);
        ratio.is_some_and(|ratio| ratio.differs() && (ratio.mean - 1.0).abs() >= SMALL)
    }

    /// The setting to use. Of numbers of outstanding messages: the smallest that is not clearly slower than the
    /// fastest. Of others: the fastest of those that are clearly faster than the reference, else the reference.
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
        let Some(reference) = self.candidates.first().filter(|reference| reference.found().next().is_some()) else {
            return Some(fastest);
        };
        let faster = |(at, candidate): (usize, &Candidate)| {
            let mean = candidate.over(reference)?.mean;
            (mean > 1.0 && self.clear(candidate, reference)).then_some((at, mean))
        };
        let clearly = self.active().filter_map(faster).max_by(|a, b| a.1.total_cmp(&b.1));
        Some(clearly.map_or(0, |(at, _)| at))
    }

    fn active(&self) -> impl Iterator<Item = (usize, &Candidate)> {
        self.candidates.iter().enumerate().filter(|(_, candidate)| candidate.active())
    }

    fn ratio_of_many(&self, candidate: &Candidate, against: &Candidate) -> Option<Ratio> {
        ratio(&candidate.gbits(), &against.gbits(), Confidence::of_each(self.comparisons))
    }

    /// Leaves out more outstanding messages than two numbers that were refused in the first round for the same reason,
    /// such as too little memory: larger numbers will be, too.
    fn leave_out_larger(&mut self, at: usize) {
        let refused = |candidate: &Candidate| match &candidate.out {
            Some(Out::Failed(why)) if candidate.runs.len() == 1 => Some(why.clone()),
            _ => None,
        };
        let pair =
            at.checked_sub(1).and_then(|less| refused(&self.candidates[less]).zip(refused(&self.candidates[at])));
        let Some((_, why)) = pair.filter(|(a, b)| self.stage == Stage::Outstanding && words(a) == words(b)) else {
            return;
        };
        self.candidates[at + 1..].iter_mut().for_each(|candidate| candidate.out = Some(Out::Failed(why.clone())));
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
            self.leave_out_slower(fastest);
        }
        let against = if self.stage == Stage::Outstanding { fastest } else { 0 };
        // By chance the interval is too narrow after some round: it has to be after two.
        let precise = rounds > limits.least_rounds
            && [rounds - 1, rounds].into_iter().all(|rounds| self.is_precise(against, rounds, limits.precision));
        self.done = rounds >= limits.most_rounds || precise;
    }

    fn leave_out_slower(&mut self, fastest: usize) {
        let last = self.candidates.len() - 1;
        let leader = &self.candidates[fastest];
        let hopeless = |c: &Candidate| log_ratios(&c.gbits(), &leader.gbits()).iter().all(|log| *log < HOPELESS.ln());
        let slower = |at: usize, candidate: &Candidate| {
            // What the best number gains over one message, and over the most, are results.
            let result = at == 0 || at == last;
            let ratio = match result {
                true => self.ratio_of_many(candidate, leader),
                false => ratio(&candidate.gbits(), &leader.gbits(), Confidence::P99),
            };
            // A smaller number that is within 1 % may be the best.
            ratio.and_then(|r| r.interval).is_some_and(|[_, high]| high < SAME) || !result && hopeless(candidate)
        };
        let out: Vec<usize> =
            self.active().filter(|(at, c)| *at != fastest && slower(*at, c)).map(|(at, _)| at).collect();
        out.into_iter().for_each(|at| self.candidates[at].out = Some(Out::Slower));
    }

    /// Whether the ratios of so many rounds are known well enough, and none of them is large but uncertain.
    fn is_precise(&self, against: usize, rounds: usize, precision: f64) -> bool {
        let first = |candidate: &Candidate| {
            let runs = candidate.runs.iter().take(rounds).cloned().collect();
            Candidate { runs, ..candidate.clone() }
        };
        let reference = first(&self.candidates[against]);
        let last = self.candidates.len() - 1;
        let known = |(at, candidate): (usize, &Candidate)| {
            let candidate = first(candidate);
            let result = self.stage != Stage::Outstanding || at == 0 || at == last;
            let uncertain = |ratio: &Ratio| {
                ratio.differs() && (ratio.mean - 1.0).abs() >= SMALL && !self.clear(&candidate, &reference)
            };
            candidate.over(&reference).is_some_and(|r| r.half_width() <= precision && !(result && uncertain(&r)))
        };
        self.active().filter(|(at, _)| *at != against).all(known)
    }
}

/// A reason without its numbers.
fn words(why: &str) -> String {
    why.chars().filter(|c| !c.is_ascii_digit()).collect()
}
