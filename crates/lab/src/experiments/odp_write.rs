//! One WRITE that meets a missing page (T fig. 4.4).

use super::odp_send::report;
use crate::bench::Bench;
use crate::experiment::{Experiment, Report};
use crate::micro::Operation;
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "odp-write",
    title: "One WRITE and a page fault",
    source: "T fig. 4.4",
    paper: "A single WRITE behaves as a SEND does: if the server's page is missing, the RNR NAK comes once it is there, \
            and the WRITE goes again after the RNR wait; if the client's page is missing, the WRITE waits for it.",
    live: true,
    own_adapters: false,
    run,
};

fn run(bench: &Bench<'_>) -> Result<Report> {
    let paper = [("RNR NAK after", 0.526), ("WRITE again", 6.035), ("acknowledged after another", 0.006)];
    report(bench, Operation::Write, paper)
}
