//! `cmtime` of librdmacm's examples on Weir: the time that it takes for all connections together, step by step.

use super::under_weir;
use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};
use weir_stage::{Child, Side, Stage, locate};

/// Its program.
pub const PROGRAM: &str = "cmtime";

/// Port space of TCP in a service's name.
const TCP: u32 = 0x0106;
/// Time limit of a run.
const BOUND: Duration = Duration::from_secs(120);
/// Time limit for the server to listen.
const START: Duration = Duration::from_secs(10);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// From the address of the peer to the connection, with its QP.
    SetUp,
    /// From the first disconnection to the last destroyed id.
    TearDown,
}

impl Phase {
    /// The names of its steps in the program's output.
    fn steps(self) -> &'static [&'static str] {
        match self {
            Phase::SetUp => &["create id", "resolve addr", "resolve route", "create qp", "connect"],
            Phase::TearDown => &["disconnect", "destroy"],
        }
    }
}

/// Connections per second.
pub fn rate(stage: &Stage, count: u32, phase: Phase) -> Result<f64> {
    let program = locate(PROGRAM)?;
    let (address, port) = (stage.address(Side::A).to_string(), stage.free_port(Side::A)?);
    let words = |option: &str| [option, &address, "-p", &port.to_string(), "-c", &count.to_string()].map(str::to_owned);
    let mut server = under_weir::command(stage, Side::A, &program)?;
    // It runs until it is killed, as dropping it does.
    let mut server = Child::spawn(server.args(words("-b")), "cmtime's server")?;
    wait_for_service(&mut server, port)?;
    let mut client = under_weir::command(stage, Side::B, &program)?;
    let ended = Child::spawn(client.args(words("-s")), "cmtime")?.wait(BOUND)?.success()?;
    // It counts a connection that fails as made, prints its event, and returns 0.
    let failed = ended.stdout.lines().find(|line| line.starts_with("event: "));
    ensure!(failed.is_none(), "connections failed: {}", failed.unwrap_or_default());
    // Its server does not expect that a connection fails, and then ends by SIGSEGV.
    ensure!(server.poll()?.is_none(), "cmtime's server has ended: {}", server.printed()?);
    Ok(f64::from(count) / seconds(&ended.stdout, phase)?)
}

/// Waits until a process of the child's network namespace listens on a port of librdmacm.
fn wait_for_service(server: &mut Child, port: u16) -> Result<()> {
    let (name, end) = (format!("@weir/service/{:x}", TCP << 16 | u32::from(port)), Instant::now() + START);
    // The socket accepts connections from the time on at which the program listens: __SO_ACCEPTCON.
    let listens = |line: &str| line.ends_with(&name) && line.split(' ').nth(3) == Some("00010000");
    loop {
        let sockets = std::fs::read_to_string(format!("/proc/{}/net/unix", server.pid())).unwrap_or_default();
        if sockets.lines().any(listens) {
            return Ok(());
        }
        ensure!(server.poll()?.is_none() && Instant::now() < end, "cmtime does not listen: {}", server.printed()?);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The seconds of a phase in the program's table, in which the first number of a step is its total in milliseconds.
fn seconds(output: &str, phase: Phase) -> Result<f64> {
    let total = |step: &&str| {
        let mut found = output.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() == *step);
        let numbers = found.next_back().map(|(_, numbers)| numbers);
        let total = numbers.and_then(|numbers| numbers.split_whitespace().next()?.parse::<f64>().ok());
        total.with_context(|| format!("cmtime printed no time of \"{step}\": {output}"))
    };
    let milliseconds: f64 = phase.steps().iter().map(total).sum::<Result<f64>>()?;
    ensure!(milliseconds > 0.0, "cmtime measured no time: {output}");
    Ok(milliseconds / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_cmtime_is_read() {
        let output = "connecting\nstep              total ms     max ms     min us  us / conn\n\
                      create id    :        2.50       0.07       1.00       2.13\n\
                      resolve addr :       17.50      13.48     917.00      17.47\n\
                      resolve route:        4.00       1.56      33.00       3.75\n\
                      create qp    :        6.00       0.12       5.00       7.72\n\
                      connect      :      470.00     592.94    3674.00     602.79\n\
                      disconnect   :       30.00      19.74    2272.00      31.79\n\
                      destroy      :       20.00       0.09       1.00       1.89\n";
        assert_eq!(seconds(output, Phase::SetUp).unwrap(), 0.5);
        assert_eq!(seconds(output, Phase::TearDown).unwrap(), 0.05);
        assert!(seconds("destroy : 1.0\n", Phase::TearDown).is_err());
    }
}
