//! `weir bench`: measures Weir in turns with baselines on the same machine, and compares the ratios with bars.
//!
//! Absolute figures of a virtual machine say little: the distance of its cores and the state of its kernel's memory
//! change over time. So subject and baseline run in turns (A B A B …), and medians and ranges of their ratios count.
//!
//! The process that calls [`run`] is the `weir` command: benches start it again, as `weir run` or `weir bench`.

mod analyze;
mod beside_flood;
mod busy;
mod busy_machine;
mod capture;
mod captured;
mod cm;
mod cmtime;
mod cores;
mod doctor;
mod ecosystem;
pub mod edge;
mod fabric;
mod flooded;
mod guarded;
mod guards;
mod idle;
mod load;
mod measure;
mod memory;
mod messages;
mod mpi;
mod mtu;
mod odp;
mod out_of_core;
mod peers;
mod perftest;
mod raw;
mod request;
mod rows;
mod same_host;
mod scale;
mod schemes;
mod sim;
mod sweep;
mod table;
mod tcp;
mod turns;
mod under_weir;

use anyhow::{Context, Result, ensure};
use clap::Args;
use measure::Runner;
use mtu::MTU;
use request::{Own, Request};
use rows::Row;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use weir_stage::Stage;

/// Arguments of `weir bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Benches to run, by name or by the first part of a name (`write-1m`); without names, all usual ones. `busy`,
    /// `capture`, `cm`, `doctor`, `ecosystem`, `flooded`, `guards`, `messages`, `same-host` and `schemes` take names of
    /// their rows (`ecosystem mpi`)
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// List the benches and their bars
    #[arg(long)]
    list: bool,
    /// Measure with short runs and few rounds
    #[arg(long)]
    quick: bool,
    /// Number of rounds, each a run of every measurement [default: 5, or 3 with --quick; odp: 9, or 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Draw the figures of `odp` to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// `odp`: instead of its usual measurements, the parameters of the extended LogGP model (L, o, g, G, registration,
    /// prefetch, page faults), and what its equations predict for messages from 64 KiB to 4 MiB, beside the measured
    /// times of a rendezvous and of Put between two processes
    #[arg(long, conflicts_with = "check")]
    loggp: bool,
    /// `schemes`: the time of a run is the number behind this text in what the command prints, such as "Loop time of"
    /// [default: the time of the whole command]
    #[arg(long, value_name = "TEXT", requires = "command")]
    after: Option<String>,
    /// `schemes`: run this command with each scheme, instead of the usual applications
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Exit with an error if a bench falls short of its bar
    #[arg(long)]
    check: bool,

    #[arg(long, hide = true)]
    raw_server: Option<SocketAddr>,
    #[arg(long, hide = true, requires = "raw_job")]
    raw_client: Option<SocketAddr>,
    #[arg(long, hide = true)]
    raw_job: Option<String>,
    #[arg(long, hide = true, value_name = "CORE")]
    busy_loop: Option<usize>,
    #[arg(long, hide = true, requires = "connections")]
    tcp_server: Option<SocketAddr>,
    #[arg(long, hide = true, requires = "connections")]
    tcp_client: Option<SocketAddr>,
    #[arg(long, hide = true)]
    connections: Option<u32>,
}

/// The bench that takes names of applications, or a command.
const SCHEMES: &str = "schemes";

