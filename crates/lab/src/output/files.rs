//! A folder with everything: CSV, SVG, claims, an index.

use super::json;
use crate::experiment::Done;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

/// Writes what came of one experiment: `ID.csv`, `ID.svg`, `ID-ladder.svg`, `ID.json`.
pub fn write(folder: &Path, done: &Done) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let id = done.experiment.id;
    fs::write(folder.join(format!("{id}.csv")), done.report.data.csv())?;
    for (name, data) in &done.report.more {
        fs::write(folder.join(format!("{id}-{name}.csv")), data.csv())?;
    }
    fs::write(folder.join(format!("{id}.json")), json(std::slice::from_ref(done)).map_err(io::Error::other)? + "\n")?;
    for (name, svg) in [("", done.report.figure()), ("-ladder", done.report.ladder())] {
        if let Some(svg) = svg {
            fs::write(folder.join(format!("{id}{name}.svg")), svg)?;
        }
    }
    Ok(())
}

/// An index of figures and claims in Markdown, beside the files that [`write`] wrote.
pub fn index(all: &[Done]) -> String {
    let mut text = "# The laboratory's figures\n\n".to_owned();
    let _ = writeln!(
        text,
        "Made by `make lab-figures`, {}. What the papers say, what comes out here, and whether it is the same. *Calibrated*: \
         the profile's parameters were chosen by this very observation; *predicted*: they were not. T is T. Fukuoka's \
         master's thesis, “Finding and Analyzing Performance Pitfalls of On-Demand Paging of InfiniBand”; P is “Pitfalls of \
         InfiniBand with On-Demand Paging” by T. Fukuoka, S. Sato and K. Taura.\n",
        all.first().map_or_else(String::new, |done| format!("{}, seed {}", done.runner(), done.seed))
    );
    text += "| experiment | source | claims that hold |\n| --- | --- | --- |\n";
    for done in all {
        let (holding, claims) = done.report.score();
        let (id, title, source) = (done.experiment.id, done.experiment.title, done.experiment.source);
        let _ = writeln!(text, "| [{id}](#{id}): {title} | {source} | {holding} of {claims} |");
    }
    for done in all {
        let id = done.experiment.id;
        let _ = writeln!(text, "\n## {id}\n\n{}. {}\n", done.experiment.title, done.experiment.paper);
        for (name, there) in [("", done.report.figure().is_some()), ("-ladder", done.report.ladder().is_some())] {
            if there {
                let _ = writeln!(text, "![{id}]({id}{name}.svg)\n");
            }
        }
        text += "| claim | paper | ours | same if | | |\n| --- | --- | --- | --- | --- | --- |\n";
        for claim in &done.report.claims {
            let _ = writeln!(
                text,
                "| {} | {} | {} {} | {} | {} | {} |",
                cell(&claim.name),
                cell(&claim.paper_text()),
                claim.ours_text(),
                claim.unit,
                claim.tolerance(),
                claim.kind.word(),
                if claim.holds() { "holds" } else { "**fails**" }
            );
        }
        for claim in &done.report.claims {
            if let Some(excuse) = claim.excuse() {
                let _ = writeln!(text, "\n{}: {excuse}", claim.name);
            }
        }
    }
    text
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
