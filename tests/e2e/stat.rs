//! `weir stat` and the counter files with the vendor's names, while real programs run.

use crate::bed::{Bed, Topology, WEIR, library};
use crate::users::{UNPRIVILEGED_USER, readable_copy};
use crate::{fork, needing_root, trial};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use weir_stage::{Child, Finished, Protocol, Side};

pub fn trials() -> Vec<Trial> {
    let root = nix::unistd::geteuid().is_root();
    let mut trials = vec![];
    for topology in Topology::ALL {
        trials.push(trial(topology, "weir stat shows traffic counters that increase", traffic));
        trials.push(trial(topology, "weir stat and the vendor's counter files agree on page faults", page_faults));
    }
    trials.push(trial(Topology::Loopback, "weir stat shows the sequence NAKs of a lossy link", losses));
    trials.push(trial(
        Topology::Loopback,
        "weir stat lists running processes and reports ended ones",
        running_and_ended,
    ));
    trials.push(trial(
        Topology::Loopback,
        "weir stat shows pinned memory and the counters that a library publishes",
        pinned_and_published,
    ));
    trials.push(needing_root(
        trial(Topology::Loopback, "weir stat names the owner of a process that it may not read", users),
        root,
    ));
    trials
}

/// Runs `weir stat` outside of the namespaces of the stage.
fn stat(words: &[&str]) -> Result<Finished> {
    Child::spawn(&mut stat_command(Path::new(WEIR), words), "weir stat")?.wait(Duration::from_secs(10))
}

fn stat_command(weir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(weir);
    command.arg("stat").args(words).env("WEIR_LIB_DIR", library()).env_remove("WEIR_RUN_DIR");
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command
}

pub fn json(words: &[&str]) -> Result<Value> {
    let ended = stat(&[words, &["--json"]].concat())?.success()?;
    serde_json::from_str(&ended.stdout).with_context(|| ended.printed())
}

/// A server that has opened its device and waits for its client.
pub fn server(bed: &Bed) -> Result<(Child, u16)> {
    let port = bed.stage.free_port(Side::A)?;
    let line = format!("ib_write_bw -F -d {} -p {port} -u 18 -D 3", bed.stage.device());
    let mut server = Child::spawn(&mut bed.weir(Side::A, &[], line.split(' ')), "server")?;
    server.wait_listening(Protocol::Tcp, port, Duration::from_secs(10))?;
    Ok((server, port))
}

/// Calls `look` until it returns a value, for at most ten seconds.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match look() {
            Ok(Some(found)) => return Ok(found),
            Err(error) if Instant::now() > end => return Err(error.context(what.to_owned())),
            Ok(None) if Instant::now() > end => anyhow::bail!("{what}: not seen within ten seconds"),
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn traffic(bed: &Bed) -> Result<()> {
    let (server, port) = server(bed)?;
    let line = format!("ib_write_bw -F -d {} -p {port} -u 18 -D 3 {}", bed.stage.device(), bed.stage.address(Side::A));
    let client = Child::spawn(&mut bed.weir(Side::B, &[], line.split(' ')), "client")?;
    let pid = client.pid().to_string();
    let sent = |process: &Value| process["devices"][0]["bytes_sent"].as_u64();
    let first = until("traffic", || {
        let process = json(&[&pid])?;
        Ok((sent(&process) > Some(1 << 20)).then_some(process))
    })?;
    until("more traffic", || {
        let process = json(&[&pid])?;
        Ok((sent(&process) > sent(&first)).then_some(process))
    })?;
    let device = &first["devices"][0];
    ensure!(first["pid"] == client.pid() && first["program"] == "ib_write_bw", "{first}");
    ensure!(device["name"] == bed.stage.device().as_str() && device["qps"] == 1, "{first}");
    let packets = device["packets_sent"].as_u64().unwrap_or(0);
    // All packets but the hellos carry 4 KiB.
    ensure!(packets > 250 && sent(&first).unwrap_or(0) / packets > 3000, "{first}");
    for name in ["page_faults", "page_fault_us", "page_invalidations_handled", "page_prefetch", "page_contentions"] {
        ensure!(first["paging"][name] == 0 && device["paging"][name] == 0, "{name} in {first}");
    }
    let other = json(&[&server.pid().to_string()])?;
    ensure!(other["devices"][0]["bytes_received"].as_u64() > Some(1 << 20), "{other}");
    let table = stat(&[&pid])?.success()?.stdout;
    ensure!(table.contains("packets sent") && table.contains(&bed.stage.device()), "{table}");

    let folder = PathBuf::from(first["folder"].as_str().context("no folder")?);
    let verbs = folder.join("class/infiniband_verbs").join(device["uverbs"].as_str().context("no uverbs")?);
    for name in ["num_page_faults", "num_page_fault_pages", "num_invalidations", "num_invalidation_pages"] {
        ensure!(std::fs::read_to_string(verbs.join(name))? == "0\n", "{name}");
    }
    ensure!(client.wait(Duration::from_secs(20))?.success()?.stderr.is_empty(), "the client has output on stderr");
    server.wait(Duration::from_secs(20))?.success()?;
    ensure!(!folder.exists(), "{} still exists", folder.display());
    Ok(())
}

