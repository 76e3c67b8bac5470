//! What else moves bytes between two hosts: iperf3 and UCX, both over TCP.

use crate::stage::{Child, Finished, Protocol, Side, Stage, locate};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::time::Duration;

const START: Duration = Duration::from_secs(10);
const BOUND: Duration = Duration::from_secs(60);

/// What iperf3 moved in writes of 1 MiB.
pub struct Iperf3 {
    /// Bytes per second that arrived.
    pub rate: f64,
    /// User and system time of both processes, seconds per byte that arrived.
    pub cpu_per_byte: f64,
}

/// A measurement of `ucx_perftest`.
pub struct Ucx {
    /// Median one-way time of a message, seconds (a latency only in `tag_lat`).
    pub median: f64,
    /// Messages per second.
    pub messages: f64,
}

/// One TCP stream for some seconds (whole ones: iperf3 takes 0.5 for "for ever").
pub fn iperf3(stage: &Stage, seconds: f64) -> Result<Iperf3> {
    let seconds = seconds.ceil().max(1.0);
    let client_arguments = format!("-l 1M -J -t {seconds}");
    let (server, client) = pair(stage, "iperf3", &["-s", "-1"], "-c", &client_arguments, &[])?;
    let (rate, bytes) = parse_iperf3(&client.stdout)?;
    Ok(Iperf3 { rate, cpu_per_byte: (server.cpu + client.cpu).as_secs_f64() / bytes })
}

/// `tag_bw` or `tag_lat` over UCX's TCP transport.
pub fn ucx(stage: &Stage, test: &str, size: usize, iterations: u64) -> Result<Ucx> {
    let arguments = format!("-t {test} -s {size} -n {iterations} -w {} -f -v", (iterations / 20).max(10));
    let interface = stage.interface(Side::A);
    let environment = [("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", interface), ("UCX_LOG_LEVEL", "error")];
    let (_, client) = pair(stage, "ucx_perftest", &[], "", &arguments, &environment)?;
    parse_ucx(&client.stdout)
}

/// Runs a server on side A and a client on side B to their ends.
fn pair(
    stage: &Stage,
    program: &str,
    server_arguments: &[&str],
    before_address: &str,
    client_arguments: &str,
    environment: &[(&str, &str)],
) -> Result<(Finished, Finished)> {
    let path = locate(program)?;
    let port = stage.free_port(Side::A)?;
    let (port_argument, address) = (["-p".to_owned(), port.to_string()], stage.address(Side::A).to_string());
    let mut command = stage.command(Side::A, &path);
    command.args(server_arguments).args(&port_argument).envs(environment.iter().copied());
    let mut server = Child::spawn(&mut command, format!("{program} (server)"))?;
    server.wait_listening(Protocol::Tcp, port, START)?;
    let mut command = stage.command(Side::B, &path);
    command.args(before_address.split_whitespace()).arg(address).args(&port_argument);
    command.args(client_arguments.split_whitespace()).envs(environment.iter().copied());
    let client = Child::spawn(&mut command, format!("{program} (client)"))?.wait(BOUND)?.success()?;
    Ok((server.wait(BOUND)?.success()?, client))
}

/// Bytes per second and bytes that arrived.
fn parse_iperf3(output: &str) -> Result<(f64, f64)> {
    let report: Value = serde_json::from_str(output).context("iperf3's report")?;
    let received = &report["end"]["sum_received"];
    let (rate, bytes) = (received["bits_per_second"].as_f64(), received["bytes"].as_f64());
    let (rate, bytes) = rate.zip(bytes).with_context(|| format!("iperf3 measured nothing: {}", report["error"]))?;
    ensure!(bytes > 0.0, "iperf3 moved nothing");
    Ok((rate / 8.0, bytes))
}

fn parse_ucx(output: &str) -> Result<Ucx> {
    // iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
    let numbers = |line: &str| line.split(',').map(|f| f.trim().parse()).collect::<Result<Vec<f64>, _>>().ok();
    let row = output.lines().rev().filter_map(numbers).find(|row| row.len() == 8);
    let row = row.with_context(|| format!("ucx_perftest printed no figures: {output}"))?;
    Ok(Ucx { median: row[1] / 1e6, messages: row[7] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ucx_figures_are_read() {
        let got = parse_ucx(
            "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
             200000,4.417,4.405,4.405,886.85,886.85,227033,227033\n",
        )
        .unwrap();
        assert!((got.median - 4.417e-6).abs() < 1e-12 && got.messages == 227033.0);
        assert!(parse_ucx("[error] no such device\n").is_err());
    }

    #[test]
    fn iperf3_figures_are_read() {
        let report = r#"{"end":{"sum_received":{"bytes":2000,"bits_per_second":8000.0}}}"#;
        assert_eq!(parse_iperf3(report).unwrap(), (1000.0, 2000.0));
        assert!(parse_iperf3(r#"{"error":"unable to connect"}"#).is_err());
    }
}
