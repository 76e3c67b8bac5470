//! SparkUCX itself, on a cluster of Spark over UCX over Weir (T 6.2).

use super::common::{middle, names_ucx};
use crate::adapter::Adapter;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Predicted};
use crate::data::Data;
use crate::experiment::{Experiment, Input, PaperFigure, Report};
use crate::figure::{Axis, Bars};
use crate::software::spark::{Application, Cluster, Ended, Java, NEEDS, Spark};
use crate::software::{Counters, Memory, Observe, Place, Setting, Software, Ucx};
use crate::statistics::median;
use anyhow::{Context, Result};
use std::time::Duration;

pub const EXPERIMENT: Experiment = Experiment {
    id: "spark",
    title: "SparkUCX with memory on demand",
    source: "T 6.2",
    not_simulated: Some("it runs SparkUCX itself, from a checkout (--sparkucx DIR)"),
    not_live,
    paper: "SparkUCX shuffles by READs over UCX, of which a variable switched on-demand paging on, with QPs for each thread \
            that shuffles. Three of Spark's examples with joins ran on clusters of two or four machines, ten times each: 1.01 \
            to 6.46 times slower on demand, stuck for seconds now and then; runs that failed, with IBV_WC_RETRY_EXC_ERR \
            especially, are left out. Here: a cluster of two workers on one machine, with two executors of four tasks each, \
            and the same computations.",
    figures: &[
        PaperFigure {
            name: "T fig. 6.5",
            axes: "A table for each of three examples: QPs, seconds without and with on-demand paging, and their ratio, of four \
                   clusters.",
            shows: "SparkTC 1.01 to 6.46, RecommendationExample 1.07 to 3.59, RankingMetricsExample 1.30 to 2.38.",
            here: "The ratios of the medians, for each adapter.",
            drawings: 1,
        },
        PaperFigure {
            name: "T fig. 6.5",
            axes: "As above.",
            shows: "As above.",
            here: "The medians of the times.",
            drawings: 1,
        },
    ],
    fixed_adapters: true,
    one_seed: true,
    run,
};

/// Runs of each setting: T has ten, of which each takes minutes.
const TRIALS: u32 = 3;
/// Limit of a run.
const LIMIT: Duration = Duration::from_secs(300);
const QUICK_LIMIT: Duration = Duration::from_secs(45);
const ADAPTERS: [&str; 3] = ["ideal", "connectx4", "connectx6"];

fn not_live(software: &Software) -> Option<String> {
    if software.sparkucx.is_none() {
        return Some(
            "it needs a checkout of SparkUCX (git clone https://github.com/openucx/sparkucx): --sparkucx DIR".into(),
        );
    }
    software.check(&NEEDS).and_then(|()| Java::find(software.java.as_deref())).err().map(|error| format!("{error:#}"))
}

/// The runs of an application with a setting.
struct Found {
    application: Application,
    setting: Setting,
    runs: Vec<Ended>,
}

impl Found {
    fn whole(&self) -> Vec<&Ended> {
        self.runs.iter().filter(|run| run.seconds.is_some()).collect()
    }

    /// The median time of the runs that ended well, s; NaN if none did.
    fn seconds(&self) -> f64 {
        middle(&self.whole(), |run| run.seconds.unwrap_or(f64::NAN))
    }
}

