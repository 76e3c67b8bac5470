//! The experiments, in the papers' order. T is T. Fukuoka's master's thesis "Finding and Analyzing Performance
//! Pitfalls of On-Demand Paging of InfiniBand" (2021), P the paper "Pitfalls of InfiniBand with On-Demand Paging" by T.
//! Fukuoka, S. Sato and K. Taura (2021), E is S. Passas' master's thesis "Analysis and Optimization of Overheads in
//! Communication Protocols Over High Speed Ethernet-based Cluster Interconnects" (2008), about MultiEdge, M the
//! paper "Designing MPI Library with On-Demand Paging (ODP) of InfiniBand: Challenges and Benefits" by M. Li and others (2016), F
//! the paper "A Performance Study of InfiniBand Fourteen Data Rate (FDR)" by Q. Liu and R. Russell (2014).

mod argo;
mod common;
mod connectx6;
mod damming;
mod damming_argo;
mod damming_else;
mod damming_n;
mod damming_range;
mod damming_trace;
mod detectors;
mod edge_alignment;
mod edge_common;
mod edge_copies;
mod edge_failure;
mod edge_latency;
mod edge_links;
mod edge_polling;
mod edge_primitives;
mod edge_schedulers;
mod fault_cost;
mod fdr_alignment;
mod fdr_best_b;
mod fdr_cache;
mod fdr_common;
mod fdr_connection;
mod fdr_numa;
mod fdr_outstanding;
mod fdr_signalling;
mod fdr_wait_poll;
mod flood;
mod flood_pages;
mod flood_write;
mod guards;
mod mpi_applications;
mod mpi_bandwidth;
mod mpi_common;
mod mpi_get;
mod mpi_latency;
mod mpi_paper;
mod mpi_pinned;
mod mpi_put;
mod odp_read;
mod odp_send;
mod odp_write;
mod pace;
mod spark;
mod systems;
mod timeout;
mod timeout_floor;
mod workarounds;

use crate::bench::Bench;
use crate::claim::Claim;
use crate::experiment::{Done, Experiment};
use anyhow::{Context, Result, bail, ensure};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// All experiments.
pub const ALL: [&Experiment; 44] = [
    &odp_read::EXPERIMENT,
    &odp_send::EXPERIMENT,
    &odp_write::EXPERIMENT,
    &fault_cost::EXPERIMENT,
    &timeout::EXPERIMENT,
    &damming::EXPERIMENT,
    &damming_trace::EXPERIMENT,
    &damming_range::EXPERIMENT,
    &damming_n::EXPERIMENT,
    &damming_else::EXPERIMENT,
    &damming_argo::EXPERIMENT,
    &argo::EXPERIMENT,
    &flood::EXPERIMENT,
    &flood_pages::EXPERIMENT,
    &flood_write::EXPERIMENT,
    &spark::EXPERIMENT,
    &connectx6::EXPERIMENT,
    &workarounds::EXPERIMENT,
    &guards::EXPERIMENT,
    &timeout_floor::EXPERIMENT,
    &systems::EXPERIMENT,
    &detectors::EXPERIMENT,
    &edge_links::EXPERIMENT,
    &edge_polling::EXPERIMENT,
    &edge_copies::EXPERIMENT,
    &edge_schedulers::EXPERIMENT,
    &edge_primitives::EXPERIMENT,
    &edge_latency::EXPERIMENT,
    &edge_alignment::EXPERIMENT,
    &edge_failure::EXPERIMENT,
    &mpi_latency::EXPERIMENT,
    &mpi_bandwidth::EXPERIMENT,
    &mpi_put::EXPERIMENT,
    &mpi_get::EXPERIMENT,
    &mpi_applications::EXPERIMENT,
    &mpi_pinned::EXPERIMENT,
    &fdr_connection::EXPERIMENT,
    &fdr_alignment::EXPERIMENT,
    &fdr_outstanding::EXPERIMENT,
    &fdr_cache::EXPERIMENT,
    &fdr_best_b::EXPERIMENT,
    &fdr_wait_poll::EXPERIMENT,
    &fdr_signalling::EXPERIMENT,
    &fdr_numa::EXPERIMENT,
];

/// The experiments with these IDs, in the order of [`ALL`]; `all` selects all.
pub fn select(ids: &[String]) -> Result<Vec<&'static Experiment>> {
    let known = |id: &String| id == "all" || ALL.iter().any(|experiment| experiment.id == id);
    if let Some(unknown) = ids.iter().find(|id| !known(id)) {
        bail!("there is no experiment `{unknown}`; `weir lab list` lists the experiments");
    }
    let wanted = |experiment: &&&Experiment| ids.iter().any(|id| id == "all" || id == experiment.id);
    Ok(ALL.iter().filter(wanted).copied().collect())
}

/// Runs an experiment, with each of its seeds. Figures and data are those of the first seed.
pub fn run(experiment: &'static Experiment, bench: &Bench<'_>) -> Result<Done> {
    if let Some(profile) = bench.profile {
        let id = experiment.id;
        ensure!(!experiment.fixed_adapters, "{id} compares fixed adapters: it cannot be run on {profile}");
    }
    if let Some(reason) = experiment.not_simulated {
        ensure!(bench.live, "{} does not run on the simulator: {reason}; use --live", experiment.id);
    }
    let began = Instant::now();
    let seeds = if experiment.one_seed { 1 } else { bench.seeds.max(1) };
    let one = || (experiment.run)(bench).with_context(|| experiment.id.to_owned());
    bench.round.store(0, Ordering::Relaxed);
    let mut report = one()?;
    let mut others = vec![];
    for round in 1..seeds {
        bench.round.store(round, Ordering::Relaxed);
        others.push(one()?.claims);
    }
    report.claims = Claim::over_seeds(std::mem::take(&mut report.claims), &others);
    Ok(Done {
        experiment,
        report,
        seed: bench.seed,
        seeds,
        simulated: vec![],
        profiles: bench.profiles(),
        trials: bench.counts(),
        live: bench.live,
        took: began.elapsed(),
        wakeup: bench.wakeup(),
    })
}
