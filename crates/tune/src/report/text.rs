//! The report as text.

use super::document::Report;
use super::rows::{Table, summary, tables};
use std::fmt::Write;

/// Width of lines of text.
const WIDTH: usize = 100;

/// The report for a terminal.
pub fn text(report: &Report) -> String {
    let mut text = summary(&report.findings) + "\n";
    for table in tables(&report.findings) {
        text += &table_text(&table);
    }
    if !report.advice.is_empty() {
        text += "\nAdvice\n";
    }
    for advice in &report.advice {
        text += &wrapped(&advice.text, "- ", "  ");
        let width = |of: fn(&crate::advice::Named) -> &str| advice.settings.iter().map(|s| of(s).chars().count()).max();
        let (program, setting) = (width(|s| &s.program).unwrap_or(0), width(|s| &s.setting).unwrap_or(0));
        for named in &advice.settings {
            let line = format!("    {:program$}  {:setting$}  {}", named.program, named.setting, named.note);
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    text
}

fn table_text(table: &Table) -> String {
    let mut text = format!("\n{}\n", table.title);
    let heads: Vec<String> = table.heads.iter().map(|head| (*head).to_owned()).collect();
    let lines: Vec<&Vec<String>> = std::iter::once(&heads).chain(&table.rows).collect();
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(|c| c.chars().count()).max();
    let widths: Vec<usize> = (0..table.heads.len()).map(|column| width(column).unwrap_or(0)).collect();
    for line in lines {
        let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(text, "  {}", cells.join("  ").trim_end());
    }
    table.notes.iter().fold(text, |text, note| text + &wrapped(note, "  ", "  "))
}

/// Words in lines; the first line begins with `first`, the others with `next`.
fn wrapped(words: &str, first: &str, next: &str) -> String {
    let (mut text, mut line) = (String::new(), first.to_owned());
    // A line does not begin with "%".
    for word in words.replace(" %", "\u{a0}%").split(' ') {
        let word = word.replace('\u{a0}', " ");
        if line.chars().count() + word.chars().count() >= WIDTH && line.trim().len() > 1 {
            let _ = writeln!(text, "{}", line.trim_end());
            line = next.to_owned();
        }
        line += &word;
        line.push(' ');
    }
    let _ = writeln!(text, "{}", line.trim_end());
    text
}
