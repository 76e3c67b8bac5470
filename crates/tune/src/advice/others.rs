//! Advice on signalling, alignment, wake-ups and places.

use super::entry::{About, Advice, more, no_difference, of_stage};
use super::named;
use crate::findings::{Effect, Findings, Verdict};
use crate::search::Stage;
use crate::units::{self, figure};

/// Polling costs clearly more CPU time from this factor.
const COSTS_MORE: f64 = 1.5;

/// Which work requests to signal.
pub fn signal(findings: &Findings) -> Option<Advice> {
    let effects = of_stage(findings, Stage::Signal);
    let Some(effect) = largest(effects.iter().copied().filter(|effect| effect.clear)) else {
        return no_difference(About::Signal, "Which send work requests are signalled makes", &effects);
    };
    let best = findings.best.iter().find(|best| best.size == effect.size)?;
    let every = match (best.period, effect.verdict) {
        (0 | 1, _) => "Signal every send work request".to_owned(),
        (n, _) => format!("Signal every {n}th send work request"),
    };
    let name = |word: &str| match word {
        "1" => "every one".to_owned(),
        "half" => "every B/2-th".to_owned(),
        _ => "by equation 2".to_owned(),
    };
    let text = format!(
        "{every} with {} outstanding messages of {}. Signalling {} instead of {} gives {}.",
        best.outstanding,
        units::size(best.size),
        name(&effect.setting),
        name(&effect.against),
        more(effect)
    );
    Some(Advice { about: About::Signal, text, settings: named::signal(best.period) })
}

/// How to align messages.
pub fn alignment(findings: &Findings) -> Option<Advice> {
    let effects = of_stage(findings, Stage::Offset);
    let slower = |name: &str| effects.iter().any(|e| e.setting == name && e.slower());
    let Some(worst) = largest(effects.iter().copied().filter(|e| e.slower())) else {
        let faster = effects.iter().any(|effect| effect.faster());
        return (!faster)
            .then(|| no_difference(About::Alignment, "The alignment of messages makes", &effects))
            .flatten();
    };
    // Offset 64 is slower than a page's begin: lines are not enough.
    let bytes = if slower("64") { 4096 } else { 64 };
    let text = format!("Align messages on {bytes} bytes. An offset of {} bytes gives {}.", worst.setting, more(worst));
    Some(Advice { about: About::Alignment, text, settings: named::aligned(bytes) })
}

/// Whether to poll or to sleep.
pub fn wake(findings: &Findings) -> Option<Advice> {
    let effects = of_stage(findings, Stage::Wake);
    let cpu = |effect: &Effect| Some((effect.cpu_per_gb?, effect.cpu_per_gb_against?));
    if let Some(best) = largest(effects.iter().copied().filter(|e| e.faster())) {
        let side = match best.setting.as_str() {
            "both" => "on both sides",
            "sender" => "on the sender's side",
            _ => "on the receiver's side",
        };
        let mut text =
            format!("If CPU time matters less than throughput, poll for completions {side}: this gives {}", more(best));
        if let Some((polls, sleeps)) = cpu(best) {
            text += &format!(", with {} instead of {} CPU seconds per GB", figure(polls), figure(sleeps));
        }
        return Some(Advice { about: About::Wake, text: text + ".", settings: named::poll() });
    }
    let both: Vec<&Effect> = effects.iter().copied().filter(|e| e.setting == "both").collect();
    let costs = both
        .iter()
        .find(|e| e.verdict != Verdict::Unknown && cpu(e).is_some_and(|(polls, sleeps)| polls >= COSTS_MORE * sleeps));
    let Some(costs) = costs else {
        return no_difference(About::Wake, "Whether the sides poll or sleep makes", &effects);
    };
    let (polls, sleeps) = cpu(costs)?;
    let text = format!(
        "Sleep until completions come: polling is not faster, and takes {} instead of {} CPU seconds per GB with \
         messages of {}.",
        figure(polls),
        figure(sleeps),
        units::size(costs.size)
    );
    Some(Advice { about: About::Wake, text, settings: named::sleep() })
}

/// Where to run the sides.
pub fn place(findings: &Findings) -> Option<Advice> {
    let effects = of_stage(findings, Stage::Place);
    let best = largest(effects.iter().copied().filter(|e| e.faster()));
    let worst = largest(effects.iter().copied().filter(|e| e.slower()));
    let slow = worst.map(|e| format!("Avoid “{}”: it gives {}.", e.setting, more(e)));
    let Some(best) = best else {
        let text = slow.map(|slow| format!("Let the kernel choose the CPUs: no other place is faster. {slow}"));
        let settings = vec![];
        let advice = text.map(|text| Advice { about: About::Place, text, settings });
        return advice.or_else(|| no_difference(About::Place, "Where the sides run makes", &effects));
    };
    let mut text = format!("Choose “{}”: this gives {}.", best.setting, more(best));
    text.extend(slow.map(|slow| format!(" {slow}")));
    let mut contests = findings.of_stage(Stage::Place);
    let setting = contests.find_map(|measured| measured.settings.iter().find(|s| s.name == best.setting))?;
    let of = |side: &str, place| {
        let mut all = named::place(place);
        all.iter_mut().for_each(|named| named.program += &format!(", {side}"));
        all
    };
    let settings = [of("sender", &setting.sender), of("receiver", &setting.receiver)].concat();
    Some(Advice { about: About::Place, text, settings })
}

/// The effect that is farthest from equality.
fn largest<'a>(effects: impl Iterator<Item = &'a Effect>) -> Option<&'a Effect> {
    effects.max_by(|a, b| a.distance().total_cmp(&b.distance()))
}
