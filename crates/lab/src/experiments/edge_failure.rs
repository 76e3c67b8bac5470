//! One of four links fails in the middle of a transfer, and is mended (E 2.3.1: link failures are survived).

use crate::bench::Bench;
use crate::claim::{Claim, Kind::Shaped};
use crate::data::Data;
use crate::edge::failure::{self, LINKS, Transfer};
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Bars, Panel, Series};
use anyhow::Result;
use std::sync::atomic::Ordering;
use weir_stage::Failure;
use weir_transport::edge::Scheduler;

pub const EXPERIMENT: Experiment = Experiment {
    id: "edge-failure",
    title: "MultiEdge: one of four links fails in mid-transfer",
    source: "E 2.3.1",
    not_simulated: None,
    not_live: |_| None,
    paper: "Transfers complete although links fail for a while: a frame that is not acknowledged within a coarse timeout \
            is sent again. The thesis has no measurement of it. The bars are Weir's own: a stall of at most 100 ms, and nine \
            tenths of what the other links carry.",
    figures: &[PaperFigure::none(
        "E 2.3.1 states that transfers survive link failures. It has no figure of it.",
        DRAWINGS,
    )],
    fixed_adapters: true,
    one_seed: false,
    run,
};

/// The longest stall that is allowed, ms.
const STALL: f64 = 100.0;
/// The least share of what the links can carry.
const LEAST: f64 = 0.9;
/// The least share of the failed link some time after it is mended, of four.
const AGAIN: f64 = 0.2;

const ALL: [Failure; 5] = [Failure::Down, Failure::Silent, Failure::Lossy(2), Failure::Lossy(30), Failure::Slow(20)];
/// The schedulers of the thesis send by weights that do not change, so that a slow link holds up all.
const OF_THE_THESIS: [Failure; 3] = [Failure::Down, Failure::Silent, Failure::Lossy(30)];
const SCHEDULERS: [(Scheduler, &str, &[Failure]); 3] = [
    (Scheduler::Auto, "auto", &ALL),
    (Scheduler::Dynamic, "WD", &OF_THE_THESIS),
    (Scheduler::WeightedRoundRobin, "WSRR", &OF_THE_THESIS),
];
/// A panel for each transfer, and bars of all stalls.
const DRAWINGS: usize = 12;

/// Why claims may fail live.
const LIVE: &str = "Live, the two processes, the kernel and other programs share this machine's cores. A process that gets no core stalls \
                    too: edge-failure-transfers.csv has the stalls before the failure.";

/// A transfer, with its scheduler's name.
struct Case {
    scheduler: Scheduler,
    name: &'static str,
    failure: Failure,
}

impl Case {
    fn all() -> Vec<Case> {
        let of = |(scheduler, name, failures): (Scheduler, &'static str, &'static [Failure])| {
            failures.iter().map(move |&failure| Case { scheduler, name, failure })
        };
        SCHEDULERS.into_iter().flat_map(of).collect()
    }

    fn title(&self) -> String {
        format!("{}, {}", words(self.failure), self.name)
    }

    /// The part of the links' rate that is left while the link fails. A link with 30 % loss may be left out.
    fn left(&self) -> f64 {
        let of_link = match self.failure {
            Failure::Lossy(percent) if percent < 10 => 1.0 - f64::from(percent) / 100.0,
            Failure::Slow(times) => 1.0 / f64::from(times),
            _ => 0.0,
        };
        (LINKS as f64 - 1.0 + of_link) / LINKS as f64
    }

    fn claims(&self, transfer: &Transfer) -> Vec<Claim> {
        let [before, failed, after] = transfer.phases;
        let title = self.title();
        let claim = |name: &str, paper: &str, low: f64, value: f64, unit| {
            Claim::at_least(Shaped, format!("{title}: {name}"), paper, low, value, unit)
        };
        vec![
            Claim::at_most(
                Shaped,
                format!("{title}: longest stall"),
                "no figure; at most 100 ms",
                STALL,
                transfer.stall,
                "ms",
            ),
            claim(
                "rate meanwhile, of what is left",
                "no figure; nine tenths",
                LEAST,
                failed.gbits / (before.gbits * self.left()),
                "",
            ),
            claim("the link's share after it is mended", "no figure; used again", AGAIN, after.share, ""),
            claim("share of operations that are performed", "all complete", 1.0, transfer.performed, ""),
        ]
    }
}

/// A failure in words.
fn words(failure: Failure) -> String {
    match failure {
        Failure::Down => "no carrier".into(),
        Failure::Silent => "all packets lost".into(),
        Failure::Lossy(percent) => format!("{percent} % loss"),
        Failure::Slow(times) => format!("{times} times slower"),
    }
}

