//! `weir bench cm`: connections of librdmacm that `cmtime` sets up and tears down, beside TCP connections.
//!
//! The bars are rates that a program needs: a kernel's TCP connection costs no QP, no proof of its peer and no thread that
//! wakes up for it, and is shown for comparison only.

use super::cmtime::Phase;
use super::measure::Measurement;
use super::request::Request;
use super::rows::{self, Bar, Baseline, Comparison, Row};
use super::turns;
use anyhow::Result;
use std::process::ExitCode;

/// Connections per second that programs must be able to set up, and to tear down.
const RATE: f64 = 1000.0;

/// Measures and prints the results: between two network namespaces first, then on one host.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    turns::run_apart_and_together("weir bench cm", rows::select(rows(), request.names)?, request)
}

/// All rows.
pub fn rows() -> Vec<Row> {
    vec![
        set_ups("connect-1000", "1,000 connections are set up between two hosts", 1000),
        set_ups("connect-10000", "10,000 connections are set up between two hosts", 10_000),
        tear_downs("disconnect-1000", "1,000 connections are torn down between two hosts", 1000),
        tear_downs("disconnect-10000", "10,000 connections are torn down between two hosts", 10_000),
        set_ups("host-connect-1000", "1,000 connections are set up on one host", 1000),
        set_ups("host-connect-10000", "10,000 connections are set up on one host", 10_000),
        tear_downs("host-disconnect-1000", "1,000 connections are torn down on one host", 1000),
        tear_downs("host-disconnect-10000", "10,000 connections are torn down on one host", 10_000),
    ]
}

fn set_ups(name: &'static str, what: &'static str, count: u32) -> Row {
    let tcp = Comparison::without_bar(Measurement::TcpConnections(count));
    Row::new(name, what, Measurement::Connections { count, phase: Phase::SetUp }, vec![bar(), tcp])
}

fn tear_downs(name: &'static str, what: &'static str, count: u32) -> Row {
    Row::new(name, what, Measurement::Connections { count, phase: Phase::TearDown }, vec![bar()])
}

fn bar() -> Comparison {
    Comparison { baseline: Baseline::Fixed(RATE), bar: Some(Bar::AtLeast(1.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_the_rate_as_its_bar_and_tcp_makes_as_many_connections() {
        for row in rows() {
            let Measurement::Connections { count, .. } = row.subject else { panic!("{}", row.name) };
            assert!(row.name.ends_with(&format!("-{count}")), "{}", row.name);
            let bars = row.comparisons.iter().filter(|comparison| comparison.bar.is_some());
            assert_eq!(bars.count(), 1, "{}", row.name);
            for comparison in &row.comparisons {
                match comparison.baseline {
                    Baseline::Fixed(rate) => assert_eq!(rate, RATE),
                    Baseline::Measured(other) => assert_eq!(other, Measurement::TcpConnections(count)),
                }
            }
        }
        assert_eq!(rows::select(rows(), &["host".into()]).unwrap().len(), 4);
    }
}
