//! Unmodified perftest under `weir run`.

use super::under_weir;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use weir_stage::pair::{self, Outcome};
use weir_stage::perftest::row_of;
use weir_stage::{Child, Protocol, Side, Stage, locate};

/// Time limit for a server to listen.
const START: Duration = Duration::from_secs(10);

/// Which packets carry an ICRC (`weir run --icrc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Icrc {
    /// As the Weir peers agree.
    Auto,
    /// Every packet.
    Always,
}

/// The operation of a perftest program.
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

    /// Its latency program.
    pub fn latency_program(self) -> &'static str {
        match self {
            Verb::Write => "ib_write_lat",
            Verb::Read => "ib_read_lat",
            Verb::Send => "ib_send_lat",
        }
    }
}

/// A server that listens, and a client that can be started.
pub struct Prepared {
    pub server: Child,
    /// The client's command without the server's port and name.
    pub client: Command,
    pub port: u16,
}

impl Prepared {
    /// The client's command, with the server's port and name. It must be asked for only once.
    pub fn client_of(&mut self, stage: &Stage) -> &mut Command {
        self.client.args(["-p", &self.port.to_string()]).arg(stage.address(Side::A).to_string())
    }
}

/// Half a round trip (READ: a whole one), seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    pub median: f64,
    pub mean: f64,
}

/// Bytes per second, and messages per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidth {
    pub bytes: f64,
    pub messages: f64,
}

impl Icrc {
    /// The options of `weir run`.
    fn options(self) -> &'static [&'static str] {
        if self == Icrc::Always { &["--icrc", "always"] } else { &["--icrc", "auto"] }
    }
}

/// Starts a server on side A and makes the client's command for side B; both get `arguments`.
pub fn prepare(stage: &Stage, program: &str, icrc: Icrc, arguments: &[String]) -> Result<Prepared> {
    prepare_by(under_weir::command_with, stage, program, icrc.options(), arguments)
}

/// Makes a command of a stage, a side, options of `weir run`, and a program.
type Maker = fn(&Stage, Side, &[&str], &Path) -> Result<Command>;

fn prepare_by(make: Maker, stage: &Stage, program: &str, options: &[&str], arguments: &[String]) -> Result<Prepared> {
    let under_weir = |side: Side| -> Result<Command> {
        let mut command = make(stage, side, options, &locate(program)?)?;
        // -F: no warning about changing CPU frequencies.
        command.args(["-F", "-d", &stage.device()]).args(arguments);
        Ok(command)
    };
    let port = stage.free_port(Side::A)?;
    let mut server = Child::spawn(under_weir(Side::A)?.args(["-p", &port.to_string()]), format!("{program} (server)"))?;
    server.wait_listening(Protocol::Tcp, port, START)?;
    Ok(Prepared { server, client: under_weir(Side::B)?, port })
}

/// Runs a pair to its end; an error if either program fails.
pub fn run(stage: &Stage, program: &str, icrc: Icrc, arguments: &[String], bound: Duration) -> Result<Outcome> {
    run_by(under_weir::command_with, stage, program, icrc.options(), arguments, bound)
}

fn run_by(
    make: Maker,
    stage: &Stage,
    program: &str,
    options: &[&str],
    arguments: &[String],
    bound: Duration,
) -> Result<Outcome> {
    let mut prepared = prepare_by(make, stage, program, options, arguments)?;
    let client = start_client(stage, program, &mut prepared)?;
    pair::finish(prepared.server, client, bound)?.success()
}

/// Starts the client of a pair that has been prepared.
pub fn start_client(stage: &Stage, program: &str, prepared: &mut Prepared) -> Result<Child> {
    Child::spawn(prepared.client_of(stage), format!("{program} (client)"))
}

/// Bandwidth over `seconds`, rounded up to whole ones as perftest needs them; both directions summed if `both_ways`.
pub fn bandwidth(
    stage: &Stage,
    verb: Verb,
    size: usize,
    icrc: Icrc,
    both_ways: bool,
    seconds: f64,
) -> Result<Bandwidth> {
    bandwidth_with(stage, verb, size, icrc.options(), both_ways, seconds)
}

