//! The tables of a report, as rows of cells.

use crate::findings::{Effect, Findings, Role, Verdict};
use crate::search::Stage;
use crate::statistics::{Estimate, Ratio};
use crate::units::{figure, size};
use weir_lab::stream::equations::BestB;

/// A table with its title.
pub struct Table {
    pub title: &'static str,
    pub heads: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
    /// Lines below the table.
    pub notes: Vec<String>,
}

/// All tables that have rows.
pub fn tables(findings: &Findings) -> Vec<Table> {
    let all = [best(findings), effects(findings), equation1(findings), equation2(findings), failures(findings)];
    all.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

/// What was measured, in a line.
pub fn summary(findings: &Findings) -> String {
    let subject = &findings.subject;
    let sides = match &subject.peer {
        Some(peer) => format!("sender on this host, receiver on {peer}"),
        None if subject.namespaces => "both sides on this host, in two network namespaces".to_owned(),
        None => "both sides on this host".to_owned(),
    };
    let (runs, seconds) = (findings.runs, findings.seconds.round());
    format!("{}: {sides}; {runs} runs in {seconds} s.", subject.adapter)
}

/// A setting in words, such as "B = 8" or "offset 1".
pub fn setting(stage: Stage, name: &str) -> String {
    match (stage, name) {
        (Stage::Outstanding, b) => format!("B = {b}"),
        (Stage::Signal, "half") => "S = B/2".into(),
        (Stage::Signal, "equation") => "S by equation 2".into(),
        (Stage::Signal, s) => format!("S = {s}"),
        (Stage::Offset, offset) => format!("offset {offset}"),
        (Stage::Wake, "none") => "both sleep".into(),
        (Stage::Wake, "both") => "both poll".into(),
        (Stage::Wake, side) => format!("{side} polls"),
        (Stage::Place, place) => place.into(),
    }
}

fn best(findings: &Findings) -> Table {
    let rows = findings.best.iter().map(|best| {
        let period = if best.signal == best.period.to_string() {
            best.signal.clone()
        } else {
            format!("{} ({})", best.period, best.signal)
        };
        let cpu = figure(best.cpu_per_gb);
        vec![size(best.size), best.outstanding.to_string(), period, figure(best.gbits.mean), range(&best.gbits), cpu]
    });
    Table {
        title: "Best settings",
        heads: vec!["size", "B", "S", "Gbit/s", "95 %", "CPU s/GB"],
        rows: rows.collect(),
        notes: vec![
            "B: outstanding messages. S: every S-th send work request is signalled. CPU: of both sides, asleep between \
             completions."
                .into(),
        ],
    }
}

/// The largest effect of each setting over all sizes.
fn effects(findings: &Findings) -> Table {
    let mut groups: Vec<([String; 2], Vec<&Effect>)> = vec![];
    for effect in &findings.effects {
        let names = names(effect);
        match groups.iter_mut().find(|(group, _)| *group == names) {
            Some((_, effects)) => effects.push(effect),
            None => groups.push((names, vec![effect])),
        }
    }
    let row = |([setting, against], effects): ([String; 2], Vec<&Effect>)| {
        let clear = effects.iter().filter(|effect| effect.clear).count();
        let shown = effects.iter().max_by(|a, b| {
            let order = |effect: &Effect| (effect.clear, effect.distance());
            order(a).partial_cmp(&order(b)).unwrap_or(std::cmp::Ordering::Equal)
        });
        let [ratio, range, size, cpu] = shown.map(|effect| cells(effect)).unwrap_or_default();
        vec![setting, against, ratio, range, size, format!("{clear} of {}", effects.len()), cpu]
    };
    Table {
        title: "What matters",
        heads: vec!["setting", "against", "throughput", "95 %", "with", "sizes", "CPU s/GB"],
        rows: groups.into_iter().map(row).collect(),
        notes: vec![format!(
            "The largest effect of each setting, and with how many sizes it is clear: at least 1 %, with 95 % \
             confidence for all comparisons together. CPU: with the setting and with the other. {}",
            findings.method
        )],
    }
}

/// Each effect with each size.
pub fn all_effects(findings: &Findings) -> Table {
    let row = |effect: &Effect| {
        let [ratio, range, size, cpu] = cells(effect);
        let names = [&effect.setting, &effect.against].map(|name| setting(effect.stage, name));
        let [setting, against] = names;
        vec![setting, against, size, ratio, range, cpu]
    };
    Table {
        title: "All effects",
        heads: vec!["setting", "against", "size", "throughput", "95 %", "CPU s/GB"],
        rows: findings.effects.iter().map(row).collect(),
        notes: vec![],
    }
}

/// Names for all sizes.
fn names(effect: &Effect) -> [String; 2] {
    match effect.role {
        Role::BestOverOne => ["best B".into(), "B = 1".into()],
        Role::MostOverBest => ["most B".into(), "best B".into()],
        Role::SettingOverReference => [&effect.setting, &effect.against].map(|name| setting(effect.stage, name)),
    }
}

/// Ratio, interval, size, and CPU time.
fn cells(effect: &Effect) -> [String; 4] {
    let cpu = effect.cpu_per_gb.zip(effect.cpu_per_gb_against);
    let shown = match effect.verdict {
        Verdict::NoDifference => "no difference".into(),
        Verdict::Unknown => format!("{} (one run)", effect.ratio.percent()),
        Verdict::Faster | Verdict::Slower => effect.ratio.percent(),
    };
    let cpu = cpu.map_or_else(String::new, |(a, b)| format!("{} / {}", figure(a), figure(b)));
    [shown, effect.ratio.range(), size(effect.size), cpu]
}

fn equation1(findings: &Findings) -> Table {
    let mut table = Table {
        title: "Equation 1: best number of outstanding messages",
        heads: vec!["size", "best B", "Gbit/s", "predicted B", "Gbit/s", "error", "fitted B"],
        rows: vec![],
        notes: vec![],
    };
    let Some(equation) = &findings.equation1 else { return table };
    for p in &equation.sizes {
        table.rows.push(vec![
            size(p.size),
            p.observed.to_string(),
            figure(p.observed_gbits.mean),
            p.predicted.to_string(),
            p.predicted_gbits.map_or_else(|| "not measured".into(), |gbits| figure(gbits.mean)),
            p.ratio.map_or_else(String::new, |ratio| ratio_text(&ratio)),
            p.fitted.map_or_else(String::new, |b| b.to_string()),
        ]);
    }
    let paper = constants(&BestB::PAPER);
    table.notes.push(format!("The paper's constants: {paper}; they lose {} on average.", percent(equation.paper_loss)));
    if let Some(fit) = &equation.fit {
        table.notes.push(format!(
            "Constants for this adapter: {}; they lose {}. Fitted to every other size they lose {} there, and {} \
             with the sizes between, where the paper's lose {}.",
            constants(&fit.constants),
            percent(fit.loss),
            percent(fit.fitted_loss),
            percent(fit.held_out_loss),
            percent(fit.paper_held_out_loss)
        ));
    }
    table
}

fn equation2(findings: &Findings) -> Table {
    let against = |ratio: &Option<Ratio>, same: bool| match ratio {
        Some(ratio) => ratio_text(ratio),
        None if same => "the same".into(),
        None => "not measured".into(),
    };
    let rows = findings.equation2.iter().map(|e| {
        let (half, every) = (against(&e.over_half, false), against(&e.over_every, e.period <= 1));
        vec![size(e.size), e.outstanding.to_string(), e.period.to_string(), figure(e.gbits.mean), half, every]
    });
    Table {
        title: "Equation 2: signalling period",
        heads: vec!["size", "B", "S", "Gbit/s", "against B/2", "against 1"],
        rows: rows.collect(),
        notes: vec![],
    }
}

fn failures(findings: &Findings) -> Table {
    let rows = findings
        .failures
        .iter()
        .map(|failure| vec![size(failure.size), setting(failure.stage, &failure.setting), failure.error.clone()]);
    Table { title: "Not measured", heads: vec!["size", "setting", "error"], rows: rows.collect(), notes: vec![] }
}

fn range(estimate: &Estimate) -> String {
    estimate.interval.map_or_else(String::new, |[low, high]| format!("{} to {}", figure(low), figure(high)))
}

fn ratio_text(ratio: &Ratio) -> String {
    match ratio.differs() {
        true => format!("{} ({})", ratio.percent(), ratio.range()),
        false => "no difference".into(),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn constants(c: &BestB) -> String {
    format!(
        "{} up to {} ({} messages at most), {} above ({} at least)",
        size(c.small),
        size(c.limit),
        c.most,
        size(c.large),
        c.least
    )
}
