//! The newest adapter of the thesis: no damming, but packet flood (T appendix A).
//!
//! Its profile takes two parameters from appendix A and 5.1.3: no damming, and page faults that are faster than the first
//! repetition of a READ (fig A.2). The claims about these two are calibrated.

use super::common::*;
use super::flood::{SIDES, Sweep};
use super::flood_pages::{completions, data, first, last, panels};
use super::pace::Pace;
use crate::adapter::Adapter;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Predicted, Kind::Shaped};
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::micro::{Micro, Operation};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "connectx6",
    title: "ConnectX-6: the remaining flaws",
    source: "T fig. A.1 to A.3",
    not_simulated: None,
    not_live: |_| None,
    paper: "The same experiments on ConnectX-6. The authors saw no damming. 128 READs over 128 QPs are fast; they \
            deduce from the requests that the adapter limits the outstanding READs of all QPs together. With 256 \
            operations the status of the second page is updated late, and all of 512 take about 300 ms. The times \
            over the number of QPs are shorter than on ConnectX-4; one QP is enough for a flood of WRITEs.",
    figures: &[
        PaperFigure {
            name: "T fig. A.2",
            axes: "Number of completed operations of each page over time, as in fig. 5.9. The text states no \
                   scale.",
            shows: "128 READs: no delay. 512 READs: about 300 ms until all are complete. 256 READs: page 1 shows \
                    the update failure.",
            here: "Both axes are linear, the time in ms. The first of the trials.",
            drawings: 3,
        },
        PaperFigure {
            name: "T fig. A.1",
            axes: "The effect of the number of QPs, as in fig. 5.7: execution time, and probably packets. The text \
                   states no scale.",
            shows: "The time is shorter than on ConnectX-4 overall; with server-side ODP and more than 100 QPs \
                    especially, because damming is absent. The text gives no times.",
            here: "Four numbers of QPs only: 1, 10, 100 and 200. All axes are logarithmic.",
            drawings: 2,
        },
        PaperFigure {
            name: "T fig. A.3",
            axes: "The effect of the number of QPs with WRITEs, as in fig. 5.10. The text states no scale.",
            shows: "A flood of WRITEs even with one QP. The text gives no numbers.",
            here: "Four numbers of QPs only: 1, 10, 100 and 200. All axes are logarithmic.",
            drawings: 2,
        },
    ],
    fixed_adapters: true,
    one_seed: false,
    run,
};

const NEW: &str = "connectx6";
const FEW: [u32; 4] = [1, 10, 100, 200];

const LIVE_OLDER: &str = "Live, ConnectX-4 loses several times as many READs to damming as in the simulation, because its replays \
                          end late. A QP that waits for a timeout takes no part in the flood, so that ConnectX-4 is faster \
                          than ConnectX-6. Without damming it takes as long as in the simulation (experiment flood).";

fn run(bench: &Bench<'_>) -> Result<Report> {
    let numbers = [128, 256, 512];
    let found = completions(bench, Adapter::named(NEW), &numbers)?;
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
        Claim::at_most(
            Shaped,
            "256 READs: last completion of the first page",
            "page 1 alone shows the failure",
            3.0,
            middle(two, |t| last(&t[..128])),
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
    let reads = Sweep::measure(bench, Operation::Read, &Adapter::named(NEW), &SIDES, &FEW)?;
    let older = Sweep::measure(bench, Operation::Read, &Adapter::named("connectx4"), &SIDES, &FEW[3..])?;
    let writes = Sweep::measure(bench, Operation::Write, &Adapter::named(NEW), &SIDES, &FEW)?;
    claims.extend([
        Claim::at_least(
            Shaped,
            "8192 READs, client side: 200 QPs against 1",
            "slow with many QPs",
            3.0,
            reads.time(CLIENT, 200) / reads.time(CLIENT, 1),
            "times",
        ),
        Claim::at_most(
            Shaped,
            "8192 READs, client side, 200 QPs: time against ConnectX-4",
            "overall shorter",
            1.0,
            reads.time(CLIENT, 200) / older.time(CLIENT, 200),
            "times",
        )
        .lacks_live(bench.live, LIVE_OLDER),
        Claim::at_most(
            Shaped,
            "8192 READs, both sides, 200 QPs: time against ConnectX-4",
            "overall shorter",
            1.0,
            reads.time(BOTH, 200) / older.time(BOTH, 200),
            "times",
        )
        .lacks_live(bench.live, LIVE_OLDER),
        Claim::at_most(
            Calibrated,
            "8192 READs, server side, 200 QPs: time against ConnectX-4",
            "better, without damming",
            0.5,
            reads.time(SERVER, 200) / older.time(SERVER, 200),
            "times",
        ),
    ]);
    if bench.shrink == 1 {
        claims.push(Claim::at_least(
            Predicted,
            "8192 WRITEs, server side, one QP: packets against no ODP",
            "flood with only one QP",
            10.0,
            writes.packets(SERVER, 1) / writes.packets(NONE, 1),
            "times",
        ));
    }
    all_panels.extend(reads.panels("READs"));
    all_panels.extend(writes.panels("WRITEs"));
    let more = vec![("reads", reads.data()), ("writes", writes.data())];
    let not_live = "Live runs have an eighth of the WRITEs, because the packets of all of them take minutes.";
    let inputs = Pace::of(bench).inputs();
    Ok(Report { claims, inputs, panels: all_panels, data: data(&numbers, &found), more, not_live, ..Report::default() })
}
