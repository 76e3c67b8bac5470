//! `weir-verify` (`tests/c/verify.c`), which compares every byte and every completion status, in many settings.

use crate::bed::{Bed, FAULTS, Topology, library};
use crate::{faults, trial};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use std::process::Command;
use std::time::{Duration, Instant};
use weir_stage::pair::{self, Outcome};
use weir_stage::{Child, Protocol, Side};

/// Time limit of a run.
const LIMIT: Duration = Duration::from_secs(120);

/// Name, options of `weir run`, options of `weir-verify`. All go by UDP. Without faults the payload travels in frames,
/// with faults in RoCE packets, unless an option says otherwise.
const SETTINGS: &[(&str, &[&str], &str)] = &[
    ("", &[], ""),
    ("in RoCE packets", &["--framing", "roce"], "-s 18"),
    ("with every ICRC", &["--icrc", "always"], "-s 2"),
    ("with long messages", &[], "-s 3 -m 8388608 -n 100"),
    ("with faults", &["--faults", FAULTS], "-l -s 4"),
    ("with faults, in frames", &["--faults", FAULTS, "--framing", "weir"], "-l -s 5"),
    ("over XRC", &[], "-c XRC -s 8"),
    ("over XRC with faults, in frames", &["--faults", FAULTS, "--framing", "weir"], "-c XRC -l -s 9"),
    ("with ODP memory", &[], "-s 10 -o 1"),
    ("with file-backed ODP memory", &[], "-s 11 -o 2"),
    ("with an implicit ODP region", &[], "-s 12 -o 3"),
    ("with ODP memory, every ICRC and long messages", &["--icrc", "always"], "-s 13 -o 1 -m 8388608 -n 100"),
    ("with ODP memory and faults, in frames", &["--faults", FAULTS, "--framing", "weir"], "-l -s 14 -o 1"),
    ("with file-backed ODP memory and faults", &["--faults", FAULTS, "--icrc", "always"], "-l -s 15 -o 2"),
    ("with an implicit ODP region and faults", &["--faults", FAULTS], "-l -s 16 -o 3"),
    ("over XRC with ODP memory and faults", &["--faults", FAULTS], "-c XRC -l -s 17 -o 1"),
    ("with duplicates and delay", &["--faults", "dup=0.05,delay=20us,jitter=200us"], "-l -s 6"),
];

/// As [`SETTINGS`], for two processes at one address: their packets go through shared memory.
const LOCAL_SETTINGS: &[(&str, &str)] = &[
    ("", "-s 19"),
    ("with ODP memory", "-s 20 -o 1"),
    ("over XRC", "-c XRC -s 21"),
    ("with long messages", "-s 22 -m 8388608 -n 100"),
];

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![];
    for topology in Topology::ALL {
        for &(name, weir, options) in SETTINGS {
            let name = format!("every byte and status {name}");
            let weir = [weir, &["--local", "off"]].concat();
            trials.push(trial(topology, name.trim_end(), move |bed| verify(bed, &weir, options, false)));
        }
        let over_ipv6 = move |bed: &Bed| verify(bed, &[], "-s 7", true);
        trials.push(trial(topology, "every byte and status over IPv6", over_ipv6));
    }
    for &(name, options) in LOCAL_SETTINGS {
        let name = format!("every byte and status through shared memory {name}");
        trials.push(trial(Topology::Loopback, name.trim_end(), move |bed| verify_local(bed, options)));
    }
    trials
}

pub fn verify(bed: &Bed, weir: &[&str], options: &str, ipv6: bool) -> Result<()> {
    verify_with(bed, weir, options, ipv6, |_| ())
}

/// The same; calls `prepare` on each command before it starts.
pub fn verify_with(bed: &Bed, weir: &[&str], options: &str, ipv6: bool, prepare: impl Fn(&mut Command)) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let lossy = weir.contains(&FAULTS);
    let [mut server, mut client] = commands(bed, weir, &format!("-p {port} {options}"), ipv6)?;
    prepare(&mut server);
    prepare(&mut client);
    let outcome = pair::run(&mut server, &mut client, port, LIMIT)?.success()?;
    if lossy {
        faults::ensure_losses(&outcome.client)?;
        faults::ensure_losses(&outcome.server)?;
    }
    ensure_verified(&outcome)
}

/// By default; the client must map the shared memory, too.
fn verify_local(bed: &Bed, options: &str) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let [mut server, mut client] = commands(bed, &[], &format!("-p {port} {options}"), false)?;
    let mut server = Child::spawn(&mut server, "the server")?;
    server.wait_listening(Protocol::Tcp, port, Duration::from_secs(15))?;
    let client = Child::spawn(&mut client, "the client")?;
    let maps = format!("/proc/{}/maps", client.pid());
    let end = Instant::now() + LIMIT;
    let mut shares = false;
    while !shares && client.runs() && Instant::now() < end {
        shares = std::fs::read_to_string(&maps).is_ok_and(|maps| maps.contains("/memfd:weir"));
        std::thread::sleep(Duration::from_millis(2));
    }
    let outcome = pair::finish(server, client, LIMIT)?.success()?;
    ensure!(shares, "the client maps no shared memory\n{}", outcome.client.printed());
    ensure_verified(&outcome)
}

/// The commands of the server and of the client.
pub fn commands(bed: &Bed, weir: &[&str], options: &str, ipv6: bool) -> Result<[Command; 2]> {
    let program = library().join("weir-verify");
    ensure!(program.is_file(), "no {}: run `make build`, or `make test`", program.display());
    let lossy = weir.contains(&FAULTS);
    let command = |side: Side, seed: &str| -> Result<Command> {
        let address = if ipv6 { bed.stage.address6(side).into() } else { bed.stage.address(side) };
        let gid = bed.gid_index(side, address)?;
        let mut weir: Vec<String> = weir.iter().map(|&word| word.to_owned()).collect();
        // Each side has its own seed, which is the same in every run.
        weir.iter_mut().filter(|word| word.contains('=')).for_each(|spec| *spec += seed);
        weir.extend(lossy.then_some(["--log".into(), "info".into()]).into_iter().flatten());
        let weir: Vec<&str> = weir.iter().map(String::as_str).collect();
        let mut command = bed.weir(side, &weir, [&program]);
        let line = format!("-d {} -g {gid} {options}", bed.stage.device());
        command.args(line.split_whitespace());
        Ok(command)
    };
    let mut client = command(Side::B, ",seed=12")?;
    client.arg(bed.stage.address(Side::A).to_string());
    Ok([command(Side::A, ",seed=11")?, client])
}

/// An error if few bytes were compared.
pub fn ensure_verified(outcome: &Outcome) -> Result<()> {
    let bytes = outcome.client.stdout.lines().find_map(|line| line.split_once(" bytes verified, 0 wrong"));
    let bytes: u64 = bytes.context("no count of verified bytes")?.0.parse()?;
    ensure!(bytes > 1 << 20, "{bytes} bytes were compared; more than 1 MiB is required\n{}", outcome.client.printed());
    Ok(())
}
