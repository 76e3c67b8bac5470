//! A READ returns what was there before the WRITEs and atomics behind it, whichever way the packets travel.

use crate::bed::{Bed, Topology};
use crate::{fork, trial};
use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use std::time::Duration;
use weir_stage::{Child, Side};

/// Name, options of `weir run`.
const WAYS: &[(&str, &[&str])] = &[
    ("through shared memory", &[]),
    ("in frames", &["--local", "off"]),
    ("in RoCE packets", &["--framing", "roce"]),
    ("with duplicates and delay", &["--faults", "dup=0.05,delay=20us,jitter=200us,seed=5"]),
];

/// Bytes, and rounds of eight READs each by two processes.
const SIZES: [&str; 4] = ["8 320", "3000 160", "65536 40", "1048576 6"];

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![];
    for (name, options) in WAYS {
        let name = format!("READs do not return later bytes {name}");
        trials.push(trial(Topology::Loopback, &name, move |bed| in_order(bed, options)));
    }
    trials.push(trial(Topology::Loopback, "with late_reads READs return later bytes", late));
    trials
}

fn in_order(bed: &Bed, options: &[&str]) -> Result<()> {
    for size in SIZES {
        let (reads, older, later) = run(bed, options, size)?;
        ensure!(reads > 90 && older == 0 && later == 0, "{size}: {reads} READs, {older} older, {later} later");
    }
    Ok(())
}

fn late(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let profile = folder.path().join("late.toml");
    std::fs::write(&profile, "[adapter]\nlate_reads = true\n")?;
    let (reads, older, later) = run(bed, &["--profile", profile.to_str().context("UTF-8")?], "8 320")?;
    ensure!(reads > 90 && older == 0 && later > 0, "{reads} READs, {older} older, {later} later");
    Ok(())
}

/// Returns the numbers of READs, of those with older bytes and of those with later bytes.
fn run(bed: &Bed, options: &[&str], size: &str) -> Result<(u64, u64, u64)> {
    let folder = tempfile::tempdir()?;
    let program = fork::compile("c/read_order.c", folder.path())?;
    let gid = bed.gid_index(Side::A, bed.stage.address(Side::A))?.to_string();
    let mut command = bed.weir(Side::A, options, [program]);
    command.args([&*bed.stage.device(), &gid]).args(size.split(' '));
    let ended = Child::spawn(&mut command, "read_order")?.wait(Duration::from_secs(110))?.success()?;
    let numbers: Vec<u64> = ended.stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [reads, older, later] = numbers[..] else { bail!("{}", ended.printed()) };
    Ok((reads, older, later))
}
