//! `tests/c/invalidate.c`: memory that changes while transfers to and from it are under way, between two processes.

use crate::bed::{Bed, Place};
use crate::{fork, trial};
use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use std::time::Duration;
use weir_cli::stage::{Child, Side};

/// `E2E_ROUNDS=100000` races as often as there is no time for in every run: about half a minute each.
const ROUNDS: &str = "4000";

/// What it does, the case, and options of `weir run`.
const RUNS: &[(&str, &str, &[&str])] = &[
    ("nothing is read or written where munmap has returned", "munmap", &[]),
    ("nothing is read or written where mremap has moved away", "mremap", &[]),
    ("nothing is read or written that mprotect forbids", "mprotect", &[]),
    ("nothing is read or written that MADV_DONTNEED has emptied", "dontneed", &[]),
    ("nothing is read or written where mmap has put something else", "replace", &[]),
    ("memory that malloc gave back and got again is seen", "malloc", &[]),
    ("memory that malloc gave back and got again is seen without userfaultfd", "malloc", &["--userfaultfd", "off"]),
    ("a fork keeps parent and child apart", "fork", &[]),
    ("munmap by a raw system call", "munmap -r", &[]),
    ("mremap by a raw system call", "mremap -r", &[]),
    ("mmap by a raw system call", "replace -r", &[]),
    ("MADV_DONTNEED by a raw system call", "dontneed -r", &[]),
];

pub fn trials() -> Vec<Trial> {
    let each = |&(name, line, options): &(&'static str, &'static str, &'static [&'static str])| {
        trial(Place::Loopback, &format!("on-demand memory: {name}"), move |bed| run(bed, line, options))
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
    command.args(["-d", &bed.stage.device(Side::A), "-g", &gid.to_string()]);
    command.env("WEIR_RUN_DIR", folder.path().join("run"));
    // It ends by itself before that, and says why.
    let patience = Duration::from_secs(120 + rounds.parse::<u64>()? / 200);
    let ended = Child::spawn(&mut command, line)?.wait(patience)?.success()?;
    ensure!(ended.stdout.lines().any(|printed| printed.ends_with(" rounds, 0 wrong")), "{}", ended.printed());
    Ok(())
}
