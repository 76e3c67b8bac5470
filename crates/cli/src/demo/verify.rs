//! Runs `weir-verify`, Weir's C program that compares every byte and every status.

use super::steps::Bench;
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::fmt;
use std::time::Duration;
use weir_stage::{Side, pair};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The sums that `weir-verify` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Verified {
    /// Bytes compared by both sides.
    pub bytes: u64,
    /// Bytes with a wrong value.
    pub wrong: u64,
    /// Checks of statuses, orders and bytes that passed.
    pub passed: u64,
    /// Checks that failed.
    pub failed: u64,
}

/// Runs server and client.
pub(super) fn run(bench: &Bench) -> Result<Verified> {
    let program = weir_stage::library_folder()?.join("weir-verify");
    ensure!(program.is_file(), "{} is not built: run `make build`", program.display());
    let port = bench.stage.free_port(Side::A)?;
    let command = |side: Side| {
        let mut command = bench.stage.command(side, &program);
        command.envs(bench.variables.iter().map(|(name, value)| (name, value)));
        command.args(["-d", &bench.stage.device(), "-p", &port.to_string()]);
        command
    };
    let mut client = command(Side::B);
    client.arg(bench.stage.address(Side::A).to_string());
    let outcome = pair::run(&mut command(Side::A), &mut client, port, TIMEOUT)?;
    // Exit code 1 says only that a check failed; the summary has the counts.
    summary(&outcome.client.stdout).with_context(|| outcome.client.printed())
}

/// Parses the last two lines of either side, which hold the sums of both: `N bytes verified, N wrong`, then
/// `N passed, N failed`.
fn summary(stdout: &str) -> Result<Verified> {
    let mut lines = stdout
        .lines()
        .rev()
        .map(|line| -> Vec<u64> { line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect() });
    match (lines.next().as_deref(), lines.next().as_deref()) {
        (Some(&[passed, failed]), Some(&[bytes, wrong])) => Ok(Verified { bytes, wrong, passed, failed }),
        _ => bail!("weir-verify ended without its summary"),
    }
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes verified, {} wrong; ", grouped(self.bytes), grouped(self.wrong))?;
        write!(f, "{} checks passed, {} failed", grouped(self.passed), grouped(self.failed))
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
    fn the_last_lines_hold_the_sums() {
        let text =
            "sizes          client  94 passed, 0 failed\n1234567 bytes verified, 3 wrong\n120 passed, 1 failed\n";
        let verified = summary(text).unwrap();
        assert_eq!(verified, Verified { bytes: 1234567, wrong: 3, passed: 120, failed: 1 });
        assert_eq!(verified.to_string(), "1,234,567 bytes verified, 3 wrong; 120 checks passed, 1 failed");
        assert!(summary("retry  client  2 passed, 0 failed\n").is_err());
        assert!(summary("").is_err());
    }

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!(grouped(1234567), "1,234,567");
        assert_eq!(grouped(123), "123");
    }
}
