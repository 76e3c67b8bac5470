//! `weir edge bench`: operations over several shaped links, as thesis 3.1 measures them, in turns with other systems.

mod baselines;
mod configuration;
mod job;
mod mptcp;
mod report;
mod role;
mod sides;
mod usage;

use anyhow::{Context, Result, bail};
use baselines::{Baseline, Peer};
use clap::{Args, Subcommand};
use configuration::Configuration;
use job::{Done, Job, Settings, Test};
use report::{Comparison, Report, Row};
use role::Role;
use std::process::ExitCode;
use weir_stage::Stage;

/// Arguments of `weir edge`.
#[derive(Args, Debug)]
pub struct EdgeArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Measure WRITEs over links of a given rate, in turns with TCP, MPTCP, bonding and UCX
    Bench(EdgeBenchArgs),
}

/// Arguments of `weir edge bench`.
#[derive(Args, Debug)]
#[command(after_help = "\
Two processes in two network namespaces (root), joined by veths that `tc` gives a rate. Without options it takes about a
minute. Gbit/s are those of the operations' bytes; `of nominal` is their share of what the links carry without headers;
`again` are packets that were sent before; µs are those of one way of a ping-pong, median and 99 %; client and server are
seconds of CPU time.")]
struct EdgeBenchArgs {
    /// Links: 4x1 are four of 1 Gbit/s, 1x10+4x1 have one of 10 Gbit/s beside them [default: 1x1,2x1,4x1,8x1]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    links: Vec<Configuration>,
    /// MTU of the links, bytes [default: 1500]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1280..=65_535))]
    mtu: Vec<u32>,
    /// Bytes of an operation, up to 8 MiB [default: 4,4096,65536,1048576]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=8 << 20))]
    sizes: Vec<u32>,
    /// Length of a test, seconds; iperf3 rounds it up to whole ones
    #[arg(long, value_name = "S", default_value_t = 0.3, value_parser = seconds)]
    seconds: f64,
    /// All: 1x1, 2x1, 4x1, 6x1, 8x1, 1x10 and 1x10+4x1, MTU 1500 and 9000, sizes of 4 B to 1 MiB; takes eight minutes
    #[arg(long)]
    all: bool,
    /// Take packets in calls (polling), and not in a thread that sleeps
    #[arg(long)]
    polling: bool,
    /// Measure where CPU time goes, as thesis 3.1 divides it; that costs some throughput
    #[arg(long)]
    breakdown: bool,
    /// What to run in turns with WRITEs of the largest size, one way
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "tcp,mptcp,bonding,ucx")]
    peers: Vec<Peer>,
    /// Number of turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,

    #[arg(long, hide = true)]
    role: Option<String>,
}

const LINKS: [&str; 4] = ["1x1", "2x1", "4x1", "8x1"];
const ALL_LINKS: [&str; 7] = ["1x1", "2x1", "4x1", "6x1", "8x1", "1x10", "1x10+4x1"];
const SIZES: [u32; 4] = [4, 4096, 65_536, 1 << 20];

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=60.0).contains(seconds));
    seconds.ok_or_else(|| "give 0.01 to 60 seconds".to_owned())
}

/// Runs `weir edge`. `weir edge bench` fails if a run fails.
pub fn run(args: EdgeArgs) -> Result<ExitCode> {
    let Command::Bench(args) = args.command;
    if let Some(role) = &args.role {
        return Role::play(role).map(|()| ExitCode::SUCCESS);
    }
    let plan = Plan::of(&args)?;
    let mut report = Report::default();
    for links in &plan.links {
        for &mtu in &plan.mtus {
            let place = Place::new(links, mtu, plan.settings)?;
            if report.rows.is_empty() {
                eprintln!("weir edge bench: {}; links shaped by tc", place.stage.describe());
            }
            eprintln!("{} MTU {mtu} …", links.name);
            let done = place.measure(&plan.jobs).with_context(|| format!("{} MTU {mtu}", links.name))?;
            report.rows.extend(done.iter().map(|done| Row::new(links, mtu, done, args.breakdown)));
            report.comparisons.extend(place.compare(&plan)?);
        }
    }
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", report.text()),
    }
    let failed = report.comparisons.iter().any(|comparison| comparison.failed.is_some());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What is measured on each set of links.
struct Plan {
    links: Vec<Configuration>,
    mtus: Vec<u32>,
    jobs: Vec<Job>,
    peers: Vec<Peer>,
    /// What baselines are compared with.
    compared: Job,
    rounds: u32,
    settings: Settings,
}

