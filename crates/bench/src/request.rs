//! The options of a bench that runs alone.

use std::path::Path;

/// Options of a run.
pub struct Request<'a> {
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
}
