//! What a page fault and an invalidation spend their time on (P VIII-B, T 3.2).

use super::common::*;
use crate::bench::{Bench, Setting};
use crate::claim::{Claim, Kind::Predicted};
use crate::data::Data;
use crate::experiment::{Experiment, Input, PaperFigure, Report};
use crate::figure::{Axis, Bars};
use crate::micro::{Micro, Operation, Outcome, Paging};
use anyhow::{Context, Result};

pub const EXPERIMENT: Experiment = Experiment {
    id: "fault-cost",
    title: "Cost of page faults and of invalidations by part",
    source: "P VIII-B, T 3.2",
    not_simulated: Some("it has one number for a page fault, and no operating system that takes pages"),
    not_live: |_| None,
    paper: "Breakdowns of other authors, which both publications cite: the hardware dominates the overhead of a page \
            fault, by triggering the interrupt and by resuming the transmission; an invalidation spends most of its \
            time on updating the page tables. Here: WRITEs of a page each, one after the other, with both pages \
            missing; then both sides release their pages one by one. Notice: until a thread works on the fault. \
            Adapter: the time of the profile. Resume: from the page in the table until the QP continues.",
    figures: &[PaperFigure::none(
        "P VIII-B and T 3.2 cite the breakdowns of other authors in words, without numbers of their own.",
        6,
    )],
    fixed_adapters: true,
    one_seed: false,
    run,
};

const IDEAL: &str = "ideal";
const CONNECTX4: &str = "connectx4";
const SIDES: [&str; 2] = ["client", "server"];
/// Faults and invalidations of a run, on each side: `weir stat` has sums in whole microseconds.
const PAGES: u32 = 256;

/// The share of notice, adapter and resume in a page fault.
fn hardware(paging: &Paging) -> f64 {
    let [notice, populate, adapter, table, resume] = paging.fault().map(|(_, us)| us);
    (notice + adapter + resume) / (notice + populate + adapter + table + resume)
}

/// The share of the tables in an invalidation.
fn table_share(paging: &Paging) -> f64 {
    let [table, quiesce, rest] = paging.invalidation().map(|(_, us)| us);
    table / (table + quiesce + rest)
}

fn run(bench: &Bench<'_>) -> Result<Report> {
    let keys = [IDEAL, CONNECTX4];
    let pages = |profile: &&'static str| -> Setting {
        // Longer than a page fault and any RNR wait: each WRITE is over before the next one.
        let interval = us(if *profile == IDEAL { 2000 } else { 10_000 });
        let (operation, num_ops, ack_timeout) = (Operation::Write, PAGES, 14);
        let writes = Micro { operation, size: 4096, num_ops, interval, odp: BOTH, ack_timeout, ..Micro::default() };
        Micro { invalidate: 1, ..writes }.on(profile)
    };
    let take = |_: &_, outcome: &Outcome| outcome.paging.map(|both| [both.client, both.server]);
    let runs = bench.measure(bench.trials(10), &keys, pages, take)?;
    let mut found: Vec<Vec<[Paging; 2]>> = vec![];
    for trials in runs {
        let whole: Option<_> = trials.into_iter().collect();
        found.push(whole.context("a run has no counters of paging: run it live")?);
    }
    let mut claims = vec![];
    for (at, side) in SIDES.iter().enumerate() {
        claims.push(dominated(side, middle(&found[0], |sides| hardware(&sides[at]))));
        claims.push(updates(side, middle(&found[0], |sides| table_share(&sides[at]))));
    }
    let inputs = vec![Input {
        name: "connectx4: notice, adapter and resume in a page fault",
        paper: "dominated by hardware: interrupt and resuming",
        profile: "page_faults.resolve_us, the time of a whole fault, counts as the adapter's",
        source: "P VIII-B",
    }];
    Ok(Report { claims, inputs, bars: bars(&keys, &found), data: table(&keys, &found), ..Report::default() })
}

fn dominated(side: &str, share: f64) -> Claim {
    let name = format!("{IDEAL}, {side}: share of notice, adapter and resume in a page fault");
    Claim::at_least(Predicted, name, "dominated by hardware: interrupt and resuming", 0.5, share, "").lacks(
        "Weir wakes a thread where an adapter raises an interrupt. Where a thread is awake already, these parts are \
         short, and most of the time goes to the operating system.",
    )
}

fn updates(side: &str, share: f64) -> Claim {
    let name = format!("{side}: share of the update of the table in an invalidation");
    Claim::at_least(Predicted, name, "most of its time", 0.5, share, "").lacks(
        "Weir's table is in the memory of its process: removing a page takes two atomic operations. The table of a \
         real adapter is behind PCIe, and the update includes the wait until the adapter no longer uses the page, \
         which Weir counts as quiesce.",
    )
}

