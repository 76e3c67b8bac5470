//! `weir bench capture`: what a capture costs. The baseline is the same way of travel, RoCE packets by UDP, without a
//! capture; beside it stands Weir's default, frames. Both sides capture, each into a file of its own.

use super::captured::{Captured, Figure};
use super::measure::{Measurement, Runner};
use super::mtu::MTU;
use super::perftest::{Icrc, Verb};
use super::request::Request;
use super::rows::{self, Bar, Comparison, Row};
use super::turns;
use anyhow::Result;
use std::process::ExitCode;
use weir_stage::Stage;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// A capture costs a fifth of the throughput at most.
const BAR: Bar = Bar::AtLeast(0.8);

/// Measures and prints the results.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    let (rows, stage) = (rows::select(rows(), request.names)?, Stage::new(MTU)?);
    turns::announce("weir bench capture", &stage, request);
    turns::warn_of_missing(&rows);
    let outcomes = turns::measure(&rows, Runner::new(&stage, request.seconds()), request.rounds_of_rows());
    turns::report(&outcomes, request)
}

/// Its rows.
pub fn rows() -> Vec<Row> {
    use Captured::{Headers, Ring, Whole};
    use Figure::{Latency, MessageRate};
    let write = |name, what, size, captured, bar| {
        let default = Measurement::Perftest { verb: Verb::Write, size, icrc: Icrc::Auto, both_ways: false };
        let mut row = row(name, what, (Verb::Write, size), captured, Figure::Bandwidth, bar);
        row.comparisons.push(Comparison::without_bar(default));
        row
    };
    let (small_send, small_write) = ((Verb::Send, 64), (Verb::Write, 8));
    vec![
        write("headers-64k", "ib_write_bw 64 KiB, headers captured", 64 * KIB, Headers, Some(BAR)),
        write("headers-1m", "ib_write_bw 1 MiB, headers captured", MIB, Headers, Some(BAR)),
        write("ring-64k", "ib_write_bw 64 KiB, headers kept in memory", 64 * KIB, Ring, Some(BAR)),
        write("ring-1m", "ib_write_bw 1 MiB, headers kept in memory", MIB, Ring, Some(BAR)),
        write("whole-64k", "ib_write_bw 64 KiB, whole packets captured", 64 * KIB, Whole, None),
        write("whole-1m", "ib_write_bw 1 MiB, whole packets captured", MIB, Whole, None),
        row("headers-rate-64", "ib_send_bw 64 B, headers captured", small_send, Headers, MessageRate, None),
        row("whole-rate-64", "ib_send_bw 64 B, whole packets captured", small_send, Whole, MessageRate, None),
        row("headers-lat-8", "ib_write_lat 8 B, headers captured", small_write, Headers, Latency, None),
        row("whole-lat-8", "ib_write_lat 8 B, whole packets captured", small_write, Whole, Latency, None),
    ]
}

fn row(
    name: &'static str,
    what: &'static str,
    (verb, size): (Verb, usize),
    captured: Captured,
    figure: Figure,
    bar: Option<Bar>,
) -> Row {
    let of = |captured| Measurement::Captured { verb, size, captured, figure };
    let comparison = Comparison { bar, ..Comparison::without_bar(of(Captured::Nothing)) };
    Row::new(name, what, of(captured), vec![comparison])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Baseline;

    #[test]
    fn each_row_compares_the_same_program_without_capture() {
        for row in rows() {
            let Measurement::Captured { verb, size, captured, figure } = row.subject else { panic!("{}", row.name) };
            assert_ne!(captured, Captured::Nothing);
            let Baseline::Measured(first) = row.comparisons[0].baseline else { panic!("{}", row.name) };
            assert_eq!(first, Measurement::Captured { verb, size, captured: Captured::Nothing, figure });
            for comparison in &row.comparisons {
                let Baseline::Measured(baseline) = comparison.baseline else { panic!("{}", row.name) };
                assert_eq!(baseline.unit(), row.subject.unit(), "{}", row.name);
            }
            let is_bound = matches!(captured, Captured::Headers | Captured::Ring) && figure == Figure::Bandwidth;
            assert_eq!(row.comparisons[0].bar, is_bound.then_some(BAR), "{}", row.name);
        }
    }
}
