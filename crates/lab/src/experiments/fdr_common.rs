//! Shared by the experiments of F: sizes, jobs, curves, and the table of all runs.

use crate::bench::Bench;
use crate::claim::Claim;
use crate::data::Data;
pub use crate::data::{rounded, size_name};
use crate::experiment::{Input, Report};
use crate::figure::{Axis, Panel, Series};
use crate::stream::{Amount, Found, Job, Route, Runs, Sides};
use std::time::Duration;

/// Bytes of F's tests.
pub const ALL_BYTES: f64 = (64u64 << 30) as f64;
/// Live, no more than this is outstanding.
const LIVE_BYTES: u64 = 128 << 20;
const KI: u64 = 1 << 10;
const MI: u64 = 1 << 20;

/// Sizes of messages, from 32 KiB on as in F; few live and in tests.
pub fn sizes(bench: &Bench<'_>) -> Vec<u64> {
    match few(bench) {
        true if bench.live => vec![32 * KI, 128 * KI, 512 * KI, MI, 8 * MI],
        true => vec![32 * KI, 128 * KI, 512 * KI, MI, 8 * MI, 16 * MI],
        false => (15..=26).map(|power| 1 << power).collect(),
    }
}

/// Whether there are few settings: live, where each takes time, and in tests.
pub fn few(bench: &Bench<'_>) -> bool {
    bench.live || bench.shrink > 1
}

