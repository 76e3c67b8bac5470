//! `weir edge primitives`: what the parts of a transfer cost on this machine, as thesis 3.3.2 measures them: copies, reads and
//! writes of memory, system calls, buffers, headers, pinning and remapping.

mod calls;
mod memory;
mod pages;
mod report;
mod timing;

use anyhow::Result;
use clap::Args;
use report::Report;
use std::process::ExitCode;

/// Arguments of `weir edge primitives`.
#[derive(Args, Debug)]
#[command(after_help = "\
One process, without a network; it takes some seconds. Rates are GB/s of bytes copied, read or written; each is the median of
several runs. The kernel's limit of locked memory (RLIMIT_MEMLOCK) may end the rows of pinning early.")]
pub struct PrimitivesArgs {
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// Measures all and prints it.
pub fn run(args: &PrimitivesArgs) -> Result<ExitCode> {
    let report = Report { memory: memory::measure()?, calls: calls::measure()?, pages: pages::measure()? };
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", report.text()),
    }
    Ok(ExitCode::SUCCESS)
}
