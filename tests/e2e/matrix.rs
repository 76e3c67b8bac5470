//! Every RC program of perftest, with the options that change its traffic, in both topologies, with and without faults.
//!
//! `make test-all` runs the whole matrix, with every way that payload can travel in a cell (topology, faults). `make
//! test` runs each program without options in all four cells, on one host in every way, and each of its options in one
//! cell in one way. Cells and ways are assigned round-robin.

use crate::bed::{FAULTS, Topology};
use crate::faults;
use crate::trial;
use anyhow::ensure;
use libtest_mimic::Trial;
use std::time::Duration;
use weir_stage::perftest;

/// A program of perftest and its options.
struct Program {
    name: &'static str,
    /// Options besides [`COMMON`]; each is a trial.
    options: &'static [&'static str],
}

/// For all programs: no option, and each MTU.
const COMMON: &[&str] = &["", "-m 256", "-m 512", "-m 1024", "-m 2048", "-m 4096"];

/// `-e` is only for programs that poll for completions. Atomics have a fixed size. perftest itself refuses `--odp` for
/// atomics and UC.
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

/// Time limit of a pair. With `-a` perftest measures the CPU clock again for each size, which takes most of its time on
/// a busy machine.
pub const WITHIN: Duration = Duration::from_secs(180);

/// Sizes of `-a`: 2^1 to 2^23.
const ALL_SIZES: usize = 23;

/// The whole matrix if `whole`, otherwise the trials of every run.
pub fn trials(whole: bool) -> Vec<Trial> {
    let cells: Vec<(Topology, bool)> =
        Topology::ALL.into_iter().flat_map(|topology| [(topology, false), (topology, true)]).collect();
    let mut trials = vec![];
    let mut number = 0;
    for (cell, &(topology, faulty)) in cells.iter().enumerate() {
        for (nth, program) in PROGRAMS.iter().enumerate() {
            for (option, options) in COMMON.iter().chain(program.options).enumerate() {
                // Each trial has its own seed, which is the same in every run.
                number += 1;
                // It polls for the completion of its one send once per event. If an ACK is lost, the peer's message
                // completes first, and the program posts to a full send queue, on any adapter.
                let never_with_faults = program.name == "ib_send_lat" && options.starts_with("-e");
                if faulty && never_with_faults {
                    continue;
                }
                let turn = (nth + option) % cells.len();
                let turn = if never_with_faults && cells[turn].1 { turn - 1 } else { turn };
                let ways = ways(topology, faulty);
                let every = whole || options.is_empty() && topology == Topology::Loopback && !faulty;
                if every || options.is_empty() || turn == cell {
                    let chosen = number as usize % ways.len();
                    for (_, way) in ways.iter().enumerate().filter(|(way, _)| every || *way == chosen) {
                        trials.push(perftest_trial(topology, program.name, options, faulty.then_some(number), *way));
                    }
                }
            }
        }
    }
    trials
}

/// The same over several links: each program with and without faults, and if `whole` with all its options.
pub fn over_links(whole: bool) -> Vec<Trial> {
    let mut trials = vec![];
    for (nth, program) in PROGRAMS.iter().enumerate() {
        for options in COMMON.iter().chain(program.options) {
            for faulty in [false, true] {
                let never_with_faults = program.name == "ib_send_lat" && options.starts_with("-e");
                // One program in four has faults in every run.
                let chosen = options.is_empty() && faulty == (nth % 4 == 1);
                if (whole || chosen) && !(faulty && never_with_faults) {
                    let number = 1000 + trials.len() as u64;
                    let way = ways(Topology::Links, faulty)[0];
                    trials.push(perftest_trial(Topology::Links, program.name, options, faulty.then_some(number), way));
                }
            }
        }
    }
    trials
}

/// How payload travels. The first of a cell is the default there.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    SharedMemory,
    Frames,
    Roce,
}

fn ways(topology: Topology, faulty: bool) -> &'static [Way] {
    match (topology, faulty) {
        (Topology::Loopback, false) => &[Way::SharedMemory, Way::Frames, Way::Roce],
        (Topology::Veth | Topology::Links | Topology::Bridged, false) => &[Way::Frames, Way::Roce],
        (_, true) => &[Way::Roce, Way::Frames],
    }
}

fn perftest_trial(
    topology: Topology,
    program: &'static str,
    options: &'static str,
    number: Option<u64>,
    way: Way,
) -> Trial {
    let all_sizes = options.ends_with("-a");
    // Small numbers, so that the whole matrix takes minutes; -a moves 16 MiB per iteration.
    let iterations = if all_sizes { 5 } else { 200 };
    let mut name = format!("perftest {program} {options}").trim_end().to_owned();
    if number.is_some() {
        name += " with faults";
    }
    let is_default = way == ways(topology, number.is_some())[0];
    let (how, framing) = match way {
        Way::SharedMemory => (" through shared memory", "auto"),
        Way::Frames => (" in frames", "weir"),
        Way::Roce => (" in RoCE packets", "roce"),
    };
    name += how;
    let framing = if is_default { "auto" } else { framing };
    trial(topology, &name, move |bed| {
        let spec = number.map(|number| faults::with_losing_seed(FAULTS, number));
        // -F: no warning of perftest about varying CPU frequencies.
        let line = format!("{program} -F -d {{dev}} -p {{port}} -n {iterations} {options}");
        let outcome = match &spec {
            Some(spec) => bed.faulty_pair(&["--framing", framing, "--log", "info"], spec, &line, WITHIN)?,
            None => bed.pair(&["--framing", framing], &line, WITHIN)?,
        };
        let rows = perftest::rows(&outcome.client.stdout);
        ensure!(
            rows.len() == if all_sizes { ALL_SIZES } else { 1 },
            "{} lines of results\n{}",
            rows.len(),
            outcome.client.printed()
        );
        if spec.is_some() {
            faults::ensure_losses(&outcome.client)?;
        }
        Ok(())
    })
}
