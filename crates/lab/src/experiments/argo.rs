//! ArgoDSM itself, over MPICH over UCX over Weir, by two processes (T 6.1).

use super::common::{names_ucx, share};
use crate::adapter::Adapter;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Predicted};
use crate::data::Data;
use crate::experiment::{Experiment, Input, PaperFigure, Report};
use crate::figure::{Axis, Bars, Panel, Series};
use crate::software::argo::{Argo, NEEDS, Program, Run};
use crate::software::{Counters, Evidence, Observe, Place, Setting, Software, Ucx, evidence};
use crate::statistics::median;
use anyhow::{Context, Result, ensure};
use std::time::Duration;

pub const EXPERIMENT: Experiment = Experiment {
    id: "argo",
    title: "ArgoDSM with memory on demand",
    source: "T 6.1",
    not_simulated: Some("it runs ArgoDSM itself, from a checkout (--argodsm DIR)"),
    not_live,
    paper: "ArgoDSM is a distributed shared memory over MPI, over UCX, of which a variable switched on-demand paging on. Its \
            start and its end alone, with 10 MB, 100 times on each of three systems: two groups of run times where \
            ConnectX-4 dams packets, of which the longer has a timeout. The tutorial's example with 16 threads depends on the \
            contention for a global lock. Here both programs are ArgoDSM's, run by two processes on one machine.",
    figures: &[
        PaperFigure {
            name: "T fig. 6.1",
            axes: "Histograms of execution times with on-demand paging, for each system. The text states no scale.",
            shows: "Two groups on KNL-4 and on Reedbush-H; none with a timeout on ABCI.",
            here: "The share of runs that took at most so long, for each adapter, with and without on-demand paging.",
            drawings: 1,
        },
        PaperFigure {
            name: "T fig. 6.4",
            axes: "Distributions of execution times of the tutorial's example. The text states no scale.",
            shows: "Without on-demand paging it is faster on KNL-4 and Reedbush-H, and slower on ABCI.",
            here: "The medians.",
            drawings: 1,
        },
        PaperFigure {
            name: "T fig. 6.2",
            axes: "A list of eight packets, numbers 117 to 124 of a capture, with times in seconds, LIDs, PSNs and names.",
            shows: "READ at 70.8 ms, RNR NAK at 72.5, READ again at 77.3, its response at 78.0, SEND 26 µs later, a second \
                    response at 78.8, SEND again at 1739.3, ACK 5 µs later.",
            here: "A ladder of the packets that `weir analyze` shows for the most expensive packet damming of a slow run.",
            drawings: 1,
        },
    ],
    fixed_adapters: true,
    one_seed: true,
    run,
};

/// Runs of each setting, as T has.
const TRIALS: u32 = 100;
const QUICK_TRIALS: u32 = 12;
/// Runs of the tutorial's example, and their limits.
const EXAMPLE_TRIALS: u32 = 3;
const EXAMPLE: Duration = Duration::from_secs(150);
const QUICK_EXAMPLE: Duration = Duration::from_secs(60);
/// Captured runs until one has a timeout.
const CAPTURED: u32 = 20;
/// A run that takes so much longer than the median without on-demand paging has waited for a timeout, s: the smallest is
/// 1.5 times the T_tr of C_ACK 18.
const SLOW: f64 = 1.0;
/// When the page of the READ in T fig. 6.2 comes, µs.
const PAGE: u32 = 7180;

fn not_live(software: &Software) -> Option<String> {
    if software.argodsm.is_none() {
        return Some(
            "it needs a checkout of ArgoDSM (git clone https://github.com/etascale/argodsm; git -C argodsm submodule update \
             --init submodules/qd): --argodsm DIR"
                .into(),
        );
    }
    software.check(&NEEDS).err().map(|error| format!("{error:#}"))
}

/// ConnectX-4 with a page fault that takes as long as in T fig. 6.2.
fn late() -> Adapter {
    Adapter::named("connectx4").with("page_faults", "resolve_us", PAGE)
}

/// A setting, and what its runs found: seconds and timeouts; and why runs failed.
struct Found {
    setting: Setting,
    runs: Vec<Run>,
    failed: Vec<String>,
}

impl Found {
    fn seconds(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.time.as_secs_f64()).collect()
    }

    /// The share of runs with an ACK timeout.
    fn timeouts(&self) -> f64 {
        share(&self.runs, |run| run.counters.ack_timeouts > 0)
    }
}

