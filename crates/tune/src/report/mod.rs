//! The results as text, JSON, and an HTML page.

mod charts;
mod page;
mod rows;
mod text;

pub use page::page;
pub use text::text;

use crate::advice::{Advice, advice};
use crate::findings::Findings;
use serde::{Deserialize, Serialize};

/// Findings and advice, as `--json` prints them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    #[serde(flatten)]
    pub findings: Findings,
    pub advice: Vec<Advice>,
}

impl Report {
    pub fn of(findings: Findings) -> Report {
        Report { advice: advice(&findings), findings }
    }

    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

#[cfg(test)]
mod tests;
