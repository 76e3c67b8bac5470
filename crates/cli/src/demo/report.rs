//! The demonstration's results, as a table or JSON.

use super::steps::{Step, Unit};
use super::verify::Verified;
use serde_json::{Value, json};
use std::fmt::Write;

/// All results.
pub(super) struct Report {
    stage: String,
    rows: Vec<Row>,
    pub verified: Option<Verified>,
}

struct Row {
    title: &'static str,
    program: &'static str,
    unit: Unit,
    figures: Vec<f64>,
}

impl Report {
    /// An empty report; `stage` says where the programs ran.
    pub fn new(stage: String) -> Self {
        Report { stage, rows: vec![], verified: None }
    }

    /// Adds a figure of a step.
    pub fn add(&mut self, step: &Step, figure: f64) {
        match self.rows.iter_mut().find(|row| row.title == step.title) {
            Some(row) => row.figures.push(figure),
            None => {
                self.rows.push(Row { title: step.title, program: step.program, unit: step.unit, figures: vec![figure] })
            }
        }
    }

    /// The report as a text table.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n\n{:<24}{:>12}{:>24}{:>12}\n", self.stage, "", "median", "range", "iperf3 ×");
        for row in &self.rows {
            let (low, high) = range(&row.figures);
            let ratio = self.ratio(row).map_or(String::new(), |ratio| format!("{ratio:.2}"));
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:<24}{:>12}{:>24}{:>12}",
                row.title,
                row.unit.shown(median(&row.figures)),
                format!("{low:.2} – {high:.2}"),
                ratio
            );
        }
        if let Some(verified) = &self.verified {
            let _ = writeln!(text, "{:<24}{verified}", "weir-verify");
        }
        text
    }

    /// The report as JSON.
    pub fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let (low, high) = range(&row.figures);
            json!({
                "title": row.title, "program": row.program, "unit": row.unit, "figures": row.figures,
                "median": median(&row.figures), "low": low, "high": high, "ratio_to_iperf3": self.ratio(row),
            })
        });
        json!({ "stage": self.stage, "rows": rows.collect::<Vec<_>>(), "verified": self.verified })
    }

    /// The median over rounds of a throughput divided by iperf3's of the same round; `None` if `row` is no throughput.
    fn ratio(&self, row: &Row) -> Option<f64> {
        let iperf = self.rows.iter().find(|row| row.program == "iperf3")?;
        if row.unit != iperf.unit || row.program == iperf.program {
            return None;
        }
        let ratios: Vec<f64> = row.figures.iter().zip(&iperf.figures).map(|(ours, its)| ours / its).collect();
        Some(median(&ratios))
    }
}

/// The median of at least one figure; with an even count, the lower of the two middle ones.
fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() - 1) / 2]
}

fn range(figures: &[f64]) -> (f64, f64) {
    figures.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &f| (low.min(f), high.max(f)))
}

#[cfg(test)]
mod tests {
    use super::super::steps::ROUND;
    use super::*;

    #[test]
    fn medians_ranges_and_ratios_by_round() {
        let mut report = Report::new("somewhere".into());
        for (iperf, write) in [(2.0, 4.0), (1.0, 3.0), (4.0, 4.0)] {
            report.add(&ROUND[0], iperf);
            report.add(&ROUND[1], write);
        }
        report.add(&ROUND[3], 5.5);
        let json = report.json();
        assert_eq!(json["rows"][1]["median"], 4.0);
        assert_eq!(json["rows"][1]["ratio_to_iperf3"], 2.0);
        assert_eq!(json["rows"][0]["ratio_to_iperf3"], Value::Null);
        assert_eq!((&json["rows"][0]["low"], &json["rows"][0]["high"]), (&json!(1.0), &json!(4.0)));
        assert_eq!(json["rows"][2]["unit"], "us");
        let text = report.text();
        assert!(text.contains("5.50 µs") && text.contains("3.00 – 4.00"), "{text}");
    }
}
