//! `weir bench flooded`: a transfer while a third host floods both sides with forged packets, against the same transfer
//! while the same number of packets goes to a closed port, which only the kernels see, and against the transfer alone.

use super::beside_flood::Flood;
use super::measure::{Measurement, Runner};
use super::mtu::MTU;
use super::perftest::{Icrc, Verb};
use super::request::Request;
use super::rows::{self, Bar, Comparison, Row};
use super::turns;
use anyhow::Result;
use std::process::ExitCode;
use weir_stage::Stage;
use weir_stage::flood::Aim;

const BAR: Bar = Bar::AtLeast(0.5);
/// A rate that one core sends easily, packets per second.
const PACED: u64 = 20_000;

/// Measures and prints the results.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    let selected = rows::select(rows(), request.names)?;
    let stage = Stage::bridged(MTU)?;
    turns::announce("weir bench flooded", &stage, request);
    turns::warn_of_missing(&selected);
    let outcomes = turns::measure(&selected, Runner::new(&stage, request.seconds()), request.rounds_of_rows());
    turns::report(&outcomes, request)
}

/// All rows.
pub fn rows() -> Vec<Row> {
    vec![
        row("write-64k", "ib_write_bw 64 KiB, a flood as fast as one core sends", Icrc::Auto, None),
        row("write-64k-paced", "ib_write_bw 64 KiB, 20,000 forged packets/s", Icrc::Auto, Some(PACED)),
        row("icrc-64k-paced", "ib_write_bw 64 KiB with ICRC, 20,000 forged packets/s", Icrc::Always, Some(PACED)),
    ]
}

fn row(name: &'static str, what: &'static str, icrc: Icrc, rate: Option<u64>) -> Row {
    let (verb, size) = (Verb::Write, 64 << 10);
    let flooded = |aim| Measurement::Flooded { verb, size, icrc, flood: Flood { aim, rate } };
    let alone = Measurement::Perftest { verb, size, icrc, both_ways: false };
    let transfer = Aim::Transfer { icrc: icrc == Icrc::Always };
    let comparisons = vec![Comparison::with_bar(flooded(Aim::ClosedPort), BAR), Comparison::without_bar(alone)];
    Row::new(name, what, flooded(transfer), comparisons)
}
