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

/// The effect that is farthest from equality, of those with a setting that is not clearly opposite with another size.
pub fn largest<'a>(effects: &[&'a Effect], which: fn(&Effect) -> bool) -> Option<&'a Effect> {
    let opposite = |effect: &Effect| {
        let (faster, slower) = sizes(effects, &effect.setting);
        !faster.is_empty() && !slower.is_empty()
    };
    let agreed = effects.iter().copied().filter(|effect| which(effect) && !opposite(effect));
    agreed.max_by(|a, b| a.distance().total_cmp(&b.distance()))
}

/// "Polling is faster with messages of 1 MiB (+5.0 %), and slower with 32 KiB (-3.1 %). ..." of each setting that is
/// clearly faster with some sizes and slower with others; `None` if there is no such setting.
pub fn by_size(effects: &[&Effect], name: impl Fn(&Effect) -> String) -> Option<String> {
    let list = |effects: &[&Effect]| {
        let each = effects.iter().map(|effect| format!("{} ({})", units::size(effect.size), effect.ratio.percent()));
        each.collect::<Vec<_>>().join(", ")
    };
    let mut text = String::new();
    for (at, effect) in effects.iter().enumerate() {
        let (faster, slower) = sizes(effects, &effect.setting);
        let again = effects[..at].iter().any(|before| before.setting == effect.setting);
        if !again && !faster.is_empty() && !slower.is_empty() {
            let (name, faster, slower) = (name(effect), list(&faster), list(&slower));
            text += &format!("{name} is faster with messages of {faster}, and slower with {slower}. ");
        }
    }
    (!text.is_empty()).then(|| text + "Choose by the size that you send.")
}

/// The effects of a setting that are clearly faster, and clearly slower.
fn sizes<'a>(effects: &[&'a Effect], setting: &str) -> (Vec<&'a Effect>, Vec<&'a Effect>) {
    let clear = effects.iter().copied().filter(|effect| effect.setting == setting && effect.clear);
    clear.partition(|effect| effect.faster())
}

/// "no difference that was measured", with the widest interval; `None` if an effect is clear.
pub fn no_difference(about: About, what: &str, effects: &[&Effect]) -> Option<Advice> {
    if effects.iter().any(|effect| effect.clear) {
        return None;
    }
    let widest = effects.iter().max_by(|a, b| a.ratio.half_width().total_cmp(&b.ratio.half_width()))?;
    let text = match widest.ratio.interval {
        Some(_) => {
            format!("{what} no difference that was measured ({} with 95 % confidence).", widest.ratio.range())
        }
        None => format!("{what} no difference that was measured, but there was no time for enough rounds."),
    };
    Some(Advice::without_settings(about, text))
}

impl Advice {
    /// An advice for which nothing has to be set.
    pub fn without_settings(about: About, text: impl Into<String>) -> Advice {
        Advice { about, text: text.into(), settings: vec![] }
    }
}

fn digits(percent: f64) -> String {
    if percent >= 10.0 { format!("{percent:.0}") } else { format!("{percent:.1}") }
}
