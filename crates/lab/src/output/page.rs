//! An HTML page with all results, without external files.

use super::words::counts;
use crate::claim::{Claim, ENOUGH, Kind};
use crate::experiment::{Done, LeftOut};
use crate::figure::escape;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");

/// The page as HTML, with embedded figures and style. Experiments that were not run are listed with the reason.
pub fn page(all: &[Done], left_out: &[LeftOut]) -> String {
    let counts = counts(all.iter().flat_map(|done| &done.report.claims));
    let enough = (ENOUGH * 100.0) as u32;
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>Weir: the laboratory</title>\n<style>\n{STYLE}</style>\n<main>\n<h1>The laboratory</h1>\n"
    );
    let _ = writeln!(
        html,
        "<p class=\"lead\">Published experiments on the pitfalls of on-demand paging, repeated on Weir. \
         <b>{counts}</b> claims hold. <i>Calibrated</i>: a parameter of the profile was fixed from this observation. \
         <i>Shaped</i>: the mechanism was chosen or changed after this observation was seen. <i>Predicted</i>: neither. \
         Each claim is judged with each seed; it holds if it holds at {enough} % of the seeds. Charts show the first \
         seed.</p>\n\
         <p class=\"lead\">The floors of the ACK timeout are those of InfiniBand adapters. RoCE adapters with adaptive \
         retransmission repeat their first requests sooner.</p>"
    );
    html += &summary(all, left_out);
    for done in all {
        html += &section(done);
    }
    html += "<footer>T: T. Fukuoka, “Finding and Analyzing Performance Pitfalls of On-Demand Paging of InfiniBand”, \
             master's thesis, 2021. P: T. Fukuoka, S. Sato, K. Taura, \
             “Pitfalls of InfiniBand with On-Demand Paging”. Made by <code>weir lab run --html</code>.</footer>\n";
    html + "</main>\n</html>\n"
}

fn summary(all: &[Done], left_out: &[LeftOut]) -> String {
    let mut html =
        "<table class=\"summary\"><thead><tr><th>Experiment<th>Source<th>Claims<th class=\"num\">Holds</thead>\n"
            .to_owned();
    for done in all {
        let (holding, claims) = done.report.score();
        let dots: String = done.report.claims.iter().map(dot).collect();
        let _ = writeln!(
            html,
            "<tr><td><a href=\"#{id}\"><code>{id}</code></a> {}<td>{}<td class=\"dots\">{dots}\
             <td class=\"num\">{holding} of {claims}",
            escape(done.experiment.title),
            escape(done.experiment.source),
            id = done.experiment.id
        );
    }
    for LeftOut { experiment, why } in left_out {
        let [title, source, why] = [experiment.title, experiment.source, why].map(escape);
        let id = experiment.id;
        let _ = writeln!(html, "<tr><td><code>{id}</code> {title}<td>{source}<td colspan=\"2\">not run: {why}");
    }
    html + "</table>\n"
}

/// A claim as a sign: a cross if it fails; if it holds, a square for a calibration and a dot for a prediction.
fn dot(claim: &Claim) -> String {
    let sign = match (claim.kind, claim.holds()) {
        (_, false) => "✗",
        (Kind::Calibrated, true) => "◼",
        (Kind::Shaped, true) => "◆",
        (Kind::Predicted, true) => "●",
    };
    let class = if claim.holds() { "yes" } else { "no" };
    format!("<span class=\"{class}\" title=\"{}\">{sign}</span>", escape(&claim.name))
}

fn section(done: &Done) -> String {
    let experiment = done.experiment;
    let trials = done.trials_text();
    let wakeup = done.wakeup.map_or_else(String::new, |wakeup| {
        format!(" · woke {} µs late (median), {} µs at most", wakeup.median.as_micros(), wakeup.most.as_micros())
    });
    let mut html = format!(
        "<section id=\"{}\">\n<h2><code>{0}</code> {}</h2>\n\
         <p class=\"source\">{} · {} · {} · {trials}{wakeup} · {:.1} s</p>\n",
        experiment.id,
        escape(experiment.title),
        escape(experiment.source),
        if done.live { "live" } else { "simulated" },
        escape(&done.profiles.join(", ")),
        done.took.as_secs_f64()
    );
    let _ = writeln!(html, "<div class=\"beside\"><div class=\"said\">\n<p>{}</p>", escape(experiment.paper));
    html += &claims(done);
    html += "</div>\n<div class=\"drawn\">\n";
    for svg in done.report.drawings() {
        let _ = writeln!(html, "<figure>{svg}</figure>");
    }
    html + "</div>\n</div>\n</section>\n"
}

fn claims(done: &Done) -> String {
    let beside = if done.simulated.is_empty() { "Spread" } else { "Simulated" };
    let mut html = format!(
        "<div class=\"scroll\"><table class=\"claims\"><thead><tr><th>Claim<th class=\"num\">Paper<th class=\"num\">Weir\
         <th class=\"num\">{beside}<th class=\"num\">Same if<th></thead>\n"
    );
    for claim in &done.report.claims {
        let (class, verdict) = if claim.holds() { ("yes", "✓ holds") } else { ("no", "✗ fails") };
        let beside = done.simulated(claim).map_or_else(
            || claim.spread_text(),
            |sim| format!("{} <small>{}</small>", sim.weir_text(), sim.seeds_text()),
        );
        let source = if claim.source.is_empty() { String::new() } else { format!(", {}", escape(claim.source)) };
        let _ = writeln!(
            html,
            "<tr class=\"{class}\"><td>{}<td class=\"num\">{}<td class=\"num\">{} {}<td class=\"num\">{beside}\
             <td class=\"num\">{}<td><b>{verdict}</b> <small>{}</small><br><small>{}{source}</small>",
            escape(&claim.name),
            escape(&claim.paper_text()),
            claim.weir_text(),
            escape(claim.unit),
            claim.tolerance(),
            claim.seeds_text(),
            claim.kind.word()
        );
        if !claim.conflict.is_empty() {
            let _ = writeln!(html, "<tr class=\"excuse\"><td colspan=\"6\">Against: {}", escape(claim.conflict));
        }
        if let Some(mechanism) = claim.missing_mechanism() {
            let _ = writeln!(html, "<tr class=\"no excuse\"><td colspan=\"6\">{}", escape(mechanism));
        }
    }
    html += "</table></div>\n";
    if !done.report.inputs.is_empty() {
        html += "<p>Taken as they are (inputs, which cannot fail):</p>\n<ul class=\"inputs\">\n";
        for input in &done.report.inputs {
            let [name, paper, source, profile] = [input.name, input.paper, input.source, input.profile].map(escape);
            let _ = writeln!(html, "<li>{name}: {paper} ({source}); {profile}</li>");
        }
        html += "</ul>\n";
    }
    html
}
