//! `weir bench` of on-demand paging: runs to its end, prints all rows, figures and the model, and says that it needs root. Rows of
//! `weir bench ecosystem`. And `weir-crowd`, which `weir bench scale` runs.

use crate::bed::{Bed, Topology, WEIR, library};
use crate::users::{UNPRIVILEGED_USER, readable_copy};
use crate::{needing_root, trial};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use std::time::Duration;
use weir_stage::{Child, Side};

const ECOSYSTEM: &str = "weir bench ecosystem measures UCX, libfabric and Open MPI over Weir";

const CONNECTIONS: &str = "weir bench cm measures connections of librdmacm, and TCP connections";

pub fn trials() -> Vec<Trial> {
    let root = nix::unistd::geteuid().is_root();
    vec![
        trial(Topology::Loopback, "weir bench odp prints its rows and writes a figure", odp),
        trial(Topology::Loopback, "weir bench odp --loggp prints the model's parameters and predictions", loggp),
        needing_root(trial(Topology::Loopback, "weir bench out-of-core needs root", root_only), root),
        needing_root(trial(Topology::Loopback, ECOSYSTEM, ecosystem), root),
        trial(
            Topology::Loopback,
            "weir bench ecosystem skips what is not installed, and says so",
            ecosystem_without_programs,
        ),
        needing_root(trial(Topology::Loopback, CONNECTIONS, connections), root),
        trial(Topology::Loopback, "weir-crowd: every process has its message, or says why not", crowd),
    ]
}

fn odp(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let svg = folder.path().join("odp.svg");
    let mut command = bed.bare(Side::A, WEIR);
    command.args(["bench", "odp", "--quick", "--rounds", "1", "--json", "--svg"]).arg(&svg);
    let ended = Child::spawn(&mut command, "weir bench odp")?.wait(Duration::from_secs(180))?.success()?;
    let shown: Value = serde_json::from_str(&ended.stdout).with_context(|| ended.printed())?;
    let rows = shown["rows"].as_array().context("no rows")?;
    ensure!(rows.len() == 9, "{shown}");
    for row in rows {
        ensure!(row["weir"].as_f64().is_some() && row["baseline"].as_f64() > Some(0.0), "{row}");
    }
    let sizes = shown["figures"]["sizes"].as_object().context("no sizes")?;
    ensure!(sizes.len() == 21, "{} sizes", sizes.len());
    // Up to 4096 bytes, only the first size faults: one page on each side. 8192 bytes need another page.
    ensure!(sizes["1"]["faults"].as_u64() >= Some(1), "{}", sizes["1"]);
    ensure!((1..=12).all(|power| sizes[&(1 << power).to_string()]["faults"] == 0), "faults within a page: {shown}");
    ensure!(sizes["8192"]["faults"].as_u64() >= Some(1), "{}", sizes["8192"]);
    ensure!(shown["observations"].as_array().is_some_and(|all| all.len() == 9), "{shown}");
    let picture = std::fs::read_to_string(svg)?;
    ensure!(picture.matches("<polyline").count() == 14 && !picture.contains("NaN"), "{picture}");
    Ok(())
}

