//! `weir demo`: runs unmodified perftest over Weir in turns with iperf3, then verifies every byte of a run.

mod progress;
mod report;
mod steps;
mod verify;

use crate::environment;
use crate::options::{Local, Options};
use anyhow::{Context, Result, bail};
use progress::Progress;
use report::Report;
use std::process::ExitCode;
use steps::{Bench, ROUND};
use weir_stage::{Stage, missing};

/// Jumbo frames, which are common on fast Ethernet between hosts.
const MTU: u32 = 9000;
/// Seconds for which a peer retries while a program does not respond.
const PATIENCE: f64 = 5.0;

/// Arguments of `weir demo`.
#[derive(clap::Args, Debug)]
pub struct DemoArgs {
    #[command(flatten)]
    options: Options,

    /// Number of rounds; each runs iperf3 and every perftest program once
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs `weir demo`; exit code 1 if a byte or a status was wrong.
pub fn run(args: &DemoArgs) -> Result<ExitCode> {
    let packages = missing(ROUND.iter().map(|step| step.program));
    if !packages.is_empty() {
        bail!("the demonstration needs programs that are not installed; as root: apt install {}", packages.join(" "));
    }
    let mut options = args.options.clone();
    // On a busy machine a pinned program may lose its core for longer than perftest's retries last.
    options.patience.get_or_insert(PATIENCE);
    let stage = Stage::new(MTU)?;
    if stage.loopback_reason().is_some() {
        // What is shown is a network, beside iperf3 over TCP.
        options.local.get_or_insert(Local::Off);
    }
    let bench = Bench { variables: environment::variables(&options)?, stage };
    let progress = Progress::new(args.rounds as usize * ROUND.len() + 1);
    let stage = match bench.stage.loopback_reason() {
        None => format!("{}; MTU {MTU}", bench.stage.describe()),
        Some(_) => bench.stage.describe(),
    };
    progress.print(&format!("Weir on {stage}"));

    let mut report = Report::new(stage);
    for round in 1..=args.rounds {
        for step in ROUND {
            progress.begin(&format!("round {round} of {}: {}", args.rounds, step.title));
            let figure = bench.measure(step).with_context(|| step.title.to_owned())?;
            progress.done(&format!("{:<24} {}", step.title, step.unit.shown(figure)));
            report.add(step, figure);
        }
    }
    progress.begin("weir-verify compares every byte");
    let verified = verify::run(&bench).context("weir-verify")?;
    progress.done(&format!("{:<24} {verified}", "weir-verify"));
    progress.end();

    let right = verified.wrong == 0 && verified.failed == 0;
    report.verified = Some(verified);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report.json())?);
    } else {
        print!("\n{}", report.text());
    }
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
