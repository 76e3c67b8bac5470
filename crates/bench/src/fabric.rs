//! libfabric's `fi_pingpong`, over its providers.
//!
//! Debian has no program that streams over libfabric (fabtests is not packaged). So the throughput of long messages is
//! that of a ping-pong: one message at a time.

use super::under_weir;
use anyhow::{Context, Result, bail};
use std::process::Command;
use std::time::Duration;
use weir_stage::{Child, Protocol, Side, Stage, locate, pair};

/// Its program.
pub const PROGRAM: &str = "fi_pingpong";

/// Round trips of a short run.
const SHORT: u64 = 20;
/// Time limit of a run.
const BOUND: Duration = Duration::from_secs(60);
/// Time limit for the server to listen.
const START: Duration = Duration::from_secs(10);

/// A provider and a kind of endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provider {
    /// Connected endpoints on Weir's device.
    Verbs,
    /// Unconnected endpoints above those.
    VerbsRxm,
    /// Connected endpoints over TCP.
    Tcp,
    /// Unconnected endpoints above those.
    TcpRxm,
    /// Unconnected endpoints above UDP datagrams.
    UdpRxd,
    /// Unconnected endpoints in memory that two processes of one host share.
    Shm,
}

impl Provider {
    /// Its name in libfabric.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Verbs => "verbs",
            Provider::VerbsRxm => "verbs;ofi_rxm",
            Provider::Tcp => "tcp",
            Provider::TcpRxm => "tcp;ofi_rxm",
            Provider::UdpRxd => "udp;ofi_rxd",
            Provider::Shm => "shm",
        }
    }

    /// Whether it is one of libfabric's over Weir.
    pub fn is_weir(self) -> bool {
        matches!(self, Provider::Verbs | Provider::VerbsRxm)
    }

    /// Why it cannot be used on a stage.
    pub fn refusal(self, stage: &Stage) -> Option<String> {
        let loopback = stage.loopback_reason().filter(|_| self.is_weir())?;
        Some(format!("libfabric's verbs provider leaves out the loopback interface, and there is no other: {loopback}"))
    }

    fn endpoint(self) -> &'static str {
        match self {
            Provider::Verbs | Provider::Tcp => "msg",
            Provider::VerbsRxm | Provider::TcpRxm | Provider::UdpRxd | Provider::Shm => "rdm",
        }
    }
}

/// Half a round trip of messages of `size` bytes, mean, seconds; for about `seconds`, for one provider much longer.
///
/// Unconnected endpoints connect with the first message, and `fi_pingpong` has no warm-up. So the time of a short run is
/// taken off that of a long one.
pub fn ping_pong(stage: &Stage, provider: Provider, size: usize, seconds: f64) -> Result<f64> {
    let count = (trips_per_second(size) * seconds) as u64 + 2 * SHORT;
    let (short, long) = (run(stage, provider, size, SHORT)?, run(stage, provider, size, count)?);
    Ok(without_start((SHORT, short), (count, long)))
}

/// Seconds of half a round trip, from two runs of this many round trips and seconds. On a very busy machine the short run
/// may take longer than the long one; then the begin counts.
fn without_start((few, short): (u64, f64), (many, long): (u64, f64)) -> f64 {
    if long > short { 0.5 * (long - short) / (many - few) as f64 } else { 0.5 * long / many as f64 }
}

/// Round trips of the fast providers.
fn trips_per_second(size: usize) -> f64 {
    match size {
        0..=4096 => 40_000.0,
        4097..=262_144 => 10_000.0,
        _ => 1_000.0,
    }
}

/// Runs the program. Returns the seconds of all round trips, the first one included.
fn run(stage: &Stage, provider: Provider, size: usize, iterations: u64) -> Result<f64> {
    let (program, port) = (locate(PROGRAM)?, stage.free_port(Side::A)?);
    let command = |side, port_option: &str| -> Result<Command> {
        let mut command = if provider.is_weir() {
            under_weir::command(stage, side, &program)?
        } else {
            stage.command(side, &program)
        };
        command.args(["-p", provider.name(), "-e", provider.endpoint(), port_option, &port.to_string()]);
        command.args(["-S", &size.to_string(), "-I", &iterations.to_string()]);
        if provider.is_weir() {
            command.args(["-d", &stage.device()]);
        }
        Ok(command)
    };
    let mut server = Child::spawn(&mut command(Side::A, "-B")?, format!("{PROGRAM} (server)"))?;
    server.wait_listening(Protocol::Tcp, port, START)?;
    let mut client = command(Side::B, "-P")?;
    client.arg(stage.address(Side::A).to_string());
    let client = Child::spawn(&mut client, format!("{PROGRAM} (client)"))?;
    let outcome = pair::finish(server, client, BOUND)?.success()?;
    Ok(2.0 * iterations as f64 * parse(&outcome.client.stdout)?)
}

/// Half a round trip, mean, seconds. The output is a line of columns below a line of their names.
fn parse(output: &str) -> Result<f64> {
    let mut lines = output.lines().skip_while(|line| !line.starts_with("bytes"));
    let (Some(names), Some(row)) = (lines.next(), lines.next()) else {
        bail!("{PROGRAM} printed no figures: {output}")
    };
    let column = names.split_whitespace().position(|name| name == "usec/xfer");
    let time = column.and_then(|at| row.split_whitespace().nth(at)?.parse::<f64>().ok()).filter(|time| *time > 0.0);
    Ok(time.with_context(|| format!("{PROGRAM} measured nothing: {output}"))? / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_round_trip_is_read() {
        let output = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                      64k     2k      =2k      250m        0.11s   2443.23      26.82       0.04\n";
        assert_eq!(parse(output).unwrap(), 26.82e-6);
        assert!(parse("[error] util/pingpong.c:568 : ctrl/read: no data\n").is_err());
        assert!(parse("bytes #sent usec/xfer\n8 0 -\n").is_err());
    }

    #[test]
    fn the_time_of_the_start_does_not_count() {
        assert!((without_start((20, 0.1002), (1020, 0.1102)) - 5e-6).abs() < 1e-9);
        assert_eq!(without_start((20, 2.0), (1000, 1.0)), 0.5e-3);
    }

    #[test]
    fn only_verbs_needs_an_interface_besides_loopback() {
        let stage = Stage::loopback().unwrap();
        let refused = |provider: Provider| provider.refusal(&stage).is_some();
        assert!(refused(Provider::Verbs) && refused(Provider::VerbsRxm));
        assert!(!refused(Provider::Tcp) && !refused(Provider::Shm));
    }
}
