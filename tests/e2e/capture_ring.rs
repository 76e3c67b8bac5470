//! `--capture-ring`: the file is written at a stall, has its packets, and says what it was; a clean run leaves no file.
//! `--capture-snap headers`: tshark reads the headers.

use crate::bed::{Bed, Topology, library};
use crate::profiles::SLOW_PAGES;
use crate::{fork, trial};
use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use weir_capture::{Direction, OwnedFrame};
use weir_stage::{Child, Side};

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![];
    for topology in Topology::ALL {
        trials.push(trial(topology, "a capture ring holds the packets of a dammed READ", dammed));
        trials.push(trial(topology, "a capture ring holds a lost packet and its retransmission", lost));
        trials.push(trial(topology, "tshark reads the headers of a capture with a snap length", headers));
    }
    trials.push(trial(Topology::Loopback, "a clean run leaves no file of a capture ring", clean));
    for how in ["kill", "abort", "_exit"] {
        let name = format!("a program that ends by {how} without a stall leaves no file of a capture ring");
        trials.push(trial(Topology::Loopback, &name, move |bed| ends(bed, how)));
    }
    trials
}

/// The files of a folder, and their frames.
fn captures(folder: &Path) -> Result<Vec<Vec<OwnedFrame>>> {
    let files: Vec<PathBuf> = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let read = |path: &PathBuf| Ok(weir_capture::open(path)?.owned_frames().collect::<Result<_, _>>()?);
    files.iter().filter(|path| path.extension().is_some_and(|ending| ending == "pcapng")).map(read).collect()
}

fn comment(frame: &OwnedFrame) -> &str {
    frame.comment.as_deref().unwrap_or_default()
}

/// The packets that are sent after others with the same opcode and PSN: the first, the last, and the time between.
fn repeated(frames: &[OwnedFrame], opcode: u8) -> Option<(usize, usize, Duration)> {
    // The BTH is behind the headers of Ethernet, IPv4 and UDP.
    let request = |frame: &OwnedFrame| frame.direction == Some(Direction::Out) && frame.data.get(42) == Some(&opcode);
    let psn = |frame: &OwnedFrame| frame.data.get(51..54).map(<[u8]>::to_vec);
    let last = frames.iter().rposition(request)?;
    let first = frames.iter().position(|frame| request(frame) && psn(frame) == psn(&frames[last]))?;
    (first < last).then(|| (first, last, Duration::from_nanos(frames[last].timestamp - frames[first].timestamp)))
}

/// One of five tries must lose a READ: see `profiles.rs`.
fn dammed(bed: &Bed) -> Result<()> {
    const READ_REQUEST: u8 = 0x0c;
    for _ in 0..5 {
        let folder = tempfile::tempdir()?;
        let profile = folder.path().join("slow.toml");
        std::fs::write(&profile, SLOW_PAGES)?;
        let file = folder.path().join("weir-%p.pcapng");
        let (profile, file) = (profile.to_str().context("UTF-8")?, file.to_str().context("UTF-8")?);
        let ring = ["--profile", profile, "--capture", file, "--capture-snap", "headers", "--capture-ring", "1M"];
        let line = format!(
            "{} --device {{dev}} --port {{port}} --odp server --num-ops 2 --interval 13ms --rnr-timer 20",
            library().join("weir-micro").display()
        );
        bed.pair(&ring, &line, Duration::from_secs(30))?;
        for frames in captures(folder.path())? {
            let Some(mark) = frames.iter().position(|frame| comment(frame).contains("(ACK timeout)")) else { continue };
            let (first, last, wait) = repeated(&frames, READ_REQUEST).context("no READ is repeated")?;
            ensure!(first < mark && mark <= last, "the mark at {mark} is not between {first} and {last}");
            ensure!(wait >= Duration::from_millis(90), "the READ was repeated after {wait:?}");
            // The response comes after the repetition: the recovery is in the file.
            let responses = frames[last..].iter().filter(|frame| frame.direction == Some(Direction::In));
            ensure!(responses.count() > 0, "nothing came after the repetition");
            ensure!(frames.iter().all(|frame| frame.data.len() <= 512), "payload is in the file");
            return Ok(());
        }
    }
    bail!("no try of five had a stall")
}

