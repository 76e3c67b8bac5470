//! One SEND with a page fault (T fig. 4.3).

use super::common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated};
use crate::experiment::{Experiment, Input, PaperFigure, Report};
use crate::figure::Ladder;
use crate::micro::ladder::RNR_NAK;
use crate::micro::{Micro, Operation};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "odp-send",
    title: "One SEND and a page fault",
    source: "T fig. 4.3",
    not_simulated: None,
    not_live: |_| None,
    paper: "A single SEND. If the receiver's page is missing, the receiver sends an RNR NAK half a millisecond \
            later, which is about the time of a page fault, and the sender retransmits the SEND after the RNR \
            wait. If the sender's page is missing, the capture shows the SEND once, with its ACK: the sender sends \
            nothing before its page is present.",
    figures: &[
        PaperFigure {
            name: "T fig. 4.3, left",
            axes: "Two hosts, time from top to bottom, and a list of the packets with their times, in s to the µs.",
            shows: "Server-side ODP: RNR NAK at 0.513 ms, the SEND again at 3.905 ms, its ACK at 3.906 ms.",
            here: "One run, its times in ms. The RNR wait is drawn anew each time. Distances grow with the \
                   logarithm of time.",
            drawings: 1,
        },
        PaperFigure {
            name: "T fig. 4.3, right",
            axes: "As on the left.",
            shows: "Client-side ODP: the SEND at 0 ms, its ACK at 0.003 ms.",
            here: "The times count from the post, so the SEND leaves later than at 0 ms.",
            drawings: 1,
        },
    ],
    fixed_adapters: false,
    one_seed: false,
    run,
};

fn run(bench: &Bench<'_>) -> Result<Report> {
    let paper = [("RNR NAK after", 0.513), ("then acknowledged after", 0.001)];
    report(bench, Operation::Send, paper)
}

/// The report of SEND and of WRITE. `paper`: names and times of the NAK, and of the ACK of the second request.
pub fn report(bench: &Bench<'_>, operation: Operation, paper: [(&str, f64); 2]) -> Result<Report> {
    let one = |sides: &_| Micro { operation, odp: *sides, rnr_timer: RNR_1_28, ..Micro::default() };
    let keys = [SERVER, CLIENT];
    let runs = bench.measure(bench.trials(10), &keys, one, |_, outcome| outcome.clone())?;
    let (server, client) = (&runs[0], &runs[1]);
    let [(named, naked), (acked, acknowledged)] = paper;
    let sent = (true, if operation == Operation::Send { "Send" } else { "RDMA Write" }, 0);
    let ack = (false, "Acknowledge", 0);
    Ok(Report {
        claims: bench.add_live_slack(vec![
            same_packets("server side", server, &[sent, (false, RNR_NAK, 0), sent, ack]),
            same_packets("client side", client, &[sent, ack]),
            Claim::within(
                Calibrated,
                format!("server side: {named}"),
                naked,
                (0.44, 0.75),
                middle(server, |o| nak(o, "RNR", 0)),
                "ms",
            ),
            Claim::within(
                Calibrated,
                format!("server side: {acked}"),
                acknowledged,
                (0.0, 0.015),
                middle(server, |o| response(o, 0, 0) - request(o, 0, 1)),
                "ms",
            ),
            Claim::within(
                Calibrated,
                "client side: acknowledged after",
                0.003,
                (0.0, 0.015),
                middle(client, |o| response(o, 0, 0) - request(o, 0, 0)),
                "ms",
            ),
        ]),
        inputs: vec![Input {
            name: "server side: retransmitted after the NAK by",
            paper: "3.39 and 5.51 ms",
            profile: "rnr_wait.factor is 2.65 to 4.30, of 1.28 ms",
            source: "T fig. 4.3, 4.4",
        }],
        ladders: vec![Ladder::of("server-side ODP", &server[0].steps), Ladder::of("client-side ODP", &client[0].steps)],
        data: packets(&keys, &runs),
        ..Report::default()
    })
}
