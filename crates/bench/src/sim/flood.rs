//! The papers' largest packet flood: thesis figure 5.7, 200 QPs.

use super::single_run::Run;
use anyhow::{Result, ensure};
use std::time::Instant;
use weir_lab::micro::sim::Simulated;
use weir_lab::micro::{Micro, Runner, Sides};

/// The figure is seconds of real time.
pub fn run() -> Result<Run> {
    let odp = Sides { client: true, server: false };
    let micro = Micro { num_ops: 8192, num_qps: 200, ack_timeout: 18, odp, ..Micro::default() };
    let begun = Instant::now();
    let outcome = Simulated.run(&micro, "connectx4", 1)?;
    let time = begun.elapsed().as_secs_f64();
    let done = outcome.completions.iter().flatten().count();
    ensure!(done == outcome.completions.len(), "{done} READs were done: {:?}", outcome.status);
    let packets = outcome.packets.requests + outcome.packets.responses;
    let note = format!("{packets} packets, {:.3} s of virtual time", outcome.time.as_secs_f64());
    Ok(Run { figure: time, note })
}
