//! A third host sends garbage, and packets that it forges from those it has seen, into a running transfer: every byte
//! is right, and memory and descriptors do not grow. Also packets of an earlier run.

use crate::bed::{Bed, Topology};
use crate::verify::verify;
use crate::{killed, trial};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_stage::flood::{self, Aim, Forger, Sniffer};
use weir_stage::{Child, Side};

/// Packets of the trial of memory; `E2E_ROUNDS=10000000` sets another number.
const PACKETS: &str = "300000";
/// How much the resident memory of a process may grow after the first tenth of the packets.
const GROWTH: u64 = 1 << 20;
/// Packets between hosts: RoCEv2 with an ICRC.
const BETWEEN_HOSTS: &[&str] = &["--icrc", "always", "--framing", "roce"];

pub fn trials() -> Vec<Trial> {
    vec![
        trial(Topology::Bridged, "every byte is right under a flood of a third host", |bed| compared(bed, &[], 41)),
        trial(Topology::Bridged, "every byte is right under a flood of a third host, with ICRC", |bed| {
            compared(bed, BETWEEN_HOSTS, 42)
        }),
        trial(Topology::Bridged, "memory and descriptors do not grow under a flood of a third host", flat),
        trial(Topology::Bridged, "a replay of all packets of an earlier run changes no byte", replayed),
    ]
}

/// As [`flood::during`], without a limit of the rate.
fn under_flood(bed: &Bed, icrc: bool, seed: u64, job: impl FnOnce(&AtomicU64) -> Result<()>) -> Result<u64> {
    Ok(flood::during(&bed.stage, Aim::Transfer { icrc }, seed, None, job)?.1)
}

/// Every byte and every status, under a flood.
fn compared(bed: &Bed, options: &[&str], seed: u64) -> Result<()> {
    let sent = under_flood(bed, options == BETWEEN_HOSTS, seed, |_| verify(bed, options, "-l -t 30 -s 30", false))
        .with_context(|| format!("with seed {seed}"))?;
    ensure!(sent > 10_000, "only {sent} packets were sent");
    Ok(())
}

/// Memory and descriptors of both processes after a tenth of the packets, and after all.
fn flat(bed: &Bed) -> Result<()> {
    let packets: u64 = std::env::var("E2E_ROUNDS").unwrap_or(PACKETS.into()).parse()?;
    let limit = Duration::from_secs(60 + packets / 10_000);
    let mut pair = None;
    let sent = under_flood(bed, false, 43, |sent| {
        let (server, client) = pair.insert(killed::running_pair(bed, &[], "ib_write_bw", 18)?);
        await_packets(sent, packets / 10, limit, server, client)?;
        let before = [usage(server)?, usage(client)?];
        await_packets(sent, packets, limit, server, client)?;
        let after = [usage(server)?, usage(client)?];
        for ((memory, files), (memory_before, files_before)) in after.iter().zip(before) {
            // The socket that is connected to the peer may come later than the first tenth.
            ensure!(*files <= files_before + 1, "descriptors: {before:?}, later {after:?}");
            ensure!(*memory <= memory_before + GROWTH, "bytes of memory, descriptors: {before:?}, later {after:?}");
        }
        Ok(())
    })?;
    ensure!(sent >= packets, "{sent} packets");
    Ok(())
}

/// Waits until so many packets were sent. Both programs must go on, and the transfer with them.
fn await_packets(sent: &AtomicU64, wanted: u64, limit: Duration, server: &mut Child, client: &mut Child) -> Result<()> {
    let end = Instant::now() + limit;
    while sent.load(Ordering::Relaxed) < wanted {
        ensure!(client.poll()?.is_none(), "the client has ended: {}", client.printed()?);
        ensure!(server.poll()?.is_none(), "the server has ended: {}", server.printed()?);
        ensure!(Instant::now() < end, "only {} packets in {limit:?}", sent.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Bytes of resident memory, and descriptors.
fn usage(child: &Child) -> Result<(u64, usize)> {
    Ok((child.resident().context("the program has ended")?, child.descriptors()?))
}

/// All packets of one run come again, with their addresses, while another one compares every byte.
fn replayed(bed: &Bed) -> Result<()> {
    let sniffers = [Sniffer::new(&bed.stage, Side::A)?, Sniffer::new(&bed.stage, Side::B)?];
    verify(bed, &[], "-s 31", false)?;
    let mut packets = vec![];
    for (sniffer, side) in sniffers.iter().zip([Side::A, Side::B]) {
        let IpAddr::V4(to) = bed.stage.address(side) else { anyhow::bail!("this stage has no IPv4 addresses") };
        packets.extend(sniffer.packets(to));
    }
    ensure!(packets.len() > 1000, "only {} packets were seen", packets.len());
    drop(sniffers);
    let (ends, sent, forger) = (AtomicBool::new(false), AtomicU64::new(0), Forger::new(&bed.stage)?);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for packet in packets.iter().cycle().take_while(|_| !ends.load(Ordering::Relaxed)) {
                forger.send(packet);
                sent.fetch_add(1, Ordering::Relaxed);
            }
        });
        let verified = verify(bed, &[], "-l -t 30 -s 31", false);
        ends.store(true, Ordering::Relaxed);
        verified
    })?;
    ensure!(sent.into_inner() > 1000, "the run ended before the replay");
    Ok(())
}
