//! Claims: what a paper says, what was measured here, and whether both agree.

use crate::statistics::{median, range};
use serde::Serialize;

/// A claim holds if it holds at this share of the seeds at least.
pub const ENOUGH: f64 = 0.9;

/// A statement of a paper, and its measurement.
#[derive(Clone, Debug)]
pub struct Claim {
    /// What is claimed, as the tables print it.
    pub name: String,
    /// In the paper's words or figures.
    pub paper: Paper,
    /// The value measured with Weir, in `unit`; NaN if it was not measured. With several seeds, the median.
    pub weir: f64,
    /// The values of all seeds, if there are several.
    pub values: Vec<f64>,
    /// Unit of both values and of the bounds.
    pub unit: &'static str,
    /// Bounds within which `weir` agrees with the paper.
    pub low: f64,
    pub high: f64,
    pub kind: Kind,
    /// Where the paper says it; empty: where the experiment's `source` says.
    pub source: &'static str,
    /// Another observation of the papers that contradicts this one; empty: none is known.
    pub conflict: &'static str,
    /// If the claim fails: what the model lacks.
    pub lacks: &'static str,
}

/// The paper's side of a claim.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Paper {
    Figure(f64),
    Words(String),
}

/// How much the observation was used when the model was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A parameter of the profile was fixed from this observation.
    Calibrated,
    /// The mechanism was chosen or changed after this observation was seen.
    Shaped,
    /// Neither: it follows from the mechanisms, and from parameters that were fixed from other observations.
    Predicted,
}

/// A claim as `--json` prints it.
#[derive(Serialize)]
pub struct Shown<'a> {
    name: &'a str,
    paper: &'a Paper,
    weir: Option<f64>,
    unit: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    source: &'a str,
    /// Bounds; `null` if there is none on that side.
    low: Option<f64>,
    high: Option<f64>,
    tolerance: String,
    kind: Kind,
    holds: bool,
    /// The number of seeds at which it holds, and of all seeds.
    seeds: (usize, usize),
    /// The lowest and the highest value of all seeds.
    spread: (Option<f64>, Option<f64>),
    #[serde(skip_serializing_if = "str::is_empty")]
    conflict: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    lacks: Option<&'a str>,
}

impl Claim {
    /// The paper has a figure; `share` is the tolerance as a share of it.
    pub fn near(kind: Kind, name: impl Into<String>, paper: f64, share: f64, weir: f64, unit: &'static str) -> Claim {
        let (low, high) = (paper * (1.0 - share), paper * (1.0 + share));
        Claim { paper: Paper::Figure(paper), ..Claim::between(kind, name, "", (low, high), weir, unit) }
    }

    /// The paper has a figure and a range.
    pub fn within(
        kind: Kind,
        name: impl Into<String>,
        paper: f64,
        bounds: (f64, f64),
        weir: f64,
        unit: &'static str,
    ) -> Claim {
        Claim { paper: Paper::Figure(paper), ..Claim::between(kind, name, "", bounds, weir, unit) }
    }

    /// The paper says it in words, which mean a value between two bounds.
    pub fn between(
        kind: Kind,
        name: impl Into<String>,
        paper: &str,
        (low, high): (f64, f64),
        weir: f64,
        unit: &'static str,
    ) -> Claim {
        let (name, paper) = (name.into(), Paper::Words(paper.into()));
        Claim { name, paper, weir, values: vec![], unit, low, high, kind, source: "", conflict: "", lacks: "" }
    }

    /// The paper says it in words, which mean at least `low`.
    pub fn at_least(
        kind: Kind,
        name: impl Into<String>,
        paper: &str,
        low: f64,
        weir: f64,
        unit: &'static str,
    ) -> Claim {
        Claim::between(kind, name, paper, (low, f64::INFINITY), weir, unit)
    }

    /// The paper says it in words, which mean at most `high`.
    pub fn at_most(
        kind: Kind,
        name: impl Into<String>,
        paper: &str,
        high: f64,
        weir: f64,
        unit: &'static str,
    ) -> Claim {
        Claim::between(kind, name, paper, (f64::NEG_INFINITY, high), weir, unit)
    }

    /// Adds where the paper says it, by figure or section.
    pub fn from(self, source: &'static str) -> Claim {
        Claim { source, ..self }
    }

    /// Adds which other observation of the papers contradicts this one.
    pub fn conflicts(self, conflict: &'static str) -> Claim {
        Claim { conflict, ..self }
    }

    /// Adds what the model lacks if the claim fails.
    pub fn lacks(self, lacks: &'static str) -> Claim {
        Claim { lacks, ..self }
    }

