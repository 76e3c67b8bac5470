//! `weir bench`.

use std::process::ExitCode;

/// Arguments of `weir bench`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the benches.
pub fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("no bench is built into this weir")
}
