//! The results of benches, as a table and as JSON.

use super::measure::Unit;
use super::rows::Bar;
use serde::Serialize;
use std::fmt::Write;

/// The result of a comparison.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub name: String,
    pub what: String,
    /// Description of the baseline.
    pub against: String,
    /// Median, in `unit`.
    pub weir: Option<f64>,
    /// Median, in `unit`; for a fixed baseline its figure.
    pub baseline: Option<f64>,
    /// Subject divided by baseline, round by round.
    pub ratio: Option<Spread>,
    /// `None`: the ratio is only shown.
    pub bar: Option<String>,
    /// `None` without a bar, or if a run failed.
    pub holds: Option<bool>,
    pub unit: &'static str,
    /// Distance of the two cores before and after each run, nanoseconds; `None` if it cannot be measured.
    pub cores_ns: Option<Spread>,
    /// Rounds in which both sides have a figure.
    pub rounds: usize,
    /// Conditions that affect the figures, or why the run failed.
    pub note: Option<String>,
    /// It cannot run here, for the reason in `note`.
    pub skipped: bool,
    #[serde(skip)]
    pub failed: bool,
}

/// Median and range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Of `values`; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Spread { median, min, max })
    }
}

impl Outcome {
    /// From the figures of all rounds, in the base unit.
    pub fn measured(name: &str, what: &str, against: String, unit: Unit, bar: Option<Bar>, rounds: &Rounds) -> Self {
        let ratios: Vec<f64> = rounds.weir.iter().zip(&rounds.baseline).map(|(a, b)| a / b).collect();
        let ratio = Spread::of(&ratios);
        Outcome {
            name: name.to_owned(),
            what: what.to_owned(),
            against,
            weir: Spread::of(&rounds.weir).map(|s| unit.scale(s.median)),
            baseline: Spread::of(&rounds.baseline).map(|s| unit.scale(s.median)),
            ratio,
            bar: bar.map(|b| b.to_string()),
            holds: bar.zip(ratio).map(|(bar, ratio)| bar.holds(ratio.median)),
            unit: unit.name(),
            cores_ns: Spread::of(&rounds.cores_ns),
            rounds: ratios.len(),
            note: None,
            skipped: false,
            failed: false,
        }
    }

    /// Marks the comparison as failed, for the reason `why`.
    pub fn failed(mut self, why: String) -> Self {
        (self.note, self.holds, self.failed) = (Some(why), None, true);
        self
    }

    /// Marks the comparison as one that cannot run here, for the reason `why`.
    pub fn skipped(mut self, why: String) -> Self {
        (self.note, self.holds, self.skipped) = (Some(why), None, true);
        self
    }

    fn verdict(&self) -> &'static str {
        match self.holds {
            _ if self.failed => "FAILED",
            _ if self.skipped => "skipped",
            Some(true) => "holds",
            Some(false) => "falls short",
            None => "",
        }
    }
}

/// Figures of one comparison, round by round.
#[derive(Default)]
pub struct Rounds {
    /// Weir's figures, in the base unit.
    pub weir: Vec<f64>,
    /// The baseline's figures, in the base unit.
    pub baseline: Vec<f64>,
    /// Distances of the two cores, ns.
    pub cores_ns: Vec<f64>,
}

/// The results as a text table.
pub fn render(outcomes: &[Outcome]) -> String {
    let header = ["bench", "Weir", "against", "", "ratio", "range", "bar", "", "cores ns"].map(str::to_owned);
    let mut lines = vec![header];
    let mut last = "";
    for outcome in outcomes {
        let figure = |f: Option<f64>| f.map_or(String::from("–"), digits);
        let first = outcome.name != last;
        last = &outcome.name;
        lines.push([
            if first { outcome.name.clone() } else { String::new() },
            if first { format!("{} {}", figure(outcome.weir), outcome.unit) } else { String::new() },
            outcome.against.clone(),
            figure(outcome.baseline),
            outcome.ratio.map_or("–".into(), |r| format!("{:.2}", r.median)),
            outcome.ratio.map_or("–".into(), |r| format!("{:.2}–{:.2}", r.min, r.max)),
            outcome.bar.clone().unwrap_or_default(),
            outcome.verdict().into(),
            outcome.cores_ns.map_or("–".into(), |c| format!("{:.0}–{:.0}", c.min, c.max)),
        ]);
    }
    let mut text = columns(&lines, |column| matches!(column, 1 | 3 | 4));
    let mut last_note = "";
    for outcome in outcomes {
        if let Some(note) = outcome.note.as_deref().filter(|&note| note != last_note) {
            let _ = writeln!(text, "{}: {note}", outcome.name);
            last_note = note;
        }
    }
    text
}

/// Lines of cells, of one width in each column; the cells of a column that `ends_together` begin with blanks.
pub fn columns(lines: &[impl AsRef<[String]>], ends_together: impl Fn(usize) -> bool) -> String {
    let lines: Vec<&[String]> = lines.iter().map(AsRef::as_ref).collect();
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..).map_while(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if ends_together(column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

fn digits(figure: f64) -> String {
    let decimals = match figure.abs() {
        f if f < 10.0 => 2,
        f if f < 1000.0 => 1,
        _ => 0,
    };
    format!("{figure:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_range() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn ratios_are_computed_round_by_round() {
        let rounds = Rounds { weir: vec![2e9, 4e9, 3e9], baseline: vec![4e9, 4e9, 4e9], cores_ns: vec![30.0] };
        let bar = Some(Bar::AtLeast(0.8));
        let outcome = Outcome::measured("x", "", "y".into(), Unit::BytesPerSecond, bar, &rounds);
        assert_eq!(outcome.ratio, Some(Spread { median: 0.75, min: 0.5, max: 1.0 }));
        assert_eq!((outcome.weir, outcome.holds), (Some(3.0), Some(false)));
        assert!(render(&[outcome]).contains("falls short"));
    }

    #[test]
    fn a_failed_run_neither_holds_nor_falls_short() {
        let none = Rounds::default();
        let bar = Some(Bar::AtMost(1.0));
        let outcome = Outcome::measured("x", "", "y".into(), Unit::Seconds, bar, &none).failed("no".into());
        assert_eq!(outcome.holds, None);
        let text = render(&[outcome]);
        assert!(text.contains("FAILED") && text.contains("x: no"), "{text}");
    }

    #[test]
    fn a_skipped_run_is_shown_with_its_reason() {
        let bar = Some(Bar::AtMost(1.0));
        let outcome = Outcome::measured("x", "", "y".into(), Unit::Seconds, bar, &Rounds::default());
        let outcome = outcome.skipped("p is not installed".into());
        assert!(outcome.holds.is_none() && !outcome.failed);
        let text = render(&[outcome]);
        assert!(text.contains("skipped") && text.contains("x: p is not installed"), "{text}");
    }
}
