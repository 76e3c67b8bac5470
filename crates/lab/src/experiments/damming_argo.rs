//! A READ, then a SEND that leaves when the READ is complete, as ArgoDSM's locks do (T fig. 6.2).
//!
//! The page comes after the READ was repeated. First the READ's response leaves, which completes it; then the repeated
//! READ is replayed, and a SEND that arrives meanwhile is lost. That the page comes so late is an input: 7.18 ms after
//! the READ in the figure.

use super::common::*;
use crate::adapter::Adapter;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Predicted, Kind::Shaped};
use crate::data::Data;
use crate::experiment::{Experiment, Input, PaperFigure, Report};
use crate::figure::{Axis, Ladder, Panel, Series};
use crate::micro::ladder::RNR_NAK;
use crate::micro::{Micro, Operation, Outcome};
use crate::statistics::range;
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "damming-argo",
    title: "Packet damming in ArgoDSM: a READ, then a SEND",
    source: "T fig. 6.2",
    not_simulated: None,
    not_live: |_| None,
    paper: "A fragment of a capture: ArgoDSM over MPI and UCX, with the RNR delay of 0.96 ms and the C_ACK of 18 that UCX \
            sets. A READ gets an RNR NAK and is sent again after 4.8 ms. Its response completes it. A SEND leaves 26 µs \
            later and gets no ACK. A second response to the READ follows. The SEND is sent again after 1.66 s.",
    figures: &[
        PaperFigure::none(
            "T fig. 6.1: some runs have a timeout and others have none. For ABCI, which had none, the text gives the intervals \
             between operations as the reason.",
            1,
        ),
        PaperFigure {
            name: "T fig. 6.2",
            axes: "A list of eight packets, numbers 117 to 124 of a capture, with times in seconds, LIDs, PSNs and names.",
            shows: "READ at 70.8 ms, RNR NAK at 72.5, READ again at 77.3, its response at 78.0, SEND 26 µs later, a second \
                    response at 78.8, SEND again at 1739.3, ACK 5 µs later.",
            here: "A ladder from the first READ on. Gaps are logarithms of time, and silences of more than 20 ms break the \
                   axis.",
            drawings: 1,
        },
    ],
    fixed_adapters: true,
    one_seed: false,
    run,
};

/// RNR code of 0.96 ms, UCX's default.
const RNR_0_96: u8 = 13;
/// Time from the READ to the end of its page fault in the figure, µs.
const PAGE: u32 = 7180;
/// Time of a replay in live runs, µs.
const LIVE_REPLAY: u32 = 5000;
/// The times of page faults of the curve.
const PAGES: [u32; 9] = [500, 1000, 2000, 3000, 4000, 5000, 6000, 7180, 9000];

