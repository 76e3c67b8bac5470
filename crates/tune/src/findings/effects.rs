//! How much each setting matters.

use crate::search::{Candidate, Contest, Stage};
use crate::statistics::Ratio;
use serde::{Deserialize, Serialize};

/// What a setting does to the throughput, against another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    pub stage: Stage,
    pub role: Role,
    pub size: u64,
    pub setting: String,
    pub against: String,
    /// Throughput over that of the other setting.
    pub ratio: Ratio,
    pub verdict: Verdict,
    /// The difference is at least 1 %, and certain with 95 % confidence for all comparisons of the search together:
    /// hardly any search has an effect that is clear by chance. Only such effects matter for advice.
    pub clear: bool,
    /// CPU time of both sides, seconds per GB.
    pub cpu_per_gb: Option<f64>,
    pub cpu_per_gb_against: Option<f64>,
}

/// What is compared with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The best number of outstanding messages with one message.
    BestOverOne,
    /// The most outstanding messages with the best number, which may be one.
    MostOverBest,
    /// Another setting with the reference.
    SettingOverReference,
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
    let of = |contest| pairs(contest).into_iter().filter_map(move |(role, a, b)| effect(contest, role, a, b));
    contests.iter().flat_map(of).collect()
}

/// The settings to compare. Of outstanding messages: the best with one message, and the most with the best. Of
/// others: each with the reference.
fn pairs(contest: &Contest) -> Vec<(Role, &Candidate, &Candidate)> {
    let candidates = &contest.candidates;
    let measured = |candidate: &&Candidate| candidate.found().next().is_some();
    let (Some(best), Some(first), Some(last)) = (contest.best(), candidates.first(), candidates.iter().rfind(measured))
    else {
        return vec![];
    };
    if contest.stage != Stage::Outstanding {
        return candidates[1..].iter().map(|candidate| (Role::SettingOverReference, candidate, first)).collect();
    }
    let best = &candidates[best];
    let both = [(Role::BestOverOne, best, first), (Role::MostOverBest, last, best)];
    both.into_iter().filter(|(_, a, b)| a.name != b.name).collect()
}

fn effect(contest: &Contest, role: Role, candidate: &Candidate, against: &Candidate) -> Option<Effect> {
    let ratio = candidate.over(against)?;
    let verdict = match ratio.interval {
        None => Verdict::Unknown,
        Some([low, _]) if low > 1.0 => Verdict::Faster,
        Some([_, high]) if high < 1.0 => Verdict::Slower,
        Some(_) => Verdict::NoDifference,
    };
    Some(Effect {
        clear: contest.clear(candidate, against),
        role,
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
