//! Every RC program of perftest, with every option that matters, in both places, with and without faults.
//!
//! All of that is `make test-all`. In every run, each program is tried in both places with and without faults, and each
//! of its options in one of these cells, which go round.

use crate::bed::{FAULTS, Place};
use crate::faults;
use crate::trial;
use anyhow::ensure;
use libtest_mimic::Trial;
use std::time::Duration;
use weir_cli::programs::perftest;

/// What a program of perftest knows.
struct Program {
    name: &'static str,
    /// Options beside the common ones; each is a test.
    options: &'static [&'static str],
}

/// MTUs and the plain run: for all.
const COMMON: &[&str] = &["", "-m 256", "-m 512", "-m 1024", "-m 2048", "-m 4096"];

/// `-e` is there for programs that get completions only; the size of an atomic is not a choice. perftest itself refuses
/// `--odp` for atomics and UC.
const PROGRAMS: &[Program] = &[
    Program { name: "ib_send_bw", options: &["-a", "-b", "-e", "-q 16", "-I 64 -s 64", "--odp", "--odp -a"] },
    Program { name: "ib_send_lat", options: &["-a", "-e", "-e -s 4097", "-I 64 -s 64", "--odp"] },
    Program { name: "ib_write_bw", options: &["-a", "-b", "-q 16", "-I 64 -s 64", "--odp", "--odp -a"] },
    Program { name: "ib_write_lat", options: &["-a", "-I 64 -s 64", "--odp"] },
    Program { name: "ib_read_bw", options: &["-a", "-b", "-e", "-q 16", "--odp", "--odp -a"] },
    Program { name: "ib_read_lat", options: &["-a", "-e", "--odp"] },
    Program { name: "ib_atomic_bw", options: &["-b", "-e", "-q 16", "-A CMP_AND_SWAP"] },
    Program { name: "ib_atomic_lat", options: &["-e", "-A CMP_AND_SWAP"] },
];

/// For a pair: with `-a` perftest measures the processor's clock anew for each size, which is most of what it does on a
/// busy machine.
pub const WITHIN: Duration = Duration::from_secs(180);

/// Sizes of `-a`: 2^1 to 2^23.
const ALL_SIZES: usize = 23;

/// The whole matrix, or what is in every run.
pub fn trials(whole: bool) -> Vec<Trial> {
    let cells: Vec<(Place, bool)> = Place::ALL.into_iter().flat_map(|place| [(place, false), (place, true)]).collect();
    let mut trials = vec![];
    let mut number = 0;
    for (cell, &(place, faulty)) in cells.iter().enumerate() {
        for (nth, program) in PROGRAMS.iter().enumerate() {
            for (option, options) in COMMON.iter().chain(program.options).enumerate() {
                // Each its own seed, and the same in every run.
                number += 1;
                // It looks for the end of its one send once an event: where an ACK is lost, the answer comes first,
                // and it posts into a full queue, on any adapter.
                let never_with_faults = program.name == "ib_send_lat" && options.starts_with("-e");
                if faulty && never_with_faults {
                    continue;
                }
                let turn = (nth + option) % cells.len();
                let turn = if never_with_faults && cells[turn].1 { turn - 1 } else { turn };
                if whole || options.is_empty() || turn == cell {
                    trials.push(one(place, program.name, options, faulty.then_some(number)));
                }
            }
        }
    }
    trials
}

fn one(place: Place, program: &'static str, options: &'static str, number: Option<u64>) -> Trial {
    let all_sizes = options.ends_with("-a");
    // Small enough that the whole matrix takes minutes; -a moves 16 MiB an iteration.
    let iterations = if all_sizes { 5 } else { 200 };
    let mut name = format!("perftest {program} {options}").trim_end().to_owned();
    if number.is_some() {
        name += " with faults";
    }
    trial(place, &name, move |bed| {
        let spec = number.map(|number| faults::certain(FAULTS, number));
        // -F: perftest would warn of changing CPU frequencies.
        let line = format!("{program} -F -d {{dev}} -p {{port}} -n {iterations} {options}");
        let outcome = match &spec {
            Some(spec) => bed.faulty_pair(&["--log", "info"], spec, &line, WITHIN)?,
            None => bed.pair(&[], &line, WITHIN)?,
        };
        let rows = perftest::rows(&outcome.client.stdout);
        ensure!(
            rows.len() == if all_sizes { ALL_SIZES } else { 1 },
            "{} lines of results\n{}",
            rows.len(),
            outcome.client.printed()
        );
        if spec.is_some() {
            faults::happened(&outcome.client)?;
        }
        Ok(())
    })
}
