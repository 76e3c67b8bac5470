//! Commands that run other programs under `weir run`.

use anyhow::Result;
use std::path::Path;
use std::process::Command;
use weir_stage::{Side, Stage};

/// A command that runs `program` on this side, on Weir.
pub fn command(stage: &Stage, side: Side, program: &Path) -> Result<Command> {
    command_with(stage, side, &[], program)
}

/// As [`command`], with further options of `weir run`.
pub fn command_with(stage: &Stage, side: Side, options: &[&str], program: &Path) -> Result<Command> {
    let mut command = stage.command(side, std::env::current_exe()?);
    command.arg("run").args(options).args(path(stage)).arg("--").arg(program);
    Ok(command)
}

/// As [`command_with`], with `weir doctor` around `weir run`. Its report is of no interest.
pub fn watched(stage: &Stage, side: Side, options: &[&str], program: &Path) -> Result<Command> {
    let weir = std::env::current_exe()?;
    let mut command = stage.command(side, &weir);
    command.args(["doctor", "--output", "/dev/null", "--"]).arg(&weir);
    command.arg("run").args(options).args(path(stage)).arg("--").arg(program);
    Ok(command)
}

/// Options of `weir run` for programs on a stage. Where the stage stands for two hosts, packets go by UDP although both
/// may be on loopback: what is measured is a network.
pub fn path(stage: &Stage) -> &'static [&'static str] {
    if stage.is_one_host() { &[] } else { &["--local", "off"] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hosts_on_loopback_share_no_memory() {
        assert_eq!(path(&Stage::loopback().unwrap()), ["--local", "off"]);
        assert!(path(&Stage::same_host().unwrap()).is_empty());
    }
}
