//! Latency of messages with the four schemes (M fig. 8).

use super::mpi_common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Predicted, Kind::Shaped};
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::Axis;
use crate::mpi::measure::Found;
use crate::mpi::osu::Test;
use anyhow::Result;
use weir_msg::Scheme;

pub const EXPERIMENT: Experiment = Experiment {
    id: "mpi-latency",
    title: "MPI with on-demand paging: latency",
    source: "M fig. 8",
    not_simulated: None,
    not_live: |_| None,
    paper: "A ping-pong between two processes on two nodes (osu_latency). Short messages go through pinned bounce buffers in \
            all schemes, so that page faults concern large messages only. ODP-Native is worse than Pin-down there, because of \
            the page faults in the first round. The schemes that prefetch are as fast as Pin-down.",
    figures: &[PaperFigure {
        name: "M fig. 8",
        axes: "Latency over the size of a message, for each scheme. The text states no scale.",
        shows: "ODP-Native is worse for large messages; the others are alike. 64 bytes take 2 µs one way (M V.A).",
        here: "The axes are logarithmic. The average has the first round, as M's has; messages from 32 KiB on go by rendezvous.",
        drawings: 2,
    }],
    fixed_adapters: true,
    one_seed: true,
    run,
};

/// One way, µs.
fn one_way(_: u64, found: &Found) -> f64 {
    found.round / 2.0
}

const FIRST_ROUND: &str = "The first round has a registration and a prefetch of 5 µs on both sides. A grant comes after 4 µs, so the rest is not \
                           hidden.";

fn run(bench: &Bench<'_>) -> Result<Report> {
    let curves = Curves::of(bench, Test::Latency, rounds)?;
    let against = |scheme: Scheme, least: u64| curves.worst([scheme, Scheme::PinDown], least, one_way);
    // Both schemes prefetched with each operation when the claims that are shaped were judged first.
    let claims = vec![
        Claim::near(
            Calibrated,
            "Pin-down, 64 bytes: one way",
            2.0,
            0.05,
            one_way(64, &curves.at(Scheme::PinDown, 64)),
            "µs",
        )
        .from("M V.A"),
        Claim::at_most(
            Predicted,
            "ODP-Optimal against Pin-down, up to 16 KiB, worst",
            "the same",
            1.05,
            curves.worst([Scheme::OdpOptimal, Scheme::PinDown], 1, |size, found| {
                if size < RENDEZVOUS { one_way(size, found) } else { 1.0 }
            }),
            "times",
        ),
        Claim::at_most(
            Shaped,
            "ODP-Optimal against Pin-down, from 32 KiB on, worst",
            "similar performance",
            1.1,
            against(Scheme::OdpOptimal, RENDEZVOUS),
            "times",
        )
        .lacks(FIRST_ROUND),
        Claim::at_most(
            Shaped,
            "ODP-Enhanced against Pin-down, from 32 KiB on, worst",
            "similar performance",
            1.1,
            against(Scheme::OdpEnhanced, RENDEZVOUS),
            "times",
        )
        .lacks(FIRST_ROUND),
        Claim::at_most(
            Shaped,
            "ODP-Optimal against Pin-down, from 256 KiB on, worst",
            "similar performance",
            1.1,
            against(Scheme::OdpOptimal, 256 << 10),
            "times",
        )
        .lacks(FIRST_ROUND),
        Claim::at_least(
            Predicted,
            "ODP-Native against Pin-down, from 32 KiB on, worst",
            "worse for large messages",
            1.1,
            against(Scheme::OdpNative, RENDEZVOUS),
            "times",
        ),
        Claim::at_least(
            Predicted,
            "ODP-Native, 64 KiB: page faults of a process",
            "page faults in the first round",
            1.0,
            curves.at(Scheme::OdpNative, 64 << 10).whole.faults,
            "",
        ),
        Claim::at_most(
            Predicted,
            "ODP-Optimal, 64 KiB: page faults of a process",
            "warmed up before the data transfer",
            0.0,
            curves.at(Scheme::OdpOptimal, 64 << 10).whole.faults,
            "",
        ),
    ];
    let time = || Axis::log("one way (µs)");
    let panels = vec![
        curves.panel("Short messages", time(), |size| size < RENDEZVOUS, one_way),
        curves.panel("Messages by rendezvous", time(), |size| size >= RENDEZVOUS, one_way),
    ];
    Ok(Report { claims, inputs: INPUTS.into(), panels, data: curves.data("one way µs", one_way), ..Report::default() })
}
