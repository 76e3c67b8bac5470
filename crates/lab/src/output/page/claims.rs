//! The claims of an experiment as an HTML table, and its inputs.

use crate::claim::{Claim, Paper};
use crate::experiment::{Done, Input};
use crate::figure::escape;
use crate::output::words::{paper_with_unit, weir_with_unit};
use std::fmt::Write;

/// The table of claims; for a live run with the live and the simulated value side by side.
pub(super) fn claims(done: &Done) -> String {
    if done.simulated.is_empty() { simple(done) } else { beside(done) }
}

/// The observations that the model takes as they are.
pub(super) fn inputs(all: &[Input]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut html = "<p class=\"note\">Inputs: observations that the model takes as they are, so that they cannot \
                    fail.</p>\n<div class=\"scroll\"><table class=\"inputs\"><thead><tr><th>Input<th>Paper<th>Source\
                    <th>In the model</thead>\n"
        .to_owned();
    for input in all {
        let [name, paper, source, profile] = [input.name, input.paper, input.source, input.profile].map(escape);
        let _ = writeln!(html, "<tr><td>{name}<td>{paper}<td>{source}<td>{profile}");
    }
    html + "</table></div>\n"
}

fn simple(done: &Done) -> String {
    // With one seed there is no spread.
    let several = done.seeds > 1;
    let (spread, seeds) = if several { ("<th class=\"num\">Spread", "<th>Seeds") } else { ("", "") };
    let mut html = format!(
        "<div class=\"scroll\"><table class=\"claims\"><thead><tr><th>Claim<th class=\"num\">Paper\
         <th class=\"num\">Weir{spread}<th class=\"num\">Same if<th>Verdict{seeds}<th>Label</thead>\n"
    );
    for claim in &done.report.claims {
        let (mut spread, mut seeds) = (String::new(), String::new());
        if several {
            spread = format!("<td class=\"num\">{}", claim.spread_text());
            seeds = format!("<td class=\"seeds\">{}", claim.seeds_text());
        }
        let _ = writeln!(
            html,
            "<tr class=\"{}\"><td>{}<td class=\"num paper\">{}<td class=\"num\">{}{spread}<td class=\"num\">{}\
             <td>{}{seeds}<td>{}",
            class(claim),
            named(claim),
            paper(claim),
            escape(&weir_with_unit(claim)),
            claim.tolerance(),
            verdict(claim),
            claim.kind.word()
        );
        html += &notes(claim, if several { 8 } else { 6 });
    }
    html + "</table></div>\n"
}

fn beside(done: &Done) -> String {
    let mut html = "<div class=\"scroll\"><table class=\"claims\"><thead>\
                    <tr><th rowspan=\"2\">Claim<th rowspan=\"2\" class=\"num\">Paper\
                    <th colspan=\"3\" class=\"group\">Live<th colspan=\"4\" class=\"group\">Simulated\
                    <th rowspan=\"2\">Label\
                    <tr><th class=\"num group\">Value<th class=\"num\">Same if<th>Verdict\
                    <th class=\"num group\">Value<th class=\"num\">Same if<th>Verdict<th>Seeds</thead>\n"
        .to_owned();
    let both = done.report.claims.iter().map(|claim| (Some(claim), done.simulated(claim)));
    for (live, simulated) in both.chain(done.only_simulated().map(|claim| (None, Some(claim)))) {
        let Some(claim) = live.or(simulated) else { continue };
        let cells = |claim: &Claim| {
            format!(
                "<td class=\"num group\">{}<td class=\"num\">{}<td>{}",
                escape(&weir_with_unit(claim)),
                claim.tolerance(),
                verdict(claim)
            )
        };
        let live_cells = live.map_or("<td class=\"group none\" colspan=\"3\">not run live".to_owned(), cells);
        let simulated_cells = simulated
            .map_or("<td class=\"group none\" colspan=\"4\">not simulated".to_owned(), |c| {
                format!("{}<td class=\"seeds\">{}", cells(c), c.seeds_text())
            });
        let _ = writeln!(
            html,
            "<tr class=\"{}\"><td>{}<td class=\"num paper\">{}{live_cells}{simulated_cells}<td>{}",
            class(claim),
            named(claim),
            paper(claim),
            claim.kind.word()
        );
        let lacking = live.filter(|claim| !claim.holds()).or(simulated).unwrap_or(claim);
        html += &notes(lacking, 10);
    }
    html += "</table></div>\n";
    if done.only_simulated().next().is_some() {
        let _ = writeln!(html, "<p class=\"note\">{}</p>", escape(done.report.not_live));
    }
    html
}

/// The claim's name, with the place in the papers if the experiment's does not cover it.
fn named(claim: &Claim) -> String {
    let source =
        if claim.source.is_empty() { String::new() } else { format!(" <small>{}</small>", escape(claim.source)) };
    format!("{}{source}", escape(&claim.name))
}

/// The paper's value, which does not break before its unit, or the paper's words, which may break.
fn paper(claim: &Claim) -> String {
    let text = escape(&paper_with_unit(claim));
    if matches!(claim.paper, Paper::Figure(_)) { text.replace(' ', "&nbsp;") } else { text }
}

/// Rows below a claim: what contradicts it, and what the model lacks.
fn notes(claim: &Claim, columns: usize) -> String {
    let lacks = claim.missing_mechanism().map(|text| ("Why it fails:", text));
    let conflict = Some(claim.conflict).filter(|text| !text.is_empty()).map(|text| ("The papers contradict it:", text));
    let mut html = String::new();
    for (what, text) in conflict.into_iter().chain(lacks) {
        let (class, text) = (class(claim), escape(text));
        let _ =
            writeln!(html, "<tr class=\"{class} because\"><td colspan=\"{columns}\"><div><b>{what}</b> {text}</div>");
    }
    html
}

fn verdict(claim: &Claim) -> &'static str {
    if claim.holds() { "<b class=\"yes\">✓ holds</b>" } else { "<b class=\"no\">✗ fails</b>" }
}

fn class(claim: &Claim) -> &'static str {
    if claim.holds() { "yes" } else { "no" }
}
