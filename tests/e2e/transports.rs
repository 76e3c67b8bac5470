//! UC, UD, XRC and shared receive queues, used by programs of perftest and rdma-core, and by Python. As in the matrix
//! of RC, `make test` runs each program in both topologies, and each of its options in one of them.

use crate::bed::{Bed, Topology};
use crate::matrix::WITHIN;
use crate::{fork, trial};
use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use std::time::Duration;
use weir_stage::{Child, Side, pair, perftest};

/// Each perftest program with its transport, and its options. One trial runs without options, one with each option.
const PERFTEST: &[(&str, &[&str])] = &[
    ("ib_send_bw -c UC", &["-a", "-b", "-e", "-q 16", "-I 64 -s 64", "-m 256"]),
    ("ib_send_lat -c UC", &["-a", "-e", "-I 64 -s 64", "-m 256"]),
    ("ib_write_bw -c UC", &["-a", "-b", "-q 16", "-I 64 -s 64", "-m 256"]),
    ("ib_write_lat -c UC", &["-a", "-I 64 -s 64", "-m 256"]),
    ("ib_send_bw -c UD", &["-a", "-b", "-e", "-q 16", "-I 64 -s 64", "--odp"]),
    ("ib_send_lat -c UD", &["-a", "-e", "-I 64 -s 64", "--odp"]),
    ("ib_send_bw -c UD -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:77:1:10", &["-s 64", "-e"]),
    ("ib_send_bw -c XRC", &["-a", "-b", "-e", "-q 4", "-m 256", "--odp"]),
    ("ib_send_lat -c XRC", &["-a", "-e", "-m 256"]),
    ("ib_write_bw -c XRC", &["-a", "-b", "-q 4"]),
    ("ib_write_lat -c XRC", &["-a"]),
    ("ib_read_bw -c XRC", &["-a", "-e", "--odp"]),
    ("ib_read_lat -c XRC", &["-a"]),
    ("ib_atomic_bw -c XRC", &["-b"]),
    ("ib_send_bw --use-srq", &["-a", "-b", "-e", "-q 16", "--odp"]),
    ("ib_send_lat --use-srq", &["-a", "-e"]),
];

/// Examples of rdma-core. Those with -c check the bytes that they receive.
const PINGPONGS: &[(&str, &[&str])] = &[
    ("ibv_uc_pingpong", &["-c", "-c -e", "-c -s 1", "-c -s 1048576 -n 100", "-c -m 256", "-c -e -r 1"]),
    ("ibv_ud_pingpong", &["-c", "-c -e", "-c -s 1", "-c -s 4000"]),
    ("ibv_srq_pingpong", &["-c", "-c -e", "-c -q 1", "-c -s 1048576 -n 100", "-c -m 256"]),
    ("ibv_xsrq_pingpong", &["", "-e", "-s 100000"]),
];

/// All trials if `whole`, otherwise those of every run.
pub fn trials(whole: bool) -> Vec<Trial> {
    let mut trials = vec![];
    for (cell, topology) in Topology::ALL.into_iter().enumerate() {
        let chosen = |nth: usize, option: usize| whole || option == 0 || (nth + option) % 2 == cell;
        for (nth, (program, options)) in PERFTEST.iter().enumerate() {
            let all = [""].iter().chain(*options).enumerate();
            for (_, options) in all.filter(|(option, _)| chosen(nth, *option)) {
                let name = format!("perftest {program} {options}").trim_end().to_owned();
                trials.push(trial(topology, &name, move |bed| one_perftest(bed, &[], program, options)));
            }
        }
        for (nth, (program, options)) in PINGPONGS.iter().enumerate() {
            for (_, options) in options.iter().enumerate().filter(|(option, _)| chosen(nth, *option)) {
                let name = format!("{program} {options}").trim_end().to_owned();
                trials.push(trial(topology, &name, move |bed| pingpong(bed, &[], program, options)));
            }
        }
        for (transport, packets) in [("uc", 3), ("ud", 1)] {
            for (faults, hit) in [("loss=0", 0.0), ("loss=0.05", 0.05), ("corrupt=0.03", 0.03)] {
                let name = format!("{transport} with {faults} loses only the messages that contain a hit packet");
                trials.push(trial(topology, &name, move |bed| unreliable(bed, &[transport], packets, faults, hit)));
                let name = name + ", ODP memory";
                let how = [transport, "demand"];
                trials.push(trial(topology, &name, move |bed| unreliable(bed, &how, packets, faults, hit)));
            }
        }
        if topology == Topology::Loopback {
            trials.extend(by_udp(whole));
        }
        for transport in ["rc", "uc", "ud"] {
            let name = format!("pyverbs in two processes, {transport}");
            trials.push(trial(topology, &name, move |bed| python(bed, transport)));
        }
    }
    trials
}

