//! Faults that are certain to happen, and what the adapter says of those that did.

use anyhow::{Context, Result, ensure};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;
use weir_cli::stage::Finished;
use weir_link::faults::{FaultSpec, Faults};
use weir_link::{Carrier, Group, Inbox, Outbox};

/// Datagrams that a program sends at least before it ends.
const SENT: usize = 100;

/// A specification with a seed, another for each number, under which one of the first [`SENT`] datagrams is lost: what
/// becomes of a datagram depends on the seed and on how many were before it, and on nothing else.
pub fn certain(spec: &str, number: u64) -> String {
    let seeds = (number << 20..).map(|seed| format!("{spec},seed={seed}"));
    seeds.into_iter().find(|seeded| losses(seeded) > 0).expect("there are more seeds than one needs")
}

fn losses(spec: &str) -> u64 {
    let spec: FaultSpec = spec.parse().expect("a specification of our own");
    let mut outbox = Outbox::new(SENT, SENT);
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    for start in 0..SENT {
        outbox.groups.push(Group { start, len: 1, segment: 1, ..Group::new((address, 1).into(), address, 0) });
    }
    outbox.len = SENT;
    let mut faults = Faults::new(Nowhere, &spec);
    faults.send(&outbox).expect("nothing to fail at");
    faults.outgoing().lost
}

/// Ensures that datagrams of a program that ran with `--log info` were lost on purpose.
pub fn happened(ended: &Finished) -> Result<()> {
    let said = ended.stderr.lines().find_map(|line| line.split_once(": faults of seed "));
    let said = said.with_context(|| format!("no count of faults\n{}", ended.printed()))?.1;
    let count = |after: &str| said.split_once(after).and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok());
    let (datagrams, lost): (Option<usize>, Option<usize>) = (count(" datagrams:"), count(" lost,"));
    ensure!(datagrams >= Some(SENT), "{said}");
    ensure!(lost > Some(0), "nothing was lost on purpose: {said}");
    Ok(())
}

/// A carrier to where nothing comes from.
struct Nowhere;

impl Carrier for Nowhere {
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
