//! Raw packet QPs between two hosts: perftest's `raw_ethernet_bw` steers by its MAC address.

use crate::bed::{Bed, Topology};
use crate::trial;
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use std::time::{Duration, Instant};
use weir_stage::{Child, Side};

pub fn trials() -> Vec<Trial> {
    // The device of one interface does not receive what it sends, except on loopback.
    vec![trial(Topology::Veth, "raw_ethernet_bw", frames_arrive)]
}

/// The client sends many more frames than the server waits for, because it does not slow down for the server.
fn frames_arrive(bed: &Bed) -> Result<()> {
    let (server, client) = (mac(bed, Side::A)?, mac(bed, Side::B)?);
    let start = |side, role: &str, count: &str, own: &str, other: &str| {
        let words = ["raw_ethernet_bw", role, "-d", &bed.stage.device(), "-s", "1000", "-n", count];
        let mut command = bed.weir(side, &[], words);
        command.args(["-F", "-B", own, "-E", other]);
        Child::spawn(&mut command, format!("raw_ethernet_bw {role}"))
    };
    let mut receiving = start(Side::A, "--server", "1000", &server, &client)?;
    let since = Instant::now();
    while !listens(bed)? {
        let waits = receiving.poll()?.is_none() && since.elapsed() < Duration::from_secs(20);
        ensure!(waits, "no packet socket: {}", receiving.printed()?);
        std::thread::sleep(Duration::from_millis(5));
    }
    start(Side::B, "--client", "300000", &client, &server)?.wait(Duration::from_secs(60))?.success()?;
    receiving.wait(Duration::from_secs(30))?.success()?;
    Ok(())
}

/// Whether a packet socket on side A receives frames of all protocols.
fn listens(bed: &Bed) -> Result<bool> {
    let sockets = bed.stage.enter(Side::A, || std::fs::read_to_string("/proc/thread-self/net/packet"))??;
    Ok(sockets.lines().any(|line| line.split_whitespace().nth(3) == Some("0003")))
}

/// The MAC address of the interface of a side.
fn mac(bed: &Bed, side: Side) -> Result<String> {
    let device = bed.stage.device();
    let interface = device.strip_prefix("weir_").context("a device of another name")?;
    let mut command = bed.bare(side, "ip");
    let child = Child::spawn(command.args(["-j", "link", "show", interface]), "ip link")?;
    let ended = child.wait(Duration::from_secs(10))?.success()?;
    let links: Value = serde_json::from_str(&ended.stdout)?;
    Ok(links[0]["address"].as_str().context("no MAC address")?.to_owned())
}
