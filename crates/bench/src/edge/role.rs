//! What a hidden process of a measurement does.

use super::job::Job;
use super::settings::Settings;
use super::{mptcp, sides, sockets};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use weir_stage::pair::{self, Outcome};
use weir_stage::{Child, Protocol, Side, Stage};

/// Time limit for a server to listen, and for a client to begin.
const LISTEN: Duration = Duration::from_secs(15);
/// Interval of looking at a process.
const TICK: Duration = Duration::from_millis(2);

#[derive(Debug, Serialize, Deserialize)]
pub enum Role {
    Server {
        address: SocketAddr,
        settings: Settings,
    },
    Client {
        address: SocketAddr,
        settings: Settings,
        jobs: Vec<Job>,
    },
    /// With a socket at each of these addresses.
    SocketsServer {
        address: SocketAddr,
        links: Vec<IpAddr>,
        mtu: u32,
    },
    SocketsClient {
        address: SocketAddr,
        servers: Vec<IpAddr>,
        links: Vec<IpAddr>,
        mtu: u32,
        seconds: f64,
    },
    MptcpServer {
        address: SocketAddr,
    },
    MptcpClient {
        address: SocketAddr,
        seconds: f64,
        subflows: usize,
    },
}

impl Role {
    /// Does it in this process.
    pub fn play(role: &str) -> Result<()> {
        match serde_json::from_str(role).context("--role")? {
            Role::Server { address, settings } => sides::serve(address, &settings),
            Role::Client { address, settings, jobs } => {
                // An empty line says that the jobs begin. JSON may begin with one.
                println!("{}", serde_json::to_string(&sides::run(address, &settings, &jobs, || println!())?)?);
                Ok(())
            }
            Role::SocketsServer { address, links, mtu } => sockets::serve(address, &links, mtu),
            Role::SocketsClient { address, servers, links, mtu, seconds } => {
                println!("{}", serde_json::to_string(&sockets::run(address, &servers, &links, mtu, seconds)?)?);
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
    pair_and(stage, seconds, server, client, None)
}

/// The same. When the client has written to its output, or has ended, `then` is called, while both run.
pub fn pair_and(
    stage: &Stage,
    seconds: f64,
    server: impl FnOnce(SocketAddr) -> Role,
    client: impl FnOnce(SocketAddr) -> Role,
    then: Option<&mut dyn FnMut() -> Result<()>>,
) -> Result<Outcome> {
    let address = SocketAddr::new(stage.address(Side::A), stage.free_port(Side::A)?);
    let program = std::env::current_exe()?;
    let command = |side, role: Role| -> Result<_> {
        let mut command = stage.command(side, &program);
        command.args(["edge", "bench", "--role", &serde_json::to_string(&role)?]);
        Ok(command)
    };
    let (mut server, mut client) = (command(Side::A, server(address))?, command(Side::B, client(address))?);
    let [server_name, client_name] = [&server, &client].map(pair::shown);
    let mut server = Child::spawn(&mut server, server_name)?;
    server.wait_listening(Protocol::Tcp, address.port(), LISTEN)?;
    let mut client = Child::spawn(&mut client, client_name)?;
    if let Some(then) = then {
        let begun = Instant::now();
        while !client.has_output()? && client.poll()?.is_none() && begun.elapsed() < LISTEN {
            std::thread::sleep(TICK);
        }
        then()?;
    }
    pair::finish(server, client, Duration::from_secs_f64(30.0 + 2.0 * seconds))?.success()
}