/// Figures of a busy machine may be anything, but they are there, and times are above zero. Differences of measured times
/// (l, page faults) may be below.
fn loggp(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let svg = folder.path().join("loggp.svg");
    let mut command = bed.bare(Side::A, WEIR);
    command.args(["bench", "odp", "--loggp", "--quick", "--json", "--svg"]).arg(&svg);
    let ended = Child::spawn(&mut command, "weir bench odp --loggp")?.wait(Duration::from_secs(180))?.success()?;
    let shown: Value = serde_json::from_str(&ended.stdout).with_context(|| ended.printed())?;
    let time = |figure: &Value| figure.as_f64().is_some_and(|us| us.is_finite() && us > 0.0);
    let spread = |figure: &Value| ["min", "median", "max"].map(|key| figure[key].as_f64().unwrap_or(f64::NAN));
    for name in ["o_post", "half_round_trip", "g", "G"] {
        ensure!(spread(&shown["parameters"][name])[0] > 0.0, "{name}: {}", shown["parameters"]);
    }
    ensure!(spread(&shown["parameters"]["l"])[0].is_finite(), "{}", shown["parameters"]);
    ensure!(time(&shown["parameters"]["c"]) && shown["parameters"]["m_control"] == 32, "{}", shown["parameters"]);
    ensure!(shown["eager"].as_object().is_some_and(|eager| eager.len() == 7), "{}", shown["eager"]);
    let sizes = shown["sizes"].as_object().context("no sizes")?;
    ensure!((16..=22).all(|power| sizes.contains_key(&(1u64 << power).to_string())), "{shown}");
    for (bytes, size) in sizes {
        let parameters = size["parameters"].as_object().context("no parameters")?;
        ensure!(parameters.len() == 11, "{bytes}: {size}");
        for (name, figure) in parameters {
            let [min, median, max] = spread(figure);
            ensure!(min <= median && median <= max, "{bytes}, {name}: {figure}");
            ensure!(name.starts_with("page_fault") || min > 0.0, "{bytes}, {name}: {figure}");
        }
        let scenarios = size["scenarios"].as_object().context("no scenarios")?;
        ensure!(scenarios.len() == 7, "{bytes}: {size}");
        for (name, comparison) in scenarios {
            ensure!(comparison["predicted"].is_f64() && time(&comparison["measured"]["min"]), "{name}: {comparison}");
        }
        ensure!(time(&scenarios["pinned"]["predicted"]) && time(&scenarios["pinned"]["ratio"]), "{bytes}: {size}");
    }
    // Seven scenarios, seven sizes, three rounds; and a message of each for the page faults.
    let bytes: u64 = (16..=22).map(|power| 1 << power).sum();
    ensure!(shown["messages"] == 7 * 7 * 3 && shown["verified_bytes"] == 7 * (3 + 1) * bytes, "{shown}");
    let faults = |scenario: &str| shown["page_faults"][scenario]["receiver"].as_u64();
    ensure!(faults("pinned") == Some(0) && faults("put synchronised") == Some(0), "{}", shown["page_faults"]);
    ensure!(faults("no prefetch") >= Some(7) && faults("invalidated") >= Some(7), "{}", shown["page_faults"]);
    ensure!(shown["observations"].as_array().is_some_and(|all| all.len() == 15), "{shown}");
    let picture = std::fs::read_to_string(svg)?;
    ensure!(picture.matches("<polyline").count() >= 15 && !picture.contains("NaN"), "{picture}");
    let mut command = bed.bare(Side::A, WEIR);
    let refused = Child::spawn(command.args(["bench", "--loggp"]), "weir bench")?.wait(Duration::from_secs(10))?;
    ensure!(!refused.status.success() && refused.stderr.contains("weir bench odp --loggp"), "{}", refused.printed());
    Ok(())
}

/// One row of each program between namespaces, and one on one host.
fn ecosystem(bed: &Bed) -> Result<()> {
    let rows = ["ucx-64k", "fabric-msg-lat-8", "mpi-lat-8", "host-mpi-64k"];
    let mut command = bed.bare(Side::A, WEIR);
    command.args(["bench", "ecosystem", "--quick", "--rounds", "1", "--json"]).args(rows);
    let ended = Child::spawn(&mut command, "weir bench ecosystem")?.wait(Duration::from_secs(240))?;
    // The rows say what failed.
    ensure!(ended.status.success(), "{}", ended.printed());
    let shown: Vec<Value> = serde_json::from_str(&ended.stdout).with_context(|| ended.printed())?;
    let names: Vec<&str> = shown.iter().filter_map(|row| row["name"].as_str()).collect();
    ensure!(names == rows, "{names:?}");
    for row in &shown {
        ensure!(row["weir"].as_f64() > Some(0.0) && row["baseline"].as_f64() > Some(0.0), "{row}");
        ensure!(row["holds"].is_boolean() != row["bar"].is_null() && row["rounds"] == 1, "{row}");
        ensure!(row["bar"].is_null() == (row["name"] == "host-mpi-64k"), "{row}");
    }
    Ok(())
}

