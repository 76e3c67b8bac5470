//! Bandwidth of messages with the four schemes (M fig. 8).

use super::mpi_common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Predicted, Kind::Shaped};
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::Axis;
use crate::mpi::measure::Found;
use crate::mpi::osu::{Test, WINDOW};
use anyhow::Result;
use weir_msg::Scheme;

pub const EXPERIMENT: Experiment = Experiment {
    id: "mpi-bandwidth",
    title: "MPI with on-demand paging: bandwidth",
    source: "M fig. 8",
    not_simulated: None,
    not_live: |_| None,
    paper: "64 messages leave without waiting for each other, and one message answers them (osu_bw). ODP-Native is worse than \
            Pin-down for large messages, because of the page faults in the first round. The schemes that prefetch are alike. \
            Without MPI, both kinds of memory have the same bandwidth at 1 MiB (M III.A).",
    figures: &[PaperFigure {
        name: "M fig. 8",
        axes: "Bandwidth over the size of a message, for each scheme. The text states no scale.",
        shows: "ODP-Native is worse for large messages; the others are alike.",
        here: "Bandwidth is linear. From 512 KiB on there are fewer rounds than the 20 of osu_bw, and the first one counts.",
        drawings: 1,
    }],
    fixed_adapters: true,
    one_seed: true,
    run,
};

/// MByte/s.
fn bandwidth(size: u64, found: &Found) -> f64 {
    (WINDOW * size) as f64 / found.round
}

fn some(size: u64) -> u32 {
    match size {
        ..524_288 => 20,
        524_288..2_097_152 => 8,
        _ => 4,
    }
}

const FIRST_ROUND: &str = "The first round has a registration and a prefetch of 5 µs on both sides.";

fn run(bench: &Bench<'_>) -> Result<Report> {
    let curves = Curves::of(bench, Test::Bandwidth, some)?;
    let slower = |scheme: Scheme, least: u64| curves.worst([Scheme::PinDown, scheme], least, bandwidth);
    // Both schemes prefetched with each operation when the claims that are shaped were judged first.
    let claims = vec![
        Claim::at_most(
            Shaped,
            "Pin-down against ODP-Optimal, all sizes, worst",
            "similar performance",
            1.1,
            slower(Scheme::OdpOptimal, 1),
            "times",
        )
        .lacks(FIRST_ROUND),
        Claim::at_most(
            Shaped,
            "Pin-down against ODP-Enhanced, all sizes, worst",
            "similar performance",
            1.1,
            slower(Scheme::OdpEnhanced, 1),
            "times",
        )
        .lacks(FIRST_ROUND),
        Claim::at_least(
            Predicted,
            "Pin-down against ODP-Native, from 32 KiB on, worst",
            "worse for large messages",
            1.1,
            slower(Scheme::OdpNative, RENDEZVOUS),
            "times",
        ),
        Claim::at_most(
            Predicted,
            "Pin-down against ODP-Native, from 1 MiB on, worst",
            "the same at 1 MiB, without MPI",
            1.05,
            slower(Scheme::OdpNative, 1 << 20),
            "times",
        )
        .from("M III.A"),
    ];
    let axis = Axis::linear("MByte/s").showing(0.0, 0.0);
    let panels = vec![curves.panel("Bandwidth", axis, |_| true, bandwidth)];
    Ok(Report { claims, inputs: INPUTS.into(), panels, data: curves.data("MByte/s", bandwidth), ..Report::default() })
}