    /// In a live run: adds what keeps two processes on one machine from showing it, in place of what the model lacks.
    pub fn lacks_live(self, live: bool, lacks: &'static str) -> Claim {
        if live { self.lacks(lacks) } else { self }
    }

    /// The same claims of further seeds: each claim has the values of all seeds, and their median.
    pub fn over_seeds(claims: Vec<Claim>, others: &[Vec<Claim>]) -> Vec<Claim> {
        let merge = |claim: Claim| {
            let same = |all: &Vec<Claim>| all.iter().find(|c| c.name == claim.name).map_or(f64::NAN, |c| c.weir);
            let values: Vec<f64> = std::iter::once(claim.weir).chain(others.iter().map(same)).collect();
            Claim { weir: median(&values), values, ..claim }
        };
        if others.is_empty() { claims } else { claims.into_iter().map(merge).collect() }
    }

    /// Whether the claim holds, at [`ENOUGH`] of the seeds. It does not where it was not measured, or where an operation
    /// did not complete (infinity).
    pub fn holds(&self) -> bool {
        let (holding, seeds) = self.seeds();
        holding as f64 >= ENOUGH * seeds as f64
    }

    /// The number of seeds at which the claim holds, and of all seeds.
    pub fn seeds(&self) -> (usize, usize) {
        let within = |value: &&f64| value.is_finite() && **value >= self.low && **value <= self.high;
        let all = self.all();
        (all.iter().filter(within).count(), all.len())
    }

    /// The lowest and the highest value of all seeds; NaN if it was not measured with each.
    pub fn spread(&self) -> (f64, f64) {
        let all = self.all();
        if all.iter().any(|value| value.is_nan()) { (f64::NAN, f64::NAN) } else { range(all) }
    }

    fn all(&self) -> &[f64] {
        if self.values.is_empty() { std::slice::from_ref(&self.weir) } else { &self.values }
    }

    /// "18 of 20".
    pub fn seeds_text(&self) -> String {
        let (holding, seeds) = self.seeds();
        format!("{holding} of {seeds}")
    }

    /// The spread over several seeds, "1.20 – 1.45"; empty with one seed.
    pub fn spread_text(&self) -> String {
        let (low, high) = self.spread();
        match (self.values.len(), low.is_finite() && high.is_finite()) {
            (0, _) => String::new(),
            (_, true) => format!("{} – {}", figure(low), figure(high)),
            (_, false) => "not always measured".to_owned(),
        }
    }

    /// The bounds as text.
    pub fn tolerance(&self) -> String {
        match (self.low.is_finite(), self.high.is_finite()) {
            (true, true) => format!("{} – {}", figure(self.low), figure(self.high)),
            (true, false) => format!("≥ {}", figure(self.low)),
            (false, _) => format!("≤ {}", figure(self.high)),
        }
    }

    /// The paper's value or words, as the tables print them.
    pub fn paper_text(&self) -> String {
        match &self.paper {
            Paper::Figure(value) => figure(*value),
            Paper::Words(words) => words.clone(),
        }
    }

    /// Weir's value with three significant digits, or "not measured".
    pub fn weir_text(&self) -> String {
        if self.weir.is_finite() { figure(self.weir) } else { "not measured".to_owned() }
    }

    /// What the model lacks, if the claim fails and this is known.
    pub fn missing_mechanism(&self) -> Option<&str> {
        Some(self.lacks).filter(|text| !self.holds() && !text.is_empty())
    }

    /// The claim for `--json`, numbers with six significant digits.
    pub fn shown(&self) -> Shown<'_> {
        let finite = |value: f64| Some(digits(value)).filter(|v| v.is_finite());
        Shown {
            name: &self.name,
            paper: &self.paper,
            weir: finite(self.weir),
            unit: self.unit,
            source: self.source,
            low: finite(self.low),
            high: finite(self.high),
            tolerance: self.tolerance(),
            kind: self.kind,
            holds: self.holds(),
            seeds: self.seeds(),
            spread: (finite(self.spread().0), finite(self.spread().1)),
            conflict: self.conflict,
            lacks: self.missing_mechanism(),
        }
    }
}

impl Kind {
    /// The name of the kind, as the tables print it.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Calibrated => "calibrated",
            Kind::Shaped => "shaped",
            Kind::Predicted => "predicted",
        }
    }
}

/// Rounded to six significant digits.
fn digits(value: f64) -> f64 {
    if !value.is_finite() || value == 0.0 {
        return value;
    }
    let unit = 10f64.powi(5 - value.abs().log10().floor() as i32);
    (value * unit).round() / unit
}

