//! Memory that connected QPs use.

use super::perftest::{self, Icrc, words};
use anyhow::{Result, ensure};
use std::cell::Cell;
use std::time::Duration;
use weir_stage::Stage;

const BOUND: Duration = Duration::from_secs(60);

/// Peak resident memory with `count` connected QPs minus that with one QP, bytes; of the process that uses more.
pub fn of_qps(stage: &Stage, count: usize) -> Result<f64> {
    let (many, one) = (peaks(stage, count)?, peaks(stage, 1)?);
    let more = [0, 1].map(|i| many[i] as f64 - one[i] as f64);
    Ok(more[0].max(more[1]))
}

/// Peak resident memory of client and server, bytes.
fn peaks(stage: &Stage, qps: usize) -> Result<[u64; 2]> {
    let program = "ib_write_bw";
    // A short queue and small messages: perftest's own buffers and completion queue stay small.
    let mut pair = perftest::prepare(stage, program, Icrc::Auto, &words(&format!("-q {qps} -s 64 -t 2 -Q 1 -n 100")))?;
    let client = perftest::start_client(stage, program, &mut pair)?;
    let (client_peak, server_peak) = (Cell::new(0), Cell::new(0));
    let note = |peak: &Cell<u64>, now: Option<u64>| peak.set(peak.get().max(now.unwrap_or(0)));
    let ended = client.wait_with(BOUND, |client| {
        note(&client_peak, client.peak_memory());
        note(&server_peak, pair.server.peak_memory());
    })?;
    ended.success()?;
    pair.server.wait_with(BOUND, |server| note(&server_peak, server.peak_memory()))?.success()?;
    ensure!(client_peak.get() > 0 && server_peak.get() > 0, "{program} ended before its memory could be read");
    Ok([client_peak.get(), server_peak.get()])
}
