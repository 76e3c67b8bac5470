//! TCP connections of the kernel: how many a second one thread of each side connects and accepts.

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{setsockopt, sockopt};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};
use weir_stage::{Child, Protocol, Side, Stage};

/// Time limit of a run.
const BOUND: Duration = Duration::from_secs(60);
/// Descriptors beside those of the connections.
const OTHERS: u64 = 32;

/// Connections per second, from the first connect until the last one is accepted.
pub fn rate(stage: &Stage, count: u32) -> Result<f64> {
    let address = SocketAddr::new(stage.address(Side::A), stage.free_port(Side::A)?);
    let start = |side: Side, role: &str| -> Result<Child> {
        let mut command: Command = stage.command(side, std::env::current_exe()?);
        command.args(["bench", "--connections", &count.to_string(), role, &address.to_string()]);
        Child::spawn(&mut command, format!("TCP {role}"))
    };
    let mut server = start(Side::A, "--tcp-server")?;
    server.wait_listening(Protocol::Tcp, address.port(), BOUND)?;
    let client = start(Side::B, "--tcp-client")?.wait(BOUND)?.success()?;
    server.wait(BOUND)?.success()?;
    let seconds: f64 = client.stdout.trim().parse().with_context(|| client.printed())?;
    ensure!(seconds > 0.0, "no time passed");
    Ok(f64::from(count) / seconds)
}

/// The hidden server: accepts the connections, says so on the first, and waits for its end.
pub fn serve(address: SocketAddr, count: u32) -> Result<()> {
    allow(count)?;
    let listener = TcpListener::bind(address)?;
    let (mut control, _) = listener.accept()?;
    let accepted = (0..count).map(|_| Ok(listener.accept()?.0)).collect::<Result<Vec<TcpStream>>>()?;
    control.write_all(&[1])?;
    // The client closes its side first.
    let _ = control.read(&mut [0])?;
    drop(accepted);
    Ok(())
}

/// The hidden client: makes the connections, prints the seconds that it took.
pub fn connect(address: SocketAddr, count: u32) -> Result<()> {
    allow(count)?;
    let mut control = TcpStream::connect(address)?;
    let begun = Instant::now();
    let made = (0..count).map(|_| Ok(TcpStream::connect(address)?)).collect::<Result<Vec<TcpStream>>>()?;
    control.read_exact(&mut [0]).context("the server has not accepted them")?;
    println!("{}", begun.elapsed().as_secs_f64());
    for connection in &made {
        // Otherwise the ports of the next rounds are in TIME_WAIT.
        setsockopt(connection, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    }
    Ok(())
}

/// Lets the process have that many connections.
fn allow(count: u32) -> Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = u64::from(count) + OTHERS;
    ensure!(
        hard >= wanted,
        "{count} connections need as many descriptors: raise the hard limit (`ulimit -Hn` is {hard})"
    );
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(wanted), hard).context("RLIMIT_NOFILE")
}
