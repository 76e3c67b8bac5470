//! `weir edge bench`: short runs over two links; `weir edge primitives`.

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
    let failing = "weir edge bench lets a link fail and loses no operation";
    let parts = "weir edge primitives measures all parts";
    vec![
        needing_root(trial(Topology::Loopback, what, both_links), root),
        needing_root(trial(Topology::Loopback, failing, a_link_fails), root),
        trial(Topology::Loopback, parts, primitives),
    ]
}

/// It also has all that `edge-failure` of the laboratory reads.
fn a_link_fails(bed: &Bed) -> Result<()> {
    let mut command = bed.bare(Side::A, WEIR);
    command.args("edge bench --links 2x1 --sizes 65536 --seconds 0.3 --failure silent,down --json".split(' '));
    let ended = Child::spawn(&mut command, "weir edge bench")?.wait(Duration::from_secs(60))?.success()?;
    let shown: Value = serde_json::from_str(&ended.stdout).with_context(|| ended.printed())?;
    ensure!(shown["errors"].as_array().is_some_and(Vec::is_empty), "{shown}");
    let failures = shown["failures"].as_array().context("no failures")?;
    let names: Vec<&str> = failures.iter().filter_map(|failure| failure["failure"].as_str()).collect();
    ensure!(names == ["silent", "down"], "{names:?}");
    for failure in failures {
        let number = |value: &Value| value.as_f64().with_context(|| format!("{value} in {failure}"));
        ensure!(number(&failure["operations"])? > 100.0 && failure["failed_operations"] == 0, "{failure}");
        ensure!(
            0.0 < number(&failure["fails"])? && number(&failure["fails"])? < number(&failure["mended"])?,
            "{failure}"
        );
        let phase = |name: &str| -> Result<[f64; 2]> {
            Ok([number(&failure[name]["gigabits"])?, number(&failure[name]["share"])?])
        };
        let ([before, share], [meanwhile, left], [after, again]) =
            (phase("before")?, phase("failed")?, phase("after")?);
        ensure!(before > meanwhile && meanwhile > 0.0 && share > 0.3 && left < 0.1, "{failure}");
        // The kernel may ask for the peer's MAC address a second after an interface is up again, and not before.
        ensure!(failure["failure"] == "down" || again > 0.1 && after > meanwhile, "{failure}");
        for time in ["stall_ms", "stall_before_ms", "pause_ms", "again"] {
            number(&failure[time])?;
        }
        let timeline = failure["timeline"].as_array().context("no timeline")?;
        ensure!(timeline.len() > 20, "{failure}");
        for moment in timeline {
            let links = moment["links"].as_array().context("no links")?;
            ensure!(links.len() == 2 && number(&moment["at"])? > 0.0 && moment["gigabits"].is_number(), "{moment}");
        }
    }
    Ok(())
}

fn primitives(bed: &Bed) -> Result<()> {
    let mut command = bed.bare(Side::A, WEIR);
    command.args(["edge", "primitives", "--json"]);
    let ended = Child::spawn(&mut command, "weir edge primitives")?.wait(Duration::from_secs(120))?.success()?;
    let shown: Value = serde_json::from_str(&ended.stdout).with_context(|| ended.printed())?;
    let rows = |value: &Value, least: usize, figure: &str| -> Result<()> {
        let rows = value.as_array().with_context(|| format!("no rows: {shown}"))?;
        ensure!(rows.len() >= least && rows.iter().all(|row| row[figure].as_f64() > Some(0.0)), "{value}");
        Ok(())
    };
    rows(&shown["memory"]["copies"], 10, "gigabytes")?;
    rows(&shown["memory"]["reads"], 2, "gigabytes")?;
    rows(&shown["memory"]["writes"], 2, "gigabytes")?;
    ensure!(shown["memory"]["remote"].is_object() != shown["memory"]["not_remote"].is_string(), "{shown}");
    let calls = shown["calls"].as_object().context("no calls")?;
    ensure!(calls.len() == 5 && calls.values().all(|call| call.as_f64() > Some(0.0)), "{shown}");
    rows(&shown["pages"], 3, "remap")
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
