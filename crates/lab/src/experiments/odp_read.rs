//! One READ that meets a missing page: on the server, or on the client (T fig. 4.2, P fig. 1).

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
    paper: "A single READ of memory that is not there, captured on two ConnectX-4. If the server's page is missing, an \
            RNR NAK goes back; the response that the server sends once it has the page is thrown away, and the client \
            asks again when its RNR wait is over. If the client's page is missing, the response is thrown away and the \
            READ sent again after half a millisecond, whether the page is there by then or not.",
    live: true,
    own_adapters: false,
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
        claims: bench.lenient(vec![
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
                "server side: the response unasked, once the page is there",
                0.538,
                (0.25, 1.0),
                middle(server, |o| response(o, 0, 0)),
                "ms",
            ),
            Claim::within(Calibrated, "server side: READ again", 4.565, (3.3, 5.7), middle(server, again), "ms"),
            Claim::near(
                Calibrated,
                "server side: its response takes",
                0.074,
                0.35,
                middle(server, |o| last_answer(o) - again(o)),
                "ms",
            ),
            Claim::within(
                Calibrated,
                "client side: the response that is thrown away, after",
                0.005,
                (0.0, 0.015),
                middle(client, |o| response(o, 0, 0)),
                "ms",
            ),
            Claim::within(Calibrated, "client side: READ again after", 0.527, (0.4, 0.8), middle(client, again), "ms"),
            Claim::near(
                Calibrated,
                "client side: the last response takes",
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