fn run(bench: &Bench<'_>) -> Result<Report> {
    // Two processes on one machine answer each other later than the 80 µs of a replay.
    let late = |page: u32| {
        let late = Adapter::named("connectx4").with("page_faults", "resolve_us", page);
        if bench.live { late.with("adapter", "repeated_read_us", LIVE_REPLAY) } else { late }
    };
    let then = |second, page| {
        let in_turn = Micro {
            num_ops: 2,
            second: Some(second),
            interval: us(26),
            in_turn: true,
            odp: SERVER,
            touched: true,
            size: 4096,
            rnr_timer: RNR_0_96,
            ack_timeout: 18,
            ..Micro::default()
        };
        in_turn.on_changed(late(page))
    };
    let runs = bench.measure(bench.trials(10), &[()], |()| then(Operation::Send, PAGE), |(), o| o.clone())?.remove(0);
    // Live, each timeout takes two seconds.
    let pages = if bench.live { &[PAGES[0], PAGE][..] } else { &PAGES[..] };
    let trials = if bench.live { 2 } else { 10 };
    let found =
        bench.measure(bench.trials(trials), pages, |page| then(Operation::Send, *page), |_, o| o.timeouts > 0)?;
    let curve: Vec<(f64, f64)> =
        pages.iter().zip(&found).map(|(page, trials)| (f64::from(*page), share(trials, |t| *t))).collect();
    let lost = |o: &Outcome| o.steps.iter().any(|step| step.operation == Some(1) && step.from_client && step.lost);
    let (lowest, highest) = range(&curve.iter().map(|(_, share)| *share).collect::<Vec<_>>());
    let list = [
        (true, "RDMA Read Request", 0),
        (false, RNR_NAK, 0),
        (true, "RDMA Read Request", 0),
        (false, "RDMA Read Response", 0),
        (true, "Send", 1),
        (false, "RDMA Read Response", 0),
        (true, "Send", 1),
        (false, "Acknowledge", 1),
    ];
    let claims = vec![
        same_packets("READ, then SEND", &runs, &list),
        Claim::at_least(Shaped, "runs in which the SEND is lost", "it gets no ACK", 0.9, share(&runs, lost), ""),
        Claim::near(Shaped, "RNR NAK after", 1.694, 0.15, middle(&runs, |o| nak(o, "RNR", 0)), "ms").conflicts(
            "T fig. 4.2 and 5.3: 0.141 and 0.140 ms. What delayed this NAK, in an adapter with other traffic, is not known",
        ),
        Claim::near(
            Shaped,
            "second response to the READ, after the first by",
            0.852,
            0.35,
            middle(&runs, |o| response(o, 0, 1) - response(o, 0, 0)),
            "ms",
        )
        .conflicts("T fig. 4.2 and 5.3: a repeated READ has its response after 0.074 to 0.093 ms"),
        Claim::between(
            Predicted,
            "share with a timeout: highest minus lowest, over the time of the page fault",
            "two groups: some runs have a timeout, others none",
            (0.9, 1.0),
            highest - lowest,
            "",
        )
        .from("T fig. 6.1"),
    ];
    let mut data = Data::new(["page fault µs", "share with a timeout"]);
    curve.iter().for_each(|(page, share)| data.push([(*page).into(), (*share).into()]));
    let axis = Axis::linear("share of trials with a timeout").showing(0.0, 1.0);
    let mut inputs = vec![
        Input {
            name: "time of the page fault",
            paper: "the response leaves 7.18 ms after the READ",
            profile: "page_faults.resolve_us is 7180 here, and 449 to 700 elsewhere",
            source: "T fig. 6.2",
        },
        Input {
            name: "READ sent again, after the NAK",
            paper: "4.78 ms, for a delay of 0.96 ms",
            profile: "rnr_wait.factor is 2.65 to 4.30, of 1.28 ms",
            source: "T fig. 6.2",
        },
        Input {
            name: "SEND after the response",
            paper: "26 µs",
            profile: "the interval of the runs",
            source: "T fig. 6.2",
        },
        Input {
            name: "SEND sent again after",
            paper: "1661 ms, with a C_ACK of 18",
            profile: "ack_timeout.factor is 1.5 to 2.0, of 1074 ms",
            source: "T fig. 6.2",
        },
    ];
    if bench.live {
        inputs.push(Input {
            name: "time of a replay",
            paper: "74 to 93 µs in T fig. 4.2 and 5.3",
            profile: "adapter.repeated_read_us is 5000 live, because the SEND of a process leaves later than 80 µs",
            source: "T fig. 4.2, 5.3",
        });
    }
    Ok(Report {
        claims: bench.add_live_slack(claims),
        inputs,
        panels: vec![Panel::new(
            "A SEND 26 µs after the READ is complete",
            Axis::linear("time of the READ's page fault (µs)"),
            axis,
            vec![Series::line("", curve)],
        )],
        ladders: vec![Ladder::of("READ, then SEND; page fault of 7.18 ms", &runs[0].steps)],
        data,
        more: vec![("packets", packets(&[SERVER], &[runs]))],
        ..Report::default()
    })
}
