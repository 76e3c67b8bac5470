//! `weir-verify`, the C program of ours that compares every byte and every status.

use super::steps::Bench;
use crate::library;
use crate::programs::pair;
use crate::stage::Side;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);

/// What it compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Verified {
    /// Bytes compared by both sides.
    pub bytes: u64,
    /// Of those, not as they should be.
    pub wrong: u64,
}

/// Runs the pair.
pub(super) fn run(bench: &Bench) -> Result<Verified> {
    let program = library::folder()?.join("weir-verify");
    ensure!(program.is_file(), "{} is not built: run `make build`", program.display());
    let port = bench.stage.free_port(Side::A)?;
    let command = |side: Side| {
        let mut command = bench.stage.command(side, &program);
        command.envs(bench.variables.iter().map(|(name, value)| (name, value)));
        command.args(["-d", &bench.stage.device(side), "-p", &port.to_string()]);
        command
    };
    let mut client = command(Side::B);
    client.arg(bench.stage.address(Side::A).to_string());
    let outcome = pair::run(&mut command(Side::A), &mut client, port, TIMEOUT)?;
    let (server, client) = (summary(&outcome.server.stdout)?, summary(&outcome.client.stdout)?);
    Ok(Verified { bytes: server.bytes + client.bytes, wrong: server.wrong + client.wrong })
}
fn summary(_stdout: &str) -> Result<Verified> {
    None.context("no summary")
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes verified, {} wrong", grouped(self.bytes), grouped(self.wrong))
    }
}

/// Digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_are_readable() {
        let verified = Verified { bytes: 1234567, wrong: 0 };
        assert_eq!(verified.to_string(), "1,234,567 bytes verified, 0 wrong");
        assert_eq!(grouped(123), "123");
    }
}