fn connections(bed: &Bed) -> Result<()> {
    let rows = ["connect-1000", "disconnect-1000", "host-connect-1000"];
    let mut command = bed.bare(Side::A, WEIR);
    command.args(["bench", "cm", "--quick", "--rounds", "1", "--json"]).args(rows);
    let ended = Child::spawn(&mut command, "weir bench cm")?.wait(Duration::from_secs(120))?;
    ensure!(ended.status.success(), "{}", ended.printed());
    let shown: Vec<Value> = serde_json::from_str(&ended.stdout).with_context(|| ended.printed())?;
    let names: Vec<&str> = shown.iter().filter_map(|row| row["name"].as_str()).collect();
    ensure!(names == [rows[0], rows[0], rows[1], rows[2], rows[2]], "{names:?}");
    for row in &shown {
        ensure!(row["weir"].as_f64() > Some(0.0) && row["baseline"].as_f64() > Some(0.0), "{row}");
    }
    Ok(())
}

fn ecosystem_without_programs(bed: &Bed) -> Result<()> {
    let mut command = bed.bare(Side::A, WEIR);
    // `ip` is found in any case.
    command.env("PATH", "/nonexistent").args(["bench", "ecosystem", "--json", "mpi-lat-8", "ucx-1m"]);
    let ended = Child::spawn(&mut command, "weir bench ecosystem")?.wait(Duration::from_secs(60))?;
    let shown: Vec<Value> = serde_json::from_str(&ended.stdout).with_context(|| ended.printed())?;
    ensure!(shown.len() == 2, "{}", ended.printed());
    for (row, package) in shown.iter().zip(["ucx-utils", "openmpi-bin"]) {
        let note = row["note"].as_str().unwrap_or_default();
        ensure!(row["skipped"] == true && row["weir"].is_null() && row["holds"].is_null(), "{row}");
        ensure!(note.contains("is not installed") && note.contains(package), "{row}");
    }
    ensure!(!ended.status.success() && ended.stderr.contains("nothing was measured"), "{}", ended.printed());
    Ok(())
}

fn root_only(bed: &Bed) -> Result<()> {
    let copy = readable_copy()?;
    let mut command = bed.bare(Side::A, "setpriv");
    command.args([
        format!("--reuid={UNPRIVILEGED_USER}"),
        format!("--regid={UNPRIVILEGED_USER}"),
        "--clear-groups".into(),
    ]);
    command.current_dir("/").arg(copy.path().join("weir")).args(["bench", "out-of-core"]);
    let ended = Child::spawn(&mut command, "weir bench")?.wait(Duration::from_secs(10))?;
    ensure!(!ended.status.success() && ended.stderr.contains("needs root"), "{}", ended.printed());
    Ok(())
}

fn crowd(bed: &Bed) -> Result<()> {
    let run = |device: &str| -> Result<(Option<i32>, Value, String)> {
        let program = library().join("weir-crowd").display().to_string();
        let words = [program, "-d".into(), device.into(), "-t".into(), "20".into(), "24".into()];
        let ended = Child::spawn(&mut bed.weir(Side::A, &[], words), "weir-crowd")?.wait(Duration::from_secs(30))?;
        let shown = serde_json::from_str(&ended.stdout).with_context(|| ended.printed())?;
        Ok((ended.status.code(), shown, ended.stderr))
    };
    let (code, shown, errors) = run(&bed.stage.device())?;
    ensure!(code == Some(0) && shown["succeeded"] == 24 && shown["counted"] == 24, "{shown} {errors}");
    let figure = |name: &str| shown[name].as_f64().unwrap_or_default();
    ensure!(figure("opened") > 0.0 && figure("opened") <= figure("exchanged"), "{shown}");
    ensure!(figure("exchanged") <= figure("ended") && figure("private") > 0.0, "{shown}");
    ensure!(figure("private") <= figure("pss"), "{shown}");
    let (code, shown, errors) = run("weir_none")?;
    ensure!(code == Some(1) && shown["succeeded"] == 0 && errors.contains("ibv_open_device"), "{shown} {errors}");
    Ok(())
}
