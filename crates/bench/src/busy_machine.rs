//! `weir bench busy`: latencies while each core also runs a busy loop, against UCX over TCP under the same load.

use super::measure::{Measurement, Runner};
use super::mtu::MTU;
use super::peers::Over;
use super::perftest::Verb;
use super::request::Request;
use super::rows::{self, Bar, Comparison, Row};
use super::turns;
use anyhow::Result;
use std::process::ExitCode;
use weir_stage::Stage;

const BAR: Bar = Bar::AtMost(2.0);
/// Names of the unpinned rows begin with it.
const UNPINNED: &str = "unpinned-";

/// Measures and prints the results: pinned first, then unpinned. The loops are always pinned, one to each core.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    let selected = rows::select(rows(), request.names)?;
    let pinned = Stage::new(MTU)?;
    turns::announce("weir bench busy", &pinned, request);
    turns::warn_of_missing(&selected);
    let (unpinned_rows, pinned_rows) =
        selected.into_iter().partition::<Vec<Row>, _>(|row| row.name.starts_with(UNPINNED));
    let mut outcomes = Vec::new();
    for (stage, rows) in [(&pinned, pinned_rows), (&pinned.unpinned(), unpinned_rows)] {
        let mut runner = Runner::new(stage, request.seconds());
        runner.loaded = true;
        outcomes.extend(turns::measure(&rows, runner, request.rounds_of_rows()));
    }
    turns::report(&outcomes, request)
}

/// All rows.
pub fn rows() -> Vec<Row> {
    [pinned_rows(), unpinned_rows()].into_iter().flatten().collect()
}

fn pinned_rows() -> Vec<Row> {
    vec![
        row("write-lat-8", "ib_write_lat 8 B, median, one core a side", Verb::Write, 8),
        row("write-lat-64k", "ib_write_lat 64 KiB, median, one core a side", Verb::Write, 64 << 10),
        row("send-lat-8", "ib_send_lat 8 B, median, one core a side", Verb::Send, 8),
        row("send-lat-64k", "ib_send_lat 64 KiB, median, one core a side", Verb::Send, 64 << 10),
    ]
}

fn unpinned_rows() -> Vec<Row> {
    vec![
        row("unpinned-write-lat-8", "ib_write_lat 8 B, median", Verb::Write, 8),
        row("unpinned-write-lat-64k", "ib_write_lat 64 KiB, median", Verb::Write, 64 << 10),
        row("unpinned-send-lat-8", "ib_send_lat 8 B, median", Verb::Send, 8),
        row("unpinned-send-lat-64k", "ib_send_lat 64 KiB, median", Verb::Send, 64 << 10),
    ]
}

fn row(name: &'static str, what: &'static str, verb: Verb, size: usize) -> Row {
    let ucx = Measurement::UcxLatency { test: "tag_lat", size, over: Over::Tcp };
    Row::new(name, what, Measurement::Latency { verb, size }, vec![Comparison::with_bar(ucx, BAR)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn pinned_and_unpinned_rows_measure_the_same_with_names_of_their_own() {
        let subjects = |rows: Vec<Row>| rows.iter().map(|row| row.subject).collect::<Vec<_>>();
        assert_eq!(subjects(pinned_rows()), subjects(unpinned_rows()));
        assert_eq!(rows().iter().map(|row| row.name).collect::<HashSet<_>>().len(), rows().len());
        assert!(pinned_rows().iter().all(|row| !row.name.starts_with(UNPINNED)));
        assert!(unpinned_rows().iter().all(|row| row.name.starts_with(UNPINNED)));
        for row in rows() {
            let [comparison] = &row.comparisons[..] else { panic!("{}", row.name) };
            assert_eq!(comparison.bar, Some(Bar::AtMost(2.0)));
            let size = if row.name.ends_with("-64k") { "64 KiB" } else { "8 B" };
            assert_eq!(comparison.baseline.describe(row.subject.unit()), format!("UCX tcp tag_lat {size}"));
            assert!(row.what.contains(size), "{}", row.what);
        }
    }
}
