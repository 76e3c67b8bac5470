//! `weir doctor`: runs a program with the layer between it and its libibverbs, and reports what the layer observed.
//!
//! Each process of the program that opens a device leaves a file in a folder (`weir_doctor::layout`). This process
//! waits for the program, reads the files and reports. Processes that outlive the program are reported as they are
//! then.

use crate::run::{cannot_run, refuse};
use crate::{environment, signals};
use anyhow::{Context, Result, ensure};
use clap::Args;
use nix::sys::signal::{self, SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal};
use nix::unistd::Pid;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use tempfile::TempDir;
use weir_doctor::layout;
use weir_doctor::report::Report;
use weir_doctor::trace::{self, Trace};

/// Arguments of `weir doctor`.
#[derive(Args, Debug)]
#[command(
    override_usage = "weir doctor [OPTIONS] [--] PROGRAM [ARGS]...",
    after_help = "It watches any libibverbs: that of the system with a real adapter, or Weir's:\n  \
                  weir doctor -- weir run --profile connectx4 -- PROGRAM"
)]
pub struct DoctorArgs {
    /// Report as one JSON object
    #[arg(long)]
    json: bool,
    /// Write the report to this file instead of to stderr
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// The program's exit status; 125 to 127 as for `weir run` if it did not run.
pub fn run(args: &DoctorArgs) -> ExitCode {
    let before = std::env::var("LD_PRELOAD").unwrap_or_default();
    let prepared = environment::with_layer(&before).and_then(|preload| Ok((preload, folder()?, writable(args)?)));
    let (preload, folder, output) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return refuse(125, &error),
    };
    let ended = match run_program(&args.command, preload.as_ref(), folder.path()) {
        Ok(ended) => ended,
        Err(error) => return cannot_run(&args.command[0], error),
    };
    if let Err(error) = report(args, folder.path(), output, &ended) {
        eprintln!("weir: {error:#}");
    }
    drop(folder);
    end_like(ended.status)
}

/// A folder in memory, if there is room for files of some processes there.
fn folder() -> Result<TempDir> {
    const MEMORY: &str = "/dev/shm";
    let free = nix::sys::statvfs::statvfs(MEMORY).map_or(0, |fs| fs.blocks_available() * fs.fragment_size());
    let new = |place: &Path| tempfile::Builder::new().prefix("weir-doctor-").tempdir_in(place);
    if free > 64 * layout::LENGTH as u64
        && let Ok(folder) = new(Path::new(MEMORY))
    {
        return Ok(folder);
    }
    let place = std::env::temp_dir();
    new(&place).with_context(|| format!("cannot make a folder in {}; set TMPDIR to another", place.display()))
}

/// The file of the report, opened before the program runs.
fn writable(args: &DoctorArgs) -> Result<Option<std::fs::File>> {
    let open =
        |path: &PathBuf| std::fs::File::create(path).with_context(|| format!("cannot write to {}", path.display()));
    args.output.as_ref().map(open).transpose()
}

/// The end of the program.
struct Ended {
    pid: u32,
    status: ExitStatus,
    /// By CLOCK_MONOTONIC, ns.
    at: u64,
}

/// Runs the program to its end. Signals that a terminal sends reach the program without this process; those that
/// another process sends to this one are passed on.
fn run_program(words: &[OsString], preload: &OsStr, folder: &Path) -> io::Result<Ended> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env("LD_PRELOAD", preload).env(layout::VARIABLE, folder);
    // It keeps the mask that this process has now.
    signals::restore_signals(&mut command);
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed.
    let inherited = unsafe { signal::sigaction(Signal::SIGCHLD, &default) }?;
    if inherited.handler() == SigHandler::SigIgn {
        // If it were ignored here too, the kernel would reap the program, and its end would be no signal.
        // SAFETY: a system call, no allocation and no lock.
        unsafe { command.pre_exec(move || Ok(signal::sigaction(Signal::SIGCHLD, &inherited).map(drop)?)) };
    }
    let mut waited = SigSet::empty();
    let signals = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2];
    signals.into_iter().chain([Signal::SIGCHLD]).for_each(|signal| waited.add(signal));
    signal::pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&waited), None)?;
    let mut child = command.spawn()?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ended { pid: child.id(), status, at: weir_device::now().0 });
        }
        pass_on(&child, &waited);
    }
}