fn losses(bed: &Bed) -> Result<()> {
    let (server, port) = server(bed)?;
    let line = format!("ib_write_bw -F -d {} -p {port} -u 18 -D 3 {}", bed.stage.device(), bed.stage.address(Side::A));
    let client = Child::spawn(&mut bed.weir(Side::B, &["--faults", "loss=0.01,seed=7"], line.split(' ')), "client")?;
    let pid = client.pid().to_string();
    let found = until("sequence NAKs", || {
        let process = json(&[&pid])?;
        let device = &process["devices"][0];
        Ok((device["sequence_naks"].as_u64() > Some(0)).then_some(process))
    })?;
    ensure!(found["devices"][0]["rnr_naks"] == 0, "{found}");
    let table = stat(&[&pid])?.success()?.stdout;
    ensure!(table.contains("sequence NAKs"), "{table}");
    client.wait(Duration::from_secs(20))?.success()?;
    server.wait(Duration::from_secs(20))?.success()?;
    Ok(())
}

fn page_faults(bed: &Bed) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let line = format!("ib_write_bw -F --odp -d {} -p {port} -u 18 -D 3", bed.stage.device());
    let mut server = Child::spawn(&mut bed.weir(Side::A, &[], line.split(' ')), "server")?;
    server.wait_listening(Protocol::Tcp, port, Duration::from_secs(10))?;
    let mut client = bed.weir(Side::B, &[], line.split(' '));
    let client = Child::spawn(client.arg(bed.stage.address(Side::A).to_string()), "client")?;
    for child in [&server, &client] {
        let pid = child.pid().to_string();
        let found = until("equal counts of page faults", || {
            let process = json(&[&pid])?;
            let handled = process["paging"]["page_faults_handled"].as_u64().unwrap_or(0);
            let device = &process["devices"][0];
            let verbs = Path::new(process["folder"].as_str().context("no folder")?).join("class/infiniband_verbs");
            let file = verbs.join(device["uverbs"].as_str().context("no uverbs")?).join("num_page_faults");
            let shown: u64 = std::fs::read_to_string(file)?.trim().parse()?;
            Ok((handled > 0 && shown == handled && process["region_count"] == 1).then_some(process))
        })?;
        let (paging, region) = (&found["paging"], &found["regions"][0]);
        let length = region["length"].as_u64().unwrap_or(0);
        ensure!(length >= 65536 && region["device"] == found["devices"][0]["name"], "{region}");
        ensure!(region["paging"]["page_fault_pages"].as_u64() >= Some(1), "{region}");
        ensure!(region["paging"]["page_fault_pages"].as_u64() <= Some(length / 4096 + 1), "{region}");
        ensure!(paging["page_fault_us"].as_u64() > Some(0), "{paging}");
        let us = |part: &str| paging[format!("page_fault_{part}_us")].as_u64().unwrap_or(0);
        let (whole, sum): (u64, u64) = (us("wait"), ["notice", "populate", "table", "resume"].map(us).iter().sum());
        // Each part is rounded down, and a fault of the moment may be in the whole only.
        ensure!(sum > 0 && sum <= whole && whole - sum <= whole / 10 + 10 && us("adapter") == 0, "{paging}");
        let table = stat(&[&pid])?.success()?.stdout;
        ensure!(table.contains("page faults") && table.contains("lkey"), "{table}");
        ensure!(table.contains("a page fault takes ") && table.contains("on average: notice "), "{table}");
    }
    client.wait(Duration::from_secs(20))?.success()?;
    server.wait(Duration::from_secs(20))?.success()?;
    Ok(())
}

