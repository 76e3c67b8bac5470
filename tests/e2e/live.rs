//! `weir analyze --live`: running programs are watched without an option at their start, and do not notice it.

use crate::analyze::SLOW_PAGES;
use crate::bed::{Bed, Topology, WEIR, library, run_folder};
use crate::stat::until;
use crate::trial;
use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use weir_stage::{Child, Finished, Protocol, Side};

pub fn trials() -> Vec<Trial> {
    vec![
        trial(Topology::Loopback, "weir analyze --live finds packet damming by shared memory", |bed| damming(bed, &[])),
        trial(Topology::Loopback, "weir analyze --live finds packet damming by frames", |bed| {
            damming(bed, &["--local", "off"])
        }),
        trial(Topology::Loopback, "weir analyze --live finds packet damming by RoCE packets", |bed| {
            damming(bed, &["--local", "off", "--framing", "roce"])
        }),
        trial(Topology::Loopback, "a program goes on when its watcher is killed", killed),
        trial(Topology::Loopback, "a watcher that was stopped sees what comes later", stopped),
        trial(Topology::Loopback, "weir analyze --live --pid watches a process until it ends", one_process),
    ]
}

/// `weir analyze --live WORDS…` for the processes of a run folder.
fn watcher(run: &Path, words: &[&str]) -> Result<Child> {
    let mut command = Command::new(WEIR);
    command.args(["analyze", "--live"]).args(words).env("WEIR_RUN_DIR", run).env("WEIR_LIB_DIR", library());
    // A signal to the watcher goes to no other program.
    Child::spawn(command.process_group(0), "weir analyze --live")
}

/// Ends a watcher as Ctrl-C does. Returns its report, and what it has printed.
fn report(watcher: Child) -> Result<(Value, Finished)> {
    kill(Pid::from_raw(watcher.pid() as i32), Signal::SIGINT)?;
    let ended = watcher.wait(Duration::from_secs(20))?;
    let line = ended.stdout.lines().last().with_context(|| ended.printed())?;
    Ok((serde_json::from_str(line).with_context(|| ended.printed())?, ended))
}

/// With slow pages, one of five tries at the latest loses a READ.
fn damming(bed: &Bed, options: &[&str]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let profile = folder.path().join("slow.toml");
    std::fs::write(&profile, SLOW_PAGES)?;
    let options = [options, &["--profile", profile.to_str().context("UTF-8")?]].concat();
    for _ in 0..5 {
        if found_while_running(bed, &options)? {
            return Ok(());
        }
    }
    bail!("no READ was dammed in five tries")
}

/// Whether damming was found before the programs ended; an error if it is not in the report then.
fn found_while_running(bed: &Bed, options: &[&str]) -> Result<bool> {
    let run = run_folder()?;
    let mut watcher = watcher(run.path(), &["--json"])?;
    until("the watcher", || Ok(run.path().join("watched").exists().then_some(())))?;
    let port = bed.stage.free_port(Side::A)?;
    let micro = library().join("weir-micro");
    let arguments = "--num-ops 2 --interval 5ms --odp server --rnr-timer 14";
    let line = format!("{} --device {} --port {port} {arguments}", micro.display(), bed.stage.device());
    let mut server = bed.weir(Side::A, options, line.split(' '));
    let mut server = Child::spawn(server.env("WEIR_RUN_DIR", run.path()), "server")?;
    server.wait_listening(Protocol::Tcp, port, Duration::from_secs(10))?;
    // With --hold the client runs until its standard input ends.
    let (input, held) = std::io::pipe()?;
    let mut client = bed.weir(Side::B, options, line.split(' '));
    client.arg("--hold").arg(bed.stage.address(Side::A).to_string()).env("WEIR_RUN_DIR", run.path()).stdin(input);
    let client = Child::spawn(&mut client, "client")?;
    let found = until("damming", || Ok(watcher.printed()?.contains("\"kind\":\"damming\"").then_some(()))).is_ok();
    ensure!(client.runs(), "the client has ended although it holds");
    drop(held);
    for program in [client, server] {
        let ended = program.wait(Duration::from_secs(20))?.success()?;
        ensure!(ended.stderr.is_empty(), "{}", ended.printed());
    }
    let (document, ended) = report(watcher)?;
    if !found {
        ensure!(!ended.stdout.contains("\"kind\":\"damming\""), "found after the end only: {}", ended.printed());
        return Ok(false);
    }
    let finding = &document["findings"][0];
    ensure!(finding["kind"] == "damming" && finding["count"] == 1, "{}", ended.printed());
    let cost = finding["cost_ns"].as_u64().context("no cost")?;
    ensure!((300_000_000..2_000_000_000).contains(&cost), "{finding}");
    // Both processes report each packet: it counts once.
    ensure!(document["connections"].as_array().is_some_and(|all| all.len() == 1), "{document}");
    let connection = &document["connections"][0];
    ensure!(connection["pairing"] == "setup" && connection["halves"][0]["messages"] == 2, "{connection}");
    ensure!(document["capture"]["missed"] == 0, "{document}");
    ensure!(document["files"].as_array().is_some_and(|files| files.len() == 2), "{document}");
    ensure!(ended.status.code() == Some(1), "{}", ended.printed());
    Ok(true)
}