/// To three significant digits; whole numbers in full; "< 0.001" below a thousandth.
pub fn figure(value: f64) -> String {
    let size = value.abs();
    match size {
        s if value.fract() == 0.0 || s >= 100.0 => format!("{value:.0}"),
        s if s >= 10.0 => format!("{value:.1}"),
        s if s >= 1.0 => format!("{value:.2}"),
        s if s >= 0.001 => format!("{value:.3}"),
        _ => "< 0.001".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Kind::{Calibrated, Predicted};

    #[test]
    fn claims_hold_within_their_bounds_and_fail_without_a_measurement() {
        assert!(Claim::near(Calibrated, "a", 2.0, 0.1, 2.2, "ms").holds());
        assert!(!Claim::near(Calibrated, "a", 2.0, 0.1, 2.3, "ms").holds());
        assert!(Claim::within(Predicted, "a", 4.5, (3.4, 5.5), 3.5, "ms").holds());
        assert!(Claim::at_least(Predicted, "a", "hundreds", 100.0, 100.0, "").holds());
        assert!(!Claim::at_most(Predicted, "a", "none", 0.0, 1.0, "").holds());
        for claim in [
            Claim::at_least(Predicted, "a", "", 0.0, f64::NAN, ""),
            Claim::at_most(Predicted, "a", "", 0.0, f64::NAN, ""),
            Claim::near(Predicted, "a", 1.0, 0.5, f64::NAN, ""),
            Claim::at_least(Predicted, "a", "", 0.0, f64::INFINITY, ""),
            Claim::at_most(Predicted, "a", "", 0.0, f64::NEG_INFINITY, ""),
        ] {
            assert!(!claim.holds(), "{claim:?}");
            assert_eq!(claim.weir_text(), "not measured");
            assert_eq!(serde_json::to_value(claim.shown()).unwrap()["weir"], serde_json::Value::Null);
        }
    }

    #[test]
    fn a_claim_holds_at_most_of_its_seeds() {
        let one = |value| vec![Claim::at_most(Predicted, "a", "", 1.0, value, "ms")];
        let over = |values: &[f64]| {
            let others: Vec<_> = values[1..].iter().map(|value| one(*value)).collect();
            Claim::over_seeds(one(values[0]), &others).remove(0)
        };
        let mut values = [0.5; 20];
        (values[0], values[7], values[8]) = (9.0, 3.0, 0.1);
        let claim = over(&values);
        assert!(claim.holds(), "18 of 20");
        assert_eq!((claim.weir, claim.seeds(), claim.spread()), (0.5, (18, 20), (0.1, 9.0)));
        assert_eq!((claim.seeds_text().as_str(), claim.spread_text().as_str()), ("18 of 20", "0.100 – 9"));
        values[1] = f64::NAN;
        let claim = over(&values);
        assert!(!claim.holds() && claim.seeds() == (17, 20));
        assert_eq!(claim.spread_text(), "not always measured");
        let alone = one(0.5).remove(0);
        assert_eq!((alone.seeds(), alone.spread_text()), ((1, 1), String::new()));
        let json = serde_json::to_value(claim.shown()).unwrap();
        assert_eq!(json["seeds"], serde_json::json!([17, 20]));
    }

    #[test]
    fn json_has_all_fields_and_lacks_only_for_failing_claims() {
        let claim = Claim::near(Calibrated, "NAK", 0.5, 0.1, 0.52, "ms").lacks("it lacks");
        let value = serde_json::to_value(claim.shown()).unwrap();
        assert_eq!(
            (&value["paper"], &value["kind"], &value["holds"]),
            (&0.5.into(), &"calibrated".into(), &true.into())
        );
        assert!(value.get("lacks").is_none());
        let failing = Claim { weir: 9.0, ..claim };
        assert_eq!(serde_json::to_value(failing.shown()).unwrap()["lacks"], "it lacks");
        let live = |live| failing.clone().lacks_live(live, "two processes");
        assert_eq!([false, true].map(live).map(|claim| claim.lacks), ["it lacks", "two processes"]);
        let words = Claim::at_least(Predicted, "n", "hundreds", 100.0, 5.0, "times");
        let value = serde_json::to_value(words.shown()).unwrap();
        assert_eq!((&value["paper"], &value["high"]), (&"hundreds".into(), &serde_json::Value::Null));
        assert_eq!(words.tolerance(), "≥ 100");
    }

    #[test]
    fn json_has_six_significant_digits() {
        assert_eq!([0.0, 0.141 * 1.15, 4500.0, -0.1 * 3.0].map(digits), [0.0, 0.16215, 4500.0, -0.3]);
        assert!(digits(f64::NAN).is_nan() && digits(f64::INFINITY).is_infinite());
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(
            [0.0, 3.0, 7e-6, 0.1414, 4.5678, 45.67, 456.7, 3021.4].map(figure),
            ["0", "3", "< 0.001", "0.141", "4.57", "45.7", "457", "3021"]
        );
    }
}
