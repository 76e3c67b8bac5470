//! iperf3: TCP of the same kernel over the same path.

use crate::pair::{self, Outcome};
use crate::{Side, Stage, locate};
use anyhow::{Context, Result, ensure};
use std::time::Duration;

/// The result of a run.
pub struct Run {
    /// Throughput at the receiver, GB/s (10^9 bytes).
    pub gigabytes: f64,
    /// Bytes received.
    pub bytes: u64,
    /// CPU times and the output of both programs.
    pub outcome: Outcome,
}

/// Runs one stream from B to A for `seconds`, in writes of `block` bytes.
pub fn run(stage: &Stage, seconds: u32, block: u64) -> Result<Run> {
    let (program, port) = (locate("iperf3")?, stage.free_port(Side::A)?);
    let mut server = stage.command(Side::A, &program);
    server.args(["-s", "-1", "-p", &port.to_string()]);
    let mut client = stage.command(Side::B, &program);
    client.args(["-J", "-c", &stage.address(Side::A).to_string(), "-p", &port.to_string()]);
    client.args(["-t", &seconds.to_string(), "-l", &block.to_string()]);
    let timeout = Duration::from_secs(u64::from(seconds) + 15);
    let outcome = pair::run(&mut server, &mut client, port, timeout)?.success()?;
    let (bytes, gigabytes) = received(&outcome.client.stdout)?;
    Ok(Run { gigabytes, bytes, outcome })
}

/// Bytes and GB/s that the server received, from the client's report.
fn received(json: &str) -> Result<(u64, f64)> {
    let report: serde_json::Value = serde_json::from_str(json).context("iperf3 did not print JSON")?;
    let sum = &report["end"]["sum_received"];
    let bytes = sum["bytes"].as_u64().context("no bytes in iperf3's report")?;
    ensure!(bytes > 0, "iperf3 moved nothing");
    let bits = sum["bits_per_second"].as_f64().context("no rate in iperf3's report")?;
    Ok((bytes, bits / 8e9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_receivers_sum() {
        let json = r#"{"end":{"sum_sent":{"bytes":9,"bits_per_second":9},
                       "sum_received":{"bytes":8000000000,"bits_per_second":3.2e10}}}"#;
        assert_eq!(received(json).unwrap(), (8_000_000_000, 4.0));
        assert!(received("iperf3: error - unable to connect").is_err());
        assert!(received(r#"{"end":{"sum_received":{"bytes":0,"bits_per_second":0}}}"#).is_err());
        assert!(received("{}").is_err());
    }
}