/// Each message of `ib_write_lat` waits for the one before: a lost one costs an ACK timeout. The client loses some of
/// what it sends.
fn lost(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("weir-%p.pcapng");
    let ring = ["--capture", file.to_str().context("UTF-8")?, "--capture-ring", "256K"];
    let line = "ib_write_lat -F -d {dev} -p {port} -s 8 -n 200";
    bed.faulty_pair(&ring, "loss=0.02,seed=5", line, Duration::from_secs(60))?;
    let found = captures(folder.path())?;
    // The server loses nothing, but it may miss an ACK that the client loses.
    let lost = |frame: &OwnedFrame| comment(frame).contains("lost by fault injection");
    let frames = found.iter().find(|frames| frames.iter().any(lost));
    let frames = frames.with_context(|| format!("{} files, none with a lost packet", found.len()))?;
    let timeout = |frame: &OwnedFrame| comment(frame).contains("(ACK timeout)");
    let mark = frames.iter().rposition(timeout).context("no mark in the file with lost packets")?;
    ensure!(frames[..mark].iter().any(lost), "no packet is lost before the mark");
    ensure!(frames[mark..].len() > 1, "nothing follows the mark");
    ensure!(frames.is_sorted_by_key(|frame| frame.timestamp), "the frames are out of order");
    Ok(())
}

fn headers(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("weir-%p.pcapng");
    let options = ["--capture-snap", "headers", "--capture", file.to_str().context("UTF-8")?];
    bed.pair(&options, "ib_write_bw -F -d {dev} -p {port} -s 65536 -n 50", Duration::from_secs(30))?;
    for entry in std::fs::read_dir(folder.path())? {
        let path = entry?.path();
        ensure!(std::fs::metadata(&path)?.len() < 1 << 20, "3 MB of payload are in the file");
        let fields = ["-T", "fields", "-e", "infiniband.bth.opcode", "-e", "frame.len", "-e", "frame.cap_len"];
        let output = Command::new("tshark").arg("-r").arg(&path).args(fields).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout)?;
        let packets: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
        let count = |opcode: &str| packets.iter().filter(|packet| packet[0] == opcode).count();
        ensure!(count("6") >= 50 && count("8") >= 50 && count("17") >= 1, "first, last and ACKs: {text}");
        let firsts = packets.iter().filter(|packet| packet[0] == "6");
        // Ethernet, IPv4, UDP, BTH and RETH.
        ensure!(
            firsts
                .clone()
                .all(|packet| packet[2] == "70" && packet[1].parse::<u32>().is_ok_and(|len| len >= 70 + 1024 + 4)),
            "{text}"
        );
    }
    Ok(())
}

/// A machine that is busy enough stalls a clean run, too: one of three tries must be clean.
fn clean(bed: &Bed) -> Result<()> {
    let mut marks = Vec::new();
    for _ in 0..3 {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("weir-%p.pcapng");
        let ring = ["--capture", file.to_str().context("UTF-8")?, "--capture-ring", "1M"];
        for program in ["ib_write_bw -s 65536", "ib_read_lat -s 8"] {
            let line = format!("{program} -F -d {{dev}} -p {{port}} -n 1000");
            bed.pair(&ring, &line, Duration::from_secs(30))?;
        }
        let found = captures(folder.path())?;
        if found.is_empty() {
            return Ok(());
        }
        let comments = found.iter().flatten().map(comment).filter(|comment| !comment.is_empty());
        marks.extend(comments.map(str::to_owned));
    }
    bail!("every try wrote a file: {marks:?}")
}

fn ends(bed: &Bed, how: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = fork::compile("e2e/captured_end.c", folder.path())?;
    let file = folder.path().join("weir.pcapng");
    let gid = bed.gid_index(Side::A, bed.stage.address(Side::A))?.to_string();
    let options = ["--capture", file.to_str().context("UTF-8")?, "--capture-ring", "1M"];
    let mut command = bed.weir(Side::A, &options, [program]);
    command.args([&*bed.stage.device(), &gid, how]);
    Child::spawn(&mut command, "captured_end")?.wait(Duration::from_secs(40))?;
    ensure!(!file.exists(), "there is a file");
    Ok(())
}
