//! `ibv_rc_pingpong` of rdma-core, which checks the bytes that it receives.

use crate::bed::Topology;
use crate::trial;
use anyhow::Result;
use libtest_mimic::Trial;
use std::time::Duration;
use weir_stage::{Side, pair};

/// Options of `ibv_rc_pingpong`; -c validates the received bytes.
const OPTIONS: &[&str] =
    &["-c", "-c -e", "-c -s 1", "-c -s 1048576 -n 100", "-c -m 256", "-c -m 4096 -s 65536", "-c -e -r 1"];

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![];
    for topology in Topology::ALL {
        for options in OPTIONS {
            trials.push(pingpong(topology, &[], options, false));
        }
        trials.push(pingpong(topology, &[], "-c", true));
    }
    trials.push(pingpong(Topology::Loopback, &["--local", "off"], "-c", false));
    trials
}

pub fn pingpong(topology: Topology, weir: &'static [&str], options: &'static str, ipv6: bool) -> Trial {
    let name = format!("ibv_rc_pingpong {options}{}", if ipv6 { " over IPv6" } else { "" });
    let name = if weir.is_empty() { name } else { format!("{name} with {}", weir.join(" ")) };
    trial(topology, &name, move |bed| {
        let port = bed.stage.free_port(Side::A)?;
        let command = |side: Side| -> Result<std::process::Command> {
            let address = if ipv6 { bed.stage.address6(side).into() } else { bed.stage.address(side) };
            let gid = bed.gid_index(side, address)?;
            let line = format!("ibv_rc_pingpong -d {} -g {gid} -p {port} {options}", bed.stage.device());
            Ok(bed.weir(side, weir, line.split_whitespace()))
        };
        let mut client = command(Side::B)?;
        client.arg(bed.stage.address(Side::A).to_string());
        pair::run(&mut command(Side::A)?, &mut client, port, Duration::from_secs(30))?.success()?;
        Ok(())
    })
}
