//! A peer that dies by SIGKILL: the other side reports retry exceeded in the time that its QP attributes give, and no
//! socket is left. Neither is anything left of processes that are killed at random instants. A peer that is stopped for a
//! while: the other side waits for it.

use crate::bed::{Bed, Topology, run_folder};
use crate::trial;
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use weir_stage::{Child, Protocol, Side, Stage, pair};
use weir_trials::Rng;

/// The value of perftest; a QP fails after RETRY_CNT + 1 tries.
const RETRY_CNT: u32 = 7;
/// Delay that a busy machine may add.
const SLACK: Duration = Duration::from_millis(1500);
/// SIGKILLs at random instants; `E2E_ROUNDS=1000` sets another number.
const KILLS: &str = "8";
/// The latest of these instants, after the start of the client. Traffic begins after a tenth of it.
const LATEST: Duration = Duration::from_millis(400);

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![];
    for topology in Topology::ALL {
        for (timeout, programs) in [(14, &["ib_write_bw", "ib_read_bw", "ib_send_bw"][..]), (16, &["ib_write_bw"])] {
            // On one host, one half of the pairs shares memory, and the other does not.
            let options: &[&str] = if timeout == 16 { &["--local", "off"] } else { &[] };
            for program in programs {
                let name =
                    format!("SIGKILL of a server of {program} -u {timeout} makes the client report retry exceeded");
                trials.push(trial(topology, &name, move |bed| killed_server(bed, options, program, timeout)));
            }
        }
    }
    for (topology, options, seconds) in [(Topology::Loopback, &[][..], 1), (Topology::Veth, &["--patience", "15"], 10)]
    {
        let name = format!("the client of ib_write_bw survives a server that is stopped for {seconds} s");
        trials.push(trial(topology, &name, move |bed| paused_server(bed, options, Duration::from_secs(seconds))));
    }
    for topology in Topology::ALL {
        // In namespaces of its own: other trials have sockets, too.
        let stage = move || if topology == Topology::Veth { Stage::new(9000) } else { Stage::same_host() };
        let name = "nothing is left of processes that are killed at random instants";
        trials.push(trial(topology, name, move |_| killed_any_time(&Bed { stage: stage()? })));
    }
    trials.push(trial(Topology::Veth, "processes that end or are killed leave no sockets", nothing_left));
    trials
}

fn killed_server(bed: &Bed, options: &[&str], program: &str, timeout: u32) -> Result<()> {
    let (server, mut client) = running_pair(bed, options, program, timeout)?;
    let killed = Instant::now();
    drop(server);
    let within = tries(timeout, 4) + SLACK;
    while client.poll()?.is_none() && killed.elapsed() < within + SLACK {
        std::thread::sleep(Duration::from_millis(1));
    }
    let took = killed.elapsed();
    let ended = client.wait(Duration::from_millis(1))?;
    ensure!(!ended.status.success(), "the client exited with status 0\n{}", ended.printed());
    let text = ended.printed();
    ensure!(text.contains("Failed status 12"), "no status 12 (retry exceeded)\n{text}");
    // The first try may start up to one timeout before the SIGKILL.
    let least = tries(timeout, 1).mul_f64(f64::from(RETRY_CNT) / f64::from(RETRY_CNT + 1));
    ensure!(least <= took && took <= within, "{took:?} is not within {least:?} and {within:?}\n{text}");
    Ok(())
}

/// SIGSTOP simulates a busy machine on which other processes hold the server's core. If each try took one T_tr, all
/// tries together would take half a second.
fn paused_server(bed: &Bed, options: &[&str], time: Duration) -> Result<()> {
    let (server, mut client) = running_pair(bed, options, "ib_write_bw", 14)?;
    let pid = Pid::from_raw(server.pid() as i32);
    kill(pid, Signal::SIGSTOP)?;
    std::thread::sleep(time);
    kill(pid, Signal::SIGCONT)?;
    std::thread::sleep(Duration::from_secs(1));
    ensure!(client.poll()?.is_none(), "the client has ended: {}", client.printed()?);
    Ok(())
}

/// Duration of all tries of a QP if each takes `factor` times T_tr = 4.096 µs · 2^timeout. A requester detects a
/// timeout after one to four T_tr (IBTA 9.7.6.1.3).
fn tries(timeout: u32, factor: u32) -> Duration {
    Duration::from_nanos(4096 << timeout) * factor * (RETRY_CNT + 1)
}

/// A server and a client with traffic under way that lasts for a minute.
pub fn running_pair(bed: &Bed, weir: &[&str], program: &str, timeout: u32) -> Result<(Child, Child)> {
    running_pair_with(bed, [weir; 2], program, timeout)
}

