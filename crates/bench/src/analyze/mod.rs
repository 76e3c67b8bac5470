//! `weir bench analyze`: how fast captures are read, on one core: the packets are found and their headers are parsed. The
//! baselines are the system calls that read the same file, and `tshark`, which counts its packets.

mod file;
mod pass;
mod traffic;

use super::measure::Unit;
use super::request::Request;
use super::rows::Bar;
use super::table::{self, Outcome, Rounds};
use super::{busy, cores};
use anyhow::{Context, Result, ensure};
use file::{Capture, Format, Kind};
use pass::{Counts, PASSES, Pass};
use std::process::ExitCode;

/// Bar of the bytes of a file that are read in a second.
const RATE: f64 = 1e9;
/// Bar of tshark's time, divided by that of a pass.
const TSHARK: f64 = 50.0;
const MIB: u64 = 1 << 20;

/// The files: what is in them, and their size with and without `--quick`, MiB.
const KINDS: [(Kind, [u64; 2]); 3] = [
    (Kind { name: "full", what: "complete packets, MTU 4096, pcap", snap: 1 << 16, format: Format::Pcap }, [256, 1024]),
    (Kind { name: "snap", what: "96 bytes of each packet, pcap", snap: 96, format: Format::Pcap }, [64, 128]),
    (Kind { name: "snap-ng", what: "96 bytes of each packet, pcapng", snap: 96, format: Format::Pcapng }, [64, 128]),
];

/// Measures and prints the results.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    let rounds = request.rounds.unwrap_or(if request.quick { 3 } else { 5 });
    let folder = tempfile::Builder::new().prefix("weir-bench-analyze-").tempdir().context("a folder for the files")?;
    let cores = cores::allowed()?;
    let busy = cores.first_chunk().and_then(|cores| busy::note(*cores));
    let mut outcomes = Vec::new();
    for (kind, sizes) in KINDS {
        let size = sizes[usize::from(!request.quick)] * MIB;
        eprintln!("weir bench analyze: {}: {} MiB, {rounds} rounds", kind.what, size / MIB);
        // One file at a time: the page cache holds it.
        let capture = Capture::write(folder.path(), kind, size)?;
        outcomes.extend(measure(&capture, rounds)?);
        std::fs::remove_file(&capture.path)?;
    }
    if let Some(note) = busy {
        outcomes.iter_mut().for_each(|outcome| {
            outcome.note = Some(outcome.note.take().map_or(note.clone(), |before| format!("{before}; {note}")));
        });
    }
    if request.json {
        println!("{}", serde_json::to_string_pretty(&outcomes)?);
    } else {
        print!("{}", table::render(&outcomes));
    }
    let short = outcomes.iter().any(|outcome| outcome.holds == Some(false));
    Ok(if request.check && short { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Times in seconds, round by round.
#[derive(Default)]
struct Times {
    raw: Vec<f64>,
    tshark: Vec<f64>,
    passes: [Vec<f64>; PASSES.len()],
}

/// Runs all passes over a file, in turns with the baselines.
fn measure(capture: &Capture, rounds: u32) -> Result<Vec<Outcome>> {
    let mut times = Times::default();
    let mut without_tshark = None;
    for _ in 0..rounds {
        times.raw.push(pass::raw(capture)?);
        for (pass, times) in PASSES.iter().zip(&mut times.passes) {
            let (time, counts) = pass::timed(pass, capture)?;
            let expected = Counts { packets: capture.packets, payload: capture.payload };
            ensure!(counts == expected, "{}: {counts:?} were read, {expected:?} are in the file", pass.name);
            times.push(time);
        }
        match pass::tshark(capture)? {
            Ok(time) => times.tshark.push(time),
            Err(why) => without_tshark = Some(why),
        }
    }
    let rows = PASSES.iter().zip(&times.passes);
    Ok(rows.flat_map(|(pass, own)| outcomes(capture, pass, own, &times, without_tshark.as_deref())).collect())
}

/// The comparisons of a pass.
fn outcomes(capture: &Capture, pass: &Pass, own: &[f64], times: &Times, without_tshark: Option<&str>) -> Vec<Outcome> {
    let name = format!("{}-{}", pass.name, capture.kind.name);
    let what = format!("{}: {}", pass.what, capture.kind.what);
    let rates = |times: &[f64]| times.iter().map(|time| capture.len as f64 / time).collect::<Vec<f64>>();
    let packets: Vec<f64> = own.iter().map(|time| capture.packets as f64 / time).collect();
    let note = table::Spread::of(&packets).map(|rate| {
        let (millions, nanoseconds) = (rate.median / 1e6, 1e9 / rate.median);
        let contents = format!("{} packets in {} MiB", capture.packets, capture.len / MIB);
        format!("{what}: {millions:.1} M packets/s ({nanoseconds:.0} ns a packet), {contents}")
    });
    let compared = |against: String, baseline: Vec<f64>, bar: Option<f64>| {
        let rounds = Rounds { weir: rates(own), baseline, cores_ns: Vec::new() };
        let bar = bar.map(Bar::AtLeast);
        let outcome = Outcome::measured(&name, &what, against, Unit::BytesPerSecond, bar, &rounds);
        Outcome { note: note.clone(), ..outcome }
    };
    let fixed = compared(Unit::BytesPerSecond.show(RATE), vec![RATE; own.len()], Some(1.0));
    let raw = compared("read(2) of the same file".into(), rates(&times.raw), None);
    let tshark = compared("tshark -q -z io,stat,0".into(), rates(&times.tshark), Some(TSHARK));
    let tshark = match without_tshark {
        Some(why) => tshark.skipped(why.to_owned()),
        None => tshark,
    };
    vec![fixed, raw, tshark]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The passes find all packets of each kind of file, with and without their payload.
    #[test]
    fn all_packets_of_small_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        for (kind, _) in KINDS {
            let capture = Capture::write(folder.path(), kind, MIB).unwrap();
            assert!(capture.len >= MIB && capture.len < MIB + (1 << 14), "{}", capture.len);
            assert_eq!(std::fs::metadata(&capture.path).unwrap().len(), capture.len);
            for pass in &PASSES {
                let (_, counts) = pass::timed(pass, &capture).unwrap();
                assert_eq!(counts, Counts { packets: capture.packets, payload: capture.payload }, "{}", pass.name);
            }
            assert!(capture.packets > 200 && capture.payload > 10 * capture.packets);
        }
    }
}
