//! What `weir install` did, for the user.

use anyhow::Result;
use serde::Serialize;
use std::path::Path;

/// What was done to a path.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Did {
    Created,
    Updated,
    Unchanged,
    Removed,
    /// It is not Weir's, or no longer.
    Left,
    Ran,
    Hidden,
    Nothing,
}

#[derive(Serialize, Debug)]
struct Step {
    did: Did,
    path: String,
    what: String,
}

/// The steps, in order.
#[derive(Default, Debug)]
pub struct Steps(Vec<Step>);

impl Steps {
    /// `path` is below the root, or the name of a program.
    pub fn add(&mut self, did: Did, path: impl AsRef<Path>, what: String) {
        let path = path.as_ref().display();
        let path = if did == Did::Ran { path.to_string() } else { format!("/{path}") };
        self.0.push(Step { did, path, what });
    }

    /// Prints them, and how to go on: after an installation, with or without preload, or after none.
    pub fn print(&self, json: bool, installed: Option<bool>) -> Result<()> {
        if json {
            println!("{}", serde_json::to_string_pretty(&self.0)?);
            return Ok(());
        }
        for Step { did, path, what } in &self.0 {
            let did = format!("{did:?}").to_lowercase();
            let what = if what.is_empty() { String::new() } else { format!(": {what}") };
            println!("{did:9}  {path}{what}");
        }
        if let Some(preload) = installed {
            let which =
                if preload { "Every dynamically linked program" } else { "Every program that loads libibverbs" };
            println!("{which} now uses Weir. To undo this: weir install --uninstall");
        }
        Ok(())
    }
}
