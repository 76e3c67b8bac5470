//! `weir run`: replaces itself by the program (exec), with the environment that loads Weir.

use crate::environment;
use crate::messaging;
use crate::options::Options;
use crate::signals;
use anyhow::{Context, Result};
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Arguments of `weir run`.
#[derive(Args, Debug)]
#[command(override_usage = "weir run [OPTIONS] [--] PROGRAM [ARGS]...")]
pub struct RunArgs {
    #[command(flatten)]
    options: Options,

    /// Whether MPI launchers (mpirun, mpiexec) are told to send messages by libfabric's provider weir-odp. `auto` (default):
    /// unless the command or the environment chooses components, as `--mca pml ucx` does; `off`: never
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "off"])]
    mpi: String,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Returns only if the program cannot be started, with the exit codes of env(1): 126 if the program exists but cannot
/// be run, 127 if it does not exist, 125 if an option of `weir run` is wrong.
pub fn run(args: &RunArgs) -> ExitCode {
    let prepared = environment::variables(&args.options);
    let (program, words) = args.command.split_first().expect("clap asks for at least one word");
    let found = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let messaging = |mut variables: Vec<_>| {
        if !args.options.system {
            variables.extend(messaging::variables(program, words, args.mpi == "auto", found)?);
        }
        Ok(variables)
    };
    let variables = match prepared.and_then(messaging) {
        Ok(variables) => variables,
        Err(error) => return refuse(125, &error),
    };
    if let Err(error) = check_not_setuid(program) {
        return refuse(126, &error);
    }
    let error = signals::restore_signals(Command::new(program).args(words).envs(variables)).exec();
    cannot_run(program, error)
}

/// Prints why a program cannot be started; the exit code of env(1).
pub fn cannot_run(program: &OsStr, error: io::Error) -> ExitCode {
    let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    refuse(code, &anyhow::Error::new(error).context(format!("cannot run {}", program.to_string_lossy())))
}

/// Prints an error; the exit code.
pub fn refuse(code: u8, error: &anyhow::Error) -> ExitCode {
    eprintln!("weir: {error:#}");
    ExitCode::from(code)
}

/// The loader ignores LD_LIBRARY_PATH for a program that gains privileges at exec (AT_SECURE in getauxval(3)): the
/// program would run without Weir, and without a message.
fn check_not_setuid(program: &OsStr) -> Result<()> {
    let Some(path) = resolve(program) else {
        return Ok(()); // exec reports the error
    };
    let file = path.metadata().with_context(|| format!("cannot read the mode of {}", path.display()))?;
    let (user, group) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    let setuid = file.mode() & libc::S_ISUID != 0 && file.uid() != user;
    let setgid = file.mode() & libc::S_ISGID != 0 && file.gid() != group;
    anyhow::ensure!(
        !setuid && !setgid,
        "{} is {}: the loader ignores LD_LIBRARY_PATH for it. Run a copy of it without that bit, or run weir as the \
         user or group that it switches to",
        path.display(),
        if setuid { "setuid" } else { "setgid" }
    );
    Ok(())
}

/// The path that execvp finds for the program; `None` if there is none.
fn resolve(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|path| path.exists());
    }
    let runs = |path: &Path| path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(program)).find(|path| runs(path))
}
