//! Observations of the paper beside the figures of this machine.

use serde::Serialize;
use std::fmt::Write;

/// An observation of the paper, and whether the figures confirm it.
#[derive(Clone, Debug, Serialize)]
pub struct Observation {
    pub paper: &'static str,
    pub here: String,
    /// `None`: the figures that it needs are missing.
    pub holds: Option<bool>,
}

/// All observations as text.
pub fn render(observations: &[Observation]) -> String {
    let mut text = "\nThe paper's observations, and the figures of this machine:\n".to_owned();
    for Observation { paper, here, holds } in observations {
        let verdict = match holds {
            Some(true) => "holds",
            Some(false) => "does not hold",
            None => "unknown",
        };
        let _ = writeln!(text, "  {verdict:<14}  {paper}\n{:18}{here}", "");
    }
    text
}

/// A figure in three digits or so.
pub fn cell(figure: Option<f64>) -> String {
    match figure {
        None => "–".into(),
        Some(f) if f.abs() < 10.0 => format!("{f:.2}"),
        Some(f) if f.abs() < 100.0 => format!("{f:.1}"),
        Some(f) => format!("{f:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_stands_before_each_observation() {
        let of = |holds| Observation { paper: "It is so.", here: format!("{} µs", cell(Some(12.34))), holds };
        let text = render(&[of(Some(true)), of(Some(false)), of(None)]);
        let verdicts = ["holds           It is so.", "does not hold   It is so.", "unknown         It is so."];
        assert!(verdicts.iter().all(|verdict| text.contains(verdict)), "{text}");
        assert!(text.contains("\n                  12.3 µs\n"), "{text}");
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!([None, Some(0.004), Some(99.96), Some(1234.5)].map(cell), ["–", "0.00", "100.0", "1234"]);
    }
}
