//! `tests/c/invalidate.c`: ODP memory is unmapped or changed while transfers between two processes access it.

use crate::bed::{Bed, Topology};
use crate::{fork, trial};
use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use std::time::Duration;
use weir_stage::{Child, Side};

/// Races per trial. `E2E_ROUNDS=100000` sets another number; that many take about half a minute per trial.
const ROUNDS: &str = "4000";

/// Name of the trial, arguments of `invalidate`, options of `weir run`.
const RUNS: &[(&str, &str, &[&str])] = &[
    ("no access to the range after munmap returns", "munmap", &[]),
    ("no access to the old range after mremap returns", "mremap", &[]),
    ("no access that mprotect forbids", "mprotect", &[]),
    ("no access to the old pages after MADV_DONTNEED", "dontneed", &[]),
    ("no access to the old pages after mmap replaces them", "replace", &[]),
    ("transfers use the new pages after free and malloc", "malloc", &[]),
    ("transfers use the new pages after free and malloc, without userfaultfd", "malloc", &["--userfaultfd", "off"]),
    ("after a fork, parent and child each keep their own bytes", "fork", &[]),
    ("munmap by a raw system call", "munmap -r", &[]),
    ("mremap by a raw system call", "mremap -r", &[]),
    ("mmap by a raw system call", "replace -r", &[]),
    ("MADV_DONTNEED by a raw system call", "dontneed -r", &[]),
];

pub fn trials() -> Vec<Trial> {
    let each = |&(name, line, options): &(&'static str, &'static str, &'static [&'static str])| {
        trial(Topology::Loopback, &format!("ODP memory: {name}"), move |bed| run(bed, line, options))
    };
    RUNS.iter().map(each).collect()
}

fn run(bed: &Bed, line: &str, options: &[&str]) -> Result<()> {
    let rounds = std::env::var("E2E_ROUNDS").unwrap_or(ROUNDS.into());
    let folder = tempfile::tempdir()?;
    let program = fork::compile("c/invalidate.c", folder.path())?;
    let mut command = bed.weir(Side::A, options, [program]);
    let gid = bed.gid_index(Side::A, bed.stage.address(Side::A))?;
    command.args(line.split_whitespace()).args(["-n", &rounds]);
    command.args(["-d", &bed.stage.device(), "-g", &gid.to_string()]);
    command.env("WEIR_RUN_DIR", folder.path().join("run"));
    // The program has its own, shorter time limit, and prints the reason.
    let patience = Duration::from_secs(120 + rounds.parse::<u64>()? / 200);
    let ended = Child::spawn(&mut command, line)?.wait(patience)?.success()?;
    ensure!(ended.stdout.lines().any(|printed| printed.ends_with(" rounds, 0 wrong")), "{}", ended.printed());
    Ok(())
}
