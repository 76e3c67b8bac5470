//! Shared by the experiments of M: the schemes, runs over sizes, and what M's numbers are.

use crate::bench::Bench;
use crate::data::Data;
use crate::experiment::Input;
use crate::figure::{Axis, Panel, Series};
use crate::mpi::measure::{self, ADAPTER, Found, Run};
use crate::mpi::osu::{Test, scripts};
use anyhow::Result;
use std::sync::Arc;
use weir_msg::Scheme;
use weir_transport::Profile;

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

/// The adapter of M.
pub fn adapter() -> Result<Arc<Profile>> {
    Ok(Arc::new(weir_profiles::load(ADAPTER)?))
}

/// Runs of an OSU benchmark: for each scheme, what was found at each size.
pub struct Curves {
    pub sizes: Vec<u64>,
    found: Vec<Vec<Found>>,
    times: Vec<u32>,
}

impl Curves {
    /// Runs a benchmark: 1000 rounds of messages that are sent eagerly, 100 of others, as the OSU benchmarks do by default; few
    /// in tests. The first round counts. `least`: the shortest message.
    pub fn of(bench: &Bench<'_>, test: Test, least: u64) -> Result<Curves> {
        let adapter = adapter()?;
        let sizes: Vec<u64> = (0..=22).map(|power| 1 << power).filter(|size| *size >= least).collect();
        let sizes = if bench.shrink > 1 { sizes.into_iter().step_by(2).collect() } else { sizes };
        let (short, long) = if bench.shrink > 1 { (20, 10) } else { (1000, 100) };
        let times: Vec<u32> = sizes.iter().map(|size| if *size < RENDEZVOUS { short } else { long }).collect();
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
        let none = Found { time: f64::NAN, ..Found::default() };
        at.zip(which).map_or(none, |(at, which)| self.found[which][at].clone())
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
                    found.faults.into(),
                    found.prefetched.into(),
                    found.pinned.into(),
                ]);
            }
        }
        data
    }
}

/// With four significant digits.
pub fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(f64::NAN)
}

/// What the model takes from M as it is.
pub const INPUTS: [Input; 2] = [
    Input {
        name: "a prefetch of 64 bytes",
        paper: "5 µs",
        profile: "the call takes 5 µs; its first pages are present then, the others follow, 0.25 µs each",
        source: "M V.A",
    },
    Input {
        name: "where faults are resolved",
        paper: "at the sender without the receiver; at the receiver the sender is told, and starts again",
        profile: "data to send waits for its pages; a peer's request gets an RNR NAK",
        source: "M III.D",
    },
];
