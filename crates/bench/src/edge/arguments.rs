//! The arguments of `weir edge bench`, and what they say is measured.

use super::baselines::Peer;
use super::configuration::Configuration;
use super::job::{Job, Test};
use super::settings::{Copies, Preset, Scheduling, Settings, Weights};
use anyhow::{Context, Result, ensure};
use clap::Args;
use weir_stage::Failure;

/// Arguments of `weir edge bench`.
#[derive(Args, Debug)]
#[command(after_help = "\
Two processes in two network namespaces (root), joined by veths that `tc` gives a rate. Without options it takes about a
minute. Gbit/s are those of the operations' bytes; `of nominal` is their share of what the links carry without headers;
`again` are packets that were sent before; µs are those of one way of a ping-pong, median and 99 %; `call` is the time of the
call that begins an operation, µs (median); client and server are seconds of CPU time.

With --failure the second link fails in the middle of WRITEs of the largest size, one way. `down`: its interface is down;
`silent`: all packets are lost; `loss:30`: 30 % of them; `slow:20`: its rate is 20 times smaller. `stall` is the longest time
without a packet from then on, `stall before` the same before; `pause` the longest time in which no operation was complete;
`lost` are operations that failed.")]
pub struct EdgeBenchArgs {
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
    /// Tests to run: one-way, two-way, ping-pong [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    tests: Vec<Test>,
    /// How packets are distributed over the links
    #[arg(long, value_name = "NAME", default_value = "auto")]
    scheduler: Scheduling,
    /// Weights of the links for the scheduler, 1 to 1000: as 10:1:1:1:1, or `rates` [default: equal ones]
    #[arg(long, value_name = "LIST")]
    weights: Option<Weights>,
    /// What is copied beside what must be
    #[arg(long, value_name = "WHICH", default_value = "none")]
    copies: Copies,
    /// When packets are acknowledged and sent again
    #[arg(long, value_name = "NAME", default_value = "tuned")]
    parameters: Preset,
    /// Bytes from the beginning of a page to the place of an operation at the peer
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..4096))]
    offset: u32,
    /// Let the second link fail instead of the tests, for --seconds after as long a time: down, silent, loss:30, slow:20
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with_all = ["tests", "breakdown", "all", "peers", "rounds"])]
    failure: Vec<Failure>,
    /// All: 1x1, 2x1, 4x1, 6x1, 8x1, 1x10 and 1x10+4x1, MTU 1500 and 9000, sizes of 4 B to 1 MiB; takes eight minutes
    #[arg(long)]
    all: bool,
    /// Take packets in calls (polling), and not in a thread that sleeps
    #[arg(long)]
    polling: bool,
    /// Measure where CPU time goes, as thesis 3.1 divides it; that costs some throughput
    #[arg(long)]
    pub breakdown: bool,
    /// What to run in turns with WRITEs of the largest size, one way
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "sockets,tcp,mptcp,bonding,ucx")]
    peers: Vec<Peer>,
    /// Number of turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,

    #[arg(long, hide = true)]
    pub role: Option<String>,
}

/// Seconds before, during and after a failure, at least.
const LEAST_OF_FAILURE: f64 = 0.2;
const FAILING_LINKS: [&str; 1] = ["4x1"];
const LINKS: [&str; 4] = ["1x1", "2x1", "4x1", "8x1"];
const ALL_LINKS: [&str; 7] = ["1x1", "2x1", "4x1", "6x1", "8x1", "1x10", "1x10+4x1"];
const SIZES: [u32; 4] = [4, 4096, 65_536, 1 << 20];

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=60.0).contains(seconds));
    seconds.ok_or_else(|| "give 0.01 to 60 seconds".to_owned())
}

/// What is measured on each set of links.
pub struct Plan {
    pub links: Vec<Configuration>,
    pub mtus: Vec<u32>,
    pub jobs: Vec<Job>,
    pub failures: Vec<Failure>,
    pub peers: Vec<Peer>,
    /// What baselines are compared with.
    pub compared: Job,
    pub rounds: u32,
    pub settings: Settings,
}

