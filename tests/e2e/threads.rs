//! Any call from any thread: `tests/c/threads.c`, and no wake-up that is lost.

use crate::bed::{Bed, Place};
use crate::{fork, trial};
use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use std::time::Duration;
use weir_cli::stage::{Child, Side};

/// `E2E_ROUNDS=1000000` plays more ping-pongs than there is time for in every run.
const ROUNDS: &str = "20000";

/// What it does and how; how its last line begins.
const RUNS: &[(&str, &str, &str)] = &[
    ("threads do anything to anything", "stress -t 4 -T 5", "4 threads: "),
    ("more threads than cores do anything to anything", "stress -t 16 -T 5", "16 threads: "),
    ("threads do anything to datagrams, groups and a shared queue", "others -t 4 -T 5", "4 threads: "),
    ("more threads than cores do so", "others -t 16 -T 5", "16 threads: "),
    ("no wake-up is lost", "pingpong -t 1 -n ROUNDS", "client: "),
    ("no wake-up of four threads is lost", "pingpong -t 4 -n ROUNDS", "client: "),
];

pub fn trials() -> Vec<Trial> {
    let each = |&(name, line, end): &(&'static str, &'static str, &'static str)| {
        trial(Place::Loopback, name, move |bed| run(bed, line, end))
    };
    RUNS.iter().map(each).collect()
}

fn run(bed: &Bed, line: &str, end: &str) -> Result<()> {
    let rounds = std::env::var("E2E_ROUNDS").unwrap_or(ROUNDS.into());
    let folder = tempfile::tempdir()?;
    let program = fork::compile("c/threads.c", folder.path())?;
    let mut command = bed.weir(Side::A, &[], [program]);
    let gid = bed.gid_index(Side::A, bed.stage.address(Side::A))?;
    command.args(line.replace("ROUNDS", &rounds).split_whitespace());
    command.args(["-d", &bed.stage.device(Side::A), "-g", &gid.to_string()]);
    // It ends by itself before that, and says why.
    let patience = Duration::from_secs(310 + rounds.parse::<u64>()? / 1000);
    let ended = Child::spawn(&mut command, line)?.wait(patience)?.success()?;
    ensure!(ended.stdout.lines().any(|printed| printed.starts_with(end)), "{}", ended.printed());
    Ok(())
}
