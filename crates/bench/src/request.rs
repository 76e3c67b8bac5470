//! The options of a bench.

use std::ffi::OsString;
use std::path::Path;

/// Options of a run.
pub struct Request<'a> {
    /// Rows to run, by name or by the first part of a name; none: the usual ones. Only of benches that consist of rows.
    pub names: &'a [String],
    /// Short runs and few rounds.
    pub quick: bool,
    /// Number of rounds; `None`: the bench's default.
    pub rounds: Option<u32>,
    /// Print JSON instead of tables.
    pub json: bool,
    /// Fail if a bar does not hold.
    pub check: bool,
    /// Where to draw figures, if the bench has any.
    pub svg: Option<&'a Path>,
    /// `odp`: the LogGP model instead of the usual measurements.
    pub loggp: bool,
    /// `schemes`: a command of the user.
    pub own: Option<Own<'a>>,
}

/// A command that `schemes` runs instead of its usual applications.
pub struct Own<'a> {
    /// A command with a launcher.
    pub command: &'a [OsString],
    /// The time is the number behind this text in what the command prints; otherwise it is that of the whole command.
    pub after: Option<&'a str>,
}

impl Request<'_> {
    /// Rounds of a bench that consists of rows.
    pub fn rounds_of_rows(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 3 } else { 5 })
    }

    /// Length of a run of a row's measurement, seconds.
    pub fn seconds(&self) -> f64 {
        if self.quick { 0.5 } else { 2.0 }
    }
}