fn run(bench: &Bench<'_>) -> Result<Report> {
    let software = &bench.software;
    let checkout = software.argodsm.as_deref().context("--argodsm DIR is missing")?;
    let argo = Argo::build(checkout, Ucx::find(software.ucx.as_deref())?)?;
    let place = Place::new()?;
    let [ideal, connectx4, connectx6] = ["ideal", "connectx4", "connectx6"].map(Adapter::named);
    let settings = [
        Setting::pinned(ideal.clone()),
        Setting::on_demand(ideal),
        Setting::pinned(connectx4.clone()),
        Setting::on_demand(connectx4.clone()),
        Setting::on_demand(connectx4.clone()).guarded(),
        Setting::on_demand(late()),
        Setting::on_demand(late()).guarded(),
        Setting::pinned(connectx6.clone()),
        Setting::on_demand(connectx6),
    ];
    let trials = bench.trials(if software.quick { QUICK_TRIALS } else { TRIALS });
    let starts = all(bench, &argo, &place, Program::Init, &settings, trials);
    for found in &starts {
        let why = found.failed.first().cloned().unwrap_or_default();
        ensure!(!found.runs.is_empty(), "{}: no run ended well: {why}", found.setting.name());
    }
    let slow = slow_run(bench, &argo, &place)?;
    let registrars = argo.run(&place, Program::Init, &argo.ucx.watched(), Observe::Registrars);
    let registrars = registrars.map_or_else(|error| vec![format!("nothing: {error:#}")], |run| run.registrars);
    // The example takes up to a minute or two, and so it runs with few settings.
    let mut few = vec![];
    if argo.runs_example() {
        few = vec![Setting::pinned(connectx4.clone()), Setting::on_demand(late())];
        few.extend((!software.quick).then(|| Setting::on_demand(connectx4)));
    }
    let (times, limit) = if software.quick { (1, QUICK_EXAMPLE) } else { (trials.min(EXAMPLE_TRIALS), EXAMPLE) };
    let argo = argo.with_limit(limit);
    let examples = all(bench, &argo, &place, Program::Example, &few, times);
    Ok(report(&starts, &examples, &slow, &registrars))
}

/// Runs of each setting, in turns: what drifts does not favour a setting.
fn all(
    bench: &Bench<'_>,
    argo: &Argo,
    place: &Place,
    program: Program,
    settings: &[Setting],
    trials: u32,
) -> Vec<Found> {
    (bench.progress)(settings.len() * trials as usize, 0);
    let found = |setting: &Setting| Found { setting: setting.clone(), runs: vec![], failed: vec![] };
    let mut all: Vec<Found> = settings.iter().map(found).collect();
    for _ in 0..trials {
        for each in &mut all {
            match argo.run(place, program, &each.setting, Observe::Nothing) {
                Ok(run) => each.runs.push(run),
                Err(error) => each.failed.push(format!("{error:#}")),
            }
            (bench.progress)(0, 1);
        }
    }
    settings.iter().for_each(|setting| bench.note(&setting.adapter.name(), trials));
    all
}

/// What the packets of the slowest of some runs show; the first with a timeout ends the search.
fn slow_run(bench: &Bench<'_>, argo: &Argo, place: &Place) -> Result<Evidence> {
    let setting = Setting::on_demand(late());
    let mut last = Evidence::default();
    for _ in 0..CAPTURED.min(bench.trials(CAPTURED)) {
        // A run that fails is no evidence, and the others are.
        let Ok(run) = argo.run(place, Program::Init, &setting, Observe::Packets) else { continue };
        last = evidence(&run.captures)?;
        if run.counters.ack_timeouts > 0 {
            break;
        }
    }
    Ok(last)
}

