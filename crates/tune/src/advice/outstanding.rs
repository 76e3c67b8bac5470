//! Advice on the size and number of messages.

use super::entry::{About, Advice, more, of_stage};
use super::named::{self, Named};
use crate::findings::{Best, Findings, Measured, Role};
use crate::search::Stage;
use crate::statistics::Estimate;
use crate::units::{self, figure};

/// Messages from this share of the highest throughput are large enough.
const LARGE_ENOUGH: f64 = 0.95;
/// A throughput is as good as the highest from this share.
const SAME: f64 = 0.98;
/// A throughput is clearly higher from this factor.
const CLEAR: f64 = 1.01;

/// The sizes around the best one that are good enough.
pub fn size(findings: &Findings) -> Option<Advice> {
    let (top, best) = (findings.top()?, &findings.best);
    let at = best.iter().position(|best| best.size == top.size)?;
    let reaches = |best: &&Best| best.gbits.mean >= LARGE_ENOUGH * top.gbits.mean;
    let low = at - best[..at].iter().rev().take_while(reaches).count();
    let high = at + best[at + 1..].iter().take_while(reaches).count();
    let share = |best: &Best| format!("{:.0} %", 100.0 * best.gbits.mean / top.gbits.mean);
    let least = best[low..=high].iter().min_by(|a, b| a.gbits.mean.total_cmp(&b.gbits.mean))?;
    let reach =
        format!("they reach at least {} of the highest throughput, {} Gbit/s", share(least), figure(top.gbits.mean));
    if best.len() < 2 {
        return None;
    }
    // The slowest size below those that are good enough, and the next one above them.
    let slowest = best[..low].iter().min_by(|a, b| a.gbits.mean.total_cmp(&b.gbits.mean));
    let others: Vec<&Best> = slowest.into_iter().chain(best.get(high + 1)).collect();
    if others.is_empty() {
        let text = format!("Messages from {} on are large enough: {reach}.", units::size(best[0].size));
        return Some(Advice::without_settings(About::Size, text));
    }
    let apart =
        |other: &&Best| other.gbits.interval.zip(top.gbits.interval).is_some_and(|([_, high], [low, _])| high < low);
    if !others.iter().all(apart) {
        return None;
    }
    let sizes = match (low, high) {
        (_, high) if high + 1 == best.len() => format!("{} or more", units::size(best[low].size)),
        (low, high) if low == high => units::size(best[low].size),
        (low, high) => format!("{} to {}", units::size(best[low].size), units::size(best[high].size)),
    };
    let others: Vec<String> = others
        .into_iter()
        .map(|other| format!("messages of {} reach {}", units::size(other.size), share(other)))
        .collect();
    let text = format!("Send messages of {sizes}: {reach}; {}.", others.join(", and "));
    Some(Advice { about: About::Size, text, settings: named::size(best[low].size) })
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
        return one.then(|| Advice::without_settings(About::Outstanding, text));
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
    settings.extend(nccl(findings));
    Some(Advice { about: About::Outstanding, text, settings })
}

/// NCCL's messages, if eight of a larger size are clearly faster than eight of the default's.
fn nccl(findings: &Findings) -> Vec<Named> {
    let top = findings.best.iter().map(|best| best.gbits.mean).fold(0.0, f64::max);
    let eight = |measured: &Measured| {
        let setting = measured.settings.iter().find(|setting| setting.outstanding == u32::from(named::NCCL_STEPS))?;
        Some((measured.size, setting.gbits?))
    };
    let all: Vec<(u64, Estimate)> = findings.of_stage(Stage::Outstanding).filter_map(eight).collect();
    // Both sizes have contests of their own, so that there is no ratio of rounds: the intervals are apart.
    let faster_than = |default: u64, gbits: &Estimate| {
        let default = all.iter().find(|(size, _)| *size == default).map(|(_, gbits)| gbits);
        let apart =
            |other: &Estimate| gbits.interval.zip(other.interval).is_some_and(|([low, _], [_, high])| low > high);
        default.is_some_and(|other| apart(other) && gbits.mean >= CLEAR * other.mean)
    };
    let enough = all.iter().find(|(size, gbits)| {
        let fits = u64::from(named::NCCL_STEPS) * size <= named::NCCL_MOST;
        fits && gbits.mean >= SAME * top && faster_than(named::NCCL_CHUNK, gbits)
    });
    let Some((size, gbits)) = enough else { return vec![] };
    named::nccl(*size, faster_than(named::NCCL_SEND_CHUNK, gbits))
}