/// As [`running_pair`], with separate options for the server and the client.
pub fn running_pair_with(bed: &Bed, weir: [&[&str]; 2], program: &str, timeout: u32) -> Result<(Child, Child)> {
    let port = bed.stage.free_port(Side::A)?;
    let command = |side: Side| {
        let device = bed.stage.device();
        let line = format!("{program} -F -d {device} -p {port} -u {timeout} -s 65536 -n 10000000");
        bed.weir(side, weir[side as usize], line.split_whitespace())
    };
    let mut server = Child::spawn(&mut command(Side::A), format!("server of {program}"))?;
    server.wait_listening(Protocol::Tcp, port, Duration::from_secs(10))?;
    let mut command = command(Side::B);
    command.arg(bed.stage.address(Side::A).to_string());
    let mut client = Child::spawn(&mut command, format!("client of {program}"))?;
    // The client uses no CPU while it waits for the server, and polls as soon as it has posted.
    let until = Instant::now() + Duration::from_secs(10);
    while client.cpu()? < Duration::from_millis(300) {
        ensure!(client.poll()?.is_none() && Instant::now() < until, "no traffic: {}", client.printed()?);
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok((server, client))
}

/// One side of each pair is killed, before it opens the device, while it connects, or under traffic. The other side ends by
/// itself, and not by a signal. Afterwards there are no sockets, a pair works, and so no folders of counters are left.
fn killed_any_time(bed: &Bed) -> Result<()> {
    let rounds: u64 = std::env::var("E2E_ROUNDS").unwrap_or(KILLS.into()).parse()?;
    let seed = match std::env::var("E2E_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => RandomState::new().hash_one(std::process::id()),
    };
    let folder = run_folder()?;
    let mut rng = Rng(seed);
    let before = sockets(bed)?;
    for round in 0..rounds {
        let round = format!("round {round} of seed {seed}");
        killed_once(bed, folder.path(), rng.draw()).with_context(|| round.clone())?;
        ensure!(sockets(bed)? == before, "{round}: sockets before {before:?}, later {:?}", sockets(bed)?);
    }
    let ([mut server, mut client], port) = pair_of_writes(bed, folder.path(), 100)?;
    pair::run(&mut server, &mut client, port, Duration::from_secs(30))?.success()?;
    let left: Vec<_> = std::fs::read_dir(folder.path())?.flatten().map(|entry| entry.path()).collect();
    ensure!(left.is_empty(), "folders of processes that are dead: {left:?}");
    Ok(())
}

/// A server and a client of so many WRITEs that use this folder for their counters, and the server's port.
fn pair_of_writes(bed: &Bed, folder: &Path, count: u64) -> Result<([Command; 2], u16)> {
    let port = bed.stage.free_port(Side::A)?;
    let line = format!("ib_write_bw -F -d {} -p {port} -u 10 -s 65536 -n {count}", bed.stage.device());
    let command = |side: Side| {
        let mut command = bed.weir(side, &[], line.split_whitespace());
        command.env("WEIR_RUN_DIR", folder);
        command
    };
    let mut client = command(Side::B);
    client.arg(bed.stage.address(Side::A).to_string());
    Ok(([command(Side::A), client], port))
}

/// `number` chooses the side and the instant.
fn killed_once(bed: &Bed, folder: &Path, number: u64) -> Result<()> {
    let ([mut server, mut client], port) = pair_of_writes(bed, folder, 100_000_000)?;
    let mut server = Child::spawn(&mut server, "the server")?;
    server.wait_listening(Protocol::Tcp, port, Duration::from_secs(10))?;
    let client = Child::spawn(&mut client, "the client")?;
    std::thread::sleep(Duration::from_micros(number / 2 % LATEST.as_micros() as u64));
    let (victim, mut survivor) = if number.is_multiple_of(2) { (server, client) } else { (client, server) };
    drop(victim);
    let waited = Instant::now() + Duration::from_secs(2);
    while survivor.poll()?.is_none() && Instant::now() < waited {
        std::thread::sleep(Duration::from_millis(5));
    }
    if survivor.poll()?.is_none() && survivor.wait_listening(Protocol::Tcp, port, Duration::ZERO).is_ok() {
        // The client was killed before it connected: a server waits for the next one.
        ensure!(!number.is_multiple_of(2), "a client does not listen");
        return Ok(());
    }
    let ended = survivor.wait(Duration::from_secs(20))?;
    ensure!(ended.status.code().is_some(), "the other side was ended by a signal: {}", ended.printed());
    Ok(())
}

fn nothing_left(_: &Bed) -> Result<()> {
    let bed = &Bed::new(Topology::Veth)?;
    let before = sockets(bed)?;
    ensure!(before.is_empty(), "sockets in new namespaces: {before:?}");
    bed.pair(&[], "ib_send_lat -F -d {dev} -p {port} -n 100", Duration::from_secs(20))?;
    ensure!(sockets(bed)?.is_empty(), "sockets left by processes that ended: {:?}", sockets(bed)?);
    let (server, client) = running_pair(bed, &[], "ib_write_bw", 14)?;
    ensure!(!sockets(bed)?.is_empty(), "no sockets of running processes: the trial does not find them");
    drop((server, client));
    ensure!(sockets(bed)?.is_empty(), "sockets left by processes that were killed: {:?}", sockets(bed)?);
    Ok(())
}

/// Weir's abstract sockets on both sides.
fn sockets(bed: &Bed) -> Result<Vec<String>> {
    let mut names = vec![];
    for side in [Side::A, Side::B] {
        // /proc/net shows the namespace of the main thread; this thread has entered another one.
        let table = bed.stage.enter(side, || std::fs::read_to_string("/proc/thread-self/net/unix"))??;
        names.extend(table.split_whitespace().filter(|word| word.starts_with("@weir")).map(str::to_owned));
    }
    Ok(names)
}
