//! Mixed traffic of four processes with lost packets, for seconds here and for half an hour in `make soak`: every byte is
//! right, and neither memory nor descriptors grow.

use crate::bed::{Bed, Topology};
use crate::trial;
use crate::verify::{commands, ensure_verified};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use std::time::{Duration, Instant};
use weir_stage::pair::{self, Outcome};
use weir_stage::{Child, Protocol, Side};

/// How long the traffic lasts; `E2E_SECONDS=1800` sets another time.
const SECONDS: &str = "15";
/// How much the resident memory of a process may grow after the first quarter of the time, bytes: the buffers of the programs
/// are touched at random.
const GROWTH: u64 = 4 << 20;
/// Options of `weir run` and of `weir-verify` of each pair: packets of both framings, pinned and ODP memory.
const PAIRS: [(&[&str], &str); 2] =
    [(&["--framing", "roce"], "-k random -l -s 61"), (&["--framing", "weir"], "-k random -l -c XRC -o 1 -s 62")];
/// Operations of the run by which the number of operations of the long one is chosen.
const FIRST: u64 = 3000;

pub fn trials() -> Vec<Trial> {
    vec![trial(Topology::Veth, "four processes with 1 % loss: memory and descriptors stay flat", flat)]
}

fn flat(bed: &Bed) -> Result<()> {
    let wanted = Duration::from_secs(std::env::var("E2E_SECONDS").unwrap_or(SECONDS.into()).parse()?);
    let first = Instant::now();
    finish(start(bed, FIRST)?, Duration::from_secs(120))?;
    let count = (FIRST as f64 * wanted.as_secs_f64() / first.elapsed().as_secs_f64()) as u64;
    let pairs = start(bed, count)?;
    let begun = Instant::now();
    let mut samples: Vec<(Duration, Vec<(u64, usize)>)> = vec![];
    while pairs.iter().flatten().all(Child::runs) {
        let usage: Option<Vec<_>> = pairs.iter().flatten().map(usage).collect();
        samples.extend(usage.map(|usage| (begun.elapsed(), usage)));
        ensure!(begun.elapsed() < 4 * wanted + Duration::from_secs(60), "{count} operations take too long");
        std::thread::sleep(wanted / 200);
    }
    let lasted = begun.elapsed();
    finish(pairs, wanted + Duration::from_secs(60))?;
    let at = |part: f64| samples.iter().find(|(time, _)| *time >= lasted.mul_f64(part)).context("too few samples");
    let [(_, early), (_, late)] = [at(0.25)?, at(0.9)?];
    for ((memory, files), (memory_before, files_before)) in late.iter().zip(early) {
        ensure!(files <= files_before, "descriptors: {early:?} after a quarter of {lasted:?}, {late:?} at the end");
        ensure!(
            *memory <= memory_before + GROWTH,
            "bytes: {early:?} after a quarter of {lasted:?}, {late:?} at the end"
        );
    }
    eprintln!("{count} operations in {lasted:?}; memory and descriptors: {early:?}, later {late:?}");
    Ok(())
}

/// The server and the client of each pair, of so many operations.
fn start(bed: &Bed, count: u64) -> Result<[[Child; 2]; 2]> {
    let mut pairs = vec![];
    for (weir, verify) in PAIRS {
        let port = bed.stage.free_port(Side::A)?;
        let weir = [weir, &["--faults", "loss=0.01"]].concat();
        let [mut server, mut client] = commands(bed, &weir, &format!("-p {port} {verify} -n {count}"), false)?;
        let [server_name, client_name] = [&server, &client].map(pair::shown);
        let mut server = Child::spawn(&mut server, server_name)?;
        server.wait_listening(Protocol::Tcp, port, Duration::from_secs(15))?;
        pairs.push([server, Child::spawn(&mut client, client_name)?]);
    }
    Ok(pairs.try_into().ok().expect("two pairs"))
}

fn finish(pairs: [[Child; 2]; 2], limit: Duration) -> Result<()> {
    for [server, client] in pairs {
        let outcome: Outcome = pair::finish(server, client, limit)?.success()?;
        ensure_verified(&outcome)?;
    }
    Ok(())
}

/// Bytes of resident memory, and descriptors; `None` once the program has ended.
fn usage(child: &Child) -> Option<(u64, usize)> {
    Some((child.resident()?, child.descriptors().ok()?))
}
