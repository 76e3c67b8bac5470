//! Shared by the experiments of M: the schemes, runs over sizes, and what M's numbers are.

use crate::bench::Bench;
use crate::claim::{Claim, Kind::Predicted, Kind::Shaped};
use crate::data::Data;
pub use crate::data::rounded;
use crate::experiment::{Input, PaperFigure, Report};
use crate::figure::{Axis, Panel, Series};
use crate::mpi::measure::{self, ADAPTER, Found, Run};
use crate::mpi::osu::{Test, scripts};
use anyhow::Result;
use std::sync::Arc;
use weir_msg::Scheme;
use weir_transport::Profile;

/// M's figure of puts and gets.
pub const WINDOW_LATENCY: PaperFigure = PaperFigure {
    name: "M fig. 9",
    axes: "Latency over the size of a message, for each scheme. The text states no scale.",
    shows: "ODP-Optimal and ODP-Enhanced achieve the same performance as Pin-down.",
    here: "The axes are logarithmic. A lock is a message and its answer.",
    drawings: 2,
};

/// The schemes, in the order of M's figures.
pub const SCHEMES: [Scheme; 4] = Scheme::ALL;
/// The largest message of the OSU benchmarks.
pub const LARGEST: u64 = 4 << 20;
/// Messages from this length on go by rendezvous.
pub const RENDEZVOUS: u64 = 32 << 10;

/// M's name of a scheme.
pub fn scheme_name(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::PinDown => "Pin-down",
        Scheme::OdpNative => "ODP-Native",
        Scheme::OdpEnhanced => "ODP-Enhanced",
        Scheme::OdpOptimal => "ODP-Optimal",
    }
}

/// The adapter of M; its times are drawn from the seed of the bench.
pub fn adapter(bench: &Bench<'_>) -> Result<Arc<Profile>> {
    let mut profile = weir_profiles::load(ADAPTER)?;
    profile.seed = profile.seed.wrapping_add(bench.seed);
    Ok(Arc::new(profile))
}

/// Runs of an OSU benchmark: for each scheme, what was found at each size.
pub struct Curves {
    pub sizes: Vec<u64>,
    found: Vec<Vec<Found>>,
    times: Vec<u32>,
}

impl Curves {
    /// Runs a benchmark, with so many rounds of messages of a size; few in tests. The first round counts.
    pub fn of(bench: &Bench<'_>, test: Test, rounds: fn(u64) -> u32) -> Result<Curves> {
        let adapter = adapter(bench)?;
        let small = bench.shrink > 1;
        let sizes: Vec<u64> = (0..=22).step_by(if small { 2 } else { 1 }).map(|power| 1 << power).collect();
        let times: Vec<u32> =
            sizes.iter().map(|size| if small { rounds(*size).min(10) } else { rounds(*size) }).collect();
        let with = |scheme: Scheme| {
            let run = |(size, times)| Run::new(scheme, 2, scripts(test, size, LARGEST, times), &adapter);
            sizes.iter().copied().zip(times.iter().copied()).map(run).collect::<Vec<Run>>()
        };
        let runs: Vec<Run> = SCHEMES.into_iter().flat_map(with).collect();
        let all = measure::all(bench, &runs);
        let found = all.chunks(sizes.len()).map(<[Found]>::to_vec).collect();
        Ok(Curves { sizes, found, times })
    }

    /// What a run with this scheme and size found.
    pub fn at(&self, scheme: Scheme, size: u64) -> Found {
        let at = self.sizes.iter().position(|each| *each == size);
        let which = SCHEMES.iter().position(|each| *each == scheme);
        at.zip(which).map_or(Found::NONE, |(at, which)| self.found[which][at])
    }

    /// A value of each scheme over the sizes.
    pub fn panel(
        &self,
        title: &str,
        y: Axis,
        sizes: impl Fn(u64) -> bool,
        value: impl Fn(u64, &Found) -> f64,
    ) -> Panel {
        let line = |scheme: Scheme| {
            let of = |size: &u64| (*size as f64, value(*size, &self.at(scheme, *size)));
            let points: Vec<(f64, f64)> = self.sizes.iter().filter(|size| sizes(**size)).map(of).collect();
            Series::line(scheme_name(scheme), points)
        };
        Panel::new(title, Axis::sizes("bytes of a message"), y, SCHEMES.into_iter().map(line).collect())
    }