/// The numbers of outstanding messages of `size` bytes that are tried for the best, among them `more`. More than 64 MiB
/// outstanding are far beyond every cache.
pub fn numbers(bench: &Bench<'_>, size: u64, more: &[u32]) -> Vec<u32> {
    let all: &[u32] = if few(bench) {
        &[1, 2, 4, 8, 16, 32, 64, 128]
    } else {
        &[1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    };
    let most = if bench.live { LIVE_BYTES } else { 64 * MI };
    let fits = |b: &u32| u64::from(*b) * size <= most || *b <= 2;
    let mut chosen: Vec<u32> = all.iter().chain(more).copied().filter(fits).collect();
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

/// F's job: wait-wakeup, aligned, a separate area for each message, half of the outstanding messages for a signal.
pub fn job(size: u64, outstanding: u32) -> Job {
    let (warm_up, time) = (Duration::from_millis(30), Duration::from_millis(120));
    Job { size, outstanding, warm_up, amount: Amount::Time(time), ..Job::default() }
}

/// F's job with busy polling on both sides.
pub fn polling(size: u64, outstanding: u32) -> Job {
    Job { polls: Sides::BOTH, ..job(size, outstanding) }
}

/// Throughput over the number of outstanding messages.
pub fn over_numbers(title: impl Into<String>, series: Vec<Series>) -> Panel {
    Panel::new(title, Axis::linear("outstanding messages (B)"), gbits(), series)
}

/// A value over the sizes.
pub fn over_sizes(title: impl Into<String>, y: Axis, series: Vec<Series>) -> Panel {
    Panel::new(title, Axis::sizes("bytes of a message"), y, series)
}

/// The axis of throughput.
pub fn gbits() -> Axis {
    Axis::linear("Gbit/s").showing(0.0, 0.0)
}

/// A line of a value of jobs over x.
pub fn line(
    name: impl Into<String>,
    runs: &Runs,
    jobs: impl IntoIterator<Item = (f64, Job)>,
    value: impl Fn(&Found) -> f64,
) -> Series {
    let point = |(x, job): (f64, Job)| runs.get(Route::Switch, &job).map(|found| (x, value(found)));
    Series::line(name, jobs.into_iter().filter_map(point).collect::<Vec<_>>())
}

/// Throughputs that differ by less are the same: live, runs of the same job differ by more than simulated ones.
fn same(bench: &Bench<'_>) -> f64 {
    if bench.live { 0.02 } else { 0.002 }
}

/// The highest throughput of some jobs, and the first job that has the [`same`].
pub fn best(bench: &Bench<'_>, runs: &Runs, jobs: impl IntoIterator<Item = Job>) -> Option<(Job, f64)> {
    let all: Vec<(Job, f64)> = jobs.into_iter().map(|job| (job.clone(), runs.gbits(Route::Switch, &job))).collect();
    let most = all.iter().map(|(_, gbits)| *gbits).fold(f64::NAN, f64::max);
    all.into_iter().find(|(_, gbits)| *gbits >= most * (1.0 - same(bench))).map(|(job, _)| (job, most))
}

/// CPU time of both sides for F's 64 GiB, seconds.
pub fn cpu_of_all(found: &Found) -> f64 {
    found.cpu() / found.bytes as f64 * ALL_BYTES
}

/// Elapsed time for F's 64 GiB, seconds.
pub fn time_of_all(found: &Found) -> f64 {
    found.seconds / found.bytes as f64 * ALL_BYTES
}

/// CPU time of a side, % of a core, on average over both.
pub fn cpu_share(found: &Found) -> f64 {
    found.cpu() / 2.0 / found.seconds * 100.0
}

/// All runs.
fn data(runs: &Runs) -> Data {
    let mut data = Data::new([
        "route",
        "bytes",
        "outstanding",
        "signal",
        "depth",
        "offset",
        "areas",
        "polls",
        "sender's node",
        "receiver's node",
        "Gbit/s",
        "sender's CPU %",
        "receiver's CPU %",
        "CPU s for 64 GiB",
        "seconds for 64 GiB",
    ]);
    for (route, job, found) in runs.iter() {
        let node = |node: Option<u32>| node.map_or(f64::NAN, f64::from);
        data.push([
            if *route == Route::Switch { "switch" } else { "back to back" }.into(),
            job.size.into(),
            job.outstanding.into(),
            found.signal.into(),
            found.depth.into(),
            job.offset.into(),
            if job.areas == crate::stream::Areas::One { "one" } else { "separate" }.into(),
            job.polls.word().into(),
            node(job.sender.node).into(),
            node(job.receiver.node).into(),
            rounded(found.gbits).into(),
            rounded(found.sender.cpu() / found.seconds * 100.0).into(),
            rounded(found.receiver.cpu() / found.seconds * 100.0).into(),
            rounded(cpu_of_all(found)).into(),
            rounded(time_of_all(found)).into(),
        ]);
    }
    data
}

/// The report of a run. Live, throughputs and times of F's machine are left out, and `live` says why other claims may
/// fail.
pub fn report(
    bench: &Bench<'_>,
    claims: impl IntoIterator<Item = Claim>,
    live: &'static str,
    panels: Vec<Panel>,
    runs: &Runs,
) -> Report {
    let of_machine = |claim: &Claim| matches!(claim.unit, "Gbit/s" | "s");
    let claims = claims.into_iter().filter(|claim| !bench.live || !of_machine(claim));
    Report {
        claims: claims.map(|claim| claim.lacks_live(bench.live, live)).collect(),
        inputs: if bench.live { vec![] } else { INPUTS.to_vec() },
        panels,
        data: data(runs),
        not_live: NOT_LIVE,
        ..Report::default()
    }
}

/// The highest value; NaN if one of them is.
pub fn most(values: impl IntoIterator<Item = f64>) -> f64 {
    let higher = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
    values.into_iter().reduce(higher).unwrap_or(f64::NAN)
}

/// The lowest value; NaN if one of them is.
pub fn least(values: impl IntoIterator<Item = f64>) -> f64 {
    -most(values.into_iter().map(|value| -value))
}

/// By how much the highest is above the lowest, %.
pub fn spread(values: &[f64]) -> f64 {
    (most(values.iter().copied()) / least(values.iter().copied()) - 1.0) * 100.0
}

/// Why a live run has fewer claims.
const NOT_LIVE: &str = "Claims about absolute throughputs and times are those of F's machine, and are simulated only.";

/// What the simulated hosts take from F as it is.
const INPUTS: [Input; 8] = [
    Input {
        name: "throughput of aligned messages, polled",
        paper: "slightly more than 50 Gbit/s",
        profile: "a cache line of 64 bytes takes the bus as long as 50.3 Gbit/s of payload have",
        source: "F fig. 9",
    },
    Input {
        name: "the cache between adapter and memory",
        paper: "1 MiB: the highest throughput with 4 messages outstanding, lower with 5",
        profile: "4 MiB and a little, of which what was used least recently gives way; the same area always hits",
        source: "F fig. 1b, 7, eq. 1",
    },
    Input {
        name: "throughput beyond the cache, aligned and not",
        paper: "47.75 and 34 Gbit/s with 8 MiB",
        profile: "what a missing line costs, and what it costs to read it before a part of it is written",
        source: "F fig. 2b",
    },
    Input {
        name: "one message of 32 KiB at a time",
        paper: "10 Gbit/s, and close to 20 s of CPU time for 64 GiB",
        profile: "the time and the CPU time of a wake-up",
        source: "F 3.3, fig. 4, 5",
    },
    Input {
        name: "an event",
        paper: "wait-wakeup: slightly less than 50 Gbit/s; 32 messages of 32 KiB: more than 45",
        profile: "it occupies the adapter for 0.8 µs",
        source: "F fig. 4, 9, 11",
    },
    Input {
        name: "CPU time",
        paper: "the same for all offsets; 100 % if a side polls",
        profile: "a program's time does not depend on addresses, and polling takes all that is left",
        source: "F fig. 3, 10",
    },
    Input {
        name: "offsets",
        paper: "a multiple of 64 bytes is as good as a page",
        profile: "the bus moves lines of 64 bytes",
        source: "F fig. 2",
    },
    Input {
        name: "memory of the other NUMA node",
        paper: "up to 20 % more with affinity",
        profile: "lines of it take the bus longer",
        source: "F fig. 13",
    },
];
