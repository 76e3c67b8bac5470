//! Which job is next: a state machine without a clock and without I/O.
//!
//! A search has stages, which take place one after the other: what is best in one is used in those after it. A stage
//! has contests, one for each size. All contests of a stage take turns, round by round, until each is decided or the
//! stage's share of the time is over. What a stage leaves over, the later ones have.

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

impl Search {
    pub fn new(plan: Plan) -> Search {
        Search { plan, contests: vec![], begun: 0, deadline: 0.0, spent: 0.0, runs: 0, finished: false }
    }

    /// The next job; `None` at the end.
    pub fn next(&mut self) -> Option<Turn> {
        while !self.finished {
            if self.spent + self.cost() <= self.deadline
                && let Some(turn) = self.turn()
            {
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
        let Plan { least_rounds, most_rounds, precision, .. } = self.plan;
        let limits = Limits { least_rounds, most_rounds, precision };
        self.contests[turn.contest].record(turn.candidate, result, limits);
    }

    pub fn finished(&self) -> bool {
        self.finished
    }

    /// Seconds that the search takes at most from now.
    pub fn left(&self) -> f64 {
        if self.finished { 0.0 } else { (self.plan.budget - self.spent).max(0.0) }
    }

    /// The error of the first candidate that failed, if no run succeeded.
    pub fn failure(&self) -> Option<&str> {
        let candidates = || self.contests.iter().flat_map(|contest| &contest.candidates);
        let failed =
            || candidates().find_map(|c| if let Some(Out::Failed(why)) = &c.out { Some(&**why) } else { None });
        if candidates().all(|candidate| candidate.found().next().is_none()) { failed() } else { None }
    }

    /// Expected seconds of a run.
    fn cost(&self) -> f64 {
        let planned = (self.plan.time + self.plan.warm_up).as_secs_f64();
        if self.runs > 0 { (self.spent / self.runs as f64).max(planned) } else { planned }
    }

    /// A job of the present stage, of the contest with the fewest rounds.
    fn turn(&self) -> Option<Turn> {
        let stage = stages::stages(&self.plan).get(self.begun.checked_sub(1)?)?.0;
        let open = self.contests.iter().enumerate().filter(|(_, contest)| contest.stage == stage);
        let turns = open.filter_map(|(at, contest)| Some((contest.round(), at, contest.turn()?)));
        let (_, contest, candidate) = turns.min()?;
        let Candidate { name, job, .. } = &self.contests[contest].candidates[candidate];
        Some(Turn { contest, candidate, stage, name: name.clone(), job: job.clone() })
    }

    fn begin_stage(&mut self) {
        let all = stages::stages(&self.plan);
        let Some((stage, share)) = all.get(self.begun) else {
            self.finished = true;
            return;
        };
        let rest: f64 = all[self.begun..].iter().map(|(_, share)| share).sum();
        self.deadline = self.spent + (self.plan.budget - self.spent) * share / rest;
        self.contests.extend(stages::contests(*stage, &self.plan, &self.contests));
        self.begun += 1;
    }
}

#[cfg(test)]
mod tests;
