//! Raw ceilings: the system calls of Weir's UDP carrier with datagrams as long as Weir's frames, without
//! a protocol.
//!
//! A server and a client run as hidden `weir bench --raw-…` child processes, each pinned, each on its side of the
//! stage. They exchange parameters over TCP; closing that connection ends the server.

mod connection;
pub mod framing;
mod latency;
pub mod socket;
mod throughput;

pub use connection::Job;
pub use throughput::Throughput;

use anyhow::{Context, Result};
use connection::{Parameters, connect, read_parameters, send_parameters};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;
use weir_stage::{Child, Protocol, Side, Stage};

/// Received payload bytes per second, both directions summed.
pub fn throughput(stage: &Stage, message: usize, both_ways: bool, seconds: f64) -> Result<f64> {
    let out = measure(stage, Job::Throughput { message, both_ways, seconds })?;
    let got: Throughput = serde_json::from_str(&out).context("the raw client's figures")?;
    got.payload_per_second()
}

/// Median half round trip, seconds.
pub fn latency(stage: &Stage, seconds: f64) -> Result<f64> {
    let out = measure(stage, Job::Latency { seconds })?;
    let nanoseconds: u64 = serde_json::from_str(&out).context("the raw client's figure")?;
    Ok(nanoseconds as f64 / 2e9)
}

/// The hidden server: it does one job and ends.
pub fn serve(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address)?;
    let (mut control, from) = listener.accept()?;
    let theirs: Parameters = read_parameters(&mut control)?;
    let socket = socket::bind(address.ip())?;
    send_parameters(&mut control, theirs.job, &socket)?;
    let connection = connect(control, theirs, socket, from.ip(), theirs.job)?;
    match connection.job {
        Job::Throughput { message, both_ways, .. } => throughput::serve(&connection, message, both_ways),
        Job::Latency { .. } => latency::serve(&connection),
    }
}

/// The hidden client: does the job and returns its result as JSON.
pub fn run_client(server: SocketAddr, job: Job) -> Result<String> {
    let mut control = TcpStream::connect(server)?;
    let socket = socket::bind(control.local_addr()?.ip())?;
    send_parameters(&mut control, job, &socket)?;
    let theirs: Parameters = read_parameters(&mut control)?;
    let connection = connect(control, theirs, socket, server.ip(), job)?;
    Ok(match job {
        Job::Throughput { message, both_ways, seconds } => serde_json::to_string(&throughput::run_client(
            &connection,
            message,
            both_ways,
            Duration::from_secs_f64(seconds),
        )?)?,
        Job::Latency { seconds } => {
            serde_json::to_string(&latency::run_client(&connection, Duration::from_secs_f64(seconds))?)?
        }
    })
}

/// Runs server and client as child processes; returns the client's output.
fn measure(stage: &Stage, job: Job) -> Result<String> {
    let bound = Duration::from_secs(20);
    let address = SocketAddr::new(stage.address(Side::A), stage.free_port(Side::A)?);
    let mut server = Child::spawn(weir_bench(stage, Side::A)?.arg(format!("--raw-server={address}")), "raw server")?;
    server.wait_listening(Protocol::Tcp, address.port(), bound)?;
    let mut command = weir_bench(stage, Side::B)?;
    command.arg(format!("--raw-client={address}")).arg(format!("--raw-job={}", serde_json::to_string(&job)?));
    let client = Child::spawn(&mut command, "raw client")?.wait(bound)?.success()?;
    server.wait(bound)?.success()?;
    Ok(client.stdout)
}

fn weir_bench(stage: &Stage, side: Side) -> Result<Command> {
    let mut command = stage.command(side, std::env::current_exe()?);
    command.arg("bench");
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over_loopback(job: Job) -> String {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let server = std::thread::spawn(move || serve(address));
        let end = std::time::Instant::now() + Duration::from_secs(10);
        let out = loop {
            // The server may not listen yet.
            match run_client(address, job) {
                Ok(out) => break out,
                Err(e) if std::time::Instant::now() > end => panic!("{e:#}"),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        server.join().unwrap().unwrap();
        out
    }

    #[test]
    fn payload_arrives_one_way_and_both_ways() {
        for both_ways in [false, true] {
            let out = over_loopback(Job::Throughput { message: 64 << 10, both_ways, seconds: 0.2 });
            let got: Throughput = serde_json::from_str(&out).unwrap();
            assert!(got.arrived > 1 << 20 && (0.1..10.0).contains(&got.seconds), "{got:?}");
            // Each 4096 bytes have 40 bytes of header and an ICRC.
            assert!((got.payload_share - 4096.0 / (40.0 + 4096.0 + 4.0)).abs() < 1e-9, "{got:?}");
        }
    }

    #[test]
    fn a_round_trip_takes_microseconds() {
        let nanoseconds: u64 = over_loopback(Job::Latency { seconds: 0.2 }).parse().unwrap();
        assert!((500..50_000_000).contains(&nanoseconds), "{nanoseconds}");
    }

    #[test]
    fn losses_of_more_than_one_percent_are_an_error() {
        let all = Throughput { seconds: 1.0, arrived: 1000, lost: 0, payload_share: 0.5 };
        assert_eq!(all.payload_per_second().unwrap(), 500.0);
        assert!(Throughput { lost: 11, ..all }.payload_per_second().is_err());
    }
}
