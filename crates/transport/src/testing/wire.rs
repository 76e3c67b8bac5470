//! The network between two QPs: latency, and faults at random or by rule.

use super::host::envelope;
use super::rng::Rng;
use crate::Instant;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;
use weir_wire::{Aeth, Headers, NakCode, Packet, Syndrome, frame, icrc};

/// Probabilities, 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: f64,
    pub duplication: f64,
    /// Delayed by up to ten latencies.
    pub reordering: f64,
    /// One bit is flipped; the ICRC detects it unless it does not cover that bit.
    pub corruption: f64,
}

/// What the wire does with a packet.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    Pass,
    Drop,
    Twice,
    Delay(Duration),
    /// These bytes arrive instead.
    Replace(Vec<u8>),
    /// These bytes arrive instead, with a matching ICRC: damage that the ICRC does not detect.
    Forge(Vec<u8>),
}

/// A packet that was handed to the wire.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub at: Instant,
    /// Node 0 or 1.
    pub from: usize,
    pub headers: Headers,
    pub payload: usize,
    /// It does not arrive, or arrives with a wrong ICRC.
    pub lost: bool,
    /// The receiving adapter lost it: packet damming.
    pub dammed: bool,
}

/// Decides about a single packet, before random faults do.
pub type Rule = Box<dyn FnMut(usize, &Packet<'_>) -> Fate>;

/// A packet in flight: arrival time, sequence number of sending, sending node, bytes.
type Flight = (Instant, u64, usize, Vec<u8>);

/// The packets in flight in both directions.
pub struct Wire {
    pub latency: Duration,
    pub faults: Faults,
    pub rule: Option<Rule>,
    /// Several links: packets within a message overtake each other, others overtake none and are overtaken by none.
    pub over_links: bool,
    /// Of each sending node, when the latest packet arrives, and the latest that is not overtaken.
    latest: [[Instant; 2]; 2],
    /// All packets sent so far.
    pub log: Vec<Sent>,
    rng: Rng,
    order: u64,
    queue: BinaryHeap<Reverse<Flight>>,
}

impl Wire {
    pub fn new(latency: Duration, faults: Faults, seed: u64) -> Self {
        let (rng, queue) = (Rng(seed), BinaryHeap::new());
        let latest = [[Instant(0); 2]; 2];
        Wire { latency, faults, rule: None, over_links: false, latest, log: vec![], rng, order: 0, queue }
    }

    /// Takes a packet from a node.
    pub fn send(&mut self, now: Instant, from: usize, bytes: Vec<u8>) {
        let packet = frame::parse_any(&bytes).expect("a packet that was sent parses");
        assert_eq!(icrc::verify(&envelope(), &bytes), icrc::Verdict::Good);
        let fate = self.rule.as_mut().map_or(Fate::Pass, |rule| rule(from, &packet));
        let fate = if fate == Fate::Pass { self.chance(&bytes) } else { fate };
        // The flipped bit may be one that the ICRC does not cover: then the packet is not lost.
        let lost = match &fate {
            Fate::Drop => true,
            Fate::Replace(bytes) => !Wire::intact(bytes),
            _ => false,
        };
        self.note(now, from, &packet, lost);
        let arrival = if self.over_links { self.arrival(now, from, &bytes) } else { now + self.latency };
        match fate {
            Fate::Pass => self.put(arrival, from, bytes),
            Fate::Drop => {}
            Fate::Twice => {
                self.put(arrival, from, bytes.clone());
                self.put(arrival + self.latency, from, bytes);
            }
            Fate::Delay(delay) => self.put(arrival + delay, from, bytes),
            Fate::Replace(bytes) => self.put(arrival, from, bytes),
            Fate::Forge(mut bytes) => {
                bytes.extend(icrc::compute(&envelope(), &bytes).to_le_bytes());
                self.put(arrival, from, bytes);
            }
        }
    }

    /// The adapter of node `to` lost a packet after it had arrived.
    pub fn dammed(&mut self, to: usize, packet: &Packet<'_>) {
        let psn = packet.headers.bth.psn;
        let sent = self.log.iter_mut().rev().find(|sent| sent.from != to && sent.headers.bth.psn == psn);
        let sent = sent.expect("a packet that arrived was sent");
        (sent.lost, sent.dammed) = (true, true);
    }

    fn note(&mut self, at: Instant, from: usize, packet: &Packet<'_>, lost: bool) {
        let (headers, payload) = (packet.headers, packet.payload.len());
        self.log.push(Sent { at, from, headers, payload, lost, dammed: false });
    }

    /// The number of packets sent so far that satisfy `which`.
    pub fn count(&self, which: impl Fn(&Sent) -> bool) -> usize {
        self.log.iter().filter(|sent| which(sent)).count()
    }

    /// The NAKs and RNR NAKs sent so far.
    pub fn naks(&self) -> Vec<Syndrome> {
        let aeths = self.log.iter().filter_map(|sent| sent.headers.get::<Aeth>());
        aeths.map(|aeth| Syndrome::from_byte(aeth.syndrome())).filter(|s| !matches!(s, Syndrome::Ack(_))).collect()
    }

    /// The codes of the NAKs sent so far, without RNR NAKs.
    pub fn nak_codes(&self) -> Vec<NakCode> {
        let codes = self.naks().into_iter().filter_map(|syndrome| match syndrome {
            Syndrome::Nak(code) => Some(code),
            _ => None,
        });
        codes.collect()
    }

    /// The arrival time of the next packet.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.queue.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes the next packet that has arrived by `now`, with its sending node.
    pub fn receive(&mut self, now: Instant) -> Option<(usize, Vec<u8>)> {
        if self.next_arrival()? > now {
            return None;
        }
        self.queue.pop().map(|Reverse((_, _, from, bytes))| (from, bytes))
    }

    /// Whether the ICRC of an arrived packet is right.
    pub fn intact(bytes: &[u8]) -> bool {
        bytes.len() >= 16 && icrc::verify(&envelope(), bytes) == icrc::Verdict::Good
    }

    /// When a packet arrives over several links, if it does.
    fn arrival(&mut self, now: Instant, from: usize, bytes: &[u8]) -> Instant {
        let soonest = now + self.latency;
        let [all, kept] = &mut self.latest[from];
        if frame::may_overtake(bytes) {
            let arrival = soonest + self.latency.mul_f64(self.rng.below(1000) as f64 / 100.0);
            let arrival = arrival.max(*kept);
            *all = arrival.max(*all);
            return arrival;
        }
        *kept = soonest.max(*all);
        *all = *kept;
        *kept
    }

    fn chance(&mut self, bytes: &[u8]) -> Fate {
        let Faults { loss, duplication, reordering, corruption } = self.faults;
        if self.rng.chance(loss) {
            Fate::Drop
        } else if self.rng.chance(duplication) {
            Fate::Twice
        } else if self.rng.chance(reordering) {
            Fate::Delay(self.latency.mul_f64(self.rng.below(1000) as f64 / 100.0))
        } else if self.rng.chance(corruption) {
            let mut bytes = bytes.to_vec();
            let bit = self.rng.below(bytes.len() as u64 * 8);
            bytes[bit as usize / 8] ^= 1 << (bit % 8);
            Fate::Replace(bytes)
        } else {
            Fate::Pass
        }
    }

    fn put(&mut self, at: Instant, from: usize, bytes: Vec<u8>) {
        self.order += 1;
        self.queue.push(Reverse((at, self.order, from, bytes)));
    }
}
