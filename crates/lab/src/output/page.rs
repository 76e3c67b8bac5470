//! An HTML page with all results, without external files.

mod claims;

use super::figures::{Pair, pairs};
use super::words::{DESCRIBED, KINDS, LABELS, SOURCES, count, counts, score, seeds_explained, sign};
use crate::claim::Claim;
use crate::experiment::{Done, LeftOut};
use crate::figure::escape;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");

/// The page as HTML, with embedded figures and style. Experiments that were not run are listed with the reason.
pub fn page(all: &[Done], left_out: &[LeftOut]) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Weir: the laboratory</title>\n<style>\n{STYLE}</style>\n<main>\n<h1>The laboratory</h1>\n"
    );
    html += &lead(all);
    html += &summary(all, left_out);
    for done in all {
        html += &section(done);
    }
    let _ = writeln!(html, "<footer>{} Made by <code>weir lab run --html</code>.</footer>", escape(SOURCES));
    html + "</main>\n</html>\n"
}

fn lead(all: &[Done]) -> String {
    let counts = counts(all.iter().flat_map(|done| &done.report.claims));
    let live = all.iter().any(|done| done.live);
    let mut html = format!(
        "<p class=\"lead\">Published experiments on the pitfalls of on-demand paging and on connections over several links, repeated on \
         Weir{}. \
         <b>{counts}</b> claims hold.</p>\n<dl class=\"terms\">\n",
        if live { " with two processes on one machine, in real time" } else { "'s simulator" }
    );
    let meaning = |(label, meaning): &(&str, &str)| format!("<i>{label}</i>: {meaning}");
    let mut terms = vec![
        ("Label", LABELS.iter().map(meaning).collect::<Vec<_>>().join("; ") + "."),
        ("Seeds", escape(&seeds_explained())),
        ("Papers' figures", escape(DESCRIBED)),
        (
            "ACK timeouts",
            "Their floors were measured on InfiniBand adapters. A ConnectX-6 on RoCE has the same floor between retries, \
             but its adaptive retransmission repeats a request after 12 ms (<code>weir profiles connectx6-roce</code>)."
                .to_owned(),
        ),
    ];
    if live {
        let live = "A live run is made once, so its verdict is that of one run. The simulation beside it is judged with \
                    each seed. Its bounds may differ: processes on a busy machine are late.";
        terms.insert(2, ("Live", live.to_owned()));
    }
    for (term, text) in terms {
        let _ = writeln!(html, "<dt>{term}<dd>{text}");
    }
    html + "</dl>\n"
}

fn summary(all: &[Done], left_out: &[LeftOut]) -> String {
    let live = all.iter().any(|done| !done.simulated.is_empty());
    let simulated = if live { "<th class=\"num\">Simulated" } else { "" };
    let mut html = format!(
        "<p class=\"legend\">Signs: ◼ calibrated, ◆ shaped, ● predicted: the claim holds; \
         <span class=\"no\">✗</span> the claim fails.</p>\n\
         <div class=\"scroll\"><table class=\"summary\"><thead><tr><th>Experiment<th>Source<th>Claims\
         <th class=\"num\">Calibrated<th class=\"num\">Shaped<th class=\"num\">Predicted<th class=\"num\">{}{simulated}\
         </thead>\n",
        if live { "All, live" } else { "All" }
    );
    for done in all {
        let claims = &done.report.claims;
        let dots: String = claims.iter().map(dot).collect();
        let _ = write!(
            html,
            "<tr><td><a href=\"#{id}\"><code>{id}</code></a> {}<td>{}<td class=\"dots\">{dots}",
            escape(done.experiment.title),
            escape(done.experiment.source),
            id = done.experiment.id
        );
        for kind in KINDS {
            let _ = write!(html, "<td class=\"num\">{}", count(claims.iter(), kind).unwrap_or_else(|| "–".into()));
        }
        let _ = write!(html, "<td class=\"num\"><b>{}</b>", score(claims.iter()));
        if live {
            let _ = write!(html, "<td class=\"num\">{}", score(done.simulated.iter()));
        }
        html.push('\n');
    }
    for LeftOut { experiment, why } in left_out {
        let [title, source, why] = [experiment.title, experiment.source, why].map(escape);
        let (id, columns) = (experiment.id, if live { 6 } else { 5 });
        let _ = writeln!(html, "<tr><td><code>{id}</code> {title}<td>{source}<td colspan=\"{columns}\">not run: {why}");
    }
    html + "</table></div>\n"
}

/// A claim as a sign, with its name as a tooltip.
fn dot(claim: &Claim) -> String {
    let class = if claim.holds() { "yes" } else { "no" };
    format!("<span class=\"{class}\" title=\"{} ({})\">{}</span>", escape(&claim.name), claim.kind.word(), sign(claim))
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
        escape(&done.adapters_text()),
        done.took.as_secs_f64()
    );
    let _ = writeln!(html, "<p class=\"said\">{}</p>", escape(experiment.paper));
    html += &claims::claims(done);
    html += &claims::inputs(&done.report.inputs);
    for pair in pairs(done) {
        html += &figure(&pair);
    }
    html + "</section>\n"
}

/// Drawings, and beside them the papers' figure in words.
fn figure(pair: &Pair) -> String {
    if pair.drawings.is_empty() && !pair.missing {
        return format!("<figure class=\"words\">\n{}</figure>\n", caption(pair));
    }
    let mut html = "<figure>\n<div class=\"drawn\">\n".to_owned();
    for svg in &pair.drawings {
        let _ = writeln!(html, "<div class=\"scroll\">{svg}</div>");
    }
    if pair.missing {
        html += "<p class=\"none\">Simulated only: this run has no drawing of it.</p>\n";
    }
    html + "</div>\n" + &caption(pair) + "</figure>\n"
}

fn caption(pair: &Pair) -> String {
    let Some(figure) = pair.figure else { return String::new() };
    let mut html = format!("<figcaption>\n<h3>{}</h3>\n<dl>\n", escape(&figure.head()));
    for (term, text) in figure.terms() {
        let _ = writeln!(html, "<dt>{term}<dd>{}", escape(text));
    }
    html + "</dl>\n</figcaption>\n"
}
