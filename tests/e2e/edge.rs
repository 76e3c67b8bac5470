//! `weir edge bench`: a short run over two links.

use crate::bed::{Bed, Topology, WEIR};
use crate::{needing_root, trial};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use std::time::Duration;
use weir_stage::{Child, Side};

pub fn trials() -> Vec<Trial> {
    let root = nix::unistd::geteuid().is_root();
    let what = "weir edge bench sends operations over both links, and says what it skips";
    vec![needing_root(trial(Topology::Loopback, what, both_links), root)]
}

fn both_links(bed: &Bed) -> Result<()> {
    let mut command = bed.bare(Side::A, WEIR);
    command.args("edge bench --links 2x1 --sizes 65536 --seconds 0.1 --rounds 1 --breakdown --json".split(' '));
    command.args(["--peers", "tcp,bonding"]);
    let ended = Child::spawn(&mut command, "weir edge bench")?.wait(Duration::from_secs(60))?.success()?;
    let shown: Value = serde_json::from_str(&ended.stdout).with_context(|| ended.printed())?;
    let rows = shown["rows"].as_array().context("no rows")?;
    let tests: Vec<&str> = rows.iter().filter_map(|row| row["test"].as_str()).collect();
    ensure!(tests == ["one-way", "two-way", "ping-pong"], "{tests:?}");
    for row in rows {
        ensure!(row["links"] == "2x1" && row["mtu"] == 1500 && row["size"] == 65_536, "{row}");
        ensure!(row["gigabits"].as_f64() > Some(0.0) && row["client"]["cpu_seconds"].is_number(), "{row}");
        ensure!(row["median_us"].is_number() == (row["test"] == "ping-pong"), "{row}");
        for side in ["client", "server"] {
            let parts = row[side]["breakdown"].as_array().context("no breakdown")?;
            ensure!(parts.len() == 6 && parts.iter().all(|part| part["percent"].is_number()), "{row}");
        }
        // A ping-pong of one operation at a time may find one link enough.
        let bytes = row["bytes"].as_u64().context("no bytes")?;
        let carried: Vec<u64> = [&row["client"], &row["server"]]
            .iter()
            .flat_map(|side| side["link_bytes"].as_array().into_iter().flatten().filter_map(Value::as_u64))
            .collect();
        ensure!(carried.len() == 4 && carried.iter().sum::<u64>() > bytes, "{row}");
        if row["test"] != "ping-pong" {
            ensure!(carried[..2].iter().all(|&link| link > carried[..2].iter().sum::<u64>() / 5), "{row}");
        }
    }
    let comparisons = shown["comparisons"].as_array().context("no comparisons")?;
    ensure!(comparisons.len() == 2, "{shown}");
    for comparison in comparisons {
        ensure!(comparison["ratio"]["median"].is_number() != comparison["skipped"].is_string(), "{comparison}");
    }
    Ok(())
}