impl Plan {
    fn of(args: &EdgeBenchArgs) -> Result<Plan> {
        let named = |names: &[&str]| names.iter().map(|name| name.parse()).collect::<Result<Vec<Configuration>>>();
        let links = match args.links.is_empty() {
            true => named(if args.all { &ALL_LINKS } else { &LINKS })?,
            false => args.links.clone(),
        };
        let all_sizes: Vec<u32> = (1..=10).map(|power| 1 << (2 * power)).collect();
        let or = |given: &[u32], all: &[u32], usual: &[u32]| match given.is_empty() {
            true => if args.all { all } else { usual }.to_vec(),
            false => given.to_vec(),
        };
        let sizes: Vec<usize> = or(&args.sizes, &all_sizes, &SIZES).into_iter().map(|size| size as usize).collect();
        let seconds = args.seconds;
        let job = |test, size| Job { test, size, seconds };
        let largest = sizes.iter().copied().max().context("no size is given")?;
        Ok(Plan {
            links,
            mtus: or(&args.mtu, &[1500, 9000], &[1500]),
            jobs: Test::ALL.iter().flat_map(|&test| sizes.iter().map(move |&size| job(test, size))).collect(),
            peers: args.peers.iter().copied().filter(|&peer| peer != Peer::None).collect(),
            compared: job(Test::OneWay, largest),
            rounds: args.rounds,
            settings: Settings { polling: args.polling, measure: args.breakdown },
        })
    }
}

/// Two namespaces with shaped links.
struct Place<'a> {
    stage: Stage,
    links: &'a Configuration,
    mtu: u32,
    settings: Settings,
}

impl Place<'_> {
    fn new(links: &Configuration, mtu: u32, settings: Settings) -> Result<Place<'_>> {
        let stage = Stage::with_links(links.rates.len(), mtu)?;
        if let Some(why) = stage.loopback_reason() {
            bail!("there are no links to measure: {why}");
        }
        for (link, &rate) in links.rates.iter().enumerate() {
            stage.shape(link, rate)?;
        }
        Ok(Place { stage, links, mtu, settings })
    }

    fn measure(&self, jobs: &[Job]) -> Result<Vec<Done>> {
        let (settings, jobs) = (self.settings, jobs.to_vec());
        let seconds = jobs.iter().map(|job| job.seconds).sum();
        let server = |address| Role::Server { address, settings };
        let outcome = role::pair(&self.stage, seconds, server, |address| Role::Client { address, settings, jobs })?;
        serde_json::from_str(&outcome.client.stdout).with_context(|| outcome.client.printed())
    }

    /// Weir in turns with all baselines.
    fn compare(&self, plan: &Plan) -> Result<Vec<Comparison>> {
        let Plan { compared: job, rounds, .. } = *plan;
        let (links, mtu) = (self.links, self.mtu);
        let mut comparisons = vec![];
        let mut runnable = vec![];
        for &peer in &plan.peers {
            let comparison = Comparison::new(links, mtu, job.size, peer.name());
            match Baseline::prepare(peer, &self.stage, links, mtu) {
                Ok(baseline) => runnable.push((baseline, comparison, vec![])),
                Err(why) => comparisons.push(Comparison { skipped: Some(format!("{why:#}")), ..comparison }),
            }
        }
        for _ in 0..if runnable.is_empty() { 0 } else { rounds } {
            let done = self.measure(&[job])?.pop().context("no result")?;
            let weir = Row::new(links, mtu, &done, false).gigabits;
            for (baseline, comparison, figures) in &mut runnable {
                if comparison.failed.is_some() {
                    continue;
                }
                match baseline.run(links, mtu, job.size, job.seconds) {
                    Ok(figure) => figures.push((weir, figure)),
                    Err(why) => comparison.failed = Some(format!("{why:#}")),
                }
            }
        }
        comparisons.extend(runnable.into_iter().map(|(_, comparison, figures)| comparison.measured(&figures)));
        Ok(comparisons)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: EdgeArgs,
    }

    fn plan(options: &[&str]) -> Result<Plan> {
        let line = Line::try_parse_from(["weir", "bench"].iter().chain(options))?;
        let Command::Bench(args) = line.args.command;
        Plan::of(&args)
    }

    #[test]
    fn the_default_and_all_are_selections_of_links_and_sizes() {
        let usual = plan(&[]).unwrap();
        assert_eq!((usual.links.len(), usual.mtus.len(), usual.jobs.len()), (4, 1, 12));
        assert_eq!((usual.peers.len(), usual.compared.size), (4, 1 << 20));
        let all = plan(&["--all"]).unwrap();
        assert_eq!((all.links.len(), all.mtus, all.jobs.len()), (7, vec![1500, 9000], 30));
        assert_eq!((all.jobs[0].size, all.jobs[9].size), (4, 1 << 20));
    }

    #[test]
    fn options_choose_and_are_checked() {
        let chosen = plan(&["--links", "2x1,1x10+4x1", "--mtu", "9000", "--sizes", "8,64", "--peers", "none"]).unwrap();
        assert_eq!(chosen.links[1].rates, [10, 1, 1, 1, 1]);
        assert_eq!((chosen.mtus, chosen.jobs.len(), chosen.peers.len()), (vec![9000], 6, 0));
        for wrong in [["--links", "two"], ["--sizes", "0"], ["--mtu", "100"], ["--seconds", "nan"], ["--peers", "x"]] {
            assert!(plan(&wrong).is_err(), "{wrong:?}");
        }
    }
}
