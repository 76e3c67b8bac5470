//! Runs of programs on threads, and what comes of them.

use super::script::Script;
use super::world::{Cluster, Sums, World};
use crate::bench::Bench;
use std::sync::Arc;
use weir_msg::{Scheme, Settings};

/// The adapter of all runs.
pub const ADAPTER: &str = "connectib";

/// A program, and where it runs.
#[derive(Clone, Debug)]
pub struct Run {
    pub cluster: Cluster,
    pub scripts: Vec<Script>,
}

/// What came of a run. Numbers of pages and bytes are the average of the processes.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// When the last process ended, s; NaN if the program did not complete.
    pub time: f64,
    /// The average time between two marks of the first process, µs; NaN if the program did not complete.
    pub round: f64,
    pub whole: Pages,
    /// After the second mark of the first process.
    pub warm: Pages,
    /// The same as `round`, after the second mark.
    pub warm_round: f64,
    /// Rounds after the second mark.
    pub warm_rounds: f64,
    /// The most bytes that were pinned.
    pub pinned: f64,
    /// Messages by rendezvous.
    pub rendezvous: f64,
}

/// Pages of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pages {
    /// Page faults of the adapter.
    pub faults: f64,
    /// Pages that were asked for before they were needed.
    pub prefetched: f64,
    /// Pages that the operating system took although the adapter had them.
    pub taken: f64,
}

impl Run {
    /// The scripts on nodes with the adapter of M, without memory pressure.
    pub fn new(scheme: Scheme, nodes: usize, scripts: Vec<Script>, profile: &Arc<weir_transport::Profile>) -> Run {
        let settings = Settings { scheme, ..Settings::default() };
        Run { cluster: Cluster { profile: profile.clone(), nodes, settings, pressure: 0.0, seed: 1 }, scripts }
    }

    /// Runs it to its end.
    pub fn found(&self) -> Found {
        let (mut world, mut sim) = World::new(&self.cluster, self.scripts.clone());
        world.run(&mut sim);
        let ended = world.ended().filter(|_| world.is_complete());
        let count = world.ranks.len() as f64;
        let mean = |of: &dyn Fn(&super::rank::Rank) -> u64| world.ranks.iter().map(of).sum::<u64>() as f64 / count;
        let marks: Vec<f64> = world.ranks[0].marks.iter().map(|at| at.0 as f64 / 1e3).collect();
        let complete = if ended.is_some() { 1.0 } else { f64::NAN };
        let (all, warm) = (world.sums(&sim), world.warm.unwrap_or_default());
        let pages = |from: Sums| Pages {
            faults: (all.faults - from.faults) as f64 / count,
            prefetched: (all.prefetched - from.prefetched) as f64 / count,
            taken: (all.taken - from.taken) as f64 / count,
        };
        Found {
            time: ended.map_or(f64::NAN, |at| at.0 as f64 / 1e9),
            round: complete * average(&marks),
            whole: pages(Sums::default()),
            warm: pages(warm),
            warm_round: complete * average(marks.get(1..).unwrap_or_default()),
            warm_rounds: marks.len() as f64 - 2.0,
            pinned: mean(&|rank| rank.endpoint.counters().pinned_peak + rank.pinned_window),
            rendezvous: mean(&|rank| rank.endpoint.counters().rendezvous),
        }
    }
}

impl Found {
    /// Nothing was found.
    pub const NONE: Found = Found {
        time: f64::NAN,
        round: f64::NAN,
        whole: Pages { faults: f64::NAN, prefetched: f64::NAN, taken: f64::NAN },
        warm: Pages { faults: f64::NAN, prefetched: f64::NAN, taken: f64::NAN },
        warm_round: f64::NAN,
        warm_rounds: f64::NAN,
        pinned: f64::NAN,
        rendezvous: f64::NAN,
    };
}

/// The average time between marks.
fn average(marks: &[f64]) -> f64 {
    match marks {
        [first, .., last] => (last - first) / (marks.len() - 1) as f64,
        _ => f64::NAN,
    }
}

/// What comes of each run, in their order, on as many threads as the bench has.
pub fn all(bench: &Bench<'_>, runs: &[Run]) -> Vec<Found> {
    bench.note(ADAPTER, 1);
    bench.on_threads(runs, Run::found)
}
