//! Runs `weir-crowd`, Weir's C program that starts many processes at once.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::time::Duration;
use weir_stage::{Child, Side, Stage, library_folder};

/// Number of processes: a network namespace has slots for 1,022.
pub const PROCESSES: usize = 1000;
/// Time limit of each process, and then of all.
const PATIENCE: Duration = Duration::from_secs(60);
const BOUND: Duration = Duration::from_secs(90);

/// What it prints: times in seconds from the start of the first process, memory in bytes of an average process.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Crowd {
    /// Processes that had their message.
    pub succeeded: usize,
    /// When the last process had its device and its QP.
    pub opened: f64,
    /// When the last process had its message.
    pub exchanged: f64,
    /// When the last process had ended.
    pub ended: f64,
    /// Memory while all are connected. A page that several processes share counts in parts.
    pub pss: f64,
    /// Pages that no other process shares.
    pub private: f64,
}

/// Runs it in the namespace of the stage; an error if a process fails.
pub fn run(stage: &Stage) -> Result<Crowd> {
    let mut command = stage.command(Side::A, std::env::current_exe()?);
    // The processes stand for those of many hosts, as far as one machine can.
    command.args(["run", "--local", "off", "--"]).arg(library_folder()?.join("weir-crowd"));
    command.args(["-d", &stage.device(), "-t", &PATIENCE.as_secs().to_string(), &PROCESSES.to_string()]);
    let ended = Child::spawn(&mut command, "weir-crowd")?.wait(BOUND)?;
    let crowd: Crowd = match serde_json::from_str(&ended.stdout) {
        Ok(crowd) => crowd,
        Err(error) => return ended.success().and_then(|_| Err(error).context("weir-crowd printed no figures")),
    };
    let why = || format!("{} of {PROCESSES} processes failed: {}", PROCESSES - crowd.succeeded, ended.last_lines());
    ensure!(crowd.succeeded == PROCESSES, why());
    Ok(crowd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read() {
        let line = r#"{"processes": 2, "succeeded": 2, "opened": 0.002, "exchanged": 0.003, "ended": 0.004,
                      "counted": 2, "pss": 1867776, "private": 804864}"#;
        let expected =
            Crowd { succeeded: 2, opened: 0.002, exchanged: 0.003, ended: 0.004, pss: 1867776.0, private: 804864.0 };
        assert_eq!(serde_json::from_str::<Crowd>(line).unwrap(), expected);
    }
}
