//! What is measured, and for how long.

use crate::places::Placement;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use weir_lab::stream::{Amount, Job};

/// What a search measures. A search continues from a file only if the plan is the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Sizes of messages for which the best number of outstanding messages is searched, ascending.
    pub sizes: Vec<u64>,
    /// Sizes with which signalling and wake-ups are measured.
    pub probes: Vec<u64>,
    /// Sizes with which alignment and places are measured.
    pub few: Vec<u64>,
    /// Places of both sides; the first is the reference.
    pub places: Vec<Placement>,
    /// Most outstanding messages.
    pub most: u32,
    /// Most bytes of outstanding messages.
    pub memory: u64,
    /// Time of a run, and the time before it in which messages are sent that do not count.
    pub time: Duration,
    pub warm_up: Duration,
    /// Rounds of a contest.
    pub least_rounds: usize,
    pub most_rounds: usize,
    /// Ratios are known well enough if half their interval is at most this share.
    pub precision: f64,
    /// Time of all runs, seconds.
    pub budget: f64,
}

/// The budget of a quick plan, which leaves time for the start within two minutes.
pub const QUICK: Duration = Duration::from_secs(100);
/// The budget of a full plan.
pub const FULL: Duration = Duration::from_secs(600);

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

impl Plan {
    /// Four sizes, short runs.
    pub fn quick(places: Vec<Placement>) -> Plan {
        let plan = Plan {
            time: Duration::from_millis(150),
            warm_up: Duration::from_millis(30),
            most_rounds: 10,
            precision: 0.015,
            budget: QUICK.as_secs_f64(),
            ..Plan::full(places)
        };
        plan.with_sizes(vec![32 * K, 128 * K, M, 8 * M], true)
    }

    /// Powers of two from 32 KiB to 64 MiB.
    pub fn full(places: Vec<Placement>) -> Plan {
        let plan = Plan {
            sizes: vec![],
            probes: vec![],
            few: vec![],
            places,
            most: 128,
            memory: 256 * M,
            time: Duration::from_millis(300),
            warm_up: Duration::from_millis(50),
            least_rounds: 3,
            most_rounds: 30,
            precision: 0.01,
            budget: FULL.as_secs_f64(),
        };
        plan.with_sizes((15..=26).map(|bits| 1 << bits).collect(), false)
    }

    /// The same with other sizes.
    pub fn with_sizes(self, mut sizes: Vec<u64>, quick: bool) -> Plan {
        sizes.sort_unstable();
        sizes.dedup();
        let few = spread(&sizes, if quick { 2 } else { 3 });
        let probes = if quick { few.clone() } else { sizes.clone() };
        Plan { sizes, probes, few, ..self }
    }

    /// The same with another budget, seconds.
    pub fn with_budget(self, budget: Duration) -> Plan {
        Plan { budget: budget.as_secs_f64(), ..self }
    }

    /// A run of messages of `size` bytes, `outstanding` of them.
    pub fn job(&self, size: u64, outstanding: u32) -> Job {
        Job { size, outstanding, warm_up: self.warm_up, amount: Amount::Time(self.time), ..Job::default() }
    }
}

/// `count` of the sizes, evenly spread, neither the smallest nor the largest if there are enough.
fn spread(sizes: &[u64], count: usize) -> Vec<u64> {
    if sizes.len() <= count {
        return sizes.to_vec();
    }
    // Of four sizes and two: the first and the third. Of twelve and three: those in the middle of each third.
    let at = |n: usize| ((2 * n + 1) * sizes.len() / (2 * count)).saturating_sub(usize::from(count == 2));
    (0..count).map(|n| sizes[at(n)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_sizes_stand_for_all() {
        let quick = Plan::quick(vec![]);
        assert_eq!((quick.sizes.len(), quick.probes.clone()), (4, vec![32 * K, M]));
        let full = Plan::full(vec![]);
        assert_eq!((full.sizes.len(), full.probes.len()), (12, 12));
        assert_eq!(full.few, [128 * K, 2 * M, 32 * M]);
        assert_eq!(full.with_sizes(vec![9, 5, 9], false).few, [5, 9]);
    }
}
