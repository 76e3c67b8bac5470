//! `weir edge bench`: operations over several shaped links, as thesis 3.1 measures them, in turns with other systems.

mod arguments;
mod baselines;
mod configuration;
mod control;
mod failure;
mod job;
mod mptcp;
mod place;
mod primitives;
mod report;
mod role;
mod row;
mod sampler;
mod settings;
mod sides;
mod sockets;
mod usage;

use anyhow::{Context, Result};
use arguments::{EdgeBenchArgs, Plan};
use clap::{Args, Subcommand};
use place::Place;
use primitives::PrimitivesArgs;
use report::Report;
use role::Role;
use row::Row;
use std::process::ExitCode;

/// Arguments of `weir edge`.
#[derive(Args, Debug)]
pub struct EdgeArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Measure WRITEs over links of a given rate, in turns with TCP, MPTCP, bonding and UCX
    Bench(Box<EdgeBenchArgs>),
    /// Measure what the parts of a transfer cost on this machine: copies, system calls, pinning and remapping
    Primitives(PrimitivesArgs),
}

/// Runs `weir edge`. `weir edge bench` fails if a run fails.
pub fn run(args: EdgeArgs) -> Result<ExitCode> {
    match args.command {
        Command::Bench(args) => bench(&args),
        Command::Primitives(args) => primitives::run(&args),
    }
}

fn bench(args: &EdgeBenchArgs) -> Result<ExitCode> {
    if let Some(role) = &args.role {
        return Role::play(role).map(|()| ExitCode::SUCCESS);
    }
    let plan = Plan::of(args)?;
    let mut report = Report { settings: plan.settings.clone(), ..Report::default() };
    for links in &plan.links {
        for &mtu in &plan.mtus {
            let place = Place::new(links, mtu, &plan.settings)?;
            if report.rows.is_empty() && report.failures.is_empty() {
                eprintln!("weir edge bench: {}; links shaped by tc", place.stage.describe());
            }
            eprintln!("{} MTU {mtu} …", links.name);
            let named = || format!("{} MTU {mtu}", links.name);
            if !plan.jobs.is_empty() {
                let done = place.measure(&plan.jobs).with_context(named)?;
                report.rows.extend(done.iter().map(|done| Row::new(links, mtu, done, args.breakdown)));
            }
            for &failure in &plan.failures {
                let row = place.fail(plan.compared, failure).with_context(|| format!("{}, {failure}", named()))?;
                report.failures.push(row);
            }
            report.comparisons.extend(place.compare(&plan)?);
        }
    }
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", report.text()),
    }
    let failed = report.comparisons.iter().any(|comparison| comparison.failed.is_some());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
