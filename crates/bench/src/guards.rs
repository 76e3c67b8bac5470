//! `weir bench guards`: perftest with `--guard auto` on both sides and without, in pinned memory, where no guard has
//! anything to do: between two hosts and on one host.

use super::captured::Figure;
use super::measure::Measurement::{Guarded, Latency, MessageRate, Perftest};
use super::perftest::{Icrc, Verb};
use super::request::Request;
use super::rows::{self, Bar, Comparison, Row};
use super::turns;
use anyhow::Result;
use std::process::ExitCode;

/// How much of the time or of the rate the guards may cost.
const LONGER: Bar = Bar::AtMost(1.02);
const SLOWER: Bar = Bar::AtLeast(0.98);

/// Measures and prints the results: between two network namespaces first, then on one host.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    turns::run_apart_and_together("weir bench guards", rows::select(rows(), request.names)?, request)
}

/// All rows.
pub fn rows() -> Vec<Row> {
    vec![
        latency("read-lat-2", "ib_read_lat 2 B between two hosts, median", Verb::Read),
        latency("write-lat-2", "ib_write_lat 2 B between two hosts, median", Verb::Write),
        rate("read-8", "ib_read_bw 8 B between two hosts", Verb::Read),
        bandwidth("read-64k", "ib_read_bw 64 KiB between two hosts", Verb::Read),
        latency("host-read-lat-2", "ib_read_lat 2 B on one host, median", Verb::Read),
        latency("host-write-lat-2", "ib_write_lat 2 B on one host, median", Verb::Write),
        rate("host-read-8", "ib_read_bw 8 B on one host", Verb::Read),
        bandwidth("host-read-64k", "ib_read_bw 64 KiB on one host", Verb::Read),
    ]
}

fn latency(name: &'static str, what: &'static str, verb: Verb) -> Row {
    let alone = Comparison::with_bar(Latency { verb, size: 2 }, LONGER);
    Row::new(name, what, Guarded { verb, size: 2, figure: Figure::Latency }, vec![alone]).in_short_runs()
}

fn rate(name: &'static str, what: &'static str, verb: Verb) -> Row {
    let alone = Comparison::with_bar(MessageRate { verb, size: 8 }, SLOWER);
    Row::new(name, what, Guarded { verb, size: 8, figure: Figure::MessageRate }, vec![alone])
}

fn bandwidth(name: &'static str, what: &'static str, verb: Verb) -> Row {
    let size = 64 << 10;
    let alone = Comparison::with_bar(Perftest { verb, size, icrc: Icrc::Auto, both_ways: false }, SLOWER);
    Row::new(name, what, Guarded { verb, size, figure: Figure::Bandwidth }, vec![alone])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Baseline;

    #[test]
    fn every_row_compares_a_program_with_itself() {
        for row in rows() {
            let [Comparison { baseline: Baseline::Measured(alone), bar: Some(_) }] = row.comparisons[..] else {
                panic!("{}", row.name)
            };
            assert_eq!(row.subject.describe().replace("guarded", "Weir's"), alone.describe());
        }
    }
}
