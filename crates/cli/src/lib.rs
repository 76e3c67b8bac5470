//! The `weir` command: puts Weir under programs, shows its devices, demonstrates and measures it.

mod bench;
mod demo;
mod devices;
mod environment;
mod invalidation;
mod lab;
mod library;
mod options;
mod profiles;
pub mod programs;
mod run;
mod signals;
mod stat;
mod variables;

pub use weir_stage as stage;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

/// RDMA for machines that have none: a RoCEv2 adapter in software, inside the process that uses it.
#[derive(Parser, Debug)]
#[command(name = "weir", version, max_term_width = 100, after_help = TOUR)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

const TOUR: &str = "\
For a first look: `weir demo`. Your own program, on two hosts or in two terminals:
  weir run -- ib_write_bw
  weir run -- ib_write_bw ADDRESS
With faults and a capture for Wireshark:
  weir run --faults loss=0.01,seed=7 --capture weir-%p.pcapng -- ib_write_bw ADDRESS";

#[derive(Subcommand, Debug)]
enum Action {
    /// Run a program with Weir as its RDMA adapter
    Run(run::RunArgs),
    /// Print the variables that put Weir under programs: eval "$(weir env)"
    Env(environment::EnvArgs),
    /// List the devices that programs see, and what is not available here
    Devices(devices::DevicesArgs),
    /// Show unmodified perftest over Weir, every byte verified, iperf3 beside it; takes a minute
    Demo(demo::DemoArgs),
    /// Measure in turns against raw sockets and peers
    Bench(bench::BenchArgs),
    /// Show what processes with Weir in them do, live: traffic, QPs, page faults
    Stat(stat::StatArgs),
    /// List the adapters that Weir can be like, flaws included, and explain their values
    Profiles(profiles::ProfilesArgs),
    /// Repeat the published experiments, simulated or live, beside what the papers claim
    Lab(lab::LabArgs),
    /// Print the version
    Version,
}

/// Runs the command; errors go to stderr.
pub fn main() -> ExitCode {
    signals::end_on_closed_pipes();
    variables::drop_empty();
    let command = Cli::command();
    let parsed = command.clone().try_get_matches().and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches));
    let cli = parsed.unwrap_or_else(|error| variables::blame(error, command).exit());
    let done = match cli.command {
        Action::Run(args) => return run::run(&args),
        Action::Env(args) => environment::run(&args),
        Action::Devices(args) => devices::run(&args),
        Action::Demo(args) => demo::run(&args),
        Action::Bench(args) => bench::run(args),
        Action::Stat(args) => stat::run(&args),
        Action::Profiles(args) => profiles::run(&args),
        Action::Lab(args) => lab::run(args),
        Action::Version => {
            print!("{}", Cli::command().render_version());
            Ok(ExitCode::SUCCESS)
        }
    };
    done.unwrap_or_else(|error| {
        eprintln!("weir: {error:#}");
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_programs_own_options_are_its_own() {
        let cli = Cli::try_parse_from(["weir", "run", "--icrc", "always", "--", "ib_write_bw", "-d", "x", "--help"]);
        assert!(matches!(cli.unwrap().command, Action::Run(_)));
    }
}
