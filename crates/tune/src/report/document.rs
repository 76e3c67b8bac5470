//! What text, JSON and page are made of.

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
    /// Findings with the advice that follows from them.
    pub fn of(findings: Findings) -> Report {
        Report { advice: advice(&findings), findings }
    }

    /// What `--json` prints.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}
