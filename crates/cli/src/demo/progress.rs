//! Progress on stderr: a bar on a terminal, plain lines elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::time::Duration;

/// Shows the progress of the demonstration.
pub(super) struct Progress {
    /// `None` if stderr is no terminal.
    bar: Option<ProgressBar>,
}

impl Progress {
    /// The progress of `steps` steps.
    pub fn new(steps: usize) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(steps as u64);
            let style = ProgressStyle::with_template("{spinner} [{bar:24}] {pos}/{len} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Progress { bar }
    }

    /// Prints a line that stays.
    pub fn print(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }

    /// Shows that a step begins.
    pub fn begin(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
    }

    /// Ends the step; the line with its result stays.
    pub fn done(&self, result: &str) {
        self.print(&format!("  {result}"));
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Removes the bar.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
