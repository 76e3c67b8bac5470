//! `weir bench`: measures Weir in turns with baselines on the same machine, and compares the ratios with bars.
//!
//! Absolute figures of a virtual machine say little: the distance of its cores and the state of its kernel's memory
//! change over time. So subject and baseline run in turns (A B A B …), and medians and ranges of their ratios count.
//!
//! The process that calls [`run`] is the `weir` command: benches start it again, as `weir run` or `weir bench`.

mod busy;
mod cores;
mod idle;
mod measure;
mod memory;
mod mtu;
mod odp;
mod out_of_core;
mod peers;
mod perftest;
mod raw;
mod request;
mod rows;
mod sim;
mod sweep;
mod table;

use anyhow::{Context, Result, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use measure::{Measurement, Runner};
use mtu::MTU;
use request::Request;
use rows::{Baseline, Row};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use table::{Outcome, Rounds};
use weir_stage::{Side, Stage, missing};

/// Arguments of `weir bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Benches to run, by name or by the first part of a name (`write-1m`); without names, all usual ones
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// List the benches and their bars
    #[arg(long)]
    list: bool,
    /// Measure with short runs and few rounds
    #[arg(long)]
    quick: bool,
    /// Number of rounds, each a run of every measurement [default: 5, or 3 with --quick; odp: 9, or 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Draw the figures of `odp` to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Exit with an error if a bench falls short of its bar
    #[arg(long)]
    check: bool,

    #[arg(long, hide = true)]
    raw_server: Option<SocketAddr>,
    #[arg(long, hide = true, requires = "raw_job")]
    raw_client: Option<SocketAddr>,
    #[arg(long, hide = true)]
    raw_job: Option<String>,
}

/// A bench with measurements and a report of its own. It runs only when it is named, without others.
struct Alone {
    name: &'static str,
    /// What it measures, for `--list`.
    what: &'static str,
    run: fn(&Request<'_>) -> Result<ExitCode>,
}

const ALONE: [Alone; 4] = [
    Alone {
        name: "odp",
        what: "on-demand paging: warm, cold, prefetched, and figures (only when named, alone)",
        run: odp::run,
    },
    Alone {
        name: "out-of-core",
        what: "pinned and ODP memory when memory is short (root; only when named, alone)",
        run: out_of_core::run,
    },
    Alone {
        name: "sim",
        what: "the simulator: packets per second, a packet flood, 1,024 hosts (only when named, alone)",
        run: sim::run,
    },
    Alone {
        name: "sweep",
        what: "all operations and sizes against UCX over TCP (only when named, alone)",
        run: sweep::run,
    },
];

/// Runs `weir bench`. It fails if a run fails, and with `--check` also if a bench falls short of its bar.
pub fn run(args: BenchArgs) -> Result<ExitCode> {
    if let Some(address) = args.raw_server {
        return raw::serve(address).map(|()| ExitCode::SUCCESS);
    }
    if let Some((address, job)) = args.raw_client.zip(args.raw_job) {
        let job = serde_json::from_str(&job).context("--raw-job")?;
        println!("{}", raw::run_client(address, job)?);
        return Ok(ExitCode::SUCCESS);
    }
    if args.list {
        list();
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(bench) = ALONE.iter().find(|bench| args.names.iter().any(|name| name == bench.name)) {
        let Alone { name, run, .. } = bench;
        ensure!(args.names.len() == 1, "`{name}` cannot run with other benches; use: weir bench {name}");
        let BenchArgs { quick, rounds, json, check, .. } = args;
        return run(&Request { quick, rounds, json, check, svg: args.svg.as_deref() });
    }
    let rows = rows::select(&args.names)?;
    let stage = Stage::new(MTU)?;
    let seconds = if args.quick { 0.5 } else { 2.0 };
    let rounds = args.rounds.unwrap_or(if args.quick { 3 } else { 5 });
    eprintln!("weir bench: {}; {rounds} rounds", stage.describe());
    let programs = rows.iter().flat_map(measurements).filter_map(Measurement::program);
    let packages = missing(programs);
    if !packages.is_empty() {
        eprintln!("weir bench: programs are missing, some benches will fail: apt install {}", packages.join(" "));
    }
    let outcomes = measure_all(&rows, Runner::new(&stage, seconds), rounds);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&outcomes)?);
    } else {
        print!("{}", table::render(&outcomes));
    }
    let failed = outcomes.iter().any(|o| o.failed);
    let short = outcomes.iter().any(|o| o.holds == Some(false));
    Ok(if failed || (args.check && short) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn list() {
    for Alone { name, what, .. } in &ALONE {
        println!("{name:16}  {what}");
    }
    for row in rows::all() {
        println!("{:16}  {}{}", row.name, row.what, if row.by_default { "" } else { " (only when named)" });
        for comparison in &row.comparisons {
            let baseline = comparison.baseline.describe(row.subject.unit());
            let bar = comparison.bar.map_or("shown as share".to_owned(), |bar| bar.to_string());
            println!("{:18}{bar} of {baseline}", "");
        }
    }
}

fn measure_all(rows: &[Row], mut runner: Runner, rounds: u32) -> Vec<Outcome> {
    let runs = |row: &Row| measurements(row).len() as u64 * u64::from(rounds.min(row.at_most_rounds));
    let progress = ProgressBar::new(rows.iter().map(runs).sum()).with_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} (about {eta} left)").expect("a valid template"),
    );
    let outcomes =
        rows.iter().flat_map(|row| measure_row(row, &mut runner, rounds.min(row.at_most_rounds), &progress)).collect();
    progress.finish_and_clear();
    outcomes
}

