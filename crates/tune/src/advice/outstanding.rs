//! Advice on the size and number of messages.

use super::entry::{About, Advice, more, of_stage};
use super::named;
use crate::findings::{Best, Findings, Role};
use crate::search::Stage;
use crate::units::{self, figure};

/// Messages from this share of the highest throughput are large enough.
const LARGE_ENOUGH: f64 = 0.95;
/// A throughput is as good as the highest from this share.
const SAME: f64 = 0.98;

/// The smallest messages that are large enough.
pub fn size(findings: &Findings) -> Option<Advice> {
    let top = findings.top()?;
    let (smallest, least) = (findings.best.first()?, findings.best.iter().find(|best| reaches(best, top))?);
    let share = |best: &Best| format!("{:.0} %", 100.0 * best.gbits.mean / top.gbits.mean);
    let apart = smallest.gbits.interval.zip(top.gbits.interval).is_some_and(|([_, high], [low, _])| high < low);
    if findings.best.len() < 2 {
        return None;
    }
    if least.size == smallest.size || !apart {
        let text = format!(
            "Messages from {} on are large enough: they reach {} of the highest throughput, {} Gbit/s.",
            units::size(smallest.size),
            share(smallest),
            figure(top.gbits.mean)
        );
        return (least.size == smallest.size).then(|| Advice { about: About::Size, text, settings: vec![] });
    }
    let text = format!(
        "Send messages of {} or more: they reach {} of the highest throughput, {} Gbit/s; messages of {} reach {}.",
        units::size(least.size),
        share(least),
        figure(top.gbits.mean),
        units::size(smallest.size),
        share(smallest)
    );
    Some(Advice { about: About::Size, text, settings: named::size(least.size) })
}

/// How many messages to keep outstanding.
pub fn outstanding(findings: &Findings) -> Option<Advice> {
    let effects = of_stage(findings, Stage::Outstanding);
    let top = findings.top()?;
    let gain = |size: u64| effects.iter().find(|e| e.size == size && e.role == Role::BestOverOne && e.faster());
    let most = findings.best.iter().map(|best| best.outstanding).max()?;
    let largest = effects.iter().filter(|e| e.role == Role::BestOverOne && e.faster());
    let largest = largest.max_by(|a, b| a.ratio.mean.total_cmp(&b.ratio.mean));
    let Some(gain) = gain(top.size).or(largest) else {
        let one = findings.best.iter().all(|best| best.outstanding == 1);
        let text = "One message at a time is as fast as several: more outstanding messages make no difference that was \
                    measured.";
        return one.then(|| Advice { about: About::Outstanding, text: text.into(), settings: vec![] });
    };
    let best = findings.best.iter().find(|best| best.size == gain.size)?;
    let mut text = format!(
        "Keep {} messages of {} outstanding instead of one: {}.",
        best.outstanding,
        units::size(best.size),
        more(gain)
    );
    let each: Vec<String> =
        findings.best.iter().map(|b| format!("{} of {}", b.outstanding, units::size(b.size))).collect();
    text += &format!(" By size: {}.", each.join(", "));
    let too_many = effects.iter().filter(|e| e.role == Role::MostOverBest && e.slower());
    if let Some(worst) = too_many.min_by(|a, b| a.ratio.mean.total_cmp(&b.ratio.mean)) {
        text += &format!(" Too many are slower: {} instead of {} give {}.", worst.setting, worst.against, more(worst));
    }
    let mut settings = named::outstanding(best.size, best.outstanding, most);
    settings.extend(eight(findings).map(named::nccl).into_iter().flatten());
    Some(Advice { about: About::Outstanding, text, settings })
}

fn reaches(best: &Best, top: &Best) -> bool {
    best.gbits.mean >= LARGE_ENOUGH * top.gbits.mean
}

/// The smallest size of messages of which eight reach the highest throughput.
fn eight(findings: &Findings) -> Option<u64> {
    let top = findings.best.iter().map(|best| best.gbits.mean).fold(0.0, f64::max);
    let mut contests = findings.of_stage(Stage::Outstanding);
    let enough = contests.find(|measured| {
        let eight = measured.settings.iter().find(|setting| setting.outstanding == 8);
        eight.and_then(|setting| setting.gbits).is_some_and(|gbits| gbits.mean >= SAME * top)
    });
    enough.map(|measured| measured.size)
}
