//! One WRITE with a page fault (T fig. 4.4).

use super::odp_send::report;
use crate::bench::Bench;
use crate::experiment::{Experiment, Report};
use crate::micro::Operation;
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "odp-write",
    title: "One WRITE and a page fault",
    source: "T fig. 4.4",
    not_simulated: None,
    paper: "A single WRITE behaves as a SEND does: if the server's page is missing, the server sends an RNR NAK once \
            the page is present, and the client retransmits the WRITE after the RNR wait; if the client's page is \
            missing, the client sends nothing before the page is present.",
    live: true,
    fixed_adapters: false,
    run,
};

fn run(bench: &Bench<'_>) -> Result<Report> {
    let paper = [("RNR NAK after", 0.526), ("then acknowledged after", 0.006)];
    report(bench, Operation::Write, paper)
}