/// The measurements of a round of a row, in order.
fn measurements(row: &Row) -> Vec<Measurement> {
    let mut all = vec![row.subject];
    for comparison in &row.comparisons {
        match comparison.baseline {
            Baseline::Measured(m) if !all.contains(&m) => all.push(m),
            _ => {}
        }
    }
    all
}

fn measure_row(row: &Row, runner: &mut Runner, rounds: u32, progress: &ProgressBar) -> Vec<Outcome> {
    let wanted = measurements(row);
    let mut figures: HashMap<Measurement, Vec<f64>> = HashMap::new();
    let mut failures: HashMap<Measurement, String> = HashMap::new();
    let mut cores_ns = Vec::new();
    let stage = runner.stage;
    let pair = [stage.core(Side::A), stage.core(Side::B)];
    let busy = busy::others(pair).filter(|&share| share > busy::BUSY);
    let mut look = || cores_ns.extend(cores::distance(pair));
    look();
    for round in 1..=rounds {
        for &measurement in &wanted {
            progress.set_message(format!("{} {round}/{rounds}", row.name));
            if let Entry::Vacant(failure) = failures.entry(measurement) {
                match runner.run(measurement) {
                    Ok(figure) => figures.entry(measurement).or_default().push(figure),
                    Err(e) => drop(failure.insert(format!("{e:#}"))),
                }
                look();
            }
            progress.inc(1);
        }
    }
    let of = |m: &Measurement| figures.get(m).cloned().unwrap_or_default();
    let outcome = |comparison: &rows::Comparison| {
        let weir = of(&row.subject);
        let (baseline, failure) = match comparison.baseline {
            Baseline::Measured(m) => (of(&m), failures.get(&row.subject).or(failures.get(&m))),
            Baseline::Fixed(figure) => (vec![figure; weir.len()], failures.get(&row.subject)),
        };
        let unit = row.subject.unit();
        let figures = Rounds { weir, baseline, cores_ns: cores_ns.clone() };
        let baseline_text = comparison.baseline.describe(unit);
        let mut outcome = Outcome::measured(row.name, row.what, baseline_text, unit, comparison.bar, &figures);
        let loopback = stage.loopback_reason().map(|reason| format!("on loopback: {reason}"));
        let others = busy.map(|share| format!("other processes used {:.0} % of the two cores", share * 100.0));
        outcome.note = loopback.into_iter().chain(others).reduce(|a, b| format!("{a}; {b}"));
        match failure {
            Some(why) => outcome.failed(why.clone()),
            None => outcome,
        }
    };
    row.comparisons.iter().map(outcome).collect()
}
