//! What the results say: the best settings, how much each matters, and how good F's equations are.

mod effects;
mod equations;

pub use effects::{Effect, Role, Verdict};
pub use equations::{Equation1, Equation2};

use crate::search::{Candidate, Contest, Out, Search, Stage};
use crate::statistics::{Estimate, METHOD};
use serde::{Deserialize, Serialize};
use weir_lab::stream::Place;

/// The results of a search. `--json` prints it; names of fields do not change within a format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    pub format: u32,
    pub subject: Subject,
    /// How means and intervals are formed.
    pub method: String,
    pub runs: u64,
    /// Time of all runs.
    pub seconds: f64,
    pub best: Vec<Best>,
    pub effects: Vec<Effect>,
    pub equation1: Option<Equation1>,
    pub equation2: Vec<Equation2>,
    /// Settings that could not be measured.
    pub failures: Vec<Failure>,
    pub measured: Vec<Measured>,
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// The device that the user named.
    pub device: Option<String>,
    /// Host of the other side; `None`: both sides are on this host.
    pub peer: Option<String>,
    pub peer_device: Option<String>,
    /// Both sides are on this host, in network namespaces of their own.
    pub namespaces: bool,
    pub quick: bool,
    /// Name of the device that is used.
    pub adapter: String,
    /// The adapter is Weir.
    pub weir: bool,
}

/// The best settings of messages of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    pub size: u64,
    pub outstanding: u32,
    /// "half", "equation", or a number.
    pub signal: String,
    /// The signalling period that results.
    pub period: u32,
    pub gbits: Estimate,
    /// CPU time of both sides, seconds per GB of payload.
    pub cpu_per_gb: f64,
}

/// A setting that could not be measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    pub stage: Stage,
    pub size: u64,
    pub setting: String,
    pub error: String,
}

/// A contest: all settings that were compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    pub stage: Stage,
    pub size: u64,
    pub settings: Vec<Setting>,
}

/// A setting and its throughput.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    pub name: String,
    pub outstanding: u32,
    pub signal: String,
    pub offset: u32,
    pub polls: String,
    pub sender: Place,
    pub receiver: Place,
    pub gbits: Option<Estimate>,
    pub cpu_per_gb: Option<f64>,
    /// It was left out before the end, because it is clearly slower or because it failed.
    pub left_out: bool,
}

impl Findings {
    /// What the results of a search say.
    pub fn of(search: &Search, subject: Subject) -> Findings {
        let contests = &search.contests;
        Findings {
            format: 1,
            subject,
            method: METHOD.into(),
            runs: search.runs,
            seconds: search.spent,
            best: search.plan.sizes.iter().filter_map(|size| best(contests, *size)).collect(),
            effects: effects::effects(contests),
            equation1: equations::equation1(contests),
            equation2: equations::equation2(contests),
            failures: contests.iter().flat_map(failures).collect(),
            measured: contests.iter().map(Measured::of).collect(),
        }
    }

    /// The best settings with the highest throughput.
    pub fn top(&self) -> Option<&Best> {
        self.best.iter().max_by(|a, b| a.gbits.mean.total_cmp(&b.gbits.mean))
    }

    /// The contests of a stage.
    pub fn of_stage(&self, stage: Stage) -> impl Iterator<Item = &Measured> {
        self.measured.iter().filter(move |measured| measured.stage == stage)
    }
}

impl Measured {
    fn of(contest: &Contest) -> Measured {
        let setting = |candidate: &Candidate| Setting {
            name: candidate.name.clone(),
            outstanding: candidate.job.outstanding,
            signal: candidate.job.signal.word(),
            offset: candidate.job.offset,
            polls: candidate.job.polls.word().into(),
            sender: candidate.job.sender.clone(),
            receiver: candidate.job.receiver.clone(),
            gbits: candidate.throughput(),
            cpu_per_gb: candidate.cpu_per_gb(),
            left_out: candidate.out.is_some(),
        };
        let settings = contest.candidates.iter().map(setting).collect();
        Measured { stage: contest.stage, size: contest.size, settings }
    }
}

/// The best settings of a size: those of its contest of signalling periods, or else of outstanding messages.
fn best(contests: &[Contest], size: u64) -> Option<Best> {
    let of = |stage: Stage| contests.iter().find(|contest| contest.stage == stage && contest.size == size);
    let best = |contest: &Contest| Some(contest.candidates[contest.best()?].clone());
    let candidate = of(Stage::Signal).and_then(best).or_else(|| of(Stage::Outstanding).and_then(best))?;
    Some(Best {
        size,
        outstanding: candidate.job.outstanding,
        signal: candidate.job.signal.word(),
        period: candidate.found().last()?.signal,
        gbits: candidate.throughput()?,
        cpu_per_gb: candidate.cpu_per_gb()?,
    })
}

fn failures(contest: &Contest) -> impl Iterator<Item = Failure> + use<'_> {
    contest.candidates.iter().filter_map(|candidate| {
        let Some(Out::Failed(error)) = &candidate.out else { return None };
        let (stage, size) = (contest.stage, contest.size);
        Some(Failure { stage, size, setting: candidate.name.clone(), error: error.clone() })
    })
}

#[cfg(test)]
mod tests;
