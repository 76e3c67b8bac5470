//! One READ with a page fault on the server or on the client (T fig. 4.2, P fig. 1).

use super::common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated};
use crate::experiment::{Experiment, Report};
use crate::figure::Ladder;
use crate::micro::{Micro, Outcome};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "odp-read",
    title: "One READ and a page fault",
    source: "T fig. 4.2, P fig. 1",
    not_simulated: None,
    paper: "A single READ that causes a page fault, captured on two ConnectX-4. If the server's page is missing, the \
            server sends an RNR NAK, and a response once it has the page; the client drops that response and \
            retransmits the READ when its RNR wait is over. If the client's page is missing, the client drops the \
            response and retransmits the READ after half a millisecond, whether the page is present by then or not.",
    live: true,
    fixed_adapters: false,
    run,
};

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
    Ok(Report {
        claims: bench.add_live_slack(vec![
            Claim::near(
                Calibrated,
                "server side: RNR NAK after",
                0.141,
                0.15,
                middle(server, |o| nak(o, "RNR", 0)),
                "ms",
            ),
            Claim::within(
                Calibrated,
                "server side: unsolicited response, once the page is present, after",
                0.538,
                (0.25, 1.0),
                middle(server, |o| response(o, 0, 0)),
                "ms",
            ),
            Claim::within(
                Calibrated,
                "server side: READ retransmitted after",
                4.565,
                (3.3, 5.7),
                middle(server, again),
                "ms",
            ),
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
            Claim::within(
                Calibrated,
                "client side: READ retransmitted after",
                0.527,
                (0.4, 0.8),
                middle(client, again),
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
        ]),
        ladders: vec![Ladder::of("server-side ODP", &server[0].steps), Ladder::of("client-side ODP", &client[0].steps)],
        data: packets(&keys, &runs),
        ..Report::default()
    })
}
