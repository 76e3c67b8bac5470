//! Real programs on adapters with flaws: all bytes still arrive, captures show the packets that the adapter loses, and
//! a wrong profile is an error.

use crate::bed::{Bed, Topology, library};
use crate::trial;
use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use std::path::Path;
use std::time::Duration;
use weir_stage::{Child, Finished, Side};

/// ConnectX-4 with ACK timeouts that are short enough for a test, and with ODP for atomics.
pub const QUICK: &str = "about = \"quick\"\nbase = \"connectx4\"\n[ack_timeout]\nleast_exponent = 0\nfloor_ms = 100\n
[device]\nodp_rc = [\"send\", \"recv\", \"write\", \"read\", \"atomic\"]\n";

/// As [`QUICK`], with page faults that are resolved long after the RNR NAK.
pub const SLOW_PAGES: &str =
    "about = \"slow pages\"\nbase = \"connectx4\"\n[ack_timeout]\nleast_exponent = 0\nfloor_ms = 100\n
[page_faults]\nresolve_us = [10000, 12000]\n";

const PROGRAMS: &[&str] = &[
    "ib_read_bw --odp -s 65536 -n 1000",
    "ib_write_bw --odp -s 65536 -n 1000",
    "ib_send_bw --odp -s 4096 -n 1000",
    "ib_read_lat --odp -s 8 -n 1000",
];

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![];
    for topology in Topology::ALL {
        for profile in ["connectx4", "connectx5", "connectx6"] {
            for program in PROGRAMS {
                let name = format!("{program} as {profile}");
                trials.push(trial(topology, &name, move |bed| moves_all_data(bed, program, profile)));
            }
        }
        trials.push(trial(topology, "every byte and status in spite of all flaws of connectx4", every_byte));
        trials.push(trial(topology, "both captures show a request that the adapter loses", lost_packets));
    }
    trials.push(trial(Topology::Loopback, "an unknown or wrong profile is an error that names it", no_profile));
    trials.push(trial(Topology::Loopback, "a profile file is found by its relative path", own_file));
    trials.push(trial(Topology::Loopback, "connectx3 has no ODP", without_on_demand));
    trials
}

fn moves_all_data(bed: &Bed, program: &str, profile: &str) -> Result<()> {
    let options = ["--profile", profile];
    let line = format!("{program} -F -d {{dev}} -p {{port}}");
    let ended = bed.pair(&options, &line, Duration::from_secs(60))?;
    let iterations = program.rsplit(' ').next().unwrap_or_default();
    ensure!(ended.client.stdout.split_whitespace().any(|word| word == iterations), "{}", ended.client.printed());
    Ok(())
}

fn every_byte(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("quick.toml");
    std::fs::write(&file, QUICK)?;
    let options = ["--profile", file.to_str().context("the path of the temporary folder is not UTF-8")?];
    let program = library().join("weir-verify");
    for (seed, memory) in [(31, 1), (32, 3)] {
        let [a, b] = [Side::A, Side::B].map(|side| bed.gid_index(side, bed.stage.address(side)));
        let (a, b) = (a?, b?);
        ensure!(a == b, "GIDs {a} and {b} differ: this test uses one command line for both sides");
        let line = format!("{} -d {{dev}} -g {a} -p {{port}} -l -n 300 -s {seed} -o {memory}", program.display());
        bed.pair(&options, &line, Duration::from_secs(120))?;
    }
    Ok(())
}

/// The RNR timer of 10.24 ms lasts at least 27 ms, and the second READ is posted at 13 ms. If the server's thread is
/// off its core until the page fault is resolved, it sends no RNR NAK and nothing is lost: one of five tries must lose
/// a READ. That READ is in the client's capture and in the server's, twice in each, and it is answered once.
fn lost_packets(bed: &Bed) -> Result<()> {
    for _ in 0..5 {
        let seen = second_read(bed)?;
        if seen.contains(&(2, 1)) {
            ensure!(seen == [(2, 1), (2, 1)], "requests and responses of the second READ: {seen:?}");
            return Ok(());
        }
    }
    bail!("no try of five lost a packet")
}

