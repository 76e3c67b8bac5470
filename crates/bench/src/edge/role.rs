//! What a hidden process of a measurement does.

use super::job::{Job, Settings};
use super::{mptcp, sides};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;
use weir_stage::pair::{self, Outcome};
use weir_stage::{Side, Stage};

#[derive(Debug, Serialize, Deserialize)]
pub enum Role {
    Server { address: SocketAddr, settings: Settings },
    Client { address: SocketAddr, settings: Settings, jobs: Vec<Job> },
    MptcpServer { address: SocketAddr },
    MptcpClient { address: SocketAddr, seconds: f64, subflows: usize },
}

impl Role {
    /// Does it in this process.
    pub fn play(role: &str) -> Result<()> {
        match serde_json::from_str(role).context("--role")? {
            Role::Server { address, settings } => sides::serve(address, settings),
            Role::Client { address, settings, jobs } => {
                println!("{}", serde_json::to_string(&sides::run(address, settings, &jobs)?)?);
                Ok(())
            }
            Role::MptcpServer { address } => mptcp::serve(address),
            Role::MptcpClient { address, seconds, subflows } => mptcp::send(address, seconds, subflows),
        }
    }
}

/// Runs a server on side A and a client on side B, each told the server's address, within `seconds` and a bound.
pub fn pair(
    stage: &Stage,
    seconds: f64,
    server: impl FnOnce(SocketAddr) -> Role,
    client: impl FnOnce(SocketAddr) -> Role,
) -> Result<Outcome> {
    let address = SocketAddr::new(stage.address(Side::A), stage.free_port(Side::A)?);
    let program = std::env::current_exe()?;
    let command = |side, role: Role| -> Result<_> {
        let mut command = stage.command(side, &program);
        command.args(["edge", "bench", "--role", &serde_json::to_string(&role)?]);
        Ok(command)
    };
    let (mut server, mut client) = (command(Side::A, server(address))?, command(Side::B, client(address))?);
    let bound = Duration::from_secs_f64(30.0 + 2.0 * seconds);
    pair::run(&mut server, &mut client, address.port(), bound)?.success()
}
