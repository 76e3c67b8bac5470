//! Fault specifications that are certain to lose a datagram, and the check that the log counts the losses.

use anyhow::{Context, Result, ensure};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;
use weir_link::faults::{FaultSpec, Faults};
use weir_link::{Carrier, Group, Inbox, Outbox};
use weir_stage::Finished;

/// Every program under test sends at least this number of datagrams.
const SENT: usize = 100;

/// Adds a seed to a specification so that at least one of the first [`SENT`] datagrams is lost. Each number gives
/// another seed. The fate of a datagram depends only on the seed and on the number of datagrams before it.
pub fn with_losing_seed(spec: &str, number: u64) -> String {
    let seeds = (number << 20..).map(|seed| format!("{spec},seed={seed}"));
    seeds.into_iter().find(|seeded| losses(seeded) > 0).expect("some seed loses a datagram")
}

fn losses(spec: &str) -> u64 {
    let spec: FaultSpec = spec.parse().expect("a valid specification");
    let mut outbox = Outbox::new(SENT, SENT);
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    for start in 0..SENT {
        outbox.groups.push(Group { start, len: 1, segment: 1, ..Group::new((address, 1).into(), address, 0) });
    }
    outbox.len = SENT;
    let mut faults = Faults::new(NullCarrier, &spec);
    faults.send(&outbox).expect("`NullCarrier` does not fail");
    faults.outgoing().lost
}

/// Checks that fault injection lost datagrams of a program that ran with `--log info`.
pub fn ensure_losses(ended: &Finished) -> Result<()> {
    let line = ended.stderr.lines().find_map(|line| line.split_once(": faults of seed "));
    let line = line.with_context(|| format!("no log line with the counts of faults\n{}", ended.printed()))?.1;
    let count = |after: &str| line.split_once(after).and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok());
    let (datagrams, lost): (Option<usize>, Option<usize>) = (count(" datagrams:"), count(" lost,"));
    ensure!(datagrams >= Some(SENT), "{line}");
    ensure!(lost > Some(0), "fault injection lost no datagram: {line}");
    Ok(())
}

/// A carrier that discards what it sends and receives nothing.
struct NullCarrier;

impl Carrier for NullCarrier {
    fn send(&mut self, _outbox: &Outbox) -> io::Result<()> {
        Ok(())
    }

    fn receive(&mut self, _inbox: &mut Inbox) -> io::Result<usize> {
        Ok(0)
    }

    fn max_segments(&self) -> usize {
        1
    }

    fn listen(&mut self, _port: u16) -> io::Result<()> {
        Ok(())
    }

    fn fds(&self) -> Vec<RawFd> {
        vec![]
    }
}
