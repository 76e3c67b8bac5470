//! How much each setting matters.

use crate::search::{Candidate, Contest, Stage};
use crate::statistics::{self, Confidence, Ratio};
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
    /// The difference is at least 1 %, and certain with 99 % confidence: of all effects of a search, hardly any is
    /// clear by chance. Only such effects matter for advice.
    pub clear: bool,
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

/// The settings to compare. Of outstanding messages: the best with one message, and the most with the best. Of
/// others: each with the reference.
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
    let certain = statistics::ratio(&candidate.gbits(), &against.gbits(), Confidence::P99).is_some_and(|r| r.differs());
    Some(Effect {
        clear: certain && (ratio.mean - 1.0).abs() >= SMALL,
        stage: contest.stage,
        size: contest.size,
        setting: candidate.name.clone(),
        against: against.name.clone(),
        ratio,
        verdict,
        cpu_per_gb: candidate.cpu_per_gb(),
        cpu_per_gb_against: against.cpu_per_gb(),
    })
}

/// A smaller effect does not matter, however certain it is.
const SMALL: f64 = 0.01;

impl Effect {
    /// Whether the setting is clearly faster.
    pub fn faster(&self) -> bool {
        self.clear && self.ratio.mean > 1.0
    }

    /// Whether the setting is clearly slower.
    pub fn slower(&self) -> bool {
        self.clear && self.ratio.mean < 1.0
    }

    /// The distance from equality.
    pub fn distance(&self) -> f64 {
        self.ratio.mean.ln().abs()
    }
}
