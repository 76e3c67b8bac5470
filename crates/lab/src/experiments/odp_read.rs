//! One READ with a page fault on the server or on the client (T fig. 4.2, P fig. 1).

use super::common::*;
use crate::adapter::Adapter;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Shaped};
use crate::experiment::{Experiment, Input, PaperFigure, Report};
use crate::figure::Ladder;
use crate::micro::ladder::RNR_NAK;
use crate::micro::{Micro, Outcome};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "odp-read",
    title: "One READ and a page fault",
    source: "T fig. 4.2, P fig. 1",
    not_simulated: None,
    not_live: |_| None,
    paper: "A single READ that causes a page fault, captured between two ConnectX-4. If the server's page is \
            missing, the server sends an RNR NAK. Half a millisecond after the request a response follows, which \
            the client drops; the client retransmits the READ when its RNR wait of about 4 ms is over. If the \
            client's page is missing, the client drops the response and retransmits the READ after half a \
            millisecond, whether the page is present by then or not.",
    figures: &[
        PaperFigure {
            name: "T fig. 4.2, left; P fig. 1",
            axes: "Two hosts, time from top to bottom. T lists the packets with their times, in s to the µs.",
            shows: "Server-side ODP: RNR NAK at 0.141 ms, a response at 0.538 ms, the READ again at 4.565 ms, its \
                    response at 4.639 ms. The wait after the NAK is 4.42 ms; the text says 4.0 ms in T and 4.5 ms \
                    in P.",
            here: "One run, its times in ms. The adapter draws its RNR wait anew each time, between 3.4 and 5.5 \
                   ms. Distances grow with the logarithm of time.",
            drawings: 1,
        },
        PaperFigure {
            name: "T fig. 4.2, right; P fig. 1",
            axes: "As on the left.",
            shows: "Client-side ODP: a response at 0.005 ms, the READ again at 0.527 ms, its response at 0.620 ms.",
            here: "One run. The READ may be retransmitted more than once, if the page takes longer.",
            drawings: 1,
        },
    ],
    fixed_adapters: false,
    one_seed: false,
    run,
};

/// Time of a slow page fault, µs.
const SLOW: u32 = 5000;

fn run(bench: &Bench<'_>) -> Result<Report> {
    let keys = [SERVER, CLIENT];
    let one_read = |sides: &_| Micro { odp: *sides, rnr_timer: RNR_1_28, ..Micro::default() };
    let runs = bench.measure(bench.trials(10), &keys, one_read, |_, outcome| outcome.clone())?;
    let (server, client) = (&runs[0], &runs[1]);
    let again = |o: &Outcome| request(o, 0, 1);
    let last_answer =
        |o: &Outcome| o.steps.iter().rfind(|step| !step.from_client).map_or(f64::NAN, |step| ms(step.time));
    let last_request =
        |o: &Outcome| o.steps.iter().rfind(|step| step.from_client).map_or(f64::NAN, |step| ms(step.time));
    let (read, answer) = ((true, "RDMA Read Request", 0), (false, "RDMA Read Response", 0));
    let mut claims = vec![
        same_packets("server side", server, &[read, (false, RNR_NAK, 0), answer, read, answer]),
        same_packets("client side", client, &[read, answer, read, answer]),
        Claim::near(Calibrated, "server side: RNR NAK after", 0.141, 0.15, middle(server, |o| nak(o, "RNR", 0)), "ms"),
        Claim::near(
            Calibrated,
            "server side: time to its response",
            0.074,
            0.35,
            middle(server, |o| last_answer(o) - again(o)),
            "ms",
        ),
        Claim::within(
            Calibrated,
            "client side: dropped response after",
            0.005,
            (0.0, 0.015),
            middle(client, |o| response(o, 0, 0)),
            "ms",
        ),
        Claim::near(
            Calibrated,
            "client side: time to the last response",
            0.093,
            0.35,
            middle(client, |o| last_answer(o) - last_request(o)),
            "ms",
        ),
    ];
    // With --profile, that adapter's own time of a page fault stands.
    if bench.profile.is_none() {
        let slow = || one_read(&CLIENT).on_changed(Adapter::named("connectx4").with("page_faults", "resolve_us", SLOW));
        let sent = bench.measure(bench.trials(10), &[()], |()| slow(), |(), o| o.packets.requests as f64)?;
        let name = "client side, a page fault of 5 ms: READs sent";
        claims.push(Claim::at_least(Shaped, name, "over and over", 5.0, middle(&sent[0], |n| *n), "").from("T 4.2"));
    }
    Ok(Report {
        claims: bench.add_live_slack(claims),
        inputs: vec![
            Input {
                name: "server side: unsolicited response after",
                paper: "0.538 ms",
                profile: "page_faults.resolve_us is 449 to 700",
                source: "T fig. 4.2",
            },
            Input {
                name: "server side: READ retransmitted after",
                paper: "4.565 ms, for an RNR delay of 1.28 ms",
                profile: "rnr_wait.factor is 2.65 to 4.30",
                source: "T fig. 4.2",
            },
            Input {
                name: "client side: READ retransmitted after",
                paper: "0.527 ms",
                profile: "requester_faults.retransmit_us is 500 to 780",
                source: "T fig. 4.2",
            },
        ],
        ladders: vec![Ladder::of("server-side ODP", &server[0].steps), Ladder::of("client-side ODP", &client[0].steps)],
        data: packets(&keys, &runs),
        ..Report::default()
    })
}