fn report(starts: &[Found], examples: &[Found], slow: &Evidence, registrars: &[String]) -> Report {
    let of = |setting: Setting| starts.iter().find(|found| found.setting == setting).expect("each setting was run");
    let pinned = of(Setting::pinned(Adapter::named("connectx4")));
    let usual = of(Setting::on_demand(Adapter::named("connectx4")));
    let dammed = of(Setting::on_demand(late()));
    let guarded = of(Setting::on_demand(late()).guarded());
    let newer = of(Setting::on_demand(Adapter::named("connectx6")));
    let base = median(&pinned.seconds());
    let is_slow = |run: &Run| run.time.as_secs_f64() > base + SLOW;
    let agrees = share(&dammed.runs, |run| is_slow(run) == (run.counters.ack_timeouts > 0));
    let (long, short): (Vec<&Run>, Vec<&Run>) = dammed.runs.iter().partition(|run| is_slow(run));
    let middle = |runs: &[&Run]| median(&runs.iter().map(|run| run.time.as_secs_f64()).collect::<Vec<_>>());
    let mut claims = vec![
        Claim::between(
            Predicted,
            "page fault as late as in fig. 6.2: share of runs with a timeout",
            "two groups",
            (0.05, 0.95),
            dammed.timeouts(),
            "",
        )
        .from("T fig. 6.1"),
        Claim::at_least(
            Predicted,
            "… the longer group is that with timeouts: share",
            "it appeared in it only",
            0.95,
            agrees,
            "",
        )
        .from("T 6.1.1"),
        Claim::near(Calibrated, "… the groups differ by", 1.66, 0.35, middle(&long) - middle(&short), "s")
            .from("T fig. 6.2"),
        Claim::at_least(
            Predicted,
            "… weir analyze: the dammed SEND of a slow run waited",
            "1.66 s",
            1.0,
            slow.cost("damming").as_secs_f64(),
            "s",
        )
        .from("T fig. 6.2"),
        Claim::at_most(
            Predicted,
            "page fault as usual: share of runs with a timeout",
            "no timeout on ABCI: the intervals between operations decide",
            0.05,
            usual.timeouts(),
            "",
        )
        .from("T 6.1.1"),
        Claim::at_most(Predicted, "pinned: share of runs with a timeout", "none", 0.0, pinned.timeouts(), "")
            .from("T 6.1"),
        Claim::at_most(
            Predicted,
            "ConnectX-6: share of runs with a timeout",
            "damming vanishes in later models",
            0.0,
            newer.timeouts(),
            "",
        )
        .from("T 7.2"),
        Claim::at_most(
            Predicted,
            "… with the late page, guarded: share of runs with a timeout",
            "a small RNR delay and dummy requests avoid it",
            0.05,
            guarded.timeouts(),
            "",
        )
        .from("T 7.1"),
    ];
    claims.push(names_ucx(registrars));
    let example = |at: usize| examples.get(at).map_or(f64::NAN, |found| median(&found.seconds()));
    // Pinned first, then with the late page: see `run`.
    if !examples.is_empty() {
        claims.push(
            Claim::at_least(
                Predicted,
                "tutorial's example: time on demand, late page, over pinned",
                "pinned memory is faster",
                1.0,
                example(1) / example(0),
                "",
            )
            .from("T fig. 6.4")
            .conflicts("the opposite on ABCI, and T 6.1.2: the contention for the global lock decides"),
        );
    }
    let curve = |found: &Found| {
        let mut seconds = found.seconds();
        seconds.sort_by(f64::total_cmp);
        let of = |(at, time): (usize, &f64)| (*time, (at + 1) as f64 / seconds.len() as f64);
        Series::steps(found.setting.name(), seconds.iter().enumerate().map(of).collect::<Vec<(f64, f64)>>())
    };
    let bars = examples.iter().map(|found| (found.setting.name(), median(&found.seconds()))).collect();
    Report {
        claims,
        inputs: vec![Input {
            name: "time of the page fault, where it is late",
            paper: "the READ's response leaves 7.18 ms after the READ",
            profile: "page_faults.resolve_us is 7180, and 449 to 700 in connectx4",
            source: "T fig. 6.2",
        }],
        panels: vec![Panel::new(
            "ArgoDSM's start and end, 10 MB",
            Axis::log("time of a run (s)"),
            Axis::linear("share of runs").showing(0.0, 1.0),
            starts.iter().map(curve).collect(),
        )],
        bars: vec![Bars { title: "The tutorial's example".into(), x: Axis::linear("median time (s)"), bars }],
        ladders: slow.ladder("The dammed request of a slow run").into_iter().collect(),
        data: table(starts, examples),
        more: vec![("findings", findings(slow))],
        ..Report::default()
    }
}

/// A row for each run.
fn table(starts: &[Found], examples: &[Found]) -> Data {
    let [qps, packets, faults, rnr, sequence, timeouts] = Counters::COLUMNS;
    let mut data =
        Data::new(["program", "setting", "trial", "seconds", qps, packets, faults, rnr, sequence, timeouts, "failed"]);
    for (program, all) in [("init", starts), ("example", examples)] {
        for found in all {
            for (trial, run) in found.runs.iter().enumerate() {
                let [qps, packets, faults, rnr, sequence, timeouts] = run.counters.cells();
                let (setting, seconds) = (found.setting.name(), run.time.as_secs_f64());
                data.push([
                    program.into(),
                    setting.as_str().into(),
                    trial.into(),
                    seconds.into(),
                    qps,
                    packets,
                    faults,
                    rnr,
                    sequence,
                    timeouts,
                    "".into(),
                ]);
            }
            for why in &found.failed {
                let nothing = || f64::NAN.into();
                data.push([
                    program.into(),
                    found.setting.name().as_str().into(),
                    nothing(),
                    nothing(),
                    nothing(),
                    nothing(),
                    nothing(),
                    nothing(),
                    nothing(),
                    nothing(),
                    why.as_str().into(),
                ]);
            }
        }
    }
    data
}

/// What `weir analyze` finds in the captured run.
fn findings(slow: &Evidence) -> Data {
    let mut data = Data::new(["finding", "times", "cost s"]);
    for (kind, count, time) in &slow.findings {
        data.push([(*kind).into(), (*count as f64).into(), time.as_secs_f64().into()]);
    }
    data
}