fn run(bench: &Bench<'_>) -> Result<Report> {
    let cases = Case::all();
    let found = if bench.live { live(bench, &cases)? } else { simulated(bench, &cases) };
    let both = || cases.iter().zip(&found);
    let mut claims: Vec<Claim> = both().flat_map(|(case, transfer)| case.claims(transfer)).collect();
    if bench.live {
        claims.iter_mut().for_each(|claim| {
            claim.lacks = LIVE;
        });
    }
    let stalls = both().map(|(case, transfer)| (case.title(), transfer.stall)).collect();
    let bars = Bars {
        title: "Longest time without a packet".into(),
        x: Axis::linear("stall (ms); the bar is 100").showing(0.0, 20.0),
        bars: stalls,
    };
    let panels = both().map(|(case, transfer)| panel(case, transfer)).collect();
    let (data, more) = (timelines(&cases, &found), vec![("transfers", transfers(&cases, &found))]);
    Ok(Report { claims, panels, bars: vec![bars], data, more, ..Report::default() })
}

fn live(bench: &Bench<'_>, cases: &[Case]) -> Result<Vec<Transfer>> {
    let trials = bench.trials(3);
    (bench.progress)(cases.len() * trials as usize, 0);
    bench.note("this machine", trials);
    let mut found = vec![];
    for (scheduler, _, failures) in SCHEDULERS {
        let mut all: Vec<Vec<Transfer>> = failures.iter().map(|_| vec![]).collect();
        for _ in 0..trials {
            let transfers = failure::live(failures, scheduler)?;
            all.iter_mut().zip(transfers).for_each(|(trials, transfer)| trials.push(transfer));
            (bench.progress)(0, failures.len());
        }
        found.extend(all.into_iter().filter_map(middle));
    }
    Ok(found)
}

/// The transfer with the median stall.
fn middle(mut trials: Vec<Transfer>) -> Option<Transfer> {
    trials.sort_by(|a, b| a.stall.total_cmp(&b.stall));
    let middle = trials.len() / 2;
    trials.into_iter().nth(middle)
}

fn simulated(bench: &Bench<'_>, cases: &[Case]) -> Vec<Transfer> {
    bench.note("links of 1 Gbit/s, hosts of no CPU time", 1);
    let seed = bench.seed + u64::from(bench.round.load(Ordering::Relaxed));
    bench.on_threads(cases, |case| failure::simulated(case.failure, case.scheduler, seed))
}

/// Gbit/s over time, of all links and of each.
fn panel(case: &Case, transfer: &Transfer) -> Panel {
    let moments = || transfer.timeline.iter().filter(|moment| moment.at <= transfer.end);
    let mut series = vec![Series::line("all", moments().map(|m| (m.at, m.gbits)))];
    for link in 0..LINKS {
        let name = if link == failure::BAD { format!("link {link}, which fails") } else { format!("link {link}") };
        series.push(Series::line(name, moments().map(|m| (m.at, m.links[link]))));
    }
    let (x, y) = (Axis::linear("time (ms)").showing(0.0, transfer.end), Axis::linear("Gbit/s").showing(0.0, 5.0));
    let title = format!("{} from {:.0} to {:.0} ms", case.title(), transfer.fails, transfer.mended);
    Panel::new(title, x, y, series)
}

fn timelines(cases: &[Case], found: &[Transfer]) -> Data {
    let mut data = Data::new([
        "failure",
        "scheduler",
        "ms",
        "Gbit/s",
        "link 0 Gbit/s",
        "link 1 Gbit/s",
        "link 2 Gbit/s",
        "link 3 Gbit/s",
    ]);
    for (case, transfer) in cases.iter().zip(found) {
        for moment in &transfer.timeline {
            let [first, second, third, fourth] = std::array::from_fn(|link| moment.links[link].into());
            data.push([
                words(case.failure).as_str().into(),
                case.name.into(),
                moment.at.into(),
                moment.gbits.into(),
                first,
                second,
                third,
                fourth,
            ]);
        }
    }
    data
}

fn transfers(cases: &[Case], found: &[Transfer]) -> Data {
    let mut data = Data::new([
        "failure",
        "scheduler",
        "Gbit/s before",
        "meanwhile",
        "after",
        "share of the link before",
        "share meanwhile",
        "share after",
        "stall ms",
        "stall before ms",
        "packets again",
    ]);
    for (case, transfer) in cases.iter().zip(found) {
        let [before, failed, after] = transfer.phases;
        data.push([
            words(case.failure).as_str().into(),
            case.name.into(),
            before.gbits.into(),
            failed.gbits.into(),
            after.gbits.into(),
            before.share.into(),
            failed.share.into(),
            after.share.into(),
            transfer.stall.into(),
            transfer.stall_before.into(),
            transfer.again.into(),
        ]);
    }
    data
}