    /// The largest ratio of two schemes' values over sizes from `least` on; NaN if a run failed.
    pub fn worst(&self, schemes: [Scheme; 2], least: u64, value: impl Fn(u64, &Found) -> f64) -> f64 {
        let ratio = |size: &u64| {
            let [of, against] = schemes.map(|scheme| value(*size, &self.at(scheme, *size)));
            of / against
        };
        let sizes = self.sizes.iter().filter(|size| **size >= least);
        sizes.map(ratio).reduce(|most, v| if most.is_nan() || v <= most { most } else { v }).unwrap_or(f64::NAN)
    }

    /// All runs.
    pub fn data(&self, value_name: &'static str, value: impl Fn(u64, &Found) -> f64) -> Data {
        let mut data =
            Data::new(["bytes", "scheme", value_name, "rounds", "page faults", "prefetched pages", "pinned bytes"]);
        for (scheme, found) in SCHEMES.iter().zip(&self.found) {
            for ((size, found), times) in self.sizes.iter().zip(found).zip(&self.times) {
                data.push([
                    (*size).into(),
                    scheme_name(*scheme).into(),
                    rounded(value(*size, found)).into(),
                    (*times).into(),
                    found.whole.faults.into(),
                    found.whole.prefetched.into(),
                    found.pinned.into(),
                ]);
            }
        }
        data
    }
}

/// Rounds of a benchmark of latency, as the OSU benchmarks have by default: 1000, and 100 of long messages.
pub fn rounds(size: u64) -> u32 {
    if size < RENDEZVOUS { 1000 } else { 100 }
}

/// What the model takes from M as it is.
pub const INPUTS: [Input; 2] = [
    Input {
        name: "a prefetch of 64 bytes",
        paper: "5 µs",
        profile: "the call takes 5 µs; its first pages are present after 3 µs, the others follow, 0.25 µs each",
        source: "M V.A",
    },
    Input {
        name: "where faults are resolved",
        paper: "at the sender without the receiver; at the receiver the sender is told, and starts again",
        profile: "data to send waits for its pages; a peer's request gets an RNR NAK",
        source: "M III.D",
    },
];

const LOCKED: &str = "M queues operations, so that it prefetches the local buffer while it waits for the lock (M VI.C). libfabric has no \
                      locks: the first WRITE comes after a prefetch of 5 µs.";
const FIRST_ROUND: &str = "The first round has a registration and a prefetch of 5 µs before the operation leaves.";

/// Puts or gets with lock and unlock.
pub fn windows(bench: &Bench<'_>, test: Test) -> Result<Report> {
    let curves = Curves::of(bench, test, rounds)?;
    let time = |_: u64, found: &Found| found.round;
    let against = |scheme: Scheme, least: u64| curves.worst([scheme, Scheme::PinDown], least, time);
    let same = |scheme: Scheme, from: &str, least: u64| {
        let name = format!("{} against Pin-down, {from}, worst", scheme_name(scheme));
        let lacks = if test == Test::Put && scheme == Scheme::OdpOptimal { LOCKED } else { FIRST_ROUND };
        let value = against(scheme, least);
        // Both schemes prefetched with each operation when this was judged first.
        Claim::at_most(Shaped, name, "the same performance", 1.1, value, "times").lacks(lacks)
    };
    let claims = vec![
        same(Scheme::OdpOptimal, "all sizes", 1),
        same(Scheme::OdpOptimal, "from 256 KiB on", 256 << 10),
        same(Scheme::OdpEnhanced, "all sizes", 1),
        same(Scheme::OdpEnhanced, "from 256 KiB on", 256 << 10),
        Claim::at_least(
            Predicted,
            "ODP-Native against Pin-down, from 32 KiB on, worst",
            "not as fast",
            1.1,
            against(Scheme::OdpNative, RENDEZVOUS),
            "times",
        ),
    ];
    let axis = || Axis::log("lock, operation, unlock (µs)");
    let panels = vec![
        curves.panel("Short", axis(), |size| size < RENDEZVOUS, time),
        curves.panel("Long", axis(), |size| size >= RENDEZVOUS, time),
    ];
    Ok(Report { claims, inputs: INPUTS.into(), panels, data: curves.data("round µs", time), ..Report::default() })
}
