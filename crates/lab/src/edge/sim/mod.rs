//! Both sides in virtual time: the protocol of `weir_transport::edge` between two simulated hosts.
//!
//! | file | |
//! | --- | --- |
//! | `costs` | what work costs, with the sources |
//! | `host` | what runs on which CPU, and when; `core`: one CPU; `memory`: how fast copies are |
//! | `program` | which operations a program begins |
//! | `adapter` | network adapters and links |

mod adapter;
mod core;
mod costs;
mod host;
mod memory;
mod program;

use self::core::time;
pub use costs::Costs;

use self::costs::PAGE;
use self::host::Host;
use super::found::{Cpu, Found};
use super::setting::{Receiving, Setting, Test};
use crate::statistics::median;
use anyhow::{Result, ensure};
use std::time::Duration;
use weir_transport::Instant;
use weir_transport::edge::{Endpoint, Parameters, Scheduler, Seq, Setup};
use weir_wire::edge::{HEADER_LEN, PIECE_LEN};

/// What reports call the simulated hosts.
pub const ADAPTER: &str = "hosts of E 3.2.1 and 3.3.1";

/// Numbers of the first packets.
const FIRST: [Seq; 2] = [Seq(1), Seq(1 << 20)];
/// How long throughput is measured at least.
const LEAST: Duration = Duration::from_millis(15);
/// At least so many operations are measured, but for a limit.
const OPERATIONS: f64 = 12.0;

/// What the simulator finds for a setting on its platform's hosts.
pub fn found(setting: &Setting) -> Result<Found> {
    with(setting, Costs::of(setting.platform))
}

/// What the simulator finds for a setting, with other costs.
pub fn with(setting: &Setting, costs: Costs) -> Result<Found> {
    ensure!(setting.size > 0, "operations of 0 bytes have no throughput");
    let mut world = World::new(setting, costs);
    // All bytes of a full window, and of some operations.
    let nominal = setting.links.nominal();
    let window = f64::from(parameters(setting).window) * f64::from(setting.mtu.min(setting.size + 100)) * 8.0 / nominal;
    let operations = OPERATIONS * f64::from(setting.size) * 8.0 / nominal;
    let (warm, length) = match setting.test {
        Test::PingPong => (operations / 4.0, operations * 2.0),
        _ => (window * 1.5 + 2e6, operations),
    };
    world.run(Instant(0) + time(warm));
    let before = world.seen();
    world.run(world.now + time(length).max(LEAST));
    let seconds = world.now - before.at;
    Ok(world.seen().since(&before, seconds.as_secs_f64(), setting.test))
}

/// The thesis' for its schedulers, and Weir's for its own.
fn parameters(setting: &Setting) -> Parameters {
    if setting.scheduler == Scheduler::Auto { Parameters::TUNED } else { Parameters::MULTIEDGE }
}

struct World {
    now: Instant,
    hosts: [Host; 2],
    wire: Duration,
}

/// What has happened until a moment.
struct Seen {
    at: Instant,
    delivered: u64,
    spent: [Cpu; 2],
    /// Of the client.
    operations: u64,
    initiating: f64,
    rounds: Vec<f64>,
}

impl World {
    fn new(setting: &Setting, costs: Costs) -> World {
        let most = setting.mtu - (HEADER_LEN + PIECE_LEN) as u32;
        // Whole pages, if they are to be remapped.
        let payload = if matches!(setting.receiving, Receiving::Remapped(_)) { most / PAGE * PAGE } else { most };
        let host = |n: usize| {
            let parameters = parameters(setting);
            let setup = Setup { parameters, scheduler: setting.scheduler, peer: 1, first: [FIRST[n], FIRST[1 - n]] };
            Host::new(setting, costs, Endpoint::new(setup, &setting.links.weights, payload), n == 0)
        };
        World { now: Instant(0), hosts: [host(0), host(1)], wire: time(costs.wire) }
    }

    fn run(&mut self, end: Instant) {
        self.advance(0);
        self.advance(1);
        loop {
            let next = [0, 1].map(|n| self.hosts[n].next(self.now));
            let Some(first) = next.into_iter().flatten().min().filter(|first| *first <= end) else { break };
            self.now = self.now.max(first);
            let now = self.now;
            let is_due = next.map(|next| next.is_some_and(|next| next <= now));
            (0..2).filter(|n| is_due[*n]).for_each(|n| self.advance(n));
        }
        self.now = self.now.max(end);
    }

    /// What happens at a host now; what leaves it comes to the other.
    fn advance(&mut self, n: usize) {
        let [client, server] = &mut self.hosts;
        let (host, peer) = if n == 0 { (client, server) } else { (server, client) };
        let wire = self.wire;
        host.advance(self.now, &mut |link, at, packet| peer.adapters[link].expect(at + wire, packet));
    }

    fn seen(&self) -> Seen {
        let [client, server] = &self.hosts;
        Seen {
            at: self.now,
            delivered: client.delivered + server.delivered,
            spent: [client.spent(), server.spent()],
            operations: client.program.operations,
            initiating: client.initiating,
            rounds: client.program.rounds.iter().map(|ns| *ns as f64 / 2000.0).collect(),
        }
    }
}

impl Seen {
    fn since(&self, before: &Seen, seconds: f64, test: Test) -> Found {
        let share = |n: usize| (self.spent[n] + before.spent[n] * -1.0) * (1e-9 / seconds);
        let operations = (self.operations - before.operations).max(1) as f64;
        Found {
            gbits: (self.delivered - before.delivered) as f64 * 8e-9 / seconds,
            latency: if test == Test::PingPong { median(&self.rounds[before.rounds.len()..]) } else { f64::NAN },
            initiate: (self.initiating - before.initiating) / operations / 1000.0,
            cpu: [share(0), share(1)],
        }
    }
}

#[cfg(test)]
mod tests;
