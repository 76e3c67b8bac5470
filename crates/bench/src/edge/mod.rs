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
use configuration::Configuration;
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
            if let Err(why) = measure(args, &plan, links, mtu, &mut report) {
                let why = why.context(format!("{} MTU {mtu}", links.name));
                if report.is_empty() {
                    return Err(why);
                }
                // What other links have shown counts.
                report.errors.push(format!("{why:#}"));
            }
        }
    }
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", report.text()),
    }
    report.errors.iter().for_each(|error| eprintln!("weir edge bench: {error}"));
    let failed = report.comparisons.iter().any(|comparison| comparison.failed.is_some())
        || report.failures.iter().any(|failure| failure.failed_operations > 0);
    Ok(if failed || !report.errors.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Measures all that is planned on these links.
fn measure(args: &EdgeBenchArgs, plan: &Plan, links: &Configuration, mtu: u32, report: &mut Report) -> Result<()> {
    let place = Place::new(links, mtu, &plan.settings)?;
    if report.is_empty() {
        eprintln!("weir edge bench: {}; links shaped by tc", place.stage.describe());
    }
    eprintln!("{} MTU {mtu} …", links.name);
    if !plan.jobs.is_empty() {
        let done = place.measure(&plan.jobs)?;
        report.rows.extend(done.iter().map(|done| Row::new(links, mtu, done, args.breakdown)));
    }
    for &failure in &plan.failures {
        report.failures.push(place.fail(plan.compared, failure).with_context(|| failure.to_string())?);
    }
    report.comparisons.extend(place.compare(plan)?);
    Ok(())
}
