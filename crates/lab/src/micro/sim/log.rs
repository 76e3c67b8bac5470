//! The packets of a simulated run, counted and as a ladder, each with the operation that it belongs to.

use crate::micro::ladder::{RNR_NAK, SEQUENCE_NAK, what};
use crate::micro::{Packets, Step};
use std::collections::HashMap;
use weir_sim::{HostId, Loss, PacketEvent, Seen};
use weir_transport::Instant;

/// Packets of the ladder.
const LADDER: usize = 100_000;

/// The packets on the wire, and the operations that they belong to.
pub struct Log {
    client: HostId,
    /// The posts on each QP of the client.
    pub qps: Vec<Posts>,
    pub packets: Packets,
    steps: Vec<Raw>,
    /// The step of the last transmission of each request, by QP and PSN.
    requests: HashMap<(u32, u32), usize>,
}

/// The work requests that were posted on a QP.
pub struct Posts {
    /// Numbers of the QP and of its peer.
    pub numbers: [u32; 2],
    /// The PSN after the last post.
    next: u32,
    /// First PSN and operation of each post.
    first: Vec<(u32, Option<u32>)>,
}

/// A packet of the ladder.
struct Raw {
    at: Instant,
    from_client: bool,
    qp: u32,
    what: &'static str,
    psn: u32,
    lost: bool,
}

impl Posts {
    /// Without posts. `numbers`: those of the QP and of its peer.
    pub fn new(numbers: [u32; 2]) -> Posts {
        Posts { numbers, next: 0, first: vec![] }
    }

    /// Enters a post of `size` bytes.
    pub fn post(&mut self, size: u32, operation: Option<u32>) {
        self.first.push((self.next, operation));
        self.next += size.div_ceil(4096).max(1);
    }

    /// The operation of a PSN; PSNs begin at 0 and do not wrap in a run.
    fn operation(&self, psn: u32) -> Option<u32> {
        let after = self.first.partition_point(|(first, _)| *first <= psn);
        self.first[..after].last().and_then(|(_, operation)| *operation)
    }
}

impl Log {
    /// Without packets.
    pub fn new(client: HostId) -> Log {
        Log { client, qps: vec![], packets: Packets::default(), steps: vec![], requests: HashMap::new() }
    }

    /// The packet ladder.
    pub fn steps(&self) -> Vec<Step> {
        self.steps.iter().map(|raw| self.step(raw)).collect()
    }

    /// Enters what the simulation shows.
    pub fn take(&mut self, seen: &Seen<'_>) {
        let PacketEvent::Sent { lost } = seen.event else {
            // Packets to a QP that does not exist do not count as lost.
            self.packets.lost +=
                u64::from(matches!(seen.event, PacketEvent::Lost(loss) if loss != Loss::NoDestination));
            if seen.event == PacketEvent::Lost(Loss::Adapter) {
                let (qp, psn) = (seen.from.num, seen.headers.bth.psn.get());
                if self.steps.len() < LADDER
                    && let Some(&step) = self.requests.get(&(qp, psn))
                {
                    self.steps[step].lost = true;
                }
            }
            return;
        };
        let from_client = seen.from.host == self.client;
        let what = what(seen.headers);
        let count = &mut self.packets;
        *(if from_client { &mut count.requests } else { &mut count.responses }) += 1;
        count.repeated += u64::from(from_client && seen.repeated);
        count.rnr_naks += u64::from(what == RNR_NAK);
        count.sequence_naks += u64::from(what == SEQUENCE_NAK);
        count.lost += u64::from(lost.is_some());
        if self.steps.len() < LADDER {
            let (qp, psn) = (seen.from.num, seen.headers.bth.psn.get());
            if from_client {
                self.requests.insert((qp, psn), self.steps.len());
            }
            self.steps.push(Raw { at: seen.at, from_client, qp, what, psn, lost: lost.is_some() });
        }
    }

    fn step(&self, raw: &Raw) -> Step {
        let qp = self.qps.iter().find(|qp| qp.numbers[usize::from(!raw.from_client)] == raw.qp);
        Step {
            time: raw.at - Instant(0),
            from_client: raw.from_client,
            what: raw.what.to_owned(),
            operation: qp.and_then(|qp| qp.operation(raw.psn)),
            lost: raw.lost,
        }
    }
}