/// As [`bandwidth`], with these options of `weir run`.
pub fn bandwidth_with(
    stage: &Stage,
    verb: Verb,
    size: usize,
    options: &[&str],
    both_ways: bool,
    seconds: f64,
) -> Result<Bandwidth> {
    let seconds = seconds.ceil().max(1.0);
    let mut arguments = words(&format!("--report_gbits -s {size} -D {seconds}"));
    if both_ways {
        arguments.push("-b".into());
    }
    let bound = Duration::from_secs_f64(3.0 * seconds + 15.0);
    let pair = run_by(under_weir::command_with, stage, verb.program(), options, &arguments, bound)?;
    parse_bandwidth(&pair.client.stdout)
}

/// Runs `iterations` messages of `size` bytes with event-driven completions.
pub fn events(stage: &Stage, verb: Verb, size: usize, iterations: u64) -> Result<Outcome> {
    let arguments = words(&format!("--report_gbits -e -N -s {size} -n {iterations}"));
    run(stage, verb.program(), Icrc::Auto, &arguments, Duration::from_secs(60))
}

/// Latency of messages of `size` bytes.
pub fn latency(stage: &Stage, verb: Verb, size: usize, iterations: u64) -> Result<Latency> {
    latency_with(stage, verb, size, Icrc::Auto.options(), iterations)
}

/// As [`latency`], with these options of `weir run`.
pub fn latency_with(stage: &Stage, verb: Verb, size: usize, options: &[&str], iterations: u64) -> Result<Latency> {
    latency_by(under_weir::command_with, stage, verb, size, options, iterations)
}

/// As [`latency`], both sides under `weir doctor`.
pub fn watched_latency(stage: &Stage, verb: Verb, size: usize, iterations: u64) -> Result<Latency> {
    latency_by(under_weir::watched, stage, verb, size, Icrc::Auto.options(), iterations)
}

fn latency_by(
    make: Maker,
    stage: &Stage,
    verb: Verb,
    size: usize,
    options: &[&str],
    iterations: u64,
) -> Result<Latency> {
    let arguments = words(&format!("-s {size} -n {iterations}"));
    let pair = run_by(make, stage, verb.latency_program(), options, &arguments, Duration::from_secs(60))?;
    parse_latency(&pair.client.stdout)
}

/// An argument for each word.
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Parses the output of a bandwidth program.
pub fn parse_bandwidth(output: &str) -> Result<Bandwidth> {
    let row = row_of(output)?;
    let bandwidth = Bandwidth { bytes: row.gigabytes()? * 1e9, messages: row.rate()? * 1e6 };
    ensure!(bandwidth.bytes > 0.0, "perftest measured nothing: {output}");
    Ok(bandwidth)
}

/// Parses the output of a latency program.
fn parse_latency(output: &str) -> Result<Latency> {
    let row = row_of(output)?;
    let seconds = |column: &str| -> Result<f64> {
        let microseconds = row.get(column).filter(|time| *time > 0.0);
        Ok(microseconds.with_context(|| format!("perftest measured nothing: {output}"))? / 1e6)
    };
    Ok(Latency { median: seconds("t_typical")?, mean: seconds("t_avg")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_table() {
        let output = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n \
                      1048576    9000             0.00               40.00  \t\t   0.004768\n\
                      ---------------------------------------\n";
        let got = parse_bandwidth(output).unwrap();
        assert_eq!(got.bytes, 5e9);
        assert!((got.messages - 4768.0).abs() < 1e-6);
        let output = " #bytes #iterations    t_min[usec] t_max[usec]  t_typical[usec] t_avg[usec] t_stdev[usec] \
                      99% percentile[usec] 99.9% percentile[usec]\n \
                      8 1000 3.10 40.00 3.50 4.00 0.40 5.00 9.00\n----\n";
        assert_eq!(parse_latency(output).unwrap(), Latency { median: 3.5e-6, mean: 4e-6 });
    }

    #[test]
    fn output_without_figures_is_an_error() {
        assert!(parse_bandwidth(" Couldn't connect\n").is_err());
        let nothing = "#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n1048576 0 0.00 0.00 0.00\n";
        assert!(parse_bandwidth(nothing).is_err());
    }
}
