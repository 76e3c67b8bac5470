//! `weir tune`: real searches on this machine and with a peer, resumed after an interruption.

use crate::bed::{Bed, Topology, WEIR};
use crate::trial;
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use weir_stage::{Child, Finished, Protocol, Side};

const LIMIT: Duration = Duration::from_secs(60);
/// The least that has a result of each stage.
const SHORT: [&str; 7] = ["--device", "weir", "--quick", "--sizes", "32K", "--budget", "6s"];

pub fn trials() -> Vec<Trial> {
    vec![
        trial(Topology::Loopback, "weir tune prints settings, and continues after an interruption", interrupted),
        trial(Topology::Loopback, "weir tune starts its peer through ssh", by_ssh),
        trial(Topology::Veth, "weir tune waits for a peer that the user starts", by_hand),
        trial(Topology::Veth, "weir tune measures between two namespaces of its own", namespaces),
        trial(Topology::Loopback, "weir tune reports what it cannot measure", errors),
    ]
}

/// `weir tune` with a file for its results.
fn tune(bed: &Bed, side: Side, state: &Path, words: &[&str]) -> Command {
    let mut command = bed.bare(side, WEIR);
    command.args(["tune", "--state"]).arg(state).args(words);
    command
}

fn run(mut command: Command) -> Result<Finished> {
    Child::spawn(&mut command, "weir tune")?.wait(LIMIT)
}

/// What it prints with `--json`, which has a throughput for the one size.
fn result(text: &str) -> Result<Value> {
    let shown: Value = serde_json::from_str(text).with_context(|| text.to_owned())?;
    let best = shown["best"].as_array().context("no best settings")?;
    ensure!(best.len() == 1 && best[0]["size"] == 32768, "{shown:#}");
    ensure!(best[0]["gbits"]["mean"].as_f64().is_some_and(|gbits| gbits > 0.01), "{shown:#}");
    ensure!(best[0]["outstanding"].as_u64().is_some_and(|b| (1..=128).contains(&b)), "{shown:#}");
    ensure!(shown["subject"]["weir"] == true && shown["failures"] == Value::Array(vec![]), "{shown:#}");
    Ok(shown)
}

fn interrupted(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [state, part, page] = ["state.json", "state.json.part", "page.html"].map(|name| folder.path().join(name));
    {
        let mut begun = Child::spawn(&mut tune(bed, Side::A, &state, &SHORT), "weir tune")?;
        let end = std::time::Instant::now() + LIMIT;
        while runs(&part) < 5 {
            ensure!(begun.poll()?.is_none() && std::time::Instant::now() < end, "{}", begun.printed()?);
            std::thread::sleep(Duration::from_millis(20));
        }
        // Dropped: killed.
    }
    let before = runs(&part);
    ensure!(before >= 5, "{before} runs");
    let html = page.to_str().context("the path is not UTF-8")?;
    let ended = run(tune(bed, Side::A, &state, &[&SHORT[..], &["--json", "--html", html]].concat()))?.success()?;
    ensure!(ended.stderr.contains(&format!("continuing after {before} runs")), "{}", ended.stderr);
    let shown = result(&ended.stdout)?;
    ensure!(shown["runs"].as_u64() > Some(before), "{shown:#}");
    let page = std::fs::read_to_string(&page)?;
    ensure!(page.contains("<svg") && page.contains("32 KiB"), "{page}");
    let again = run(tune(bed, Side::A, &state, &[&SHORT[..], &["--show", "--json"]].concat()))?.success()?;
    let same = result(&again.stdout)?;
    ensure!(same["runs"] == shown["runs"] && same["best"] == shown["best"], "{}", again.stdout);
    let text = run(tune(bed, Side::A, &state, &[&SHORT[..], &["--show"]].concat()))?.success()?.stdout;
    for title in ["Best settings", "What matters", "Equation 1", "Equation 2", "Advice"] {
        ensure!(text.contains(title), "{title} is missing: {text}");
    }
    Ok(())
}

