//! `tests/c/threads.c`: verbs from many threads at once, and completion events that wake sleeping threads.

use crate::bed::{Bed, Topology};
use crate::{fork, trial};
use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use std::time::Duration;
use weir_stage::{Child, Side};

/// Ping-pongs per trial. `E2E_ROUNDS=1000000` sets another number.
const ROUNDS: &str = "20000";

/// Name of the trial, arguments of `threads`, start of the last line that it prints.
const RUNS: &[(&str, &str, &str)] = &[
    ("threads call random verbs on shared RC objects", "stress -t 4 -T 5", "4 threads: "),
    ("more threads than cores call random verbs on shared RC objects", "stress -t 16 -T 5", "16 threads: "),
    ("threads call random verbs on UD QPs, multicast groups and an SRQ", "others -t 4 -T 5", "4 threads: "),
    (
        "more threads than cores call random verbs on UD QPs, multicast groups and an SRQ",
        "others -t 16 -T 5",
        "16 threads: ",
    ),
    ("no wake-up is lost", "pingpong -t 1 -n ROUNDS", "client: "),
    ("no wake-up of four threads is lost", "pingpong -t 4 -n ROUNDS", "client: "),
];

pub fn trials() -> Vec<Trial> {
    let each = |&(name, line, end): &(&'static str, &'static str, &'static str)| {
        trial(Topology::Loopback, name, move |bed| run(bed, line, end))
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
    command.args(["-d", &bed.stage.device(), "-g", &gid.to_string()]);
    // The program has its own, shorter time limit, and prints the reason.
    let patience = Duration::from_secs(310 + rounds.parse::<u64>()? / 1000);
    let ended = Child::spawn(&mut command, line)?.wait(patience)?.success()?;
    ensure!(ended.stdout.lines().any(|printed| printed.starts_with(end)), "{}", ended.printed());
    Ok(())
}
