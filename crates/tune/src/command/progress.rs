//! Progress on stderr: a bar on a terminal, a line for each stage elsewhere.

use crate::search::{Search, Stage, Turn};
use crate::units::{clock, size};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::time::Duration;

/// Shows the progress of a search.
pub struct Progress {
    /// `None` if stderr is no terminal.
    bar: Option<ProgressBar>,
    /// The stage of the latest line.
    stage: Option<Stage>,
}

/// Steps of the bar for each second of the budget.
const STEPS: f64 = 10.0;

impl Progress {
    pub fn new(search: &Search) -> Progress {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new((search.plan.budget * STEPS) as u64);
            let style = ProgressStyle::with_template("{spinner} [{bar:24}] {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Progress { bar, stage: None }
    }

    /// Shows that a run begins.
    pub fn begin(&mut self, turn: &Turn, left: f64) {
        let words = words(turn.stage);
        match &self.bar {
            Some(bar) => {
                let what =
                    if turn.stage == Stage::Outstanding { format!("B = {}", turn.name) } else { turn.name.clone() };
                bar.set_message(format!("at most {} left; {words}: {}, {what}", clock(left), size(turn.job.size)));
            }
            None if self.stage != Some(turn.stage) => eprintln!("weir: {words} (at most {} left)", clock(left)),
            None => {}
        }
        self.stage = Some(turn.stage);
    }

    /// Shows how much of the budget is spent.
    pub fn done(&self, search: &Search) {
        if let Some(bar) = &self.bar {
            bar.set_position((search.spent * STEPS) as u64);
        }
    }

    /// Prints a line that stays.
    pub fn print(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }

    /// Removes the bar.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn words(stage: Stage) -> &'static str {
    match stage {
        Stage::Outstanding => "outstanding messages",
        Stage::Signal => "signalling",
        Stage::Offset => "alignment",
        Stage::Wake => "polling and sleeping",
        Stage::Place => "places of both sides",
    }
}
