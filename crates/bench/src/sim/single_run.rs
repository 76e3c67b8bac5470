//! What a run yields, and how its progress is shown.

use indicatif::{ProgressBar, ProgressStyle};

/// The figure of a run, and a note.
pub struct Run {
    pub figure: f64,
    pub note: String,
}

/// A progress bar of messages; hidden if standard error is no terminal.
pub fn progress(name: &'static str, messages: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:14} {bar:30} {pos}/{len} messages (about {eta} left)");
    ProgressBar::new(messages).with_style(style.expect("a valid template")).with_prefix(name)
}