impl Plan {
    /// An error says which arguments do not fit each other.
    pub fn of(args: &EdgeBenchArgs) -> Result<Plan> {
        let named = |names: &[&str]| names.iter().map(|name| name.parse()).collect::<Result<Vec<Configuration>>>();
        let links = match args.links.is_empty() {
            true if !args.failure.is_empty() => named(&FAILING_LINKS)?,
            true => named(if args.all { &ALL_LINKS } else { &LINKS })?,
            false => args.links.clone(),
        };
        let weights = args.weights.clone().unwrap_or_default();
        let settings = Settings {
            polling: args.polling,
            measure: args.breakdown,
            scheduler: args.scheduler,
            weights,
            copies: args.copies,
            parameters: args.parameters,
            offset: args.offset as usize,
        };
        ensure!(
            args.failure.is_empty() || args.seconds >= LEAST_OF_FAILURE,
            "--failure takes --seconds {LEAST_OF_FAILURE} or more: rates settle first"
        );
        for one in &links {
            settings.for_links(&one.rates).with_context(|| one.name.clone())?;
            ensure!(
                args.failure.is_empty() || one.rates.len() > 1,
                "{}: a link fails where there is another",
                one.name
            );
        }
        let all_sizes: Vec<u32> = (1..=10).map(|power| 1 << (2 * power)).collect();
        let or = |given: &[u32], all: &[u32], usual: &[u32]| match given.is_empty() {
            true => if args.all { all } else { usual }.to_vec(),
            false => given.to_vec(),
        };
        let sizes: Vec<usize> = or(&args.sizes, &all_sizes, &SIZES).into_iter().map(|size| size as usize).collect();
        let seconds = args.seconds;
        let job = |test, size| Job { test, size, seconds, sampled: false };
        let tests = match (args.tests.is_empty(), args.failure.is_empty()) {
            (true, true) => &Test::ALL[..],
            (true, false) => &[],
            (false, _) => &args.tests,
        };
        let largest = sizes.iter().copied().max().context("no size is given")?;
        Ok(Plan {
            links,
            mtus: or(&args.mtu, &[1500, 9000], &[1500]),
            jobs: tests.iter().flat_map(|&test| sizes.iter().map(move |&size| job(test, size))).collect(),
            failures: args.failure.clone(),
            peers: args.peers.iter().copied().filter(|&peer| peer != Peer::None && args.failure.is_empty()).collect(),
            compared: job(Test::OneWay, largest),
            rounds: args.rounds,
            settings,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: EdgeBenchArgs,
    }

    fn plan(options: &[&str]) -> Result<Plan> {
        let line = Line::try_parse_from(["bench"].iter().chain(options))?;
        Plan::of(&line.args)
    }

    #[test]
    fn the_default_and_all_are_selections_of_links_and_sizes() {
        let usual = plan(&[]).unwrap();
        assert_eq!((usual.links.len(), usual.mtus.len(), usual.jobs.len()), (4, 1, 12));
        assert_eq!((usual.peers.len(), usual.compared.size), (5, 1 << 20));
        let all = plan(&["--all"]).unwrap();
        assert_eq!((all.links.len(), all.mtus, all.jobs.len()), (7, vec![1500, 9000], 30));
        assert_eq!((all.jobs[0].size, all.jobs[9].size), (4, 1 << 20));
    }

    #[test]
    fn options_choose_and_are_checked() {
        let chosen = plan(&["--links", "2x1,1x10+4x1", "--mtu", "9000", "--sizes", "8,64", "--peers", "none"]).unwrap();
        assert_eq!(chosen.links[1].rates, [10, 1, 1, 1, 1]);
        assert_eq!((chosen.mtus, chosen.jobs.len(), chosen.peers.len()), (vec![9000], 6, 0));
        let set =
            ["--links", "2x1", "--tests", "ping-pong", "--weights", "2:1", "--scheduler", "wd", "--copies", "both"];
        let set = plan(&[&set[..], &["--parameters", "multiedge", "--offset", "2048", "--polling"]].concat()).unwrap();
        assert_eq!(set.jobs.iter().map(|job| job.test).collect::<Vec<_>>(), [Test::PingPong; 4]);
        let Settings { polling, scheduler, weights, copies, parameters, offset, .. } = set.settings;
        assert_eq!((polling, scheduler, copies, parameters), (true, Scheduling::Wd, Copies::Both, Preset::Multiedge));
        assert_eq!((weights, offset), (Weights::Given(vec![2, 1]), 2048));
        assert!(plan(&["--links", "4x1", "--weights", "2:1"]).is_err());
        for wrong in [["--links", "two"], ["--sizes", "0"], ["--mtu", "100"], ["--seconds", "nan"], ["--peers", "x"]] {
            assert!(plan(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_failure_takes_the_place_of_the_tests() {
        let failing = plan(&["--failure", "down,loss:2"]).unwrap();
        assert_eq!((failing.jobs.len(), failing.peers.len(), failing.links[0].rates.len()), (0, 0, 4));
        assert_eq!(failing.failures, [Failure::Down, Failure::Lossy(2)]);
        assert!(plan(&["--failure", "down", "--links", "1x1"]).is_err());
        assert!(plan(&["--failure", "down", "--tests", "one-way"]).is_err());
    }
}
