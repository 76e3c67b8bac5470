//! What a page fault and an invalidation spend their time on (P VIII-B, T 3.2).

use super::common::*;
use crate::bench::{Bench, Setting};
use crate::claim::{Claim, Kind, Kind::Calibrated, Kind::Predicted};
use crate::data::Data;
use crate::experiment::{Experiment, Report};
use crate::figure::{Axis, Bars};
use crate::micro::{Micro, Operation, Outcome, Paging};
use anyhow::{Context, Result};

pub const EXPERIMENT: Experiment = Experiment {
    id: "fault-cost",
    title: "Cost of page faults and of invalidations by part",
    source: "P VIII-B, T 3.2",
    not_simulated: Some("it has one number for a page fault, and no operating system that takes pages"),
    paper: "Breakdowns of other authors, which both publications cite: the hardware dominates the overhead of a page \
            fault, by triggering the interrupt and by resuming the transmission; an invalidation spends most of its \
            time on updating the page tables. Here: WRITEs of a page each, one after the other, whose pages are missing \
            on both sides; then both sides release their pages one by one. Notice: until a thread works on the fault. \
            Adapter: the time of the profile. Resume: from the page in the table until the QP continues.",
    live: true,
    fixed_adapters: true,
    run,
};

const IDEAL: &str = "ideal";
const CONNECTX4: &str = "connectx4";
const SIDES: [&str; 2] = ["client", "server"];

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
        // Longer than any RNR wait: each operation is over before the next one.
        let interval = us(if *profile == IDEAL { 2000 } else { 10_000 });
        let operation = Operation::Write;
        Micro {
            operation,
            size: 4096,
            num_ops: 64,
            interval,
            odp: BOTH,
            invalidate: 1,
            ack_timeout: 14,
            ..Micro::default()
        }
        .on(profile)
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
        for (kind, n) in [(Calibrated, 1), (Predicted, 0)] {
            claims.push(dominated(kind, keys[n], side, middle(&found[n], |sides| hardware(&sides[at]))));
        }
        claims.push(updates(side, middle(&found[0], |sides| table_share(&sides[at]))));
    }
    Ok(Report { claims, bars: bars(&keys, &found), data: table(&keys, &found), ..Report::default() })
}

fn dominated(kind: Kind, profile: &str, side: &str, share: f64) -> Claim {
    let name = format!("{profile}, {side}: share of notice, adapter and resume in a page fault");
    Claim::at_least(kind, name, "dominated by hardware: interrupt and resuming", 0.5, share, "").lacks(
        "Weir wakes threads where an adapter raises an interrupt and resumes; where the program polls, its thread does so \
         at once.",
    )
}

fn updates(side: &str, share: f64) -> Claim {
    let name = format!("{side}: share of the update of the table in an invalidation");
    Claim::at_least(Predicted, name, "most of its time", 0.5, share, "").lacks(
        "Weir's table is memory of its process: removing a page is one atomic operation. A real adapter is told over PCIe, \
         and answers when it no longer uses the page; Weir counts that wait as quiesce.",
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
