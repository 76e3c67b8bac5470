//! Which job is next: a state machine without a clock and without I/O.
//!
//! A search has stages, which take place one after the other: what is best in one is used in those after it. A stage
//! has contests, one for each size. All contests of a stage take turns, round by round, until each is decided or the
//! stage's share of the time is over. What a stage leaves over, the later ones have, and in the end those that were not
//! decided. The first round of the first stage has all of the time, so that there is a result.

mod contest;
mod stages;

pub use contest::{Candidate, Contest, Out, Stage};

use crate::plan::Plan;
use contest::Limits;
use serde::{Deserialize, Serialize};
use weir_lab::stream::{Found, Job};

/// The state of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Search {
    pub plan: Plan,
    /// Of all stages so far.
    pub contests: Vec<Contest>,
    /// Number of stages that have begun.
    begun: usize,
    /// The time at which the present stage ends, seconds of the budget.
    deadline: f64,
    /// Time of all runs so far, seconds.
    pub spent: f64,
    /// Runs so far, failed ones included.
    pub runs: u64,
    /// The longest successful run with messages of each size, seconds.
    longest: Vec<(u64, f64)>,
    finished: bool,
}

/// A job that has its turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    contest: usize,
    candidate: usize,
    pub stage: Stage,
    /// Name of the setting.
    pub name: String,
    pub job: Job,
}

/// Why there is no result.
const NO_TIME: &str = "there was no time for a single run: give a longer --budget";

impl Search {
    /// A search without results.
    pub fn new(plan: Plan) -> Search {
        let (contests, longest) = (vec![], vec![]);
        Search { plan, contests, begun: 0, deadline: 0.0, spent: 0.0, runs: 0, longest, finished: false }
    }

    /// The next job; `None` at the end.
    pub fn next(&mut self) -> Option<Turn> {
        while !self.finished {
            if let Some(turn) = self.turn() {
                return Some(turn);
            }
            self.begin_stage();
        }
        None
    }

    /// Takes the result of a turn, and the seconds that it took.
    pub fn record(&mut self, turn: &Turn, result: Result<Found, String>, took: f64) {
        self.spent += took.max(0.0);
        self.runs += 1;
        if result.is_ok() {
            match self.longest.iter_mut().find(|(size, _)| *size == turn.job.size) {
                Some((_, longest)) => *longest = longest.max(took),
                None => self.longest.push((turn.job.size, took)),
            }
        }
        let Plan { least_rounds, most_rounds, precision, .. } = self.plan;
        let limits = Limits { least_rounds, most_rounds, precision };
        self.contests[turn.contest].record(turn.candidate, result, limits);
    }

    /// Whether no job is left.
    pub fn finished(&self) -> bool {
        self.finished
    }

    /// Seconds that the search takes at most from now.
    pub fn left(&self) -> f64 {
        if self.finished { 0.0 } else { (self.plan.budget - self.spent).max(0.0) }
    }

    /// Why there is no result, if no run succeeded: the error of the first candidate that failed, or that no run had
    /// time.
    pub fn failure(&self) -> Option<&str> {
        let candidates = || self.contests.iter().flat_map(|contest| &contest.candidates);
        if candidates().any(|candidate| candidate.found().next().is_some()) {
            return None;
        }
        let failed = |c| if let &Candidate { out: Some(Out::Failed(ref why)), .. } = c { Some(&**why) } else { None };
        candidates().find_map(failed).or(Some(NO_TIME))
    }

    /// Expected seconds of a run with messages of a size: the longest so far.
    fn cost(&self, size: u64) -> f64 {
        let planned = (self.plan.time + self.plan.warm_up).as_secs_f64();
        let mean = if self.runs > 0 { self.spent / self.runs as f64 } else { planned };
        let longest = self.longest.iter().find(|(of, _)| *of == size).map(|(_, longest)| *longest);
        longest.unwrap_or(mean).max(planned)
    }

    /// A job that there is time for, of the contest with the fewest rounds: of the present stage, or after all stages
    /// of any one that is not decided.
    fn turn(&self) -> Option<Turn> {
        let stages = stages::stages(&self.plan);
        let present = stages.get(self.begun.checked_sub(1)?).map(|(stage, _)| *stage);
        let open = self.contests.iter().enumerate().filter(|(_, contest)| match present {
            Some(stage) => contest.stage == stage,
            None => self.may_change(contest),
        });
        let turns = open.filter_map(|(at, contest)| {
            let first = self.begun == 1 && contest.round() == 0;
            let deadline = if first { self.plan.budget } else { self.deadline };
            let candidate = contest.turn().filter(|_| self.spent + self.cost(contest.size) <= deadline)?;
            Some((contest.stage, contest.round(), at, candidate))
        });
        let (stage, _, contest, candidate) = turns.min()?;
        let Candidate { name, job, .. } = &self.contests[contest].candidates[candidate];
        Some(Turn { contest, candidate, stage, name: name.clone(), job: job.clone() })
    }

    /// Whether another best number of outstanding messages would contradict no later contest, which used the present
    /// one.
    fn may_change(&self, contest: &Contest) -> bool {
        let later = |other: &Contest| other.size == contest.size && other.stage > contest.stage;
        contest.stage != Stage::Outstanding || !self.contests.iter().any(later)
    }

    fn begin_stage(&mut self) {
        let all = stages::stages(&self.plan);
        let Some((stage, share)) = all.get(self.begun) else {
            // Once more, with all of the time that is left over.
            self.finished = self.begun > all.len();
            self.deadline = self.plan.budget;
            self.begun += 1;
            return;
        };
        let rest: f64 = all[self.begun..].iter().map(|(_, share)| share).sum();
        self.deadline = self.spent + (self.plan.budget - self.spent) * share / rest;
        let mut contests = stages::contests(*stage, &self.plan, &self.contests);
        // As if each stage had as many.
        let comparisons = all.len() * contests.iter().map(|contest| contest.comparisons).sum::<usize>();
        contests.iter_mut().for_each(|contest| contest.comparisons = comparisons);
        self.contests.extend(contests);
        self.begun += 1;
    }
}

#[cfg(test)]
mod tests;
