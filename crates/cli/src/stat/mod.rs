//! `weir stat`: live counters of processes that use Weir: traffic, QPs, interfaces that are used as one, pinned memory,
//! the cost of paging, and what other libraries of the process publish.

mod figures;
mod published;
mod shown;
mod table;

use anyhow::{Result, bail};
use clap::Args;
use nix::unistd::geteuid;
use shown::{Process, user};
use std::io::{IsTerminal, Write, stdout};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weir_device::stat::read::{self, Unreadable};

/// Seconds between two tables on a terminal.
const PERIOD: f64 = 1.0;

/// Arguments of `weir stat`.
#[derive(Args, Debug)]
pub struct StatArgs {
    /// Process ID; without it, list all processes that use Weir
    pid: Option<u32>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Repeat at this interval until the process ends [default: 1 on a terminal for a PID, otherwise print once]
    #[arg(long, value_name = "SECONDS")]
    interval: Option<f64>,
}

/// Shows a process, or lists all.
pub fn run(args: &StatArgs) -> Result<ExitCode> {
    let interval = args.interval.or((args.pid.is_some() && !args.json && stdout().is_terminal()).then_some(PERIOD));
    if interval.is_some_and(|seconds| !(0.01..=3600.0).contains(&seconds)) {
        bail!("--interval: use 0.01 to 3600 seconds");
    }
    let mut last: Option<(Instant, Vec<Process>)> = None;
    loop {
        let processes = match (find(args.pid), &last) {
            (Ok(processes), _) => processes,
            // The process was shown before: its end is no error.
            (Err(_), Some(_)) => return Ok(ExitCode::SUCCESS),
            (Err(error), None) => return Err(error),
        };
        let now = Instant::now();
        let text = match args.json {
            true if interval.is_some() => format!("{}\n", json(args, &processes)?),
            true => format!("{:#}\n", json(args, &processes)?),
            false => {
                let before = last.as_ref().map(|(then, before)| (now - *then, before.as_slice()));
                table::text(&processes, args.pid.is_some(), before)
            }
        };
        // On a terminal a table replaces the table before; JSON, and output to a file, is appended.
        let clear = if interval.is_some() && !args.json && stdout().is_terminal() { "\x1b[H\x1b[J" } else { "" };
        let mut out = stdout().lock();
        if write!(out, "{clear}{text}").and_then(|()| out.flush()).is_err() {
            return Ok(ExitCode::SUCCESS); // The reader has closed its end.
        }
        let Some(seconds) = interval else { return Ok(ExitCode::SUCCESS) };
        last = Some((now, processes));
        std::thread::sleep(Duration::from_secs_f64(seconds));
    }
}

fn json(args: &StatArgs, processes: &[Process]) -> Result<serde_json::Value> {
    Ok(match args.pid {
        Some(_) => serde_json::to_value(&processes[0])?,
        None => serde_json::to_value(processes)?,
    })
}

/// The process `pid`, or all without a `pid`.
pub fn find(pid: Option<u32>) -> Result<Vec<Process>> {
    let mut found: Vec<Process> = read::processes(&read::folders()).iter().map(Process::from).collect();
    if let Some(pid) = pid {
        found.retain(|process| process.pid == pid);
        found.truncate(1);
        if found.is_empty() {
            bail!("{}", absence_reason(pid));
        }
    }
    Ok(found)
}

/// Why a process is not shown.
pub fn absence_reason(pid: u32) -> String {
    for folder in read::folders().iter().map(|run| run.join(pid.to_string())).filter(|folder| folder.is_dir()) {
        match read::process(&folder) {
            Err(Unreadable::Dead) if !exists(pid) => return format!("process {pid} has ended"),
            // The process that wrote this folder has ended, and its process ID is in use again.
            Err(Unreadable::Dead) | Ok(_) => {}
            Err(error) => return format!("process {pid}: {}: {error}", folder.display()),
        }
    }
    let Ok(process) = std::fs::metadata(format!("/proc/{pid}")) else {
        return format!("there is no process {pid}; `weir stat` lists the processes that use Weir");
    };
    if process.uid() != geteuid().as_raw() && !geteuid().is_root() {
        return format!("process {pid} is {}'s: only that user and root may see its counters", user(process.uid()));
    }
    format!(
        "process {pid} has no counters: it has not opened a Weir device, or it uses another WEIR_RUN_DIR; start it \
         with `weir run`, and run `weir stat` with the same WEIR_RUN_DIR"
    )
}

fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