/// The number of runs in the file.
fn runs(state: &Path) -> u64 {
    let text = std::fs::read_to_string(state).unwrap_or_default();
    let state: Value = serde_json::from_str(&text).unwrap_or_default();
    state["search"]["runs"].as_u64().unwrap_or(0)
}

/// An ssh that runs the command here. It checks what it is asked for.
fn by_ssh(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let ssh = folder.path().join("ssh");
    let log = folder.path().join("log");
    std::fs::write(
        &ssh,
        format!(
            "#!/bin/sh\n[ \"$1 $3 $5\" = '-o -o me@localhost' ] || exit 9\nshift 5\necho \"$*\" >> {}\nexec \"$@\"\n",
            log.display()
        ),
    )?;
    std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o755))?;
    let port = bed.stage.free_port(Side::A)?.to_string();
    let words = ["--json", "--peer", "me@localhost", "--peer-weir", WEIR, "--port", &port];
    let mut command = tune(bed, Side::A, &folder.path().join("state.json"), &[&SHORT[..], &words].concat());
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", folder.path().display()));
    let ended = run(command)?.success()?;
    let shown = result(&ended.stdout)?;
    ensure!(shown["subject"]["peer"] == "me@localhost", "{shown:#}");
    let log = std::fs::read_to_string(log)?;
    let words = format!("tune --serve --device weir --port {port} --once --token ");
    ensure!(log.lines().count() == 2 && log.contains(&words), "{log}");
    Ok(())
}

fn by_hand(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    // No ssh gets through.
    let ssh = folder.path().join("ssh");
    std::fs::write(&ssh, "#!/bin/sh\necho no route >&2\nexit 255\n")?;
    std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o755))?;
    let port = bed.stage.free_port(Side::A)?;
    let (number, host) = (port.to_string(), bed.stage.address(Side::A).to_string());
    let words = ["--json", "--peer", &host, "--port", &number];
    let mut command = tune(bed, Side::B, &folder.path().join("state.json"), &[&SHORT[..], &words].concat());
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", folder.path().display()));
    let sender = Child::spawn(&mut command, "weir tune")?;
    let mut receiver = bed.bare(Side::A, WEIR);
    receiver.args(["tune", "--serve", "--device", "weir", "--port", &number]);
    let mut receiver = Child::spawn(&mut receiver, "weir tune --serve")?;
    receiver.wait_listening(Protocol::Tcp, port, LIMIT)?;
    let ended = sender.wait(LIMIT)?.success()?;
    let told = format!("weir tune --serve --device weir --port {number}");
    ensure!(ended.stderr.contains(&told) && ended.stderr.contains("no route"), "{}", ended.stderr);
    result(&ended.stdout)?;
    ensure!(receiver.poll()?.is_none(), "the receiver serves until it is ended: {}", receiver.printed()?);
    Ok(())
}

fn namespaces(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let words = ["--namespaces", "--quick", "--sizes", "32K", "--budget", "4s", "--json"];
    let ended = run(tune(bed, Side::A, &folder.path().join("state.json"), &words))?.success()?;
    let shown = result(&ended.stdout)?;
    ensure!(shown["subject"]["namespaces"] == true && shown["subject"]["adapter"] == "weir_eth0", "{shown:#}");
    Ok(())
}

fn errors(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state.json");
    for (words, text) in [
        (&["--device", "mlx9_9"][..], "there is no such device"),
        (&["--device", "weir_none"], "Weir has no device weir_none here"),
        (&["--peer=-oProxyCommand=x"], "give a host"),
        (&["--port", "4000"], "--port"),
        (&["--serve", "--quick"], "cannot be used with"),
        (&["--sizes", "0"], "--sizes"),
        (&["--html", "/nowhere/x.html"], "in a folder that exists"),
    ] {
        let ended = run(tune(bed, Side::A, &state, words))?;
        ensure!(!ended.status.success() && ended.stderr.contains(text), "{words:?}: {}", ended.stderr);
        ensure!(!state.exists(), "{words:?} has left a file");
    }
    Ok(())
}
