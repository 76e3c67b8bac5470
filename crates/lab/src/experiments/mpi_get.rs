//! Latency of MPI_Get with the four schemes (M fig. 9).

use super::mpi_common::*;
use crate::bench::Bench;
use crate::experiment::{Experiment, Report};
use crate::mpi::osu::Test;
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "mpi-get",
    title: "MPI with on-demand paging: gets from a window",
    source: "M fig. 9",
    not_simulated: None,
    not_live: |_| None,
    paper: "A process locks the window of another one, gets, and unlocks it (osu_get_latency with MPI_Win_create and \
            MPI_Win_lock). ODP-Optimal and ODP-Enhanced are as fast as Pin-down.",
    figures: &[WINDOW_LATENCY],
    fixed_adapters: true,
    one_seed: true,
    run,
};

fn run(bench: &Bench<'_>) -> Result<Report> {
    windows(bench, Test::Get)
}
