//! What else carries bytes over several links, or over one of them.

use super::configuration::Configuration;
use super::mptcp;
use super::role::{self, Role};
use super::sockets::Traffic;
use crate::peers::{self, Over};
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use std::time::Duration;
use weir_stage::{Side, Stage, locate};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// As many UDP sockets as links, without a protocol: what they carry at most
    Sockets,
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
            Peer::Sockets => "UDP sockets",
            Peer::Tcp => "TCP, first link",
            Peer::Mptcp => "MPTCP",
            Peer::Bonding => "TCP, bonding",
            Peer::Ucx => "UCX, TCP lanes",
            Peer::None => "none",
        }
    }
}

/// What a run of a baseline has shown.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Gbit/s of payload.
    pub gigabits: f64,
    /// The share of the datagrams that were lost, where nothing goes again.
    pub lost: Option<f64>,
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
            Peer::Sockets | Peer::None => {}
        }
        Ok(Baseline { peer, stage, bonded })
    }

    /// One run, one way.
    pub fn run(&self, links: &Configuration, mtu: u32, size: usize, seconds: f64) -> Result<Figure> {
        let stage = self.bonded.as_ref().unwrap_or(self.stage);
        let bytes = match self.peer {
            Peer::Sockets => return self.sockets(links, mtu, seconds),
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
        Ok(Figure { gigabits: bytes * 8e-9, lost: None })
    }

    fn sockets(&self, links: &Configuration, mtu: u32, seconds: f64) -> Result<Figure> {
        let of = |side| (0..links.rates.len()).map(|link| self.stage.link_address(side, link)).collect();
        let server = |address| Role::SocketsServer { address, links: of(Side::A), mtu };
        let client = |address| Role::SocketsClient { address, servers: of(Side::A), links: of(Side::B), mtu, seconds };
        let outcome = role::pair(self.stage, seconds, server, client)?;
        let traffic: Traffic =
            serde_json::from_str(&outcome.client.stdout).with_context(|| outcome.client.printed())?;
        Ok(Figure { gigabits: traffic.gigabits(mtu), lost: Some(traffic.lost()) })
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
