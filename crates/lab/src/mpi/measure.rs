//! Runs of programs on threads, and what comes of them.

use super::script::Script;
use super::world::{Cluster, World};
use crate::bench::Bench;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// When the last process ended, s; NaN if the program did not complete.
    pub time: f64,
    /// Times of the marks of the first process, µs.
    pub marks: Vec<f64>,
    /// Page faults of the adapters.
    pub faults: f64,
    /// Pages that were asked for before they were needed.
    pub prefetched: f64,
    /// Pages that the operating system took although the adapter had them.
    pub taken: f64,
    /// The most bytes that were pinned.
    pub pinned: f64,
    /// Messages by rendezvous.
    pub rendezvous: f64,
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
        let mut hosts: Vec<_> = world.ranks.iter().map(|rank| rank.ports.host).collect();
        hosts.sort();
        hosts.dedup();
        Found {
            time: ended.map_or(f64::NAN, |at| at.0 as f64 / 1e9),
            marks: world.ranks[0].marks.iter().map(|at| at.0 as f64 / 1e3).collect(),
            faults: hosts.iter().map(|host| sim.page_faults(*host)).sum::<u64>() as f64 / count,
            prefetched: mean(&|rank| rank.endpoint.counters().prefetched_pages),
            taken: mean(&|rank| rank.ports.memory.taken),
            pinned: mean(&|rank| rank.endpoint.counters().pinned_peak + rank.pinned_window),
            rendezvous: mean(&|rank| rank.endpoint.counters().rendezvous),
        }
    }
}

impl Found {
    /// The average time between two marks, µs; NaN if the program did not complete.
    pub fn round(&self) -> f64 {
        match self.marks.as_slice() {
            [first, .., last] if !self.time.is_nan() => (last - first) / (self.marks.len() - 1) as f64,
            _ => f64::NAN,
        }
    }
}

/// What comes of each run, in their order, on as many threads as the bench has.
pub fn all(bench: &Bench<'_>, runs: &[Run]) -> Vec<Found> {
    (bench.progress)(runs.len(), 0);
    bench.note(ADAPTER, 1);
    let (next, found) = (AtomicUsize::new(0), Mutex::new(vec![]));
    let work = || {
        // Later runs tend to take longer.
        let take = || (next.fetch_add(1, Ordering::Relaxed) + 1..=runs.len()).next().map(|n| runs.len() - n);
        while let Some(at) = take() {
            let result = runs[at].found();
            found.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
            (bench.progress)(0, 1);
        }
    };
    let threads = bench.threads.clamp(1, runs.len().max(1));
    std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(work)));
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, result)| result).collect()
}
