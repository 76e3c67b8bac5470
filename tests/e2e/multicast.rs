//! Multicast: `tests/c/multicast.c` in one process, and between processes of one host and of two.

use crate::bed::{Bed, Place};
use crate::{fork, trial};
use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use weir_cli::stage::{Child, Side};

/// The groups of both families.
const GROUPS: [&str; 2] = ["239.77.1.9", "ff15::4d:109"];
/// Messages between processes.
const COUNT: &str = "1000";

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![];
    for place in Place::ALL {
        for group in GROUPS {
            // Linux carries no IPv6 multicast on the loopback interface.
            if place == Place::Loopback && group.contains(':') {
                continue;
            }
            let name = format!("multicast to {group}: who gets what, and which errors there are");
            trials.push(trial(place, &name, move |bed| rules(bed, group)));
            for receivers in [&[Side::A, Side::A][..], &[Side::A, Side::B, Side::B]] {
                let name = format!("multicast to {group} reaches {} processes, two QPs each", receivers.len());
                trials.push(trial(place, &name, move |bed| everybody(bed, group, receivers)));
            }
        }
    }
    trials
}

fn rules(bed: &Bed, group: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = fork::compile("c/multicast.c", folder.path())?;
    let ended = start(bed, Side::A, &program, &["rules"], group)?.wait(Duration::from_secs(70))?.success()?;
    ensure!(ended.stdout.ends_with("0 failed\n"), "{}", ended.printed());
    Ok(())
}

/// The sender is on B: a receiver there shares its host.
fn everybody(bed: &Bed, group: &str, receivers: &[Side]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = fork::compile("c/multicast.c", folder.path())?;
    let mut ready = vec![];
    for side in receivers {
        let mut child = start(bed, *side, &program, &["receive", COUNT], group)?;
        let since = Instant::now();
        while !child.printed()?.contains("ready") {
            ensure!(child.poll()?.is_none() && since.elapsed() < Duration::from_secs(20), "{}", child.printed()?);
            std::thread::sleep(Duration::from_millis(5));
        }
        ready.push(child);
    }
    start(bed, Side::B, &program, &["send", COUNT], group)?.wait(Duration::from_secs(30))?.success()?;
    for child in ready {
        child.wait(Duration::from_secs(30))?.success()?;
    }
    Ok(())
}

/// `multicast WHAT DEVICE GID GROUP [COUNT]`.
fn start(bed: &Bed, side: Side, program: &Path, words: &[&str], group: &str) -> Result<Child> {
    let v6 = group.parse::<IpAddr>()?.is_ipv6();
    let address = if v6 { bed.stage.address6(side).into() } else { bed.stage.address(side) };
    let gid = bed.gid_index(side, address)?.to_string();
    let mut command = bed.weir(side, &[], [program]);
    command.args([words[0], &bed.stage.device(side), &gid, group]).args(&words[1..]);
    Child::spawn(&mut command, format!("multicast {}", words[0]))
}
