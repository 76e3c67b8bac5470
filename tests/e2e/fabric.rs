//! libfabric, unmodified: its verbs provider connects by librdmacm, and ofi_rxm makes reliable datagrams of that.
//!
//! libfabric does not look at the interface `lo`, so that two processes of one host use the address of another one.

use crate::bed::{Bed, Topology};
use crate::trial;
use crate::ucx::used_weir;
use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use std::time::Duration;
use weir_stage::pair::{self, Outcome};
use weir_stage::{Child, Side};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Options of fi_pingpong for connected endpoints, and for reliable datagrams. It checks the data with `-c`.
const MSG: &str = "-p verbs -e msg";
const RDM: &str = "-p verbs;ofi_rxm -e rdm";
/// The sizes that fi_pingpong sends by itself, as it prints them.
const SIZES: [&str; 6] = ["64", "256", "1k", "4k", "64k", "1m"];

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![trial(Topology::Veth, "libfabric: fi_info lists Weir's domains", domains)];
    for (name, options) in [("connected endpoints", MSG), ("reliable datagrams", RDM)] {
        for (hosts, server) in [("two hosts", Side::A), ("one host", Side::B)] {
            trials.push(trial(Topology::Veth, &format!("libfabric: fi_pingpong, {name}, {hosts}"), move |bed| {
                complete(bed, server, &[], options)?.success().map(drop)
            }));
        }
    }
    trials.push(trial(Topology::Veth, "libfabric: fi_pingpong on a lossy link", lossy));
    trials
}

fn domains(bed: &Bed) -> Result<()> {
    let mut command = bed.weir(Side::A, &[], ["fi_info", "-p", "verbs"]);
    let ended = Child::spawn(&mut command, "fi_info")?.wait(TIMEOUT)?.success()?;
    let domain = format!("domain: {}", bed.stage.device());
    for line in [domain.as_str(), &format!("{domain}-dgram"), "type: FI_EP_MSG", "type: FI_EP_DGRAM"] {
        ensure!(ended.stdout.lines().any(|printed| printed.trim() == line), "no {line}: {}", ended.printed());
    }
    Ok(())
}

/// When the ACK of the last message is lost, the program that sent it reports a failure, on any adapter: its peer has
/// ended. So the client injects the faults, and the server's exit status does not count.
fn lossy(bed: &Bed) -> Result<()> {
    let outcome = complete(bed, Side::A, &["--faults", "loss=0.01"], MSG)?;
    ensure!(outcome.client.status.success(), "{}", outcome.client.printed());
    Ok(())
}

/// Runs a server, and a client on side B, which may inject faults. Both must have exchanged every size, over Weir.
fn complete(bed: &Bed, server: Side, faults: &[&str], options: &str) -> Result<Outcome> {
    // Two spinning processes of one host need two cores.
    let bed = &Bed { stage: bed.stage.unpinned() };
    let port = bed.stage.free_port(server)?;
    let address = bed.stage.address(server).to_string();
    let line = format!("fi_pingpong -c -I 50 {options}");
    let words = |port: [&str; 2], address: &[&str]| -> Vec<String> {
        line.split(' ').chain(port).chain(address.iter().copied()).map(str::to_owned).collect()
    };
    let log = ["--log", "info"];
    let mut client = bed.weir(Side::B, &[&log, faults].concat(), words(["-P", &port.to_string()], &[&address]));
    let mut server = bed.weir(server, &log, words(["-B", &port.to_string()], &[]));
    let outcome = pair::run(&mut server, &mut client, port, TIMEOUT)?;
    for side in [&outcome.server, &outcome.client] {
        used_weir(side, &bed.stage.device())?;
        let sizes: Vec<&str> = side.stdout.lines().filter_map(|line| line.split(' ').next()).collect();
        ensure!(sizes.ends_with(&SIZES), "{}", side.printed());
    }
    Ok(outcome)
}
