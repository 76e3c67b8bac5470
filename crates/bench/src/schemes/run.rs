//! A run of a program with a scheme.

use super::application::{Application, Prepared, Proof};
use super::summary::{self, Totals};
use crate::mpi::{self, Build};
use crate::request::Own;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use weir_stage::{Child, Stage};

/// Time limit of a run of a usual application.
const BOUND: Duration = Duration::from_secs(400);
/// Time limit of a run of the user's.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// What is run again and again.
pub enum Job {
    Usual { stage: Stage, folder: TempDir, ranks: u32, prepared: Prepared },
    Own { command: Vec<OsString>, after: Option<String> },
}

/// What came of a run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Run {
    pub seconds: f64,
    #[serde(flatten)]
    pub totals: Totals,
}

impl Job {
    /// A usual application, in a network namespace of its own, or on the loopback interface without privileges.
    pub fn of(application: &Application, quick: bool) -> Result<Job> {
        let folder = tempfile::tempdir()?;
        let prepared = application.prepare(folder.path(), quick)?;
        Ok(Job::Usual { stage: Stage::same_host()?.unpinned(), folder, ranks: application.ranks, prepared })
    }

    /// The user's command, in the user's folder and network.
    pub fn own(own: &Own<'_>) -> Result<Job> {
        ensure!(!own.command.is_empty(), "a command with a launcher is expected: weir bench schemes -- mpirun …");
        Ok(Job::Own { command: own.command.to_vec(), after: own.after.map(str::to_owned) })
    }

    /// The command as the user wrote it, or the application's.
    pub fn shown(&self) -> String {
        let words = match self {
            Job::Usual { prepared, .. } => &prepared.command,
            Job::Own { command, .. } => command,
        };
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    /// Runs it once.
    pub fn run(&self, scheme: &str) -> Result<Run> {
        let summaries = tempfile::tempdir()?;
        let (mut command, bound) = match self {
            Job::Usual { stage, folder, ranks, prepared } => {
                (usual(stage, *ranks, &prepared.command, folder.path())?, BOUND)
            }
            Job::Own { command: words, .. } => {
                let mut command = Command::new(std::env::current_exe()?);
                weir_stage::ends_with_this_thread(&mut command);
                command.args(["run", "--"]).args(words);
                (command, LONG)
            }
        };
        command.env("WEIR_ODP_SCHEME", scheme).env("WEIR_ODP_SUMMARY", summaries.path());
        let begun = Instant::now();
        let ended = Child::spawn(&mut command, self.shown())?.wait(bound)?.success()?;
        let whole = begun.elapsed().as_secs_f64();
        let totals = summary::read(summaries.path())?;
        ensure!(
            totals.processes > 0,
            "no process used weir-odp: does the program use MPI over libfabric, and end well?"
        );
        self.check()?;
        let seconds = match self.after() {
            None => whole,
            Some(text) => number_after(&ended.stdout, text)
                .with_context(|| format!("the program printed no number behind {text:?}"))?,
        };
        Ok(Run { seconds, totals })
    }

    fn after(&self) -> Option<&str> {
        match self {
            Job::Usual { prepared, .. } => prepared.after,
            Job::Own { after, .. } => after.as_deref(),
        }
    }

    /// Whether the run has left what shows that its results are right.
    fn check(&self) -> Result<()> {
        let Job::Usual { folder, prepared, .. } = self else { return Ok(()) };
        let Proof::Line { file, line } = prepared.proof else { return Ok(()) };
        let path = folder.path().join(file);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        // The next run must leave its own.
        std::fs::remove_file(&path)?;
        ensure!(text.lines().any(|found| found.trim() == line), "{file} has no line {line:?}");
        Ok(())
    }
}

fn usual(stage: &Stage, ranks: u32, program: &[OsString], folder: &Path) -> Result<Command> {
    let mut command = mpi::launch(stage, Build::OpenMpi, true, folder)?;
    command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", &ranks.to_string()]);
    command.args(program).current_dir(folder);
    // A rank per core, and no threads beside it; and ranks that share a core offer it to each other.
    command.env("OMP_NUM_THREADS", "1").env("OPENBLAS_NUM_THREADS", "1");
    Ok(command)
}

/// The first number behind the last occurrence of `text`.
fn number_after(output: &str, text: &str) -> Option<f64> {
    let (_, behind) = output.rsplit_once(text)?;
    let word = behind.split_whitespace().next()?;
    let number: f64 = word.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok()?;
    (number > 0.0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_behind_a_text_is_the_time() {
        let output = "Loop time of 0.5 on 4 procs\nLoop time of 0.25, on 4 procs for 20 steps\n";
        assert_eq!(number_after(output, "Loop time of"), Some(0.25));
        assert_eq!(number_after(output, "time:"), None);
        assert_eq!(number_after("time none", "time"), None);
    }

    #[test]
    fn without_a_command_there_is_nothing_to_run() {
        assert!(Job::own(&Own { command: &[], after: None }).is_err());
    }
}