/// A bench with measurements and a report of its own. It runs only when it is named, without others.
struct Alone {
    name: &'static str,
    /// What it measures, for `--list`.
    what: &'static str,
    /// Its rows, if it has any, for `--list`.
    rows: fn() -> Vec<Row>,
    /// Other parts that can be named, and what they are.
    parts: fn() -> Vec<(&'static str, &'static str)>,
    run: fn(&Request<'_>) -> Result<ExitCode>,
}

const ALONE: [Alone; 16] = [
    Alone {
        name: "analyze",
        what: "captures: bytes per second of one core, against tshark (only when named, alone)",
        rows: Vec::new,
        parts: Vec::new,
        run: analyze::run,
    },
    Alone {
        name: "busy",
        what: "latency beside one busy loop per core, against UCX over TCP (only when named, alone)",
        rows: busy_machine::rows,
        parts: Vec::new,
        run: busy_machine::run,
    },
    Alone {
        name: "capture",
        what: "what a capture costs, of headers, in memory, and of whole packets (only when named, alone)",
        rows: capture::rows,
        parts: Vec::new,
        run: capture::run,
    },
    Alone {
        name: "cm",
        what: "connections of librdmacm that are set up and torn down, by cmtime (only when named, alone)",
        rows: cm::rows,
        parts: Vec::new,
        run: cm::run,
    },
    Alone {
        name: "doctor",
        what: "what `weir doctor` costs, against the same program without it (only when named, alone)",
        rows: doctor::rows,
        parts: Vec::new,
        run: doctor::run,
    },
    Alone {
        name: "ecosystem",
        what: "UCX, libfabric and Open MPI over Weir, against themselves over TCP (only when named, alone)",
        rows: ecosystem::rows,
        parts: Vec::new,
        run: ecosystem::run,
    },
    Alone {
        name: "flooded",
        what: "a transfer while a third host sends forged packets (root; only when named, alone)",
        rows: flooded::rows,
        parts: Vec::new,
        run: flooded::run,
    },
    Alone {
        name: "guards",
        what: "what `--guard auto` costs where no guard has to act (only when named, alone)",
        rows: guards::rows,
        parts: Vec::new,
        run: guards::run,
    },
    Alone {
        name: "messages",
        what: "MPI over weir-odp, against itself over libfabric's tcp and UCX (only when named, alone)",
        rows: messages::rows,
        parts: Vec::new,
        run: messages::run,
    },
    Alone {
        name: "odp",
        what: "on-demand paging: warm, cold, prefetched, figures; --loggp: a model (only when named, alone)",
        rows: Vec::new,
        parts: Vec::new,
        run: odp::run,
    },
    Alone {
        name: "out-of-core",
        what: "pinned and ODP memory when memory is short, by verbs and by mpi (root; only when named, alone)",
        rows: Vec::new,
        parts: out_of_core::ways,
        run: out_of_core::run,
    },
    Alone {
        name: "same-host",
        what: "two processes of one host, against UCX over shared memory (only when named, alone)",
        rows: same_host::rows,
        parts: Vec::new,
        run: same_host::run,
    },
    Alone {
        name: "scale",
        what: "1 to 64 pairs of processes at once, and 1,000 processes (root; only when named, alone)",
        rows: Vec::new,
        parts: Vec::new,
        run: scale::run,
    },
    Alone {
        name: SCHEMES,
        what: "MPI programs over weir-odp with each registration scheme (only when named, alone; or `-- COMMAND`)",
        rows: Vec::new,
        parts: schemes::applications,
        run: schemes::run,
    },
    Alone {
        name: "sim",
        what: "the simulator: packets per second, a packet flood, 1,024 hosts (only when named, alone)",
        rows: Vec::new,
        parts: Vec::new,
        run: sim::run,
    },
    Alone {
        name: "sweep",
        what: "all operations and sizes against UCX over TCP (only when named, alone)",
        rows: Vec::new,
        parts: Vec::new,
        run: sweep::run,
    },
];

/// Runs `weir bench`. It fails if a run fails, and with `--check` also if a bench falls short of its bar.
pub fn run(args: BenchArgs) -> Result<ExitCode> {
    if let Some(address) = args.raw_server {
        return raw::serve(address).map(|()| ExitCode::SUCCESS);
    }
    if let Some((address, job)) = args.raw_client.zip(args.raw_job) {
        let job = serde_json::from_str(&job).context("--raw-job")?;
        println!("{}", raw::run_client(address, job)?);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(core) = args.busy_loop {
        return load::spin(core).map(|()| ExitCode::SUCCESS);
    }
    let count = args.connections.unwrap_or(0);
    if let Some(address) = args.tcp_server {
        return tcp::serve(address, count).map(|()| ExitCode::SUCCESS);
    }
    if let Some(address) = args.tcp_client {
        return tcp::connect(address, count).map(|()| ExitCode::SUCCESS);
    }
    ensure!(
        args.command.is_empty() || args.names.first().is_some_and(|name| name == SCHEMES),
        "only `schemes` takes a command; use: weir bench schemes -- COMMAND"
    );
    ensure!(!args.loggp || args.names == ["odp"], "--loggp is an option of `odp`; use: weir bench odp --loggp");
    if args.list {
        list();
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(bench) = ALONE.iter().find(|bench| args.names.iter().any(|name| name == bench.name)) {
        let Alone { name, run, .. } = bench;
        let others = "cannot run with other benches; use: weir bench";
        ensure!(args.names[0] == *name, "`{name}` {others} {name}");
        let names = &args.names[1..];
        let selects = !(bench.rows)().is_empty() || !(bench.parts)().is_empty();
        ensure!(names.is_empty() || selects, "`{name}` {others} {name}");
        let own = (!args.command.is_empty()).then(|| Own { command: &args.command, after: args.after.as_deref() });
        let BenchArgs { quick, rounds, json, check, loggp, .. } = args;
        return run(&Request { names, quick, rounds, json, check, svg: args.svg.as_deref(), loggp, own });
    }
    let rows = rows::select(rows::all(), &args.names)?;
    let BenchArgs { names, quick, rounds, json, check, .. } = args;
    let request = Request { names: &names, quick, rounds, json, check, svg: None, loggp: false, own: None };
    let stage = Stage::new(MTU)?;
    turns::announce("weir bench", &stage, &request);
    turns::warn_of_missing(&rows);
    let outcomes = turns::measure(&rows, Runner::new(&stage, request.seconds()), request.rounds_of_rows());
    turns::report(&outcomes, &request)
}

fn list() {
    for Alone { name, what, rows, parts, .. } in &ALONE {
        println!("{name:24}  {what}");
        for row in rows() {
            list_row(&row, "  ", "");
        }
        parts().iter().for_each(|(name, what)| println!("  {name:22}  {what}"));
    }
    for row in rows::all() {
        list_row(&row, "", if row.by_default { "" } else { " (only when named)" });
    }
}

fn list_row(row: &Row, indent: &str, when: &str) {
    println!("{:24}  {}{when}", format!("{indent}{}", row.name), row.what);
    for comparison in &row.comparisons {
        let baseline = comparison.baseline.describe(row.subject.unit());
        let bar = comparison.bar.map_or("shown as share".to_owned(), |bar| bar.to_string());
        println!("{:26}{indent}{bar} of {baseline}", "");
    }
}
