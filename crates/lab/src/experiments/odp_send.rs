//! One SEND with a page fault (T fig. 4.3).

use super::common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated};
use crate::experiment::{Experiment, Input, Report};
use crate::figure::Ladder;
use crate::micro::{Micro, Operation};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "odp-send",
    title: "One SEND and a page fault",
    source: "T fig. 4.3",
    not_simulated: None,
    paper: "A single SEND. If the receiver's page is missing, the receiver sends an RNR NAK once the page is present, \
            half a millisecond later, and the sender retransmits the SEND after the RNR wait. If the sender's page is \
            missing, the sender sends nothing before the page is present.",
    live: true,
    fixed_adapters: false,
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
    Ok(Report {
        claims: bench.add_live_slack(vec![
            Claim::within(
                Calibrated,
                format!("server side: {named}"),
                naked,
                (0.25, 1.1),
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
            Claim::within(
                Calibrated,
                "client side: number of transmissions",
                1.0,
                (1.0, 1.0),
                middle(client, |o| o.packets.requests as f64),
                "",
            ),
        ]),
        inputs: vec![Input {
            name: "server side: retransmitted after the NAK by",
            paper: "3.39 and 5.51 ms",
            profile: "rnr_wait.factor is 2.65 to 4.98, of 1.28 ms",
            source: "T fig. 4.3, 4.4",
        }],
        ladders: vec![Ladder::of("server-side ODP", &server[0].steps), Ladder::of("client-side ODP", &client[0].steps)],
        data: packets(&keys, &runs),
        ..Report::default()
    })
}
