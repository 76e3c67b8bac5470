//! Two processes of one host that share memory: UC beside busy cores, a peer that is killed, a peer that writes random
//! data, and processes that do not share.

use crate::bed::{Bed, Topology, WEIR};
use crate::{killed, trial};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_stage::{Child, Protocol, Side};

/// Time limit of a pair.
const LIMIT: Duration = Duration::from_secs(60);
/// The name of the shared memory in /proc/PID/maps.
const MEMORY: &str = "/memfd:weir";
/// Distance between two places at which a record may begin.
const ALIGN: usize = 64;

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![];
    for options in ["-s 64 -n 5000", "-s 1048576 -n 50", "-e -s 4096 -n 1000"] {
        let name = format!("ib_send_bw -c UC {options} loses no message beside busy cores");
        trials.push(trial(Topology::Loopback, &name, move |bed| beside_busy_cores(bed, options)));
    }
    trials.push(trial(Topology::Loopback, "after SIGKILL of a peer with shared memory the next run has it", killed));
    let name = "a peer that writes random data into shared memory loses it, and UDP goes on";
    trials.push(trial(Topology::Loopback, name, lying_peer));
    for (option, value) in [("--local", "off"), ("--framing", "roce"), ("--framing", "weir"), ("--icrc", "always")] {
        let name = format!("with {option} {value} on one side no memory is shared");
        trials.push(trial(Topology::Loopback, &name, move |bed| shares_none(bed, [option, value])));
    }
    trials
}

/// A receiver that loses its core must not lose messages: `ib_send_bw` counts each.
fn beside_busy_cores(bed: &Bed, options: &str) -> Result<()> {
    let done = AtomicBool::new(false);
    let cores = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let line = format!("ib_send_bw -c UC -F -d {{dev}} -p {{port}} {options}");
        let result = bed.pair(&[], &line, LIMIT).map(|_| ());
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// The shared memory that a process maps.
fn memory(process: &Child) -> Option<(u64, u64)> {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.pid())).ok()?;
    let line = maps.lines().find(|line| line.contains(MEMORY))?;
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
}

fn killed(bed: &Bed) -> Result<()> {
    let (server, client) = killed::running_pair(bed, &[], "ib_write_bw", 14)?;
    ensure!(memory(&client).is_some() && memory(&server).is_some(), "no memory is shared");
    drop(server); // by SIGKILL
    let ended = client.wait(LIMIT)?;
    ensure!(ended.printed().contains("Failed status 12"), "no status 12 (retry exceeded)\n{}", ended.printed());
    let (server, client) = killed::running_pair(bed, &[], "ib_write_bw", 14)?;
    ensure!(memory(&client).is_some() && memory(&server).is_some(), "the next run shares no memory");
    Ok(())
}

/// Writes into the memory of a running process, in place of its peer. Bytes of headers stay, because wrong headers of a
/// right packet are the peer's right: they end its QP.
fn lying_peer(bed: &Bed) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let line = format!("ib_write_bw -F -d {} -p {port} -q 2 -D 4", bed.stage.device());
    let options = ["--log", "error"];
    let mut server = Child::spawn(&mut bed.weir(Side::A, &options, line.split(' ')), "server")?;
    server.wait_listening(Protocol::Tcp, port, Duration::from_secs(10))?;
    let mut client = bed.weir(Side::B, &options, line.split(' '));
    let client = Child::spawn(client.arg(bed.stage.address(Side::A).to_string()), "client")?;
    let end = Instant::now() + Duration::from_secs(10);
    // Some traffic, so that packets are in the memory.
    while client.cpu()? < Duration::from_millis(300) {
        ensure!(Instant::now() < end, "there is no traffic");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (from, to) = memory(&server).context("no memory is shared")?;
    let bytes = OpenOptions::new().write(true).open(format!("/proc/{}/mem", server.pid()))?;
    let mut random = File::open("/dev/urandom")?;
    while memory(&server).is_some() {
        ensure!(Instant::now() < end, "the memory is still shared");
        let _ = write_prefixes(&bytes, &mut random, from, to);
    }
    let [before, after] = [0, 1].map(|_| {
        std::thread::sleep(Duration::from_millis(300));
        bytes_sent(bed, &client)
    });
    let (before, after) = (before?, after?);
    ensure!(after > before, "nothing is sent any more: {before}, {after}");
    let outcome = weir_stage::pair::finish(server, client, LIMIT)?.success()?;
    let said = |text: &str| text.contains("wrote invalid data into shared memory");
    ensure!(
        said(&outcome.server.stderr) || said(&outcome.client.stderr),
        "no error in the log\n{}\n{}",
        outcome.server.printed(),
        outcome.client.printed()
    );
    Ok(())
}

/// Writes random words to all places at which a record may begin.
fn write_prefixes(memory: &File, random: &mut File, from: u64, to: u64) -> std::io::Result<()> {
    let mut words = [0u8; 8 << 10];
    std::io::Read::read_exact(random, &mut words)?;
    for (word, at) in words.chunks_exact(8).cycle().zip((from..to).step_by(ALIGN)) {
        memory.write_all_at(word, at)?;
    }
    Ok(())
}

/// Bytes that a process has sent, as `weir stat` shows them.
fn bytes_sent(bed: &Bed, process: &Child) -> Result<u64> {
    let mut command = bed.bare(Side::A, WEIR);
    command.args(["stat", "--json", &process.pid().to_string()]);
    let ended = Child::spawn(&mut command, "weir stat")?.wait(Duration::from_secs(10))?.success()?;
    let shown: serde_json::Value = serde_json::from_str(&ended.stdout)?;
    shown["devices"][0]["bytes_sent"].as_u64().with_context(|| format!("no bytes_sent in {shown}"))
}

fn shares_none(bed: &Bed, options: [&str; 2]) -> Result<()> {
    let (server, client) = killed::running_pair_with(bed, [&options, &[]], "ib_write_bw", 14)?;
    ensure!(memory(&client).is_none() && memory(&server).is_none(), "memory is shared");
    Ok(())
}
