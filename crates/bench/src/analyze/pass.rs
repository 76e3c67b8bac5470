//! What is timed: passes over a file, and the baselines.

use super::file::Capture;
use anyhow::{Context, Result};
use std::fs::File;
use std::hint::black_box;
use std::io::{ErrorKind, Read};
use std::process::{Command, Stdio};
use std::time::Instant;
use weir_analyze::{Analysis, Options};
use weir_capture::packet;

/// A pass over a file.
pub struct Pass {
    pub name: &'static str,
    pub what: &'static str,
    run: fn(&Capture) -> Result<Counts>,
}

/// All passes, each with what the one before does.
pub const PASSES: [Pass; 2] = [
    Pass { name: "headers", what: "packets found, headers parsed", run: headers },
    Pass { name: "analysis", what: "connections rebuilt, findings decided", run: analysis },
];

/// What a pass found, so that it cannot leave out a part of its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub packets: u64,
    /// Bytes of payload on the wire.
    pub payload: u64,
}

/// Runs a pass; its time in seconds.
pub fn timed(pass: &Pass, capture: &Capture) -> Result<(f64, Counts)> {
    let begun = Instant::now();
    let counts = (pass.run)(capture)?;
    Ok((begun.elapsed().as_secs_f64(), counts))
}

/// Reads the file without looking at its bytes; the time in seconds.
pub fn raw(capture: &Capture) -> Result<f64> {
    let mut file = File::open(&capture.path)?;
    let mut buffer = vec![0; 1 << 18];
    let begun = Instant::now();
    while file.read(&mut buffer)? > 0 {
        black_box(&buffer);
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// tshark counts the packets of the file; its time in seconds, or why it cannot run.
pub fn tshark(capture: &Capture) -> Result<Result<f64, String>> {
    let mut command = Command::new("tshark");
    command.args(["-q", "-z", "io,stat,0", "-r"]).arg(&capture.path).stdin(Stdio::null());
    let begun = Instant::now();
    let output = match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Err("tshark is not installed".into())),
        other => other.context("tshark")?,
    };
    let time = begun.elapsed().as_secs_f64();
    let text = String::from_utf8_lossy(&output.stdout);
    // The last row of its table: interval, frames, bytes.
    let counted = text.lines().rev().filter_map(|line| line.split('|').nth(2)?.trim().parse::<u64>().ok()).next();
    Ok(match counted {
        Some(packets) if packets == capture.packets => Ok(time),
        _ => Err(format!("tshark counts {counted:?} packets, not {}", capture.packets)),
    })
}

/// Finds the packets and parses their headers.
fn headers(capture: &Capture) -> Result<Counts> {
    let mut reader = weir_capture::open(&capture.path)?;
    let mut counts = Counts::default();
    while let Some(frame) = reader.next_frame()? {
        let Some(found) = packet::find(&frame) else { continue };
        let Ok(headers) = found.headers() else { continue };
        counts.packets += 1;
        counts.payload += found.payload_len(&headers).unwrap_or(0) as u64;
        black_box(&headers);
    }
    Ok(counts)
}

/// As `weir analyze` does it.
fn analysis(capture: &Capture) -> Result<Counts> {
    let mut analysis = Analysis::new(Options::default());
    let mut reader = weir_capture::open(&capture.path)?;
    while let Some(frame) = reader.next_frame()? {
        analysis.frame(0, &frame);
    }
    let report = analysis.finish();
    let payload = report.flows.iter().map(|flow| flow.record.stats.bytes).sum();
    Ok(Counts { packets: report.totals.reliable, payload })
}
