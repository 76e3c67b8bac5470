//! What else carries bytes over several links, or over one of them.

use super::configuration::Configuration;
use super::mptcp;
use super::role::{self, Role};
use crate::peers::{self, Over};
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use std::time::Duration;
use weir_stage::{Side, Stage, locate};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// TCP over the first link, by iperf3
    Tcp,
    /// MPTCP of the kernel, over the same links
    Mptcp,
    /// TCP over the kernel's bonding (balance-rr), by iperf3
    Bonding,
    /// UCX with a TCP lane on each link
    Ucx,
    /// None of them
    None,
}

impl Peer {
    /// Its description as shown.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Tcp => "TCP, first link",
            Peer::Mptcp => "MPTCP",
            Peer::Bonding => "TCP, bonding",
            Peer::Ucx => "UCX, TCP lanes",
            Peer::None => "none",
        }
    }
}

/// A baseline that can run here.
pub struct Baseline<'a> {
    peer: Peer,
    stage: &'a Stage,
    /// Bonding takes the links from all others, so it has some of its own.
    bonded: Option<Stage>,
}

impl<'a> Baseline<'a> {
    /// An error says why it cannot run here.
    pub fn prepare(peer: Peer, stage: &'a Stage, links: &Configuration, mtu: u32) -> Result<Baseline<'a>> {
        let mut bonded = None;
        match peer {
            Peer::Tcp => locate("iperf3").map(|_| ())?,
            Peer::Ucx => locate("ucx_perftest").map(|_| ())?,
            Peer::Mptcp => mptcp::prepare(stage, links.rates.len())?,
            Peer::Bonding => {
                locate("iperf3")?;
                bonded = Some(bond(links, mtu)?);
            }
            Peer::None => {}
        }
        Ok(Baseline { peer, stage, bonded })
    }

    /// Gbit/s of payload, one way.
    pub fn run(&self, links: &Configuration, mtu: u32, size: usize, seconds: f64) -> Result<f64> {
        let stage = self.bonded.as_ref().unwrap_or(self.stage);
        let bytes = match self.peer {
            Peer::Tcp | Peer::Bonding => peers::iperf3(stage, seconds)?.rate,
            Peer::Mptcp => {
                let server = |address| Role::MptcpServer { address };
                let subflows = mptcp::expected(links.rates.len());
                let client = |address| Role::MptcpClient { address, seconds, subflows };
                let outcome = role::pair(stage, seconds, server, client)?;
                let text = &outcome.server.stdout;
                text.trim().parse().with_context(|| format!("the receiver printed no rate: {text}"))?
            }
            Peer::Ucx => {
                let messages = links.nominal(mtu, size) * 1e9 / 8.0 / size as f64 * seconds;
                let count = (messages as u64).clamp(20, 5_000_000);
                peers::ucx(stage, Over::Tcp, "tag_bw", size, count)?.messages * size as f64
            }
            Peer::None => 0.0,
        };
        ensure!(bytes > 0.0, "{} moved nothing", self.peer.name());
        Ok(bytes * 8e-9)
    }
}

/// Shaped links under a bonding interface on each side, with the address of the stage.
fn bond(links: &Configuration, mtu: u32) -> Result<Stage> {
    let stage = Stage::with_links(links.rates.len(), mtu)?;
    for (side, host) in [(Side::A, 1), (Side::B, 2)] {
        stage
            .ip(side, "link add bond0 type bond mode balance-rr miimon 10")
            .context("the kernel has no bonding interfaces")?;
        for link in 0..links.rates.len() {
            stage.ip(side, &format!("link set eth{link} down"))?;
            stage.ip(side, &format!("address flush dev eth{link}"))?;
            stage.ip(side, &format!("link set eth{link} master bond0"))?;
        }
        stage.ip(side, &format!("address add 198.18.0.{host}/24 dev bond0"))?;
        stage.ip(side, &format!("link set bond0 mtu {mtu} up"))?;
    }
    for (link, &rate) in links.rates.iter().enumerate() {
        stage.shape(link, rate)?;
    }
    // Until bonding has found all links up.
    std::thread::sleep(Duration::from_millis(500));
    Ok(stage)
}