/// For the capture of each side of two READs: the number of requests of the second, and of its responses.
fn second_read(bed: &Bed) -> Result<Vec<(usize, usize)>> {
    /// Opcodes of a READ request and of a response in one packet.
    const REQUEST: u32 = 12;
    const RESPONSE: u32 = 16;
    let folder = tempfile::tempdir()?;
    let profile = folder.path().join("slow.toml");
    std::fs::write(&profile, SLOW_PAGES)?;
    let capture = folder.path().join("weir-%p.pcapng");
    let path = |path: &Path| path.to_str().map(str::to_owned).context("the path of the temporary folder is not UTF-8");
    let (profile, capture) = (path(&profile)?, path(&capture)?);
    let options = ["--profile", &profile, "--capture", &capture];
    let line = format!(
        "{} --device {{dev}} --port {{port}} --odp server --num-ops 2 --interval 13ms --rnr-timer 20",
        library().join("weir-micro").display()
    );
    bed.pair(&options, &line, Duration::from_secs(30))?;
    let mut seen = vec![];
    for entry in std::fs::read_dir(folder.path())? {
        let file = entry?.path();
        if file.extension().is_none_or(|ending| ending != "pcapng") {
            continue;
        }
        let comparison = weir_tshark::compare(&file)?;
        ensure!(comparison.failures.is_empty(), "{}", comparison.failures.join("\n"));
        ensure!(comparison.skipped == 0, "{} packets with a bad ICRC", comparison.skipped);
        let fields = ["-T", "fields", "-e", "infiniband.bth.opcode", "-e", "infiniband.bth.psn"];
        let output = std::process::Command::new("tshark").arg("-r").arg(&file).args(fields).output()?;
        let text = String::from_utf8(output.stdout)?;
        let packets = text.lines().filter_map(|line| {
            let (opcode, psn) = line.split_once('\t')?;
            Some((opcode.parse::<u32>().ok()?, psn.parse::<u32>().ok()?))
        });
        let packets: Vec<(u32, u32)> = packets.collect();
        let requests = packets.iter().filter(|packet| packet.0 == REQUEST);
        let second = requests.clone().map(|packet| packet.1).max().context("no READ request")?;
        let count = |opcode| packets.iter().filter(|packet| **packet == (opcode, second)).count();
        seen.push((count(REQUEST), count(RESPONSE)));
    }
    Ok(seen)
}

fn weir(bed: &Bed, folder: &Path, options: &[&str], words: &[&str]) -> Result<Finished> {
    let mut command = bed.weir(Side::A, options, words);
    Child::spawn(command.current_dir(folder), "weir run")?.wait(Duration::from_secs(10))
}

fn no_profile(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("odd.toml"), "about = \"odd\"\n[ack_timeout]\nfloor = 3\n")?;
    std::fs::write(folder.path().join("broken.toml"), "about = \n")?;
    for (profile, expected) in [
        ("connectx9", &["connectx9", "connectx4", "ideal"][..]),
        ("none.toml", &["none.toml", "No such file"]),
        ("odd.toml", &["odd.toml", "ack_timeout.floor"]),
        ("./broken.toml", &["broken.toml", "TOML"]),
    ] {
        let ended = weir(bed, folder.path(), &["--profile", profile], &["true"])?;
        ensure!(ended.status.code() == Some(125), "{profile}: not 125\n{}", ended.printed());
        for word in [&["--profile"], expected].concat() {
            ensure!(ended.stderr.contains(word), "{profile}: `{word}` is missing from stderr\n{}", ended.printed());
        }
    }
    Ok(())
}

fn own_file(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("mine.toml"), "about = \"mine\"\n[adapter]\non_demand = false\n")?;
    let device = bed.stage.device();
    let look = format!("cd / && ibv_devinfo -v -d {device}");
    for profile in ["mine.toml", "./mine.toml"] {
        let ended = weir(bed, folder.path(), &["--profile", profile], &["sh", "-c", &look])?.success()?;
        ensure!(!ended.stdout.contains("ODP_SUPPORT"), "{profile}: {}", ended.printed());
    }
    let ended = weir(bed, folder.path(), &[], &["sh", "-c", &look])?.success()?;
    ensure!(ended.stdout.contains("ODP_SUPPORT"), "{}", ended.printed());
    Ok(())
}

fn without_on_demand(bed: &Bed) -> Result<()> {
    let options = ["--profile", "connectx3"];
    bed.pair(&options, "ib_read_bw -F -d {dev} -p {port} -s 65536 -n 100", Duration::from_secs(30))?;
    let refused = bed.pair(&options, "ib_read_bw --odp -F -d {dev} -p {port} -s 65536 -n 100", Duration::from_secs(30));
    ensure!(refused.is_err(), "an ODP registration succeeded");
    Ok(())
}
