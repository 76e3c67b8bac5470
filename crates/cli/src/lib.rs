//! The `weir` command: runs programs with Weir, lists its devices, demonstrates and measures it.

mod analyze;
mod demo;
mod devices;
mod doctor;
mod environment;
mod install;
mod invalidation;
mod lab;
mod library;
mod manual;
mod messaging;
mod options;
mod profiles;
mod run;
mod signals;
mod stat;
mod variables;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

/// An RDMA adapter (RoCEv2) in software that runs inside the process that uses it.
#[derive(Parser, Debug)]
#[command(name = "weir", version, max_term_width = 100, after_help = TOUR)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

const TOUR: &str = "\
To try it: `weir demo`. To run your own program, on two hosts or in two terminals:
  weir run -- ib_write_bw
  weir run -- ib_write_bw ADDRESS
With injected faults and a capture for Wireshark:
  weir run --faults loss=0.01,seed=7 --capture weir-%p.pcapng -- ib_write_bw ADDRESS";

#[derive(Subcommand, Debug)]
enum Action {
    /// Run a program with Weir as its RDMA adapter
    Run(run::RunArgs),
    /// Print the environment variables that make programs use Weir: eval "$(weir env)"
    Env(environment::EnvArgs),
    /// List the devices that programs see, and the features that are not available on this machine
    Devices(devices::DevicesArgs),
    /// Run unmodified perftest over Weir beside iperf3 and verify every byte; takes a minute
    Demo(demo::DemoArgs),
    /// Measure throughput, latency, CPU and memory against raw UDP sockets, UCX and iperf3
    Bench(weir_bench::BenchArgs),
    /// Find the best settings for a stream of messages on an adapter, and what to set in programs and libraries
    Tune(weir_tune::TuneArgs),
    /// Measure MultiEdge's operations over several links
    Edge(weir_bench::edge::EdgeArgs),
    /// Run a program, watch its work requests, and report stalls, their likely causes and settings to change
    Doctor(doctor::DoctorArgs),
    /// Show live counters of processes that use Weir: traffic, QPs, interfaces used as one, pinned memory, page faults
    Stat(stat::StatArgs),
    /// Make every program of this machine use Weir without `weir run`, as root; or undo it
    Install(install::InstallArgs),
    /// List the adapters that Weir can imitate, flaws included, and explain their parameters
    Profiles(profiles::ProfilesArgs),
    /// Explain captures: what went wrong, where, what it cost, and what to change
    Analyze(analyze::AnalyzeArgs),
    /// Repeat published experiments, simulated or live, and compare the results with the papers' claims
    Lab(lab::LabArgs),
    /// Write the manual pages of this command and its subcommands into a folder
    Man(manual::ManArgs),
    /// Print the completions of this command for a shell: source <(weir completions bash)
    Completions(manual::CompletionsArgs),
    /// Print the version
    Version,
}

/// Runs the command and prints errors to stderr.
pub fn main() -> ExitCode {
    signals::reset_sigpipe();
    variables::drop_empty();
    let command = Cli::command();
    let parsed = command.clone().try_get_matches().and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches));
    let cli = parsed.unwrap_or_else(|error| variables::name_variable(error, command).exit());
    let done = match cli.command {
        Action::Run(args) => return run::run(&args),
        Action::Analyze(args) => return analyze::run(&args),
        Action::Doctor(args) => return doctor::run(&args),
        Action::Env(args) => environment::run(&args),
        Action::Devices(args) => devices::run(&args),
        Action::Demo(args) => demo::run(&args),
        Action::Bench(args) => weir_bench::run(args),
        Action::Tune(args) => weir_tune::run(args),
        Action::Edge(args) => weir_bench::edge::run(args),
        Action::Stat(args) => stat::run(&args),
        Action::Profiles(args) => profiles::run(&args),
        Action::Lab(args) => lab::run(args),
        Action::Install(args) => install::run(&args),
        Action::Man(args) => manual::write(&args, Cli::command()),
        Action::Completions(args) => manual::print_completions(&args, Cli::command()),
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
    fn clap_accepts_the_command_definition() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_after_the_program_belong_to_the_program() {
        let cli = Cli::try_parse_from(["weir", "run", "--icrc", "always", "--", "ib_write_bw", "-d", "x", "--help"]);
        assert!(matches!(cli.unwrap().command, Action::Run(_)));
    }
}
