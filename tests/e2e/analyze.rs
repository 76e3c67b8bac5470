//! `weir analyze`: what a new user does. A program under a profile with flaws is captured, and the command names the flaw.

use crate::bed::{Bed, Topology, WEIR, library};
use crate::trial;
use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use weir_stage::{Child, Finished};

pub fn trials() -> Vec<Trial> {
    vec![
        trial(Topology::Loopback, "weir analyze finds packet damming in a capture of two READs", damming),
        trial(Topology::Loopback, "weir analyze finds nothing in a clean transfer", clean),
        trial(Topology::Loopback, "weir analyze: exit codes, standard input, wrong and cut files", files),
    ]
}

pub fn analyze(words: &[&str]) -> Result<Finished> {
    Child::spawn(Command::new(WEIR).arg("analyze").args(words), "weir analyze")?.wait(Duration::from_secs(30))
}

fn json(words: &[&str]) -> Result<Value> {
    let ended = analyze(&[&["--json"], words].concat())?;
    serde_json::from_str(&ended.stdout).with_context(|| ended.printed())
}

/// The server sends no RNR NAK once the page fault is resolved: slow pages leave the server's thread 10 ms for it. If the
/// machine was too busy even for that, nothing is lost, so one of five tries must lose a READ.
pub const SLOW_PAGES: &str =
    "about = \"slow pages\"\nbase = \"connectx4\"\n[page_faults]\nresolve_us = [10000, 12000]\n";

fn damming(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let profile = folder.path().join("slow.toml");
    std::fs::write(&profile, SLOW_PAGES)?;
    let capture = folder.path().join("x-%p.pcapng");
    let [profile, capture] = [&profile, &capture].map(|path| path.to_str().context("UTF-8"));
    let options = ["--profile", profile?, "--capture", capture?];
    let micro = library().join("weir-micro");
    let arguments = "--num-ops 2 --interval 5ms --odp server --rnr-timer 14";
    let line = format!("{} --device {{dev}} --port {{port}} {arguments}", micro.display());
    for _ in 0..5 {
        for old in captures(folder.path())? {
            std::fs::remove_file(old)?;
        }
        bed.pair(&options, &line, Duration::from_secs(60))?;
        let files = captures(folder.path())?;
        ensure!(files.len() == 2, "{files:?}");
        let shown: Vec<Value> = files.iter().map(|file| json(&[file])).collect::<Result<_>>()?;
        let kinds = |document: &Value| -> Vec<String> {
            let findings = document["findings"].as_array().cloned().unwrap_or_default();
            findings.iter().map(|finding| finding["kind"].as_str().unwrap_or_default().to_owned()).collect()
        };
        if !kinds(&shown[0]).contains(&"damming".to_owned()) {
            continue;
        }
        // Both sides' captures show the same.
        for (document, file) in shown.iter().zip(&files) {
            let finding = &document["findings"][0];
            ensure!(finding["kind"] == "damming" && finding["count"] == 1, "{finding}");
            let cost = finding["cost_ns"].as_u64().context("no cost")?;
            ensure!((300_000_000..2_000_000_000).contains(&cost), "{finding}");
            ensure!(finding["requester"]["qp"].is_u64() && finding["responder"]["qp"].is_u64(), "{finding}");
            let advice = finding["advice"].to_string();
            ensure!(advice.contains("min_rnr_timer") && advice.contains("UCX_RC_RNR_TIMEOUT"), "{advice}");
            let text = analyze(&[file])?;
            ensure!(text.status.code() == Some(1), "{}", text.printed());
            for expected in ["1. Packet damming", "READ with PSN 1", "min_rnr_timer: 1", "FI_VERBS_MIN_RNR_TIMER=1"] {
                ensure!(text.stdout.contains(expected), "`{expected}` is missing: {}", text.printed());
            }
            ensure!(!text.stdout.contains('\x1b'), "colours into a pipe: {}", text.printed());
            let long = text.stdout.lines().skip(1).find(|line| line.chars().count() > 80);
            ensure!(long.is_none(), "more than 80 columns: {long:?}");
        }
        return Ok(());
    }
    bail!("no READ was dammed in five tries")
}

fn captures(folder: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "pcapng") {
            files.push(path.to_str().context("UTF-8")?.to_owned());
        }
    }
    Ok(files)
}

fn clean(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let capture = folder.path().join("x-%p.pcapng");
    let options = ["--capture", capture.to_str().context("UTF-8")?];
    bed.pair(&options, "ib_read_bw -n 200 -s 65536 -d {dev} -p {port} -F", Duration::from_secs(40))?;
    let files = captures(folder.path())?;
    ensure!(files.len() == 2, "{files:?}");
    for file in files {
        let ended = analyze(&[&file])?;
        ensure!(ended.status.code() == Some(0) && ended.stdout.contains("Nothing found."), "{}", ended.printed());
        let document = json(&[&file])?;
        let halves = &document["connections"][0]["halves"];
        ensure!(halves[0]["messages"] == 200 && halves[0]["bytes"] == 200 * 65536, "{halves}");
        ensure!(document["schema"] == 1, "{document}");
    }
    Ok(())
}

fn files(_bed: &Bed) -> Result<()> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/captures");
    let clean = fixtures.join("rxe-hostpeer.pcap");
    let bytes = std::fs::read(&clean)?;
    let folder = tempfile::tempdir()?;
    let file = |name: &str, bytes: &[u8]| -> Result<String> {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes)?;
        Ok(path.to_str().context("UTF-8")?.to_owned())
    };
    let garbage = file("garbage", b"no capture at all, but long enough for a header")?;
    let ended = analyze(&[&garbage])?;
    ensure!(ended.status.code() == Some(2) && ended.stderr.contains("neither a pcap nor"), "{}", ended.printed());
    let ended = analyze(&["/no/such/file"])?;
    ensure!(ended.status.code() == Some(2) && ended.stderr.contains("/no/such/file"), "{}", ended.printed());
    let ended = analyze(&["--profile", "perfect", &garbage])?;
    ensure!(ended.status.code() == Some(2) && ended.stderr.contains("perfect"), "{}", ended.printed());
    // The frames before a cut count.
    let cut = file("cut", &bytes[..bytes.len() - 5])?;
    let ended = analyze(&["--json", &cut])?;
    let document: Value = serde_json::from_str(&ended.stdout).with_context(|| ended.printed())?;
    ensure!(document["capture"]["frames"] == 14 && ended.stderr.contains("is cut"), "{}", ended.printed());
    ensure!(ended.status.code() == Some(1), "{}", ended.printed());
    let mut command = Command::new(WEIR);
    command.args(["analyze", "--json", "-"]).stdin(Stdio::from(std::fs::File::open(&clean)?));
    let ended = Child::spawn(&mut command, "weir analyze")?.wait(Duration::from_secs(30))?;
    let document: Value = serde_json::from_str(&ended.stdout).with_context(|| ended.printed())?;
    ensure!(document["capture"]["frames"] == 15 && document["files"][0] == "-", "{}", ended.printed());
    Ok(())
}