/// On one host, what goes through shared memory by default also goes by UDP: each program, with all its options if
/// `whole`.
fn by_udp(whole: bool) -> Vec<Trial> {
    let shares = |program: &str| !program.contains("UD") && !program.contains("_ud_");
    let mut trials = vec![];
    for (program, options) in PERFTEST.iter().filter(|(program, _)| shares(program)) {
        for options in [""].iter().chain(if whole { *options } else { &[] }) {
            let name = format!("perftest {program} {options}").trim_end().to_owned() + " by UDP";
            trials.push(trial(Topology::Loopback, &name, move |bed| one_perftest(bed, UDP, program, options)));
        }
    }
    for (program, options) in PINGPONGS.iter().filter(|(program, _)| shares(program)) {
        for options in &options[..if whole { options.len() } else { 1 }] {
            let name = format!("{program} {options}").trim_end().to_owned() + " by UDP";
            trials.push(trial(Topology::Loopback, &name, move |bed| pingpong(bed, UDP, program, options)));
        }
    }
    trials
}

const UDP: &[&str] = &["--local", "off"];

fn one_perftest(bed: &Bed, weir: &[&str], program: &str, options: &str) -> Result<()> {
    let all_sizes = options == "-a";
    let iterations = if all_sizes { 5 } else { 200 };
    let line = format!("{program} -F -d {{dev}} -p {{port}} -n {iterations} {options}");
    let outcome = bed.pair(weir, &line, WITHIN)?;
    let rows = perftest::rows(&outcome.client.stdout).len();
    // Over UD perftest stops at the MTU, so that the number of sizes varies.
    ensure!(if all_sizes { rows > 8 } else { rows == 1 }, "{rows} lines of results\n{}", outcome.client.printed());
    Ok(())
}

fn pingpong(bed: &Bed, weir: &[&str], program: &str, options: &str) -> Result<()> {
    both(bed, weir, |gid, port| format!("{program} -d {} -g {gid} -p {port} {options}", bed.stage.device()))
}

fn python(bed: &Bed, transport: &str) -> Result<()> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/two_processes.py");
    // pyverbs is built for the interpreter of the distribution.
    both(bed, &[], |gid, port| format!("/usr/bin/python3 {script} {} {gid} {port} {transport}", bed.stage.device()))
}

/// `unreliable.c` checks the messages that arrive; this checks how many arrive.
fn unreliable(bed: &Bed, how: &[&str], packets: i32, faults: &str, hit: f64) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = fork::compile("c/unreliable.c", folder.path())?;
    let gid = bed.gid_index(Side::A, bed.stage.address(Side::A))?.to_string();
    let faults = format!("{faults},seed=3");
    let mut command = bed.weir(Side::A, &["--faults", &faults], [program]);
    let (transport, rest) = how.split_first().context("no transport")?;
    command.args([transport, &*bed.stage.device(), &*gid]).args(rest);
    let ended = Child::spawn(&mut command, "unreliable")?.wait(Duration::from_secs(70))?.success()?;
    let numbers: Vec<f64> = ended.stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [sent, arrived] = numbers[..] else { bail!("{}", ended.printed()) };
    // A message arrives if all its packets arrive. The count is binomial; it must lie within five standard deviations.
    let chance = (1.0 - hit).powi(packets);
    let deviation = (sent * chance * (1.0 - chance)).sqrt();
    ensure!((arrived - sent * chance).abs() <= 5.0 * deviation, "{}", ended.printed());
    Ok(())
}

/// A server on A, and a client on B with the server's address as last argument. Both must exit with status 0.
fn both(bed: &Bed, weir: &[&str], line: impl Fn(u64, u16) -> String) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let command = |side: Side| -> Result<std::process::Command> {
        let gid = bed.gid_index(side, bed.stage.address(side)).context("no GID")?;
        Ok(bed.weir(side, weir, line(gid, port).split_whitespace()))
    };
    let mut client = command(Side::B)?;
    client.arg(bed.stage.address(Side::A).to_string());
    pair::run(&mut command(Side::A)?, &mut client, port, Duration::from_secs(30))?.success()?;
    Ok(())
}
