//! An advice, and phrases for its text.

use super::named::Named;
use crate::findings::{Effect, Findings};
use crate::search::Stage;
use crate::units;
use serde::{Deserialize, Serialize};

/// What to do about one kind of setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    pub about: About,
    pub text: String,
    /// How to do this in programs and libraries; empty if there is nothing to do.
    pub settings: Vec<Named>,
}

/// What an advice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum About {
    Size,
    Outstanding,
    Signal,
    Alignment,
    Wake,
    Place,
}

/// The effects of a stage.
pub fn of_stage(findings: &Findings, stage: Stage) -> Vec<&Effect> {
    findings.effects.iter().filter(|effect| effect.stage == stage).collect()
}

/// "5.1 % more throughput with messages of 1 MiB (95 %: +4.0 to +6.2 %)".
pub fn more(effect: &Effect) -> String {
    let percent = (effect.ratio.mean - 1.0) * 100.0;
    let word = if percent >= 0.0 { "more" } else { "less" };
    let (amount, size, range) = (digits(percent.abs()), units::size(effect.size), effect.ratio.range());
    format!("{amount} % {word} throughput with messages of {size} (95 %: {range})")
}

/// "no difference that was measured", with the widest interval.
pub fn no_difference(about: About, what: &str, effects: &[&Effect]) -> Option<Advice> {
    let widest = effects.iter().max_by(|a, b| a.ratio.half_width().total_cmp(&b.ratio.half_width()))?;
    let text = match widest.ratio.interval {
        Some(_) => {
            format!("{what} no difference that was measured ({} with 95 % confidence).", widest.ratio.range())
        }
        None => format!("{what} no difference that was measured, but there was no time for enough rounds."),
    };
    Some(Advice { about, text, settings: vec![] })
}

fn digits(percent: f64) -> String {
    if percent >= 10.0 { format!("{percent:.0}") } else { format!("{percent:.1}") }
}
