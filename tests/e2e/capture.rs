//! Files of `--capture`: tshark and Weir parse them alike, and they hold the packets that crossed the wire.

use crate::bed::{Bed, FAULTS, Topology};
use crate::{fork, trial};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::Duration;
use weir_capture::{Direction, OwnedFrame};
use weir_stage::{Child, Side};

const PROGRAMS: &[&str] =
    &["ib_write_bw -s 65536", "ib_read_bw -s 65536", "ib_send_bw -s 10001", "ib_atomic_bw", "ib_write_lat -s 8"];

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![];
    for topology in Topology::ALL {
        for program in PROGRAMS {
            for faults in [None, Some(format!("{FAULTS},seed=3"))] {
                let name = format!(
                    "tshark reads a capture of {program}{}",
                    if faults.is_some() { " with faults" } else { "" }
                );
                trials.push(trial(topology, &name, move |bed| agrees(bed, program, faults.as_deref())));
            }
        }
    }
    for how in ["abort", "assert", "segv", "term", "trap", "int", "_exit", "kill"] {
        let name = format!("a capture holds the last packets of a program that ends by {how}");
        trials.push(trial(Topology::Loopback, &name, move |bed| ends(bed, how)));
    }
    trials
}

/// A program that dies after 100 WRITEs.
fn ends(bed: &Bed, how: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = fork::compile("e2e/captured_end.c", folder.path())?;
    let file = folder.path().join("weir.pcapng");
    let gid = bed.gid_index(Side::A, bed.stage.address(Side::A))?.to_string();
    let mut command = bed.weir(Side::A, &["--capture", file.to_str().context("UTF-8")?], [program]);
    command.args([&*bed.stage.device(), &gid, how]);
    let ended = Child::spawn(&mut command, "captured_end")?.wait(Duration::from_secs(40))?;
    let signal = match how {
        "abort" | "assert" => Some(libc::SIGABRT),
        "segv" => Some(libc::SIGSEGV),
        "term" => Some(libc::SIGTERM),
        "trap" => Some(libc::SIGTRAP),
        "int" => Some(libc::SIGINT),
        "kill" => Some(libc::SIGKILL),
        _ => None,
    };
    ensure!(ended.status.signal() == signal, "{}: {}", ended.status, ended.printed());
    let frames: Vec<OwnedFrame> = weir_capture::open(&file)?.owned_frames().collect::<Result<_, _>>()?;
    // The opcode is behind the headers of Ethernet, IPv4 and UDP: RC RDMA WRITE Only.
    let writes = |frame: &&OwnedFrame| frame.direction == Some(Direction::Out) && frame.data.get(42) == Some(&0x0a);
    // By PSN, for a WRITE may be retransmitted.
    let psns: HashSet<&[u8]> = frames.iter().filter(writes).map(|frame| &frame.data[51..54]).collect();
    ensure!(psns.len() == 100, "{} WRITEs of 100 are in the file", psns.len());
    Ok(())
}

fn agrees(bed: &Bed, program: &str, faults: Option<&str>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("weir-%p.pcapng");
    let options =
        ["--icrc", "always", "--capture", file.to_str().context("the path of the temporary folder is not UTF-8")?];
    let (line, timeout) = (format!("{program} -F -d {{dev}} -p {{port}} -n 50"), Duration::from_secs(30));
    match faults {
        Some(faults) => bed.faulty_pair(&options, faults, &line, timeout)?,
        None => bed.pair(&options, &line, timeout)?,
    };

    let files: Vec<PathBuf> =
        std::fs::read_dir(folder.path())?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    ensure!(files.len() == 2, "expected one file per process, found {files:?}");
    let mut packets = vec![];
    for file in files {
        let comparison = weir_tshark::compare(&file)?;
        ensure!(comparison.failures.is_empty(), "{}", comparison.failures.join("\n"));
        // Only injected faults corrupt an ICRC.
        ensure!(faults.is_some() || comparison.skipped == 0, "{} packets with a bad ICRC", comparison.skipped);
        packets.push(comparison.passed + comparison.skipped);
    }
    ensure!(packets.iter().all(|&count| count >= 50), "{packets:?} packets for 50 operations");
    if faults.is_none() {
        // Each side captures what it sends and receives. The counts may differ by a few hellos and last packets.
        ensure!(packets[0].abs_diff(packets[1]) <= 4, "{packets:?} packets: the captures of the two sides differ");
    }
    Ok(())
}
