//! Advice on signalling, alignment, wake-ups and places.

use super::entry::{About, Advice, by_size, largest, more, no_difference, of_stage};
use super::named;
use crate::findings::{Effect, Findings, Verdict};
use crate::search::Stage;
use crate::units::{self, figure};

/// Polling costs clearly more CPU time from this factor.
const COSTS_MORE: f64 = 1.5;

/// Which work requests to signal.
pub fn signal(findings: &Findings) -> Option<Advice> {
    let effects = of_stage(findings, Stage::Signal);
    let name = |word: &str| match word {
        "1" => "every one",
        "half" => "every B/2-th",
        _ => "by equation 2",
    };
    let instead = |e: &Effect| format!("Signalling {} instead of {}", name(&e.setting), name(&e.against));
    let Some(effect) = largest(&effects, |effect| effect.clear) else {
        let sizes = by_size(&effects, instead).map(|text| Advice::without_settings(About::Signal, text));
        return sizes
            .or_else(|| no_difference(About::Signal, "Which send work requests are signalled makes", &effects));
    };
    let best = findings.best.iter().find(|best| best.size == effect.size)?;
    let which = match best.period {
        0 | 1 => "Signal every send work request".to_owned(),
        n => format!("Signal one in {n} send work requests"),
    };
    let text = format!(
        "{which} with {} outstanding messages of {}. {} gives {}.",
        best.outstanding,
        units::size(best.size),
        instead(effect),
        more(effect)
    );
    Some(Advice { about: About::Signal, text, settings: named::signal(best.period) })
}

/// How to align messages.
pub fn alignment(findings: &Findings) -> Option<Advice> {
    let effects = of_stage(findings, Stage::Offset);
    let Some(worst) = largest(&effects, Effect::slower) else {
        let sizes = by_size(&effects, |effect| format!("An offset of {} bytes", effect.setting));
        let sizes = sizes.map(|text| Advice::without_settings(About::Alignment, text));
        return sizes.or_else(|| no_difference(About::Alignment, "The alignment of messages makes", &effects));
    };
    // Offset 64 is slower than a page's begin: lines are not enough.
    let lines: Vec<&Effect> = effects.iter().copied().filter(|effect| effect.setting == "64").collect();
    let bytes = if largest(&lines, Effect::slower).is_some() { 4096 } else { 64 };
    let text = format!("Align messages on {bytes} bytes. An offset of {} bytes gives {}.", worst.setting, more(worst));
    Some(Advice { about: About::Alignment, text, settings: named::aligned(bytes) })
}

/// Whether to poll or to sleep.
pub fn wake(findings: &Findings) -> Option<Advice> {
    let effects = of_stage(findings, Stage::Wake);
    if let Some(best) = largest(&effects, Effect::faster) {
        let text = format!(
            "If CPU time matters less than throughput, poll for completions {}: this gives {}{}.",
            side(best),
            more(best),
            cpu_text(best)
        );
        return Some(Advice { about: About::Wake, text, settings: named::poll() });
    }
    if let Some(text) = by_size(&effects, |effect| format!("Polling {}", side(effect))) {
        return Some(Advice::without_settings(About::Wake, text));
    }
    if let Some(worst) = largest(&effects, Effect::slower) {
        let (side, more, cpu) = (side(worst), more(worst), cpu_text(worst));
        let text = format!("Sleep until completions come: polling {side} gives {more}{cpu}.");
        return Some(Advice { about: About::Wake, text, settings: named::sleep() });
    }
    let costs = |e: &&&Effect| {
        e.setting == "both"
            && e.verdict != Verdict::Unknown
            && cpu(e).is_some_and(|(polls, sleeps)| polls >= COSTS_MORE * sleeps)
    };
    let Some(costs) = effects.iter().find(costs) else {
        return no_difference(About::Wake, "Whether the sides poll or sleep makes", &effects);
    };
    let (polls, sleeps) = cpu(costs)?;
    let text = format!(
        "Sleep until completions come: polling is not clearly faster, and takes {} instead of {} CPU seconds per GB \
         with messages of {}.",
        figure(polls),
        figure(sleeps),
        units::size(costs.size)
    );
    Some(Advice { about: About::Wake, text, settings: named::sleep() })
}

/// Where to run the sides.
pub fn place(findings: &Findings) -> Option<Advice> {
    let effects = of_stage(findings, Stage::Place);
    let best = largest(&effects, Effect::faster);
    let choose = best.map(|e| format!("Choose “{}”: this gives {}.", e.setting, more(e)));
    let sizes = by_size(&effects, |effect| format!("“{}”", effect.setting));
    let avoid = largest(&effects, Effect::slower).map(|e| format!("Avoid “{}”: it gives {}.", e.setting, more(e)));
    let kernel = (choose.is_none() && sizes.is_none() && avoid.is_some())
        .then(|| "Let the kernel choose the CPUs: no other place is clearly faster.".to_owned());
    let text: Vec<String> = [kernel, choose, sizes, avoid].into_iter().flatten().collect();
    if text.is_empty() {
        return no_difference(About::Place, "Where the sides run makes", &effects);
    }
    let mut advice = Advice::without_settings(About::Place, text.join(" "));
    let mut settings = findings.of_stage(Stage::Place).flat_map(|measured| &measured.settings);
    if let Some(setting) = best.and_then(|best| settings.find(|setting| setting.name == best.setting)) {
        for (side, place) in [("sender", &setting.sender), ("receiver", &setting.receiver)] {
            let mut all = named::place(place);
            all.iter_mut().for_each(|named| named.program += &format!(", {side}"));
            advice.settings.extend(all);
        }
    }
    Some(advice)
}

fn side(effect: &Effect) -> &'static str {
    match effect.setting.as_str() {
        "both" => "on both sides",
        "sender" => "on the sender's side",
        _ => "on the receiver's side",
    }
}

/// CPU time of the setting, and of the other one.
fn cpu(effect: &Effect) -> Option<(f64, f64)> {
    effect.cpu_per_gb.zip(effect.cpu_per_gb_against)
}

fn cpu_text(effect: &Effect) -> String {
    let text = |(polls, sleeps)| format!(", with {} instead of {} CPU seconds per GB", figure(polls), figure(sleeps));
    cpu(effect).map(text).unwrap_or_default()
}
