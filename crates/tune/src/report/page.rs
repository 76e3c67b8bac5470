//! The report as an HTML page, without external files.

use super::charts::charts;
use super::document::Report;
use super::rows::{Table, all_effects, summary, tables};
use std::fmt::Write;
use weir_lab::figure::escape;

const STYLE: &str = include_str!("page.css");

/// The page, with embedded charts and style.
pub fn page(report: &Report) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Weir: settings for {adapter}</title>\n<style>\n{STYLE}</style>\n<main>\n\
         <h1>Settings for {adapter}</h1>\n<p>{}</p>\n",
        escape(&summary(&report.findings)),
        adapter = escape(&report.findings.subject.adapter)
    );
    html += &advice(report);
    for table in tables(&report.findings) {
        html += &table_html(&table);
    }
    for chart in charts(&report.findings) {
        let _ = writeln!(html, "<h2>{}<small>{}</small></h2>\n{}", chart.title, chart.paper, chart.svg);
    }
    html += &table_html(&all_effects(&report.findings));
    html + "<p class=\"note\">F: Q. Liu and R. Russell, “A Performance Study of InfiniBand Fourteen Data Rate (FDR)”, \
            2014. Made by <code>weir tune --html</code>.</p>\n</main>\n</html>\n"
}

fn advice(report: &Report) -> String {
    let mut html = String::new();
    if !report.advice.is_empty() {
        html += "<h2>Advice</h2>\n";
    }
    for advice in &report.advice {
        let _ = writeln!(html, "<div class=\"advice\"><p>{}</p>", escape(&advice.text));
        if !advice.settings.is_empty() {
            html += "<div class=\"scroll\"><table>\n";
            for named in &advice.settings {
                let (program, setting, note) = (escape(&named.program), escape(&named.setting), escape(&named.note));
                let _ = writeln!(html, "<tr><td>{program}<td><code>{setting}</code><td class=\"note\">{note}");
            }
            html += "</table></div>\n";
        }
        html += "</div>\n";
    }
    html
}

fn table_html(table: &Table) -> String {
    let mut html = format!("<h2>{}</h2>\n<div class=\"scroll\"><table>\n<tr>", table.title);
    table.heads.iter().for_each(|head| html += &format!("<th>{head}"));
    for row in &table.rows {
        html += "\n<tr>";
        row.iter().for_each(|cell| html += &format!("<td>{}", escape(cell)));
    }
    html += "\n</table></div>\n";
    for note in &table.notes {
        let _ = writeln!(html, "<p class=\"note\">{}</p>", escape(note));
    }
    html
}
