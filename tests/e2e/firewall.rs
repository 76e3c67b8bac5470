//! A stateless firewall that blocks Weir's slot ports in one direction: programs still run, through port 4791, and the log
//! says what would be faster.

use crate::bed::{Bed, Topology};
use crate::trial;
use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use std::time::Duration;
use weir_stage::{Child, Side};

const TOOL: &str = "iptables-legacy";

pub fn trials() -> Vec<Trial> {
    let installed = weir_stage::locate(TOOL).is_ok();
    if !installed {
        eprintln!("firewall trials are ignored: {TOOL} is missing (package iptables)");
    }
    let closed = [(Side::A, "the server's"), (Side::B, "the client's")];
    let trials = closed.map(|(side, owner)| {
        let name = format!("with the slot ports blocked on {owner} side, port 4791 is used");
        trial(Topology::Veth, &name, move |_| one_way(side))
    });
    let ignored = Topology::Veth.missing().is_some() || !installed;
    trials.map(|trial| trial.with_ignored_flag(ignored)).into()
}

fn one_way(closed: Side) -> Result<()> {
    let bed = Bed::new(Topology::Veth)?;
    let words = ["-A", "INPUT", "-p", "udp", "--dport", "20480:21503", "-j", "DROP"];
    let mut command = bed.stage.command(closed, weir_stage::locate(TOOL)?);
    Child::spawn(command.args(words), TOOL)?.wait(Duration::from_secs(10))?.success()?;
    let outcome =
        bed.pair(&["--log", "warn"], "ibv_rc_pingpong -d {dev} -g 1 -p {port} -n 200", Duration::from_secs(60))?;
    ensure!(outcome.client.stdout.contains("200 iters"), "{}", outcome.client.printed());
    let blocked = if closed == Side::A { &outcome.server } else { &outcome.client };
    for part in ["weir_eth0, QP 0x", "a Weir process", "Open UDP ports 20480 to 21503"] {
        ensure!(blocked.stderr.contains(part), "{part:?} is missing: {}", blocked.printed());
    }
    Ok(())
}
