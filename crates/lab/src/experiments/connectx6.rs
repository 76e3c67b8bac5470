//! The newest adapter of the thesis: no damming, but packet flood (T appendix A).
//!
//! Its profile takes two parameters from appendix A and 5.1.3: no damming, and page faults that are faster than the first
//! repetition of a READ (fig A.2). The claims about these two are calibrated.

use super::common::*;
use super::flood::Sweep;
use super::flood_pages::{completions, data, first, last, panels};
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Predicted, Kind::Shaped};
use crate::experiment::{Experiment, Report};
use crate::micro::{Micro, Operation};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "connectx6",
    title: "ConnectX-6: the remaining flaws",
    source: "T fig. A.1 to A.3",
    not_simulated: None,
    paper: "There is no damming. 128 READs over 128 QPs are fast, because the adapter limits the number of \
            outstanding READs over all QPs; with 256 operations the second page shows the flood, and 512 take about \
            300 ms. Many QPs are slow, but less than on ConnectX-4; and one QP is enough for a flood of WRITEs.",
    live: true,
    fixed_adapters: true,
    run,
};

const NEW: &str = "connectx6";
const FEW: [u32; 3] = [1, 10, 200];

fn run(bench: &Bench<'_>) -> Result<Report> {
    let numbers = [128, 256, 512];
    let found = completions(bench, NEW, &numbers)?;
    let dammed = |interval: &u32| Micro { num_ops: 2, interval: us(*interval), odp: BOTH, ..Micro::default() }.on(NEW);
    let intervals = if bench.live { grid(1000, 5000) } else { grid(250, 6000) };
    let timeouts = bench.measure(bench.trials(10), &intervals, dammed, |_, outcome| outcome.timeouts > 0)?;
    let (one, two, four) = (&found[0], &found[1], &found[2]);
    let mut claims = vec![
        Claim::at_most(
            Calibrated,
            "two READs at all intervals: share with a timeout",
            "damming did not happen",
            0.0,
            share(&timeouts.concat(), |timeout| *timeout),
            "",
        ),
        Claim::at_most(
            Calibrated,
            "128 READs: last completion after the first, at most",
            "did not degrade",
            2.0,
            middle(one, |t| last(t) - first(t)),
            "ms",
        ),
        Claim::at_least(
            Shaped,
            "256 READs: last completion of the second page after its first, at least",
            "update failure on page 1",
            2.0,
            middle(two, |t| last(&t[128..]) - first(&t[128..])),
            "ms",
        ),
        Claim::within(Shaped, "512 READs: all are complete at", 300.0, (150.0, 600.0), middle(four, |t| last(t)), "ms"),
    ];
    let mut all_panels = panels(&numbers, &found);
    let mut more = vec![];
    if !bench.live {
        let reads = Sweep::measure(bench, Operation::Read, NEW, &FEW)?;
        let older = Sweep::measure(bench, Operation::Read, "connectx4", &FEW[2..])?;
        let writes = Sweep::measure(bench, Operation::Write, NEW, &FEW)?;
        claims.extend([
            Claim::at_least(
                Predicted,
                "8192 READs, client side: 200 QPs against 1",
                "slow with many QPs",
                3.0,
                reads.time(CLIENT, 200) / reads.time(CLIENT, 1),
                "times",
            ),
            Claim::at_most(
                Predicted,
                "8192 READs, client side, 200 QPs: time against ConnectX-4",
                "overall shorter",
                1.0,
                reads.time(CLIENT, 200) / older.time(CLIENT, 200),
                "times",
            ),
            Claim::at_most(
                Predicted,
                "8192 READs, server side, 200 QPs: time against ConnectX-4",
                "better, without damming",
                0.5,
                reads.time(SERVER, 200) / older.time(SERVER, 200),
                "times",
            ),
            Claim::at_least(
                Predicted,
                "8192 WRITEs, server side, one QP: packets against no ODP",
                "flood with only one QP",
                10.0,
                writes.packets(SERVER, 1) / writes.packets(NONE, 1),
                "times",
            ),
        ]);
        all_panels.extend(reads.panels("READs"));
        all_panels.extend(writes.panels("WRITEs"));
        more = vec![("reads", reads.data()), ("writes", writes.data())];
    }
    Ok(Report { claims, panels: all_panels, data: data(&numbers, &found), more, ..Report::default() })
}