fn running_and_ended(bed: &Bed) -> Result<()> {
    let (server, _) = server(bed)?;
    let pid = server.pid();
    let listed = |all: &Value| all.as_array().into_iter().flatten().any(|process| process["pid"] == pid);
    let folder = until("a folder", || {
        let all = json(&[])?;
        Ok(listed(&all).then_some(json(&[&pid.to_string()])?["folder"].clone()))
    })?;
    let folder = PathBuf::from(folder.as_str().context("no folder")?);
    drop(server); // by SIGKILL
    ensure!(!listed(&json(&[])?), "an ended process is listed");
    let ended = stat(&[&pid.to_string()])?;
    // If another process of this user has removed the folder already, `weir stat` does not find the process ID.
    let explained = ["has ended", "there is no process"].iter().any(|words| ended.stderr.contains(words));
    ensure!(!ended.status.success() && explained, "{}", ended.printed());
    let (next, _) = self::server(bed)?;
    ensure!(!folder.exists(), "the next process did not remove {}", folder.display());
    drop(next);
    let unknown = stat(&["4194305"])?; // beyond the largest process ID
    ensure!(!unknown.status.success() && unknown.stderr.contains("there is no process"), "{}", unknown.printed());
    Ok(())
}

fn pinned_and_published(bed: &Bed) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let program = fork::compile_with("e2e/publish.c", scratch.path(), &["-ldl"])?;
    let (input, mut lines) = std::io::pipe()?;
    let mut command = bed.weir(Side::A, &[], [program.into_os_string(), bed.stage.device().into()]);
    let mut child = Child::spawn(command.stdin(input), "publish.c")?;
    drop(command);
    let pid = child.pid().to_string();
    until("the first phase", || Ok(child.printed()?.contains("first").then_some(())))?;
    let found = json(&[&pid])?;
    let memory = |bytes: u64| json!({"pinned_bytes": bytes, "pinned_peak": 32768, "registrations": 3, "registrations_on_demand": 1});
    ensure!(found["memory"] == memory(5 * 4096), "{found}");
    let counters = json!({"eager": 12, "pinned_bytes": 1 << 20, "pinned_peak": 3 << 20});
    ensure!(found["published"] == json!([{"group": "weir-odp odp-optimal", "counters": counters}]), "{found}");
    let all = json(&[])?;
    let groups: Vec<&Value> = all.as_array().into_iter().flatten().map(|process| &process["published"]).collect();
    ensure!(!groups.iter().any(|groups| groups.to_string().contains("\"child\"")), "a child has ended: {all}");
    let table = stat(&[&pid])?.success()?.stdout;
    let line = "memory: 20.0 KiB pinned (at most 32.0 KiB), 3 registrations, 1 of them on-demand";
    let messages = "messages (weir-odp, scheme odp-optimal)\n  eager 12, pinned bytes 1.00 MiB (at most 3.00 MiB)\n";
    ensure!(table.contains(line) && table.contains(messages), "{table}");

    lines.write_all(b"\n")?;
    until("the second phase", || Ok(child.printed()?.contains("second").then_some(())))?;
    let found = json(&[&pid])?;
    ensure!(found["memory"] == memory(0), "{found}");
    let mut groups: Vec<String> =
        found["published"].as_array().into_iter().flatten().map(|group| group["group"].to_string()).collect();
    groups.sort();
    ensure!(groups == ["\"other\"", "\"weir-odp pin-down\""], "{found}");
    let folder = PathBuf::from(found["folder"].as_str().context("no folder")?);
    lines.write_all(b"\n")?;
    child.wait(Duration::from_secs(10))?.success()?;
    ensure!(!folder.exists(), "{} still exists", folder.display());
    Ok(())
}

fn users(bed: &Bed) -> Result<()> {
    let (server, _) = server(bed)?;
    let copy = readable_copy()?;
    let pid = server.pid().to_string();
    until("the process as its own user sees it", || json(&[&pid]).map(Some))?;
    let unprivileged = |words: &[&str]| -> Result<Finished> {
        let inner = stat_command(&copy.path().join("weir"), words);
        let mut command = bed.bare(Side::A, "setpriv");
        command.args([
            format!("--reuid={UNPRIVILEGED_USER}"),
            format!("--regid={UNPRIVILEGED_USER}"),
            "--clear-groups".into(),
        ]);
        command.env_remove("XDG_RUNTIME_DIR").current_dir("/").arg(inner.get_program()).args(inner.get_args());
        Child::spawn(&mut command, "weir stat")?.wait(Duration::from_secs(10))
    };
    let ended = unprivileged(&[&pid])?;
    ensure!(!ended.status.success() && ended.stderr.contains("root's"), "{}", ended.printed());
    let list = unprivileged(&["--json"])?.success()?;
    ensure!(!list.stdout.contains(&format!("\"pid\": {pid}")), "{}", list.printed());
    Ok(())
}
