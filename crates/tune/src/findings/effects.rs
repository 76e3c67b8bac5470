//! How much each setting matters.

use super::cpu_per_gb;
use crate::search::{Candidate, Contest, Stage};
use crate::statistics::Ratio;
use serde::{Deserialize, Serialize};

/// What a setting does to the throughput, against another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    pub stage: Stage,
    pub size: u64,
    pub setting: String,
    pub against: String,
    /// Throughput over that of the other setting.
    pub ratio: Ratio,
    pub verdict: Verdict,
    /// CPU time of both sides, seconds per GB.
    pub cpu_per_gb: Option<f64>,
    pub cpu_per_gb_against: Option<f64>,
}

/// What an interval says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Faster,
    Slower,
    /// The interval contains equality.
    NoDifference,
    /// There are too few rounds for an interval.
    Unknown,
}

/// All effects, in the order of the contests.
pub fn effects(contests: &[Contest]) -> Vec<Effect> {
    contests.iter().flat_map(|contest| pairs(contest).into_iter().filter_map(|(a, b)| effect(contest, a, b))).collect()
}

/// The settings to compare. Of outstanding messages: the best with one message, and the most with the best. Of others: each
/// with the reference.
fn pairs(contest: &Contest) -> Vec<(&Candidate, &Candidate)> {
    let candidates = &contest.candidates;
    let (Some(best), Some(first), Some(last)) = (contest.best(), candidates.first(), candidates.last()) else {
        return vec![];
    };
    if contest.stage != Stage::Outstanding {
        return candidates[1..].iter().map(|candidate| (candidate, first)).collect();
    }
    let best = &candidates[best];
    [(best, first), (last, best)].into_iter().filter(|(a, b)| a.name != b.name).collect()
}

fn effect(contest: &Contest, candidate: &Candidate, against: &Candidate) -> Option<Effect> {
    let ratio = candidate.over(against)?;
    let verdict = match ratio.interval {
        None => Verdict::Unknown,
        Some([low, _]) if low > 1.0 => Verdict::Faster,
        Some([_, high]) if high < 1.0 => Verdict::Slower,
        Some(_) => Verdict::NoDifference,
    };
    Some(Effect {
        stage: contest.stage,
        size: contest.size,
        setting: candidate.name.clone(),
        against: against.name.clone(),
        ratio,
        verdict,
        cpu_per_gb: cpu_per_gb(candidate),
        cpu_per_gb_against: cpu_per_gb(against),
    })
}

/// A smaller effect does not matter, however clear it is.
const SMALL: f64 = 0.01;

impl Effect {
    /// Whether the setting is clearly faster, by 1 % at least.
    pub fn faster(&self) -> bool {
        self.verdict == Verdict::Faster && self.ratio.mean >= 1.0 + SMALL
    }

    /// Whether the setting is clearly slower, by 1 % at least.
    pub fn slower(&self) -> bool {
        self.verdict == Verdict::Slower && self.ratio.mean <= 1.0 - SMALL
    }

    /// Whether the setting is clearly faster or slower.
    pub fn matters(&self) -> bool {
        self.faster() || self.slower()
    }

    /// The distance from equality.
    pub fn distance(&self) -> f64 {
        self.ratio.mean.ln().abs()
    }
}
