//! `weir bench doctor`: `ib_write_lat` under `weir doctor` and without it, between two hosts and on one host.

use super::measure::Measurement::{Latency, WatchedLatency};
use super::perftest::Verb;
use super::request::Request;
use super::rows::{self, Bar, Comparison, Row};
use super::turns;
use anyhow::Result;
use std::process::ExitCode;

/// How much longer a message may take.
const BAR: Bar = Bar::AtMost(1.05);

/// Measures and prints the results: between two network namespaces first, then on one host.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    turns::run_apart_and_together("weir bench doctor", rows::select(rows(), request.names)?, request)
}

/// All rows.
pub fn rows() -> Vec<Row> {
    vec![
        row("lat-2", "ib_write_lat 2 B between two hosts, median", 2),
        row("lat-64k", "ib_write_lat 64 KiB between two hosts, median", 65536),
        row("host-lat-2", "ib_write_lat 2 B on one host, median", 2),
        row("host-lat-64k", "ib_write_lat 64 KiB on one host, median", 65536),
    ]
}

fn row(name: &'static str, what: &'static str, size: usize) -> Row {
    let alone = Latency { verb: Verb::Write, size };
    Row::new(name, what, WatchedLatency { verb: Verb::Write, size }, vec![Comparison::with_bar(alone, BAR)])
        .in_short_runs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Baseline;

    #[test]
    fn every_row_compares_a_size_with_itself() {
        for row in rows() {
            let [Comparison { baseline: Baseline::Measured(alone), bar: Some(_) }] = row.comparisons[..] else {
                panic!("{}", row.name)
            };
            assert_eq!(row.subject.describe().replace("watched", "Weir's"), alone.describe());
        }
    }
}
