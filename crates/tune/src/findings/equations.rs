//! How good F's equations are on this adapter.

use crate::search::{Candidate, Contest, Stage};
use crate::statistics::{Estimate, Ratio};
use serde::{Deserialize, Serialize};
use weir_lab::stream::Signal;
use weir_lab::stream::equations::BestB;
use weir_lab::stream::fit::{Curve, Fit, fit, mean_loss};

/// Equation 1, which predicts the best number of outstanding messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Equation1 {
    pub sizes: Vec<Prediction>,
    /// Mean loss of the paper's constants, as a share of the best throughput.
    pub paper_loss: f64,
    /// Constants for this adapter; `None` with fewer than four sizes.
    pub fit: Option<Fit>,
}

/// A prediction and what was observed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    pub size: u64,
    /// The best number of outstanding messages.
    pub observed: u32,
    pub observed_gbits: Estimate,
    /// By the paper's constants.
    pub predicted: u32,
    /// `None` if the number was not measured, because the messages need too much memory.
    pub predicted_gbits: Option<Estimate>,
    /// Throughput with the predicted number over that with the observed one.
    pub ratio: Option<Ratio>,
    /// By the constants for this adapter.
    pub fitted: Option<u32>,
}

/// Equation 2, which gives the signalling period, against half of the outstanding messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Equation2 {
    pub size: u64,
    pub outstanding: u32,
    /// The period.
    pub period: u32,
    pub gbits: Estimate,
    /// Throughput over that with half; `None` if this was not measured.
    pub over_half: Option<Ratio>,
    /// Throughput over that with every work request signalled; `None` if this is the equation's period, or was not
    /// measured.
    pub over_every: Option<Ratio>,
}

/// What the contests of outstanding messages say of equation 1; `None` if there are none.
pub fn equation1(contests: &[Contest]) -> Option<Equation1> {
    let of_b: Vec<&Contest> = contests.iter().filter(|contest| contest.stage == Stage::Outstanding).collect();
    let curves: Vec<Curve> = of_b.iter().map(|contest| curve(contest)).filter(|c| !c.points.is_empty()).collect();
    let fitted = fit(&curves);
    let prediction = |contest: &&Contest| {
        let best = &contest.candidates[contest.best()?];
        let predicted = BestB::PAPER.of(contest.size);
        let at = contest.candidates.iter().find(|candidate| candidate.job.outstanding == predicted);
        Some(Prediction {
            size: contest.size,
            observed: best.job.outstanding,
            observed_gbits: best.throughput()?,
            predicted,
            predicted_gbits: at.and_then(Candidate::throughput),
            ratio: at.and_then(|candidate| candidate.over(best)),
            fitted: fitted.map(|fit| fit.constants.of(contest.size)),
        })
    };
    let sizes: Vec<Prediction> = of_b.iter().filter_map(prediction).collect();
    (!sizes.is_empty()).then(|| Equation1 { sizes, paper_loss: mean_loss(&BestB::PAPER, &curves), fit: fitted })
}

/// What the contests of signalling periods say of equation 2.
pub fn equation2(contests: &[Contest]) -> Vec<Equation2> {
    let of_s = contests.iter().filter(|contest| contest.stage == Stage::Signal);
    of_s.filter_map(|contest| {
        let with = |signal: Signal| contest.candidates.iter().find(|c| c.job.signal == signal);
        // For some sizes the equation is to signal every work request.
        let (equation, every) = (with(Signal::Equation), with(Signal::Every(1)));
        let candidate = equation.or(every)?;
        // Half of two or three outstanding messages is one: every work request is signalled.
        let every = every.or_else(|| with(Signal::Half).filter(|half| half.job.outstanding < 4));
        let every = every.filter(|every| every.name != candidate.name);
        Some(Equation2 {
            size: contest.size,
            outstanding: candidate.job.outstanding,
            period: candidate.found().last()?.signal,
            gbits: candidate.throughput()?,
            over_half: with(Signal::Half).and_then(|half| candidate.over(half)),
            over_every: every.and_then(|every| candidate.over(every)),
        })
    })
    .collect()
}

/// Throughput against the number of outstanding messages. Each point is the fastest's throughput times the ratio of
/// both in common rounds, so that candidates with few rounds are compared with it fairly.
fn curve(contest: &Contest) -> Curve {
    let fastest = contest.fastest().map(|at| &contest.candidates[at]);
    let point = |candidate: &Candidate| {
        let fastest = fastest?;
        let ratio = candidate.over(fastest).map(|ratio| ratio.mean)?;
        Some((candidate.job.outstanding, fastest.throughput()?.mean * ratio))
    };
    Curve { size: contest.size, points: contest.candidates.iter().filter_map(point).collect() }
}