fn run(bench: &Bench<'_>) -> Result<Report> {
    let software = &bench.software;
    let checkout = software.sparkucx.as_deref().context("--sparkucx DIR is missing")?;
    let ucx = Ucx::find(software.ucx.as_deref())?;
    let cores = if software.quick { 2 } else { 4 };
    let spark = Spark::build(checkout, Java::find(software.java.as_deref())?, ucx, cores)?;
    let place = Place::new()?;
    let [ideal, connectx4, connectx6] = ADAPTERS.map(Adapter::named);
    let mut settings = vec![
        Setting::pinned(connectx4.clone()),
        Setting::on_demand(ideal.clone()),
        Setting::on_demand(connectx4.clone()),
        Setting::on_demand(connectx4).guarded(),
        Setting::on_demand(connectx6.clone()),
    ];
    let mut applications = vec![Application::SparkTc, Application::RankingMetrics];
    if !software.quick {
        // Pinned memory has no page faults, so that a quick run has it with one adapter only.
        settings.extend([Setting::pinned(ideal), Setting::pinned(connectx6.clone())]);
        settings.push(Setting::on_demand(connectx6).guarded());
        applications.push(Application::Recommendation);
    }
    let trials = bench.trials(if software.quick { 1 } else { TRIALS });
    (bench.progress)(settings.len() * applications.len() * trials as usize, 0);
    let mut all = vec![];
    for setting in &settings {
        let found =
            |application: &Application| Found { application: *application, setting: setting.clone(), runs: vec![] };
        all.extend(applications.iter().map(found));
    }
    let limit = if software.quick { QUICK_LIMIT } else { LIMIT };
    for _ in 0..trials {
        for setting in &settings {
            let mut cluster = None;
            for found in all.iter_mut().filter(|found| found.setting == *setting) {
                let start = || Cluster::start(&spark, &place, setting, Observe::Nothing);
                let ran = cluster.take().map_or_else(start, Ok).and_then(|mut ready| {
                    let ended = ready.run(found.application, found.application.size(software.quick), limit)?;
                    Ok((ready, ended))
                });
                // After a failure executors may be stuck: the next application gets a new cluster.
                let (ready, ended) =
                    ran.map_or_else(|error| (None, Ended::failed(&error)), |(ready, ended)| (Some(ready), ended));
                cluster = ready.filter(|_| ended.seconds.is_some());
                found.runs.push(ended);
                (bench.progress)(0, 1);
            }
        }
    }
    settings.iter().for_each(|setting| bench.note(&setting.adapter.name(), trials));
    // The driver has memory of its own that executors read.
    let watched = Setting::on_demand(Adapter::named("ideal"));
    let registrars = Cluster::start(&spark, &place, &watched, Observe::Registrars).and_then(|mut cluster| {
        cluster.run(Application::SparkTc, Application::SparkTc.size(true), limit)?;
        cluster.registrars()
    });
    Ok(report(&all, &registrars.unwrap_or_else(|error| vec![format!("nothing: {error:#}")])))
}

