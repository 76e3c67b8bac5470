//! `weir bench sim`: the speed and the memory of the simulator. It runs on one core.

mod all_to_all;
mod flood;
mod single_run;
mod stream;

use super::measure::Unit;
use super::request::Request;
use super::rows::Bar;
use super::table::{self, Outcome, Rounds};
use anyhow::{Context, Result};
use single_run::Run;
use std::process::ExitCode;

/// Bar of simulated packets per second of real time.
const PACKETS: f64 = 1e7;
/// Bar of the flood, seconds of real time.
const MINUTE: f64 = 60.0;
/// Bar of resident memory with 1,024 hosts, bytes.
const MEMORY: f64 = (8u64 << 30) as f64;
const HOSTS: u32 = 1024;
const MESSAGE: u32 = 64 << 10;

/// Measures and prints the results.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    let Request { quick, .. } = *request;
    let rounds = request.rounds.unwrap_or(if quick { 3 } else { 5 });
    // Memory first: the peak would include the memory of earlier runs.
    let all_to_all = row(
        ("sim-all-to-all", "1,024 hosts, 64 KiB from each to every other: peak resident memory"),
        (Unit::Bytes, MEMORY, Bar::AtMost(1.0)),
        1,
        || all_to_all::run(HOSTS, MESSAGE),
    )?;
    let stream = row(
        ("sim-packets", "simulated packets per second of one core: WRITEs of 1 MiB over 16 QPs through a switch"),
        (Unit::MessagesPerSecond, PACKETS, Bar::AtLeast(1.0)),
        rounds,
        || stream::run(if quick { 2_000 } else { 20_000 }),
    )?;
    let flood = row(
        ("sim-flood", "8192 READs of 100 B over 200 QPs in packet flood (ODP memory at the client, connectx4)"),
        (Unit::WallSeconds, MINUTE, Bar::AtMost(1.0)),
        rounds,
        flood::run,
    )?;
    let outcomes = [stream, flood, all_to_all];
    if request.json {
        println!("{}", serde_json::to_string_pretty(&outcomes)?);
    } else {
        print!("{}", table::render(&outcomes));
    }
    let short = outcomes.iter().any(|outcome| outcome.holds == Some(false));
    Ok(if request.check && short { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn row(
    (name, what): (&str, &str),
    (unit, fixed, bar): (Unit, f64, Bar),
    rounds: u32,
    mut run: impl FnMut() -> Result<Run>,
) -> Result<Outcome> {
    let mut figures = Rounds::default();
    let mut note = None;
    for _ in 0..rounds {
        let run = run().context(name.to_owned())?;
        figures.weir.push(run.figure);
        figures.baseline.push(fixed);
        note = Some(run.note);
    }
    let mut outcome = Outcome::measured(name, what, unit.show(fixed), unit, Some(bar), &figures);
    outcome.note = note;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The runs check their results: every message is done, and packets are lost only where that is expected.
    #[test]
    fn small_runs_succeed() {
        assert!(stream::run(100).unwrap().figure > 0.0);
        assert!(all_to_all::run(24, 1 << 16).unwrap().figure > 0.0);
        assert!(flood::run().unwrap().figure < MINUTE);
    }
}
