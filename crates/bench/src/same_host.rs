//! `weir bench same-host`: two processes in one network namespace, one core a side, against UCX over shared memory.
//!
//! The bars compare with UCX's tagged messages: their buffers are the program's own memory, as Weir's are. `ucp_put_*` is
//! shown beside them: there UCX allocates the target itself, in memory that both processes map, and the sender only
//! stores.

use super::measure::{Measurement, Runner};
use super::peers::Over;
use super::perftest::{Icrc, Verb};
use super::request::Request;
use super::rows::{self, Bar, Comparison, Row};
use super::turns;
use anyhow::Result;
use std::process::ExitCode;
use weir_stage::Stage;

const OVER: Over = Over::SharedMemory;
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Measures and prints the results.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    let (rows, stage) = (rows::select(rows(), request.names)?, Stage::same_host()?);
    turns::announce("weir bench same-host", &stage, request);
    turns::warn_of_missing(&rows);
    let outcomes = turns::measure(&rows, Runner::new(&stage, request.seconds()), request.rounds_of_rows());
    let status = turns::report(&outcomes, request)?;
    if !request.json {
        println!("Weir aims at a ratio of 1.0 to tagged messages in each row; the bars are what it must reach.");
    }
    Ok(status)
}

/// Its rows.
pub fn rows() -> Vec<Row> {
    use Bar::{AtLeast, AtMost};
    use Verb::{Send, Write};
    vec![
        latency("write-lat-8", "ib_write_lat 8 B, median", Write, 8, Some(AtMost(2.0))),
        latency("send-lat-8", "ib_send_lat 8 B, median", Send, 8, None),
        latency("write-lat-64k", "ib_write_lat 64 KiB, median", Write, 64 * KIB, None),
        latency("send-lat-64k", "ib_send_lat 64 KiB, median", Send, 64 * KIB, None),
        rate("write-rate-64", "ib_write_bw 64 B, messages", Write, 64, AtLeast(0.5)),
        rate("send-rate-64", "ib_send_bw 64 B, messages", Send, 64, AtLeast(0.5)),
        throughput("send-4k", "ib_send_bw 4 KiB", Send, 4 * KIB, Some(AtLeast(1.0))),
        throughput("write-64k", "ib_write_bw 64 KiB", Write, 64 * KIB, None),
        throughput("send-64k", "ib_send_bw 64 KiB", Send, 64 * KIB, None),
        throughput("write-1m", "ib_write_bw 1 MiB", Write, MIB, None),
        throughput("send-1m", "ib_send_bw 1 MiB", Send, MIB, Some(AtLeast(0.9))),
    ]
}

fn latency(name: &'static str, what: &'static str, verb: Verb, size: usize, bar: Option<Bar>) -> Row {
    let ucx = |test| Measurement::UcxLatency { test, size, over: OVER };
    row(name, what, Measurement::Latency { verb, size }, verb, ucx("tag_lat"), ucx("ucp_put_lat"), bar)
}

fn rate(name: &'static str, what: &'static str, verb: Verb, size: usize, bar: Bar) -> Row {
    let ucx = |test| Measurement::UcxMessageRate { test, size, over: OVER };
    row(name, what, Measurement::MessageRate { verb, size }, verb, ucx("tag_bw"), ucx("ucp_put_bw"), Some(bar))
}

fn throughput(name: &'static str, what: &'static str, verb: Verb, size: usize, bar: Option<Bar>) -> Row {
    let ucx = |test| Measurement::Ucx { test, size, over: OVER };
    let weir = Measurement::Perftest { verb, size, icrc: Icrc::Auto, both_ways: false };
    row(name, what, weir, verb, ucx("tag_bw"), ucx("ucp_put_bw"), bar)
}

/// A row with the bar against tagged messages; a WRITE is also shown beside UCX's put.
fn row(
    name: &'static str,
    what: &'static str,
    weir: Measurement,
    verb: Verb,
    tag: Measurement,
    put: Measurement,
    bar: Option<Bar>,
) -> Row {
    let mut comparisons = vec![Comparison { bar, ..Comparison::without_bar(tag) }];
    if verb == Verb::Write {
        comparisons.push(Comparison::without_bar(put));
    }
    Row::new(name, what, weir, comparisons)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Baseline;

    #[test]
    fn each_row_compares_the_same_quantity_and_size_over_shared_memory() {
        for row in rows() {
            for comparison in &row.comparisons {
                let Baseline::Measured(ucx) = comparison.baseline else { panic!("{}", row.name) };
                assert_eq!(ucx.unit(), row.subject.unit(), "{}", row.name);
                let text = ucx.describe();
                assert!(text.starts_with("UCX shm "), "{text}");
                let size = |text: &str| text.rsplitn(3, ' ').take(2).map(str::to_owned).collect::<Vec<_>>();
                assert_eq!(size(&text), size(&row.subject.describe()), "{}", row.name);
            }
        }
    }

    #[test]
    fn bars_are_those_against_tagged_messages() {
        let bars: Vec<(&str, String)> = rows()
            .iter()
            .flat_map(|row| row.comparisons.iter().map(|c| (row.name, c.baseline.describe(row.subject.unit()), c.bar)))
            .filter_map(|(name, baseline, bar)| bar.map(|bar| (name, format!("{bar} {baseline}"))))
            .collect();
        let expected = [
            ("write-lat-8", "≤ 2.00 UCX shm tag_lat 8 B"),
            ("write-rate-64", "≥ 0.50 UCX shm tag_bw 64 B"),
            ("send-rate-64", "≥ 0.50 UCX shm tag_bw 64 B"),
            ("send-4k", "≥ 1.00 UCX shm tag_bw 4 KiB"),
            ("send-1m", "≥ 0.90 UCX shm tag_bw 1 MiB"),
        ];
        assert_eq!(bars, expected.map(|(name, bar)| (name, bar.to_owned())));
    }
}