/// The parts on each side, medians over the runs: of page faults by adapter, and of invalidations.
fn bars(adapters: &[&str], found: &[Vec<[Paging; 2]>]) -> Vec<Bars> {
    let x = || Axis::linear("mean of a run, median of the runs (µs)");
    let middles = |trials: &[[Paging; 2]], at: usize, parts: fn(&Paging) -> Vec<(&'static str, f64)>| {
        let named = parts(&trials[0][at]).into_iter().enumerate();
        named.map(|(n, (name, _))| (name.to_owned(), middle(trials, |sides| parts(&sides[at])[n].1))).collect()
    };
    let mut all = vec![];
    for (at, side) in SIDES.iter().enumerate() {
        for (profile, trials) in adapters.iter().zip(found) {
            let bars = middles(trials, at, |paging| paging.fault().into());
            all.push(Bars { title: format!("a page fault: {profile}, {side}"), x: x(), bars });
        }
    }
    for (at, side) in SIDES.iter().enumerate() {
        let bars = middles(&found[0], at, |paging| paging.invalidation().into());
        all.push(Bars { title: format!("an invalidation: {}, {side}", adapters[0]), x: x(), bars });
    }
    all
}

/// The sums of each run.
fn table(adapters: &[&str], found: &[Vec<[Paging; 2]>]) -> Data {
    let mut data = Data::new([
        "adapter",
        "side",
        "run",
        "faults",
        "fault us",
        "notice us",
        "populate us",
        "adapter us",
        "table us",
        "resume us",
        "invalidations",
        "invalidation us",
        "invalidation table us",
        "quiesce us",
        "rest us",
    ]);
    for (profile, trials) in adapters.iter().zip(found) {
        for (trial, sides) in trials.iter().enumerate() {
            for (side, p) in SIDES.iter().zip(sides) {
                data.push([
                    (*profile).into(),
                    (*side).into(),
                    trial.into(),
                    p.page_faults_handled.into(),
                    p.page_fault_wait_us.into(),
                    p.page_fault_notice_us.into(),
                    p.page_fault_populate_us.into(),
                    p.page_fault_adapter_us.into(),
                    p.page_fault_table_us.into(),
                    p.page_fault_resume_us.into(),
                    p.page_invalidations_handled.into(),
                    p.page_invalidation_us.into(),
                    p.page_invalidation_table_us.into(),
                    p.page_invalidation_quiesce_us.into(),
                    p.page_invalidation_rest_us.into(),
                ]);
            }
        }
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments;
    use crate::micro::{PagingCosts, Runner};

    /// 256 faults of 100 µs, or of 1000 µs with an adapter's time; as many invalidations of 1 µs.
    struct Fake {
        runs: u64,
    }

    impl Runner for Fake {
        fn run(&mut self, micro: &Micro, profile: &str, _: u64) -> Result<Outcome> {
            self.runs += 1;
            assert_eq!((micro.odp, micro.invalidations()), (BOTH, 256));
            let adapter = if profile == CONNECTX4 { 900 } else { 0 };
            // In some runs a thread was off its core: medians leave them out.
            let late = if self.runs.is_multiple_of(5) { 100_000 } else { 0 };
            let side = |resume: u64| Paging {
                page_faults_handled: 256,
                page_fault_wait_us: 256 * (60 + adapter + resume) + late,
                page_fault_notice_us: 256 * 10 + late,
                page_fault_populate_us: 256 * 40,
                page_fault_adapter_us: 256 * adapter,
                page_fault_table_us: 256 * 10,
                page_fault_resume_us: 256 * resume,
                page_invalidations_handled: 256,
                page_invalidation_us: 256,
                page_invalidation_table_us: 64,
                page_invalidation_quiesce_us: 128,
                page_invalidation_rest_us: 64,
            };
            Ok(Outcome { paging: Some(PagingCosts { client: side(0), server: side(40) }), ..Outcome::default() })
        }
    }

    fn bench(live: bool, of: impl FnOnce(&Bench<'_>)) {
        of(&Bench { live, ..Bench::small(&|| Ok(Box::new(Fake { runs: 0 }))) });
    }

    #[test]
    fn shares_and_bars_follow_from_the_counters() {
        bench(true, |bench| {
            let done = experiments::run(&EXPERIMENT, bench).unwrap();
            let report = &done.report;
            let share = |name: &str| {
                let mut named = report.claims.iter().filter(|claim| claim.name.starts_with(name));
                let claim = named.next().unwrap();
                assert!(named.next().is_none(), "{name}");
                (claim.weir, claim.kind, claim.holds())
            };
            assert_eq!(share("ideal, client"), (10.0 / 60.0, Predicted, false));
            assert_eq!(share("ideal, server"), (50.0 / 100.0, Predicted, true));
            assert_eq!(share("server: share of the update"), (0.25, Predicted, false));
            assert!(report.claims.iter().all(|claim| claim.holds() || claim.missing_mechanism().is_some()));
            let bars = report.bars.iter().find(|bars| bars.title == "a page fault: connectx4, server").unwrap();
            let parts: Vec<(&str, f64)> = bars.bars.iter().map(|(name, us)| (name.as_str(), *us)).collect();
            let all = [("notice", 10.0), ("populate", 40.0), ("adapter", 900.0), ("table", 10.0), ("resume", 40.0)];
            assert_eq!((report.bars.len(), parts), (6, all.to_vec()));
            assert_eq!((report.data.rows.len(), &report.data.rows[0][3]), (2 * 2 * 10, &256u32.into()));
        });
    }

    #[test]
    fn it_says_why_the_simulator_cannot_run_it() {
        bench(false, |bench| {
            let error = experiments::run(&EXPERIMENT, bench).err().unwrap().to_string();
            assert!(error.contains("no operating system") && error.contains("--live"), "{error}");
        });
    }
}
