//! The table of an application: a line for each scheme.

use super::run::Run;
use super::summary::Totals;
use crate::table::{Spread, columns};
use serde::Serialize;
use std::fmt::Write;

/// An application with all schemes.
#[derive(Debug, Serialize)]
pub struct Report {
    pub name: String,
    pub what: String,
    pub rows: Vec<Row>,
}

/// All runs with a scheme.
#[derive(Debug, Serialize)]
pub struct Row {
    pub scheme: &'static str,
    pub runs: Vec<Run>,
    /// Why there are no further runs.
    pub failed: Option<String>,
}

const HEADER: [&str; 9] = [
    "scheme",
    "time s",
    "range",
    "ratio",
    "page faults",
    "prefetches",
    "pages prefetched",
    "pages invalidated",
    "pinned KiB",
];

impl Row {
    /// Without runs.
    pub fn new(scheme: &'static str) -> Row {
        Row { scheme, runs: vec![], failed: None }
    }

    fn time(&self) -> Option<Spread> {
        Spread::of(&self.runs.iter().map(|run| run.seconds).collect::<Vec<_>>())
    }

    /// The median of a counter of all runs.
    fn median(&self, of: impl Fn(&Totals) -> Option<u64>) -> Option<u64> {
        let values: Vec<f64> = self.runs.iter().filter_map(|run| of(&run.totals)).map(|value| value as f64).collect();
        Spread::of(&values).map(|spread| spread.median.round() as u64)
    }

    /// `base`: the time of the first scheme.
    fn cells(&self, base: Option<f64>) -> [String; 9] {
        let none = || "–".to_owned();
        let count = |of: fn(&Totals) -> Option<u64>| self.median(of).map_or_else(none, |count| count.to_string());
        let time = self.time();
        [
            self.scheme.to_owned(),
            time.map_or_else(none, |time| format!("{:.3}", time.median)),
            time.map_or_else(none, |time| format!("{:.3}–{:.3}", time.min, time.max)),
            time.zip(base).map_or_else(none, |(time, base)| format!("{:.2}", time.median / base)),
            count(|totals| totals.page_faults),
            count(|totals| Some(totals.prefetches)),
            count(|totals| totals.prefetched_pages),
            count(|totals| totals.invalidated_pages),
            count(|totals| Some(totals.pinned_peak / 1024)),
        ]
    }
}

impl Report {
    /// Whether a run has failed.
    pub fn has_failed(&self) -> bool {
        self.rows.iter().any(|row| row.failed.is_some())
    }

    /// The table: counts are of all processes together, the median of all runs.
    pub fn text(&self) -> String {
        let what = if self.what.is_empty() { String::new() } else { format!(": {}", self.what) };
        let processes = self.rows.iter().filter_map(|row| row.median(|totals| Some(totals.processes))).max();
        let processes = processes.map_or(String::new(), |count| format!("; all {count} processes together"));
        let mut text = format!("{}{what}{processes}\n", self.name);
        let base = self.rows.first().and_then(Row::time).map(|time| time.median);
        let lines: Vec<[String; 9]> = [HEADER.map(str::to_owned)]
            .into_iter()
            .chain(self.rows.iter().filter(|row| !row.runs.is_empty()).map(|row| row.cells(base)))
            .collect();
        for line in columns(&lines, |column| column > 0).lines() {
            let _ = writeln!(text, "  {line}");
        }
        for row in &self.rows {
            if let Some(why) = &row.failed {
                let _ = writeln!(text, "  {}: FAILED: {why}", row.scheme);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(scheme: &'static str, times: &[f64], faults: u64) -> Row {
        let totals = Totals { processes: 4, page_faults: Some(faults), pinned_peak: 2048, ..Totals::default() };
        let runs = times.iter().map(|&seconds| Run { seconds, totals }).collect();
        Row { scheme, runs, failed: None }
    }

    #[test]
    fn each_scheme_has_a_line_with_its_ratio() {
        let rows = vec![row("pin-down", &[1.0, 3.0, 2.0], 0), row("odp-native", &[4.0], 70)];
        let report = Report { name: "x".into(), what: "y".into(), rows };
        let text = report.text();
        let native = text.lines().find(|line| line.contains("odp-native")).unwrap();
        let cells: Vec<&str> = native.split_whitespace().collect();
        assert_eq!(cells, ["odp-native", "4.000", "4.000–4.000", "2.00", "70", "0", "–", "–", "2"]);
        assert!(text.starts_with("x: y; all 4 processes together\n"), "{text}");
    }

    #[test]
    fn a_failure_is_named() {
        let failed = Row { failed: Some("no".into()), ..Row::new("pin-down") };
        let report = Report { name: "x".into(), what: String::new(), rows: vec![failed] };
        assert!(report.has_failed() && report.text().contains("pin-down: FAILED: no"));
    }
}
