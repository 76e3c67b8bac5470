//! One WRITE with a page fault (T fig. 4.4).

use super::odp_send::report;
use crate::bench::Bench;
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::micro::Operation;
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "odp-write",
    title: "One WRITE and a page fault",
    source: "T fig. 4.4",
    not_simulated: None,
    not_live: |_| None,
    paper: "A single WRITE behaves as a SEND does: if the server's page is missing, the server sends an RNR NAK \
            half a millisecond later, and the client retransmits the WRITE after the RNR wait. If the client's \
            page is missing, the client sends the WRITE once: T 5.2.4 says that it leaves after the page fault.",
    figures: &[
        PaperFigure {
            name: "T fig. 4.4, left",
            axes: "Two hosts, time from top to bottom, and a list of the packets with their times, in s to the µs.",
            shows: "Server-side ODP: RNR NAK at 0.526 ms, the WRITE again at 6.035 ms, its ACK at 6.041 ms.",
            here: "One run, its times in ms. The RNR wait is drawn anew each time. Distances grow with the \
                   logarithm of time.",
            drawings: 1,
        },
        PaperFigure {
            name: "T fig. 4.4, right",
            axes: "As on the left.",
            shows: "Client-side ODP: the WRITE at 0 ms, its ACK at 0.003 ms.",
            here: "The times count from the post, so the WRITE leaves later than at 0 ms.",
            drawings: 1,
        },
    ],
    fixed_adapters: false,
    one_seed: false,
    run,
};

fn run(bench: &Bench<'_>) -> Result<Report> {
    let paper = [("RNR NAK after", 0.526), ("then acknowledged after", 0.006)];
    report(bench, Operation::Write, paper)
}
