//! libfabric's `fi_pingpong`, over its providers.
//!
//! Debian has no program that streams over libfabric (fabtests is not packaged). So the throughput of long messages is
//! that of a ping-pong: one message at a time.

use super::under_weir;
use anyhow::{Context, Result, bail, ensure};
use std::process::Command;
use std::time::Duration;
use weir_stage::{Child, Protocol, Side, Stage, locate, pair};

/// Its program.
pub const PROGRAM: &str = "fi_pingpong";

/// Round trips of a short run, and the number of short runs, of which the fastest counts: what makes one slow is not
/// the start.
const SHORT: (u64, u32) = (20, 3);
/// A long run has at most this many times the round trips of the one before.
const GROWTH: f64 = 10.0;
/// How often a long run is longer than the one before.
const RUNS: u32 = 8;
/// The least ratio of a long run to a short one, so that the start is a fifth of it at most.
const LONGER: f64 = 5.0;
/// Time limit of a run, beside ten times the time that it is to take.
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

/// Half a round trip of messages of `size` bytes, mean, seconds; measured for about `seconds`.
///
/// Unconnected endpoints connect with the first message, and `fi_pingpong` has no warm-up. So the time of a short run is
/// taken off that of a long one.
pub fn ping_pong(stage: &Stage, provider: Provider, size: usize, seconds: f64) -> Result<f64> {
    let bound = BOUND + Duration::from_secs_f64(GROWTH * seconds);
    let (few, times) = SHORT;
    let mut short = f64::INFINITY;
    for _ in 0..times {
        short = short.min(run(stage, provider, size, few, bound)?);
    }
    let mut many = few * 10;
    for _ in 0..RUNS {
        let long = run(stage, provider, size, many, bound)?;
        match more(many, long - short, seconds.max(1.2 * LONGER * short)) {
            Some(next) => many = next,
            None => return without_start((few, short), (many, long)),
        }
    }
    bail!("{PROGRAM}: its start took {short:.3} s, and no run of {RUNS} was much longer: the machine is too busy")
}

/// The round trips of the next run, if one of `many` round trips, which took `took` seconds besides the start, was much
/// shorter than `wanted`.
fn more(many: u64, took: f64, wanted: f64) -> Option<u64> {
    let ratio = wanted / took.max(f64::MIN_POSITIVE);
    // A run of three quarters of the time is as good.
    (ratio > 4.0 / 3.0).then(|| (many as f64 * (1.1 * ratio).min(GROWTH)) as u64)
}

/// Seconds of half a round trip, from two runs of this many round trips and seconds.
fn without_start((few, short): (u64, f64), (many, long): (u64, f64)) -> Result<f64> {
    ensure!(long >= LONGER * short, "{PROGRAM}: its start took {short:.3} s of {long:.3} s: measure for longer");
    Ok(0.5 * (long - short) / (many - few) as f64)
}

/// Runs the program. Returns the seconds of all round trips, the first one included.
fn run(stage: &Stage, provider: Provider, size: usize, iterations: u64, bound: Duration) -> Result<f64> {
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
    let outcome = pair::finish(server, client, bound)?.success()?;
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
        assert!((without_start((20, 0.1002), (100_020, 1.1002)).unwrap() - 5e-6).abs() < 1e-9);
        assert!(without_start((20, 2.0), (1000, 1.0)).is_err());
        assert!(without_start((20, 0.1), (1000, 0.2)).is_err());
    }

    #[test]
    fn runs_grow_until_they_are_long_enough() {
        assert_eq!(more(200, 0.8, 1.0), None);
        assert_eq!(more(200, 0.5, 1.0), Some(440));
        // A short run says little about a long one.
        assert_eq!(more(200, 0.001, 1.0), Some(2000));
        assert_eq!(more(200, -0.1, 1.0), Some(2000));
    }

    #[test]
    fn only_verbs_needs_an_interface_besides_loopback() {
        let stage = Stage::loopback().unwrap();
        let refused = |provider: Provider| provider.refusal(&stage).is_some();
        assert!(refused(Provider::Verbs) && refused(Provider::VerbsRxm));
        assert!(!refused(Provider::Tcp) && !refused(Provider::Shm));
    }
}