/// Waits for a signal.
fn pass_on(child: &Child, waited: &SigSet) {
    // SAFETY: the set is initialised and the information is a local variable, for which all zeros is valid.
    let (number, information) = unsafe {
        let mut information: libc::siginfo_t = std::mem::zeroed();
        (libc::sigwaitinfo(waited.as_ref(), &mut information), information)
    };
    let sent_by_process = information.si_code <= 0;
    if let Ok(signal) = Signal::try_from(number)
        && signal != Signal::SIGCHLD
        && sent_by_process
    {
        // It fails only if the program has ended.
        let _ = signal::kill(Pid::from_raw(child.id() as i32), signal);
    }
}

fn report(args: &DoctorArgs, folder: &Path, output: Option<std::fs::File>, ended: &Ended) -> Result<()> {
    let (traces, failures) = traces(folder, ended)?;
    for failure in failures {
        eprintln!("weir: {failure}");
    }
    let words = args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let report = Report::of(words, &traces);
    let text =
        if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { report.text(&folder.to_string_lossy()) };
    match output {
        Some(mut file) => file.write_all(text.as_bytes()).context("cannot write the report"),
        None => {
            // Nothing is left to be told to a closed stderr.
            let _ = io::stderr().write_all(text.as_bytes());
            Ok(())
        }
    }
}

/// What the processes left, and why some of it cannot be read.
fn traces(folder: &Path, ended: &Ended) -> Result<(Vec<Trace>, Vec<String>)> {
    let (mut traces, mut failures) = (vec![], vec![]);
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        match entry {
            Ok(entry) => match trace(&entry.path(), ended) {
                Some(Ok(trace)) => traces.push(trace),
                Some(Err(failure)) => failures.push(failure),
                None => {}
            },
            Err(error) => failures.push(format!("cannot read all of {}: {error}", folder.display())),
        }
    }
    Ok((traces, failures))
}

/// What a process left, or why it cannot be read; `None` for another file.
fn trace(path: &Path, ended: &Ended) -> Option<Result<Trace, String>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let process = name.strip_suffix(layout::SUFFIX)?.split('-').next().unwrap_or_default();
    let read = || -> Result<Trace> {
        let bytes = std::fs::read(path)?;
        ensure!(
            !bytes.is_empty(),
            "there was no room for its file of {} MB: {} is full (set TMPDIR), or a limit of the process is lower \
             (ulimit -f, ulimit -v)",
            layout::LENGTH / 1_000_000,
            path.parent().unwrap_or(path).display()
        );
        trace::read(&bytes, alive_until(process, path, ended))
    };
    Some(read().map_err(|error| format!("process {process} was not observed: {error:#}")))
}

/// Until when a process is known to have run, although it may have been blocked: now, or until a signal ended it. A
/// program that ends by itself may leave completions that it does not need.
fn alive_until(process: &str, path: &Path, ended: &Ended) -> Option<u64> {
    let was_killed = ended.status.signal().is_some() && process == ended.pid.to_string();
    // Its file tells it from another process with its number.
    let maps = || std::fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
    let name = path.as_os_str().as_encoded_bytes();
    if was_killed {
        Some(ended.at)
    } else if maps().windows(name.len()).any(|window| window == name) {
        Some(weir_device::now().0)
    } else {
        None
    }
}

/// Ends as the program ended: with its exit code, or by its signal, without a core dump of this process.
fn end_like(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal().and_then(|number| Signal::try_from(number).ok()) {
        let _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0);
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: no handler is installed.
        let _ = unsafe { signal::sigaction(signal, &default) };
        let mut set = SigSet::empty();
        set.add(signal);
        let _ = set.thread_unblock();
        let _ = signal::raise(signal);
        return ExitCode::from(128 + signal as u8);
    }
    ExitCode::from(status.code().unwrap_or(1) as u8)
}