/// The number of taps of a process.
fn taps(pid: u32) -> Result<usize> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten().map(|entry| std::fs::read_link(entry.path()));
    Ok(links.filter(|link| link.as_ref().is_ok_and(|path| path.starts_with("/memfd:weir-tap (deleted)"))).count())
}

/// `ib_write_bw` in a run folder for some seconds: client and server.
fn traffic(bed: &Bed, run: &Path, seconds: u32) -> Result<[Child; 2]> {
    let port = bed.stage.free_port(Side::A)?;
    let line = format!("ib_write_bw -F -d {} -p {port} -D {seconds}", bed.stage.device());
    let mut server = bed.weir(Side::A, &[], line.split(' '));
    let mut server = Child::spawn(server.env("WEIR_RUN_DIR", run), "server")?;
    server.wait_listening(Protocol::Tcp, port, Duration::from_secs(10))?;
    let mut client = bed.weir(Side::B, &[], line.split(' '));
    client.arg(bed.stage.address(Side::A).to_string()).env("WEIR_RUN_DIR", run);
    let client = Child::spawn(&mut client, "client")?;
    until("traffic", || Ok((client.cpu()? > Duration::from_millis(300)).then_some(())))?;
    Ok([client, server])
}

fn killed(bed: &Bed) -> Result<()> {
    let run = run_folder()?;
    // They run before the watcher comes.
    let [client, server] = traffic(bed, run.path(), 6)?;
    ensure!(taps(client.pid())? == 0, "a tap without a watcher");
    let watcher = watcher(run.path(), &["--json"])?;
    until("a tap", || Ok((taps(client.pid())? == 1 && taps(server.pid())? == 1).then_some(())))?;
    kill(Pid::from_raw(watcher.pid() as i32), Signal::SIGKILL)?;
    watcher.wait(Duration::from_secs(5))?;
    until("the end of the taps", || Ok((taps(client.pid())? + taps(server.pid())? == 0).then_some(())))?;
    for program in [client, server] {
        let ended = program.wait(Duration::from_secs(30))?.success()?;
        ensure!(ended.stderr.is_empty(), "{}", ended.printed());
    }
    Ok(())
}

fn stopped(bed: &Bed) -> Result<()> {
    let run = run_folder()?;
    let watcher = watcher(run.path(), &["--json"])?;
    let [client, server] = traffic(bed, run.path(), 7)?;
    until("a tap", || Ok((taps(client.pid())? == 1).then_some(())))?;
    let first = Instant::now();
    let signal = |signal| kill(Pid::from_raw(watcher.pid() as i32), signal);
    signal(Signal::SIGSTOP)?;
    until("the end of the taps", || Ok((taps(client.pid())? + taps(server.pid())? == 0).then_some(())))?;
    signal(Signal::SIGCONT)?;
    until("other taps", || Ok((taps(client.pid())? == 1).then_some(())))?;
    // The packets of both taps are of one connection: it lasts longer than the pause.
    let pause = first.elapsed();
    for program in [client, server] {
        program.wait(Duration::from_secs(30))?.success()?;
    }
    let (document, ended) = report(watcher)?;
    let duration = document["connections"][0]["halves"][0]["duration_ns"].as_u64().map(Duration::from_nanos);
    ensure!(duration > Some(pause), "nothing was seen after the pause: {}", ended.printed());
    ensure!(document["files"].as_array().is_some_and(|files| files.len() == 4), "{}", ended.printed());
    Ok(())
}

fn one_process(bed: &Bed) -> Result<()> {
    let run = run_folder()?;
    let absent = watcher(run.path(), &["--pid", "4194304"])?.wait(Duration::from_secs(10))?;
    ensure!(absent.status.code() == Some(2) && absent.stderr.contains("no process 4194304"), "{}", absent.printed());
    let port = bed.stage.free_port(Side::A)?;
    let line = format!("ib_read_lat -F -d {} -p {port} -D 3", bed.stage.device());
    let mut server = bed.weir(Side::A, &[], line.split(' '));
    let mut server = Child::spawn(server.env("WEIR_RUN_DIR", run.path()), "server")?;
    server.wait_listening(Protocol::Tcp, port, Duration::from_secs(10))?;
    let watcher = watcher(run.path(), &["--json", "--pid", &server.pid().to_string()])?;
    let mut client = bed.weir(Side::B, &[], line.split(' '));
    client.arg(bed.stage.address(Side::A).to_string()).env("WEIR_RUN_DIR", run.path());
    let client = Child::spawn(&mut client, "client")?;
    for program in [client, server] {
        program.wait(Duration::from_secs(20))?.success()?;
    }
    let ended = watcher.wait(Duration::from_secs(10))?;
    let document: Value = serde_json::from_str(ended.stdout.lines().last().unwrap_or_default())?;
    let files = document["files"].as_array().cloned().unwrap_or_default();
    ensure!(files.len() == 1 && files[0].as_str().is_some_and(|name| name.contains("ib_read_lat")), "{files:?}");
    // Only the server is watched, and all READs are seen there.
    let messages = document["connections"][0]["halves"][0]["messages"].as_u64();
    ensure!(messages > Some(1000), "{}", ended.printed());
    Ok(())
}
