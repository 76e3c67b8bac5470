//! `weir run --guard`: the pitfalls of ODP go away, and nothing else changes for the programs. Times of runs are not
//! compared: the packets tell.

use crate::bed::{Bed, FAULTS, Topology, WEIR, library};
use crate::profiles::QUICK;
use crate::trial;
use crate::verify::verify_with;
use anyhow::{Context, Result, ensure};
use libtest_mimic::{Failed, Trial};
use std::process::{Command, Output};
use std::time::Duration;
use weir_lab::micro::live::Live;
use weir_lab::micro::{Guards, Micro, Outcome, Runner, Sides};
use weir_stage::{Side, pair, perftest};

const CLIENT: Sides = Sides { client: true, server: false };
const SERVER: Sides = Sides { client: false, server: true };
/// Floods with each guard.
const FLOODS: u64 = 4;

pub fn trials() -> Vec<Trial> {
    let staged = |name: &str, test: fn() -> Result<()>| {
        Trial::test(format!("guards/{name}"), move || test().map_err(|error| Failed::from(format!("{error:#}"))))
    };
    let mut trials = vec![
        staged("dammed READs are revealed", damming),
        staged("a flood ends early", flood),
        staged("what --system refuses", refusals),
        trial(Topology::Loopback, "guards/perftest with events, requests built call by call", events),
    ];
    for (name, weir, options) in [
        ("by UDP", &["--guard", "auto", "--local", "off"][..], "-s 31 -o 1"),
        ("through shared memory", &["--guard", "auto"], "-s 32"),
    ] {
        let name = format!("guards/every byte and status {name}");
        trials.push(trial(Topology::Loopback, &name, move |bed| verify_with(bed, weir, options, false, |_| ())));
    }
    for guards in ["auto", "dummy,reissue"] {
        let name = format!("guards/every byte and status with {guards}, losses and all flaws of connectx4");
        trials.push(trial(Topology::Loopback, &name, move |bed| in_spite_of_flaws(bed, guards)));
    }
    trials
}

fn run(live: &mut Live, micro: &Micro, profile: &str, guards: &str, seed: u64) -> Result<Outcome> {
    let guards: Guards = guards.parse().unwrap_or_default();
    let outcome = live.run(&Micro { guards, ..micro.clone() }, profile, seed)?;
    ensure!(outcome.status.is_none() && outcome.completions.iter().all(Option::is_some), "{guards}: {outcome:?}");
    Ok(outcome)
}

/// The server pages, so the second READ is lost while the first one waits. Without a guard an ACK timeout finds out.
fn damming() -> Result<()> {
    let mut live = Live::new(WEIR, library())?;
    // The first READ waits some 90 ms, with the guard `rnr` less than 1 ms: time enough for a busy machine.
    let two = Micro { num_ops: 2, interval: Duration::from_millis(20), rnr_timer: 22, odp: SERVER, ..Micro::default() };
    let alone = run(&mut live, &two, "connectx4", "none", 1)?;
    ensure!(alone.timeouts > 0, "no READ was dammed: {alone:?}");
    for guards in ["dummy", "rnr", "auto"] {
        let guarded = run(&mut live, &two, "connectx4", guards, 1)?;
        ensure!(guarded.timeouts == 0, "{guards}: {guarded:?}");
    }
    Ok(())
}

/// The client pages, so its adapter drops responses long after the pages have come. How long a flood lasts is a matter of
/// chance, with a guard and without: so the packets of several are compared.
fn flood() -> Result<()> {
    let mut live = Live::new(WEIR, library())?;
    let many = Micro { num_ops: 2048, num_qps: 128, size: 100, odp: CLIENT, ack_timeout: 18, ..Micro::default() };
    let mut repeated = |guards: &str| -> Result<u64> {
        (1..=FLOODS).map(|seed| Ok(run(&mut live, &many, "connectx5", guards, seed)?.packets.repeated)).sum()
    };
    let alone = repeated("none")?;
    ensure!(alone > 3 * FLOODS * u64::from(many.num_ops), "no flood: {alone} requests were repeated");
    for (guards, most) in [("reissue", 0.5), ("prefetch", 0.1), ("auto", 0.1)] {
        let guarded = repeated(guards)?;
        ensure!(guarded as f64 <= most * alone as f64, "{guards}: {guarded} requests were repeated instead of {alone}");
    }
    Ok(())
}

fn refusals() -> Result<()> {
    let weir = |words: &[&str]| -> Result<Output> {
        Ok(Command::new(WEIR).args(words).env("WEIR_LIB_DIR", library()).env_remove("WEIR_GUARD").output()?)
    };
    let refused = weir(&["run", "--system", "--", "true"])?;
    ensure!(refused.status.code() == Some(125), "{refused:?}");
    ensure!(String::from_utf8(refused.stderr)?.contains("add --guard auto"));
    let refused = weir(&["run", "--system", "--guard", "auto", "--profile", "connectx4", "--", "true"])?;
    ensure!(refused.status.code() == Some(125), "{refused:?}");
    ensure!(String::from_utf8(refused.stderr)?.contains("WEIR_PROFILE"));
    // The layer is loaded, and Weir's library is not.
    let maps = weir(&["run", "--system", "--guard", "auto", "--", "cat", "/proc/self/maps"])?;
    let maps = String::from_utf8(maps.stdout)?;
    ensure!(maps.contains("libweir-layer.so") && !maps.contains("libibverbs"), "{maps}");
    Ok(())
}

fn in_spite_of_flaws(bed: &Bed, guards: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("quick.toml");
    std::fs::write(&file, QUICK)?;
    let file = file.to_str().context("the path of the temporary folder is not UTF-8")?;
    let options = ["--guard", guards, "--profile", file, "--faults", FAULTS];
    verify_with(bed, &options, "-l -n 200 -s 33 -o 1", false, |_| ())
}

fn events(bed: &Bed) -> Result<()> {
    for options in ["-n 500 -e", "-n 500 --odp", "-n 200 -q 4 --cq-mod 8"] {
        let outcome = perftest_pair(bed, "ib_read_bw", options)?;
        ensure!(perftest::rows(&outcome.client.stdout).len() == 1, "{}", outcome.client.printed());
    }
    Ok(())
}

fn perftest_pair(bed: &Bed, program: &str, options: &str) -> Result<pair::Outcome> {
    let port = bed.stage.free_port(Side::A)?;
    let command = |side: Side| {
        let mut command = bed.stage.command(side, WEIR);
        command.args(["run", "--guard", "auto", "--interface", "lo", "--", program, "-F", "-p", &port.to_string()]);
        command.args(options.split(' ')).env("WEIR_LIB_DIR", library());
        command
    };
    let mut client = command(Side::B);
    client.arg(bed.stage.address(Side::A).to_string());
    pair::run(&mut command(Side::A), &mut client, port, Duration::from_secs(60))?.success()
}