fn report(all: &[Found], registrars: &[String]) -> Report {
    let of = |application: Application, setting: &Setting| {
        all.iter().find(|found| found.application == application && found.setting == *setting)
    };
    let seconds =
        |application: Application, setting: Setting| of(application, &setting).map_or(f64::NAN, Found::seconds);
    let ratio = |application: Application, adapter: &'static str| {
        let pinned = [adapter, "connectx4"].map(|base| seconds(application, Setting::pinned(Adapter::named(base))));
        let pinned = if pinned[0].is_nan() { pinned[1] } else { pinned[0] };
        seconds(application, Setting::on_demand(Adapter::named(adapter))) / pinned
    };
    let ran = Application::ALL.into_iter().filter(|each| all.iter().any(|found| found.application == *each));
    let ran: Vec<Application> = ran.collect();
    let mut claims = vec![];
    for (application, bounds) in Application::ALL.into_iter().zip([(1.01, 6.46), (1.07, 3.59), (1.30, 2.38)]) {
        if !ran.contains(&application) {
            continue;
        }
        let name = format!("{}: time on demand over pinned, ConnectX-4", application.name());
        let paper = format!("{} to {} times", bounds.0, bounds.1);
        claims.push(
            Claim::between(Predicted, name, &paper, bounds, ratio(application, "connectx4"), "").from("T fig. 6.5"),
        );
    }
    let on_demand = |found: &&Found| found.setting.memory == Memory::OnDemand && !found.setting.guarded;
    let flawed = |found: &&Found| found.setting.adapter.base != "ideal";
    let sum = |chosen: &dyn Fn(&&Found) -> bool, count: &dyn Fn(&Ended) -> f64| -> f64 {
        all.iter().filter(|found| chosen(found)).flat_map(|found| &found.runs).map(count).sum()
    };
    let repeats = |run: &Ended| (run.counters.rnr_naks + run.counters.ack_timeouts + run.counters.sequence_naks) as f64;
    let pinned = sum(&|found| found.setting.memory == Memory::Pinned, &repeats);
    claims.push(
        Claim::at_least(
            Predicted,
            "requests repeated on demand, over those with pinned memory",
            "many READs were retransmitted",
            10.0,
            sum(&|found| on_demand(found) && flawed(found), &repeats) / pinned.max(1.0),
            "",
        )
        .from("T 6.2"),
    );
    let failures =
        sum(&|found| found.setting.memory == Memory::Pinned, &|run| f64::from(u8::from(run.seconds.is_none())));
    claims.push(
        Claim::at_most(Predicted, "runs with pinned memory that failed", "none is mentioned", 0.0, failures, "")
            .from("T 6.2"),
    );
    let gains: Vec<f64> = ran
        .iter()
        .map(|&application| {
            let adapter = Adapter::named("connectx4");
            let plain = seconds(application, Setting::on_demand(adapter.clone()));
            seconds(application, Setting::on_demand(adapter).guarded()) / plain
        })
        .collect();
    claims.push(
        Claim::at_most(
            Predicted,
            "ConnectX-4 on demand, guarded over unguarded: the median ratio",
            "workarounds help",
            1.0,
            median(&gains),
            "",
        )
        .from("T 7.1"),
    );
    claims.push(names_ucx(registrars));
    let shown = |adapter: &'static str, application: Application| {
        (format!("{adapter}, {}", application.name()), ratio(application, adapter))
    };
    let ratios = ADAPTERS.into_iter().flat_map(|adapter| ran.iter().map(move |application| (adapter, *application)));
    let ratios = ratios.map(|(adapter, application)| shown(adapter, application));
    let times =
        all.iter().map(|found| (format!("{}, {}", found.application.name(), found.setting.name()), found.seconds()));
    Report {
        claims,
        inputs: vec![
            Input {
                name: "the applications",
                paper: "examples of Spark",
                profile: "their computations, written anew: Maven Central has no examples. No shuffle has more maps than \
                          reducers, for which SparkUCX 1.0 for Spark 3.0 has no room",
                source: "T 6.2",
            },
            Input {
                name: "the cluster",
                paper: "272 logical cores, 36 or 80, on each of two or four machines; 210 to 2858 QPs",
                profile: "two executors of four tasks on one machine, of two in a quick run",
                source: "T table 4.2, fig. 6.5",
            },
        ],
        bars: vec![
            Bars {
                title: "On demand over pinned".into(),
                x: Axis::linear("ratio of the median times"),
                bars: ratios.collect(),
            },
            Bars { title: "Median times".into(), x: Axis::linear("time (s)"), bars: times.collect() },
        ],
        data: table(all),
        ..Report::default()
    }
}

/// A row for each run.
fn table(all: &[Found]) -> Data {
    let [qps, packets, faults, rnr, sequence, timeouts] = Counters::COLUMNS;
    let mut data = Data::new([
        "application",
        "setting",
        "trial",
        "seconds",
        "result",
        "processes",
        qps,
        packets,
        faults,
        rnr,
        sequence,
        timeouts,
        "failed",
    ]);
    for found in all {
        for (trial, run) in found.runs.iter().enumerate() {
            let processes = (run.counters.processes as f64).into();
            let [qps, packets, faults, rnr, sequence, timeouts] = run.counters.cells();
            data.push([
                found.application.name().into(),
                found.setting.name().as_str().into(),
                trial.into(),
                run.seconds.unwrap_or(f64::NAN).into(),
                run.result.unwrap_or(f64::NAN).into(),
                processes,
                qps,
                packets,
                faults,
                rnr,
                sequence,
                timeouts,
                run.why.as_str().into(),
            ]);
        }
    }
    data
}
