//! The packets on the wire when READs are dammed (T fig. 5.3, P fig. 5).

use super::common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Shaped};
use crate::data::Data;
use crate::experiment::{Experiment, Input, PaperFigure, Report};
use crate::figure::Ladder;
use crate::micro::ladder::RNR_NAK;
use crate::micro::{Micro, Outcome};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "damming-trace",
    title: "Packet damming: packets on the wire",
    source: "T fig. 5.3, P fig. 5",
    not_simulated: None,
    not_live: |_| None,
    paper: "The second READ is posted while the first waits for its retransmission. It leaves 2–4 µs behind the \
            retransmitted first READ and gets no response. Nothing happens until the timeout: at 542 ms \
            (server-side ODP) or 436 ms (client-side ODP) it is retransmitted, and the response comes at once.",
    figures: &[
        PaperFigure {
            name: "T fig. 5.3, left; P fig. 5",
            axes: "Two hosts, time from top to bottom. T lists the packets with their times, in s to the µs.",
            shows: "Server-side ODP: RNR NAK at 0.140 ms, a response at 0.451 ms, the first READ again at 3.968 ms \
                    and the second at 3.970 ms, a response to the first at 4.051 ms, the second READ again at \
                    541.748 ms, its response at 541.755 ms.",
            here: "One run, its times in ms. The text does not give the interval between the posts: it is 1000 µs \
                   here. A cross marks the request that the responder loses; a capture of the adapters does not \
                   show the loss.",
            drawings: 1,
        },
        PaperFigure {
            name: "T fig. 5.3, right; P fig. 5",
            axes: "As on the left.",
            shows: "Client-side ODP: a response at 0.005 ms, the first READ again at 0.778 ms and the second at \
                    0.782 ms, a response to the first at 0.861 ms, the second READ again at 435.909 ms, its \
                    response at 435.912 ms.",
            here: "One run. The interval between the posts is 300 µs here.",
            drawings: 1,
        },
    ],
    fixed_adapters: false,
    one_seed: false,
    run,
};

fn run(bench: &Bench<'_>) -> Result<Report> {
    // The figure does not give the interval; it must lie within the pending period.
    let keys = [(SERVER, 1000), (CLIENT, 300)];
    let two =
        |&(odp, interval): &_| Micro { num_ops: 2, interval: us(interval), odp, ack_timeout: 1, ..Micro::default() };
    let runs = bench.measure(bench.trials(10), &keys, two, |_, outcome| outcome.clone())?;
    let mut data = Data::new(["side", "trial", "from", "packet", "operation", "lost", "ms"]);
    for ((sides, _), trials) in keys.iter().zip(&runs) {
        for (trial, outcome) in trials.iter().enumerate() {
            for step in &outcome.steps {
                data.push([
                    side(*sides).into(),
                    trial.into(),
                    if step.from_client { "client" } else { "server" }.into(),
                    step.what.as_str().into(),
                    step.operation.map_or(f64::NAN, f64::from).into(),
                    u32::from(step.lost).into(),
                    ms(step.time).into(),
                ]);
            }
        }
    }
    let (first, second) = ((true, "RDMA Read Request", 0), (true, "RDMA Read Request", 1));
    let (answer, later) = ((false, "RDMA Read Response", 0), (false, "RDMA Read Response", 1));
    let server = [first, (false, RNR_NAK, 0), answer, first, second, answer, second, later];
    let client = [first, answer, first, second, answer, second, later];
    let lists = [same_packets("server side", &runs[0], &server), same_packets("client side", &runs[1], &client)];
    let mut claims = side_claims(bench.live, "server side", &runs[0], [0.083, 0.007]);
    claims.extend(side_claims(bench.live, "client side", &runs[1], [0.083, 0.003]));
    claims.extend(lists);
    Ok(Report {
        claims: bench.add_live_slack(claims),
        ladders: vec![
            Ladder::of("server-side ODP, 1000 µs between the posts", &runs[0][0].steps),
            Ladder::of("client-side ODP, 300 µs between the posts", &runs[1][0].steps),
        ],
        inputs: INPUTS.to_vec(),
        data,
        ..Report::default()
    })
}

/// Times that follow from the profile's ranges.
const INPUTS: [Input; 3] = [
    Input {
        name: "server side: first READ retransmitted after",
        paper: "3.968 ms, for an RNR delay of 1.28 ms",
        profile: "rnr_wait.factor is 2.65 to 4.30",
        source: "T fig. 5.3",
    },
    Input {
        name: "client side: first READ retransmitted after",
        paper: "0.778 ms",
        profile: "requester_faults.retransmit_us is 500 to 780",
        source: "T fig. 5.3",
    },
    Input {
        name: "second READ retransmitted after",
        paper: "538 and 435 ms",
        profile: "ack_timeout.factor is 1.5 to 2.0, of 268 ms",
        source: "T fig. 5.3",
    },
];

/// `paper`: times of the response to the first READ after its retransmission, and of the response to the second READ after
/// its retransmission; ms.
fn side_claims(live: bool, side: &str, runs: &[Outcome], paper: [f64; 2]) -> Vec<Claim> {
    let [answered, answer] = paper;
    let lost = |o: &Outcome| o.steps.iter().any(|step| step.operation == Some(1) && step.from_client && step.lost);
    let last = |o: &Outcome| {
        o.steps.iter().rfind(|step| step.from_client && step.operation == Some(1)).map_or(f64::NAN, |s| ms(s.time))
    };
    let repeat = |o: &Outcome| {
        let firsts = o.steps.iter().filter(|step| step.from_client && step.operation == Some(0));
        firsts
            .skip(1)
            .map(|step| ms(step.time))
            .take_while(|at| *at <= request(o, 1, 0) + 0.1)
            .last()
            .unwrap_or(f64::NAN)
    };
    let first_answer_after = |o: &Outcome, from: f64, operation: u32| {
        let responses = o.steps.iter().filter(|step| !step.from_client && step.operation == Some(operation));
        responses.map(|step| ms(step.time)).find(|at| *at > from).unwrap_or(f64::NAN) - from
    };
    let claim = |name: &str| format!("{side}: {name}");
    vec![
        Claim::between(
            Shaped,
            claim("second READ behind the first READ's retransmission by"),
            "0.002 – 0.004",
            (0.001, 0.006),
            middle(runs, |o| request(o, 1, 0) - repeat(o)),
            "ms",
        )
        .lacks(
            "A port of the simulator sends a request as soon as the one before it has left. The time that the adapter takes \
             from one request to the next is not known.",
        ),
        Claim::at_least(Shaped, claim("runs in which that READ is lost"), "all", 0.9, share(runs, lost), "")
            .lacks_live(live, "Live, the second READ of a process can leave after the replay of the first, 80 µs later."),
        Claim::near(
            Calibrated,
            claim("response to the first READ after"),
            answered,
            0.35,
            middle(runs, |o| first_answer_after(o, repeat(o), 0)),
            "ms",
        ),
        Claim::within(
            Shaped,
            claim("response to the second READ's retransmission after"),
            answer,
            (0.0, 0.02),
            middle(runs, |o| first_answer_after(o, last(o), 1)),
            "ms",
        ),
    ]
}
