//! A hostile third host at the bridge of [`Stage::bridged`]: it sees the packets of the transfer that runs, and sends
//! packets in between.

mod datagram;
mod forger;
mod packets;
mod raw;
mod sniffer;

pub use datagram::packet;
pub use forger::Forger;
pub use packets::{Target, hello, sealed, slot_ports};
pub use sniffer::Sniffer;

use crate::{Side, Stage, THIRD};
use anyhow::Result;
use fastrand::Rng;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Packets between two looks at the time, the ports of the processes, and the end.
const BATCH: u64 = 1000;
/// A UDP port that no process has.
const CLOSED: u16 = 9;
const SIDES: [Side; 2] = [Side::A, Side::B];

/// What a flood is aimed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aim {
    /// The transfer that runs: packets of every kind, forged from what the host has seen, with right ICRCs if the
    /// transfer has ICRCs.
    Transfer { icrc: bool },
    /// A UDP port of the same hosts that no process has: the cost that the kernel has with the packets.
    ClosedPort,
}

/// Floods both sides while `job` runs, which gets the number of packets so far; returns what it returned, and the number
/// of packets. `rate`: packets per second at most. Needs root.
pub fn during<T>(
    stage: &Stage,
    aim: Aim,
    seed: u64,
    rate: Option<u64>,
    job: impl FnOnce(&AtomicU64) -> Result<T>,
) -> Result<(T, u64)> {
    let (ends, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let done = std::thread::scope(|scope| {
        let thread = scope.spawn(|| flood(stage, aim, seed, rate, &ends, &sent));
        let done = job(&sent);
        ends.store(true, Ordering::Relaxed);
        let flooded = thread.join().expect("the flood does not panic");
        let done = done?;
        flooded.map(|()| done)
    })?;
    Ok((done, sent.into_inner()))
}

fn flood(stage: &Stage, aim: Aim, seed: u64, rate: Option<u64>, ends: &AtomicBool, sent: &AtomicU64) -> Result<()> {
    let (forger, mut random) = (Forger::new(stage)?, Rng::with_seed(seed));
    let mut targets = Targets::new(stage, aim);
    let mut next = Instant::now();
    while !ends.load(Ordering::Relaxed) {
        if !targets.look()? {
            std::thread::sleep(Duration::from_millis(1));
            next = Instant::now();
            continue;
        }
        for _ in 0..BATCH {
            forger.send(&targets.packet(&mut random));
            sent.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(rate) = rate {
            next += Duration::from_secs(BATCH) / u32::try_from(rate)?;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }
    Ok(())
}

/// What is flooded. It changes with the processes of the transfer.
struct Targets<'a> {
    stage: &'a Stage,
    aim: Aim,
    found: Vec<Target>,
    /// Sniffing slows the transfer down, so they are there only while there are no targets.
    sniffers: Option<[Sniffer; 2]>,
}

impl<'a> Targets<'a> {
    fn new(stage: &'a Stage, aim: Aim) -> Self {
        Targets { stage, aim, found: vec![], sniffers: None }
    }

    /// Finds the processes of the transfer. Returns whether there is something to flood.
    fn look(&mut self) -> Result<bool> {
        let Aim::Transfer { icrc } = self.aim else { return Ok(true) };
        if self.found.len() == SIDES.len() {
            let [a, b] = [0, 1].map(|i| self.found[i].is_current(self.stage, SIDES[i]));
            if a? && b? {
                return Ok(true);
            }
        }
        let sniffers = match &mut self.sniffers {
            Some(sniffers) => sniffers,
            none => none.insert([Sniffer::new(self.stage, Side::A)?, Sniffer::new(self.stage, Side::B)?]),
        };
        let mut found = vec![];
        for (side, sniffer) in SIDES.into_iter().zip(sniffers) {
            found.extend(Target::new(self.stage, side, sniffer, icrc)?);
        }
        if found.len() == SIDES.len() {
            (self.found, self.sniffers) = (found, None);
        }
        // Until then the old targets are flooded.
        Ok(!self.found.is_empty())
    }

    fn packet(&self, random: &mut Rng) -> Vec<u8> {
        if self.aim == Aim::ClosedPort {
            let IpAddr::V4(to) = self.stage.address(SIDES[random.usize(..2)]) else { unreachable!("IPv4 at a bridge") };
            return packet((THIRD, CLOSED), (to, CLOSED), &vec![0; random.usize(..1400)]);
        }
        self.found[random.usize(..self.found.len())].next(random)
    }
}
