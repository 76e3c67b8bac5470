//! What most detectors keep for each flow: how often, when, where, at what cost.

use super::end::End;
use crate::advice::Advice;
use crate::finding::{Cost, Finding, FindingKind};
use crate::flow::{CANDIDATES, FlowId, Pairing, Repeat};
use crate::packet::FrameId;
use std::collections::BTreeMap;
use weir_capture::packet::Address;

/// The sightings of one kind in one flow.
#[derive(Clone, Debug, Default)]
pub struct Sightings {
    pub count: u64,
    pub from: u64,
    pub to: u64,
    pub frames: Vec<FrameId>,
    pub cost: Cost,
}

/// Sightings by flow, of those flows that have any.
pub type PerFlow<T> = BTreeMap<FlowId, T>;

/// The most frames of a finding.
const FRAMES: usize = 32;

impl Sightings {
    /// Counts one at a time, with its frames.
    pub fn see(&mut self, time: u64, frames: &[FrameId]) {
        if self.count == 0 {
            self.from = time;
        }
        self.count += 1;
        self.to = self.to.max(time);
        self.evidence(frames);
    }

    /// Adds frames, if there is room.
    pub fn evidence(&mut self, frames: &[FrameId]) {
        for frame in frames {
            if self.frames.len() < FRAMES && !self.frames.contains(frame) {
                self.frames.push(*frame);
            }
        }
    }

    /// Counts a repetition and what it cost.
    pub fn see_repeat(&mut self, repeat: &Repeat) {
        self.add_cost(repeat);
        if repeat.follows {
            self.to = self.to.max(repeat.time);
            return;
        }
        self.see(repeat.time, &[repeat.previous, repeat.frame]);
        self.from = self.from.min(repeat.time.saturating_sub(repeat.waited));
    }

    /// Adds what a repetition cost. One that follows another costs its packet alone.
    pub fn add_cost(&mut self, repeat: &Repeat) {
        self.cost.add_packet(repeat.payload);
        if !repeat.follows {
            self.cost.add_time(repeat.waited);
        }
    }

    /// Adds the sightings of another kind that turned out to be of this one.
    pub fn absorb(&mut self, other: &Sightings) {
        if other.count > 0 {
            self.from = if self.count == 0 { other.from } else { self.from.min(other.from) };
        }
        self.count += other.count;
        self.to = self.to.max(other.to);
        self.evidence(&other.frames);
        self.cost.add_time(other.cost.time);
        self.cost.packets += other.cost.packets;
        self.cost.bytes += other.cost.bytes;
    }

    /// The finding about this flow.
    pub fn finding(
        &self,
        kind: FindingKind,
        flow: FlowId,
        confidence: f64,
        text: String,
        advice: Vec<Advice>,
    ) -> Finding {
        let mut frames = self.frames.clone();
        frames.sort_unstable();
        Finding {
            kind,
            flows: vec![flow],
            frames,
            from: self.from,
            to: self.to,
            count: self.count,
            cost: self.cost,
            confidence,
            text,
            advice,
        }
    }
}

/// A confidence lowered if the pairing of the directions was uncertain.
pub fn paired(end: &End<'_>, flow: FlowId, confidence: f64) -> f64 {
    match end.flow(flow).pairing {
        Pairing::Setup | Pairing::Psn => confidence,
        Pairing::Likely => confidence * 0.8,
        Pairing::None => confidence * 0.7,
    }
}

/// Pairs of addresses with so many QPs that begin alike that they are paired by their rank: a response may be counted
/// for another QP than its own.
pub struct Alike(BTreeMap<(Address, Address), usize>);

impl Alike {
    pub fn of(end: &End<'_>) -> Alike {
        let mut counts: BTreeMap<(Address, Address), usize> = BTreeMap::new();
        for flow in end.flows.iter().filter(|flow| flow.pairing == Pairing::Likely) {
            *counts.entry((flow.key.from, flow.key.to)).or_default() += 1;
        }
        counts.retain(|_, count| *count > CANDIDATES);
        Alike(counts)
    }

    pub fn has(&self, end: &End<'_>, flow: FlowId) -> bool {
        let key = end.flow(flow).key;
        self.0.contains_key(&(key.from, key.to))
    }
}

/// A time for people.
pub fn time(nanoseconds: u64) -> String {
    let value = nanoseconds as f64;
    match nanoseconds {
        0..10_000 => format!("{:.1} us", value / 1e3),
        10_000..1_000_000 => format!("{:.0} us", value / 1e3),
        1_000_000..10_000_000 => format!("{:.2} ms", value / 1e6),
        10_000_000..1_000_000_000 => format!("{:.0} ms", value / 1e6),
        _ => format!("{:.2} s", value / 1e9),
    }
}

/// A number with its noun.
pub fn times(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
