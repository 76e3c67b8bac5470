//! The arguments of `weir tune`.

use crate::units;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `weir tune`.
#[derive(Args, Debug, Default)]
#[command(after_help = HELP)]
pub struct TuneArgs {
    /// Measure this device; `system` is the system's first one, `weir` any of Weir's [default: system, or weir if
    /// there is none]
    #[arg(long, short, value_name = "NAME")]
    pub device: Option<String>,
    /// The receiver runs on this host, started through ssh, or by you with `weir tune --serve`; without it both sides
    /// run here
    #[arg(long, value_name = "[USER@]HOST")]
    pub peer: Option<String>,
    /// The peer's device [default: the first one of the same kind]
    #[arg(long, value_name = "NAME", requires = "peer")]
    pub peer_device: Option<String>,
    /// The peer's weir command, if it is not in its PATH
    #[arg(long, value_name = "PATH", requires = "peer")]
    pub peer_weir: Option<String>,
    /// Both sides run here, each in a network namespace of its own: Weir's packets go through the kernel (root)
    #[arg(long, conflicts_with_all = ["peer", "device", "serve"])]
    pub namespaces: bool,
    /// Be the receiver for `weir tune --peer` on another host, until Ctrl-C
    #[arg(long, conflicts_with_all = MEASURING)]
    pub serve: bool,
    /// Serve one sender only; the end of standard input ends the receiver before one comes
    #[arg(long, requires = "serve")]
    pub once: bool,
    /// The sender must have the same number
    #[arg(long, requires = "serve", default_value_t = 0, hide = true)]
    pub token: u32,
    /// TCP port of the receiver, with --peer or --serve [default: 18516]
    #[arg(long, value_name = "N")]
    pub port: Option<u16>,
    /// Measure four sizes of messages with short runs, in less than two minutes
    #[arg(long)]
    pub quick: bool,
    /// Measure for this time at most, such as 90s or 10m [default: 10m, or 100s with --quick]
    #[arg(long, value_name = "TIME", value_parser = units::parse_time)]
    pub budget: Option<Duration>,
    /// Sizes of messages, such as 4K,64K,1M [default: powers of two from 32K to 64M]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = units::parse_size)]
    pub sizes: Vec<u64>,
    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,
    /// Also write a page with tables and charts to this file
    #[arg(long, value_name = "OUT.html")]
    pub html: Option<PathBuf>,
    /// Keep results in this file; a run that was interrupted continues from it [default: below
    /// $XDG_STATE_HOME/weir/tune]
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Measure everything anew, even if an interrupted run could continue
    #[arg(long, conflicts_with = "show")]
    pub fresh: bool,
    /// Print the results of the last complete run with these options, and measure nothing
    #[arg(long)]
    pub show: bool,
}

/// Options that have no meaning for a receiver.
const MEASURING: [&str; 9] = ["peer", "quick", "budget", "sizes", "json", "html", "state", "fresh", "show"];

// One paragraph: clap breaks its lines.
const HELP: &str = "\
    A sender writes messages into a receiver's memory (RDMA WRITE with immediate data). weir tune varies how many messages \
    are outstanding, which work requests are signalled, how messages are aligned, whether the sides poll or sleep, and on \
    which CPUs they run. It prints the best settings for each size of messages, how much each setting matters, and what to \
    set in perftest, UCX, libfabric, MPI, NCCL and verbs programs. Nothing else should run on the machine meanwhile.";
