//! Unmodified perftest under `weir run`.

use crate::stage::{Child, Finished, Protocol, Side, Stage, locate};
use anyhow::{Context, Result, ensure};
use std::process::Command;
use std::time::Duration;

/// How long a server may take until it listens.
const START: Duration = Duration::from_secs(10);

/// Whether packets carry a checksum (`weir run --icrc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Icrc {
    /// As Weir peers agree.
    Auto,
    /// On every packet.
    Always,
}

/// What a perftest program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    Write,
    Read,
    Send,
}

impl Verb {
    /// Its bandwidth program.
    pub fn program(self) -> &'static str {
        match self {
            Verb::Write => "ib_write_bw",
            Verb::Read => "ib_read_bw",
            Verb::Send => "ib_send_bw",
        }
    }
}

/// A perftest server and client that have ended well.
pub struct Pair {
    pub server: Finished,
    pub client: Finished,
}

impl Pair {
    /// User and system time of both processes.
    pub fn cpu(&self) -> Duration {
        self.server.cpu + self.client.cpu
    }
}

/// A server that listens, and a client that can be started.
pub struct Prepared {
    pub server: Child,
    /// Lacks the port and the name of the server.
    pub client: Command,
    pub port: u16,
}

/// Bytes per second, and messages per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidth {
    pub bytes: f64,
    pub messages: f64,
}

/// Starts a server on side A and makes the client's command for side B; both get `arguments`.
pub fn prepare(stage: &Stage, program: &str, icrc: Icrc, arguments: &[String]) -> Result<Prepared> {
    let under_weir = |side: Side| -> Result<Command> {
        let mut command = stage.command(side, std::env::current_exe()?);
        let icrc = if icrc == Icrc::Always { "always" } else { "auto" };
        command.args(["run", "--icrc", icrc, "--"]).arg(locate(program)?);
        // -F: the CPU's frequency is none of its business.
        command.args(["-F", "-d", &stage.device(side)]).args(arguments);
        Ok(command)
    };
    let port = stage.free_port(Side::A)?;
    let mut server = Child::spawn(under_weir(Side::A)?.args(["-p", &port.to_string()]), format!("{program} (server)"))?;
    server.wait_listening(Protocol::Tcp, port, START)?;
    Ok(Prepared { server, client: under_weir(Side::B)?, port })
}

/// Runs a pair to its end.
pub fn run(stage: &Stage, program: &str, icrc: Icrc, arguments: &[String], bound: Duration) -> Result<Pair> {
    let mut prepared = prepare(stage, program, icrc, arguments)?;
    let client = start_client(stage, program, &mut prepared)?.wait(bound)?.success()?;
    let server = prepared.server.wait(bound)?.success()?;
    Ok(Pair { server, client })
}

/// Starts the client of a pair that has been prepared.
pub fn start_client(stage: &Stage, program: &str, prepared: &mut Prepared) -> Result<Child> {
    let address = stage.address(Side::A).to_string();
    let command = prepared.client.args(["-p", &prepared.port.to_string()]).arg(address);
    Child::spawn(command, format!("{program} (client)"))
}

/// Bandwidth over some seconds (whole ones, as perftest wants them), both directions summed if `both_ways`.
pub fn bandwidth(
    stage: &Stage,
    verb: Verb,
    size: usize,
    icrc: Icrc,
    both_ways: bool,
    seconds: f64,
) -> Result<Bandwidth> {
    let seconds = seconds.ceil().max(1.0);
    let mut arguments = words(&format!("--report_gbits -s {size} -D {seconds}"));
    if both_ways {
        arguments.push("-b".into());
    }
    let pair = run(stage, verb.program(), icrc, &arguments, Duration::from_secs_f64(3.0 * seconds + 15.0))?;
    parse_bandwidth(&pair.client.stdout)
}

/// Runs `iterations` messages of `size` bytes with event-driven completions.
pub fn events(stage: &Stage, verb: Verb, size: usize, iterations: u64) -> Result<Pair> {
    let arguments = words(&format!("--report_gbits -e -N -s {size} -n {iterations}"));
    run(stage, verb.program(), Icrc::Auto, &arguments, Duration::from_secs(60))
}

/// Median latency of `ib_write_lat`, seconds (half a round trip).
pub fn write_latency(stage: &Stage, size: usize, iterations: u64) -> Result<f64> {
    let arguments = words(&format!("-s {size} -n {iterations}"));
    let pair = run(stage, "ib_write_lat", Icrc::Auto, &arguments, Duration::from_secs(60))?;
    parse_latency(&pair.client.stdout)
}

/// An argument for each word.
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// The figures of `--report_gbits`.
pub fn parse_bandwidth(output: &str) -> Result<Bandwidth> {
    // #bytes #iterations BWpeak[Gb/sec] BWaverage[Gb/sec] MsgRate[Mpps]
    let row = last_row(output)?;
    ensure!(row.len() >= 5 && row[3] > 0.0, "perftest measured nothing: {output}");
    Ok(Bandwidth { bytes: row[3] * 1e9 / 8.0, messages: row[4] * 1e6 })
}

fn parse_latency(output: &str) -> Result<f64> {
    // #bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%, microseconds
    let row = last_row(output)?;
    ensure!(row.len() >= 9 && row[4] > 0.0, "perftest measured nothing: {output}");
    Ok(row[4] / 1e6)
}

/// The last line that consists of numbers.
fn last_row(output: &str) -> Result<Vec<f64>> {
    let numbers = |line: &str| line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>().ok();
    let row = output.lines().rev().filter_map(numbers).find(|row| row.len() > 3);
    row.with_context(|| format!("perftest printed no figures: {output}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_the_last_row() {
        let output = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n \
                      1048576    9000             0.00               40.00  \t\t   0.004768\n\
                      ---------------------------------------\n";
        let got = parse_bandwidth(output).unwrap();
        assert_eq!(got.bytes, 5e9);
        assert!((got.messages - 4768.0).abs() < 1e-6);
        let output = " #bytes #iterations    t_min[usec] t_max[usec]  t_typical[usec] t_avg[usec] t_stdev[usec] \
                      99% percentile[usec] 99.9% percentile[usec]\n \
                      8 1000 3.10 40.00 3.50 3.60 0.40 4.00 9.00\n----\n";
        assert_eq!(parse_latency(output).unwrap(), 3.5e-6);
    }

    #[test]
    fn no_figures_are_an_error() {
        assert!(parse_bandwidth(" Couldn't connect\n").is_err());
        assert!(parse_bandwidth("1048576 0 0.00 0.00 0.00\n").is_err());
    }
}
