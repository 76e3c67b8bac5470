//! `weir edge`, as a process: its options are the caller's, its JSON is parsed.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::process::{Command, Stdio};
use std::time::Duration;
use weir_stage::Child;

/// A command ends by itself before. It takes as long as its tests.
const LIMIT: Duration = Duration::from_secs(900);

/// The output of `weir edge bench --json`, as far as it is used here.
#[derive(Clone, Debug, Deserialize)]
pub struct Printed {
    #[serde(default)]
    pub rows: Vec<Row>,
    #[serde(default)]
    pub failures: Vec<Failure>,
    #[serde(default)]
    pub errors: Vec<String>,
}

/// A test.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    pub test: String,
    pub size: u32,
    pub seconds: f64,
    pub gigabits: f64,
    /// µs, one way.
    pub median_us: Option<f64>,
    /// µs, of the call that begins an operation.
    pub call_median_us: Option<f64>,
    pub client: Side,
    pub server: Side,
}

/// What a side has used.
#[derive(Clone, Debug, Deserialize)]
pub struct Side {
    pub cpu_seconds: f64,
    #[serde(default)]
    pub breakdown: Option<Vec<Share>>,
}

/// A part of its CPU time.
#[derive(Clone, Debug, Deserialize)]
pub struct Share {
    pub part: String,
    pub percent: f64,
}

/// A transfer during which a link fails.
#[derive(Clone, Debug, Deserialize)]
pub struct Failure {
    /// Operations that were performed, and that failed.
    pub operations: u64,
    pub failed_operations: u64,
    /// Packets that went again.
    pub again: u64,
    /// When it fails and is mended, seconds.
    pub fails: f64,
    pub mended: f64,
    pub before: Phase,
    pub failed: Phase,
    pub after: Phase,
    pub stall_ms: f64,
    /// Before it fails.
    pub stall_before_ms: f64,
    pub timeline: Vec<Moment>,
}

/// A part of the transfer.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Phase {
    /// Of operations' bytes.
    pub gigabits: f64,
    /// The share of the link that fails.
    pub share: f64,
}

/// What has come in 10 ms.
#[derive(Clone, Debug, Deserialize)]
pub struct Moment {
    /// Its middle, seconds.
    pub at: f64,
    /// Gbit/s of operations' bytes.
    pub gigabits: f64,
    /// Gbit/s that each link has brought.
    pub links: Vec<f64>,
}

/// Runs `weir edge bench` with these options.
pub fn run(options: &[String]) -> Result<Printed> {
    let printed: Printed = json(&[&["bench".to_owned()], options].concat())?;
    ensure!(printed.errors.is_empty(), "weir edge bench: {}", printed.errors.join("; "));
    Ok(printed)
}

/// Runs `weir edge` with these words and `--json`. The command is the executable of this process.
pub fn json<T: DeserializeOwned>(words: &[String]) -> Result<T> {
    let program = std::env::current_exe().context("cannot find the path of the weir command")?;
    let mut command = Command::new(program);
    command.arg("edge").args(words).arg("--json").stdin(Stdio::null());
    weir_stage::ends_with_this_thread(&mut command);
    let line = format!("weir edge {}", words.join(" "));
    let ended = Child::spawn(&mut command, &line)?.wait(LIMIT)?;
    match serde_json::from_str(&ended.stdout) {
        // Operations that have failed are a result, too.
        Ok(printed) => Ok(printed),
        Err(error) => {
            let ended = ended.success()?;
            Err(error).with_context(|| format!("the output of {line}: {}", ended.printed()))
        }
    }
}
