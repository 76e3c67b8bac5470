//! What datagrams of one direction go through: a queue that delays, and a place aside for those to be overtaken.

use super::FaultSpec;
use crate::Fate;
use fastrand::Rng;
use std::collections::VecDeque;

/// How many datagrams met which fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// All datagrams that came.
    pub datagrams: u64,
    /// Lost on purpose.
    pub lost: u64,
    /// Lost because too many were being delayed.
    pub overflowed: u64,
    /// Extra copies.
    pub duplicated: u64,
    /// Overtaken by later ones.
    pub reordered: u64,
    /// With flipped bits.
    pub corrupted: u64,
    /// Held back without being overtaken: for a delay, or aside while no later one went by.
    pub delayed: u64,
}

impl FaultCounts {
    /// Of both together.
    pub fn plus(self, other: FaultCounts) -> FaultCounts {
        FaultCounts {
            datagrams: self.datagrams + other.datagrams,
            lost: self.lost + other.lost,
            overflowed: self.overflowed + other.overflowed,
            duplicated: self.duplicated + other.duplicated,
            reordered: self.reordered + other.reordered,
            corrupted: self.corrupted + other.corrupted,
            delayed: self.delayed + other.delayed,
        }
    }
}

impl std::fmt::Display for FaultCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let FaultCounts { datagrams, lost, overflowed, duplicated, reordered, corrupted, delayed } = self;
        write!(
            f,
            "{datagrams} datagrams: {} lost, {duplicated} duplicated, {reordered} reordered, {corrupted} corrupted, \
             {delayed} delayed",
            lost + overflowed
        )
    }
}

/// Where datagrams go in the end.
pub(super) trait Sink<M> {
    /// Whether it could take so many.
    fn has_room(&self, bytes: usize, datagrams: usize) -> bool;
    /// Takes one.
    fn take(&mut self, meta: &M, bytes: &[u8], fate: Fate);
}

/// The state of one direction. `M` is what belongs to a datagram beside its bytes.
pub(super) struct Line<M> {
    spec: FaultSpec,
    rng: Rng,
    /// In the order in which they are due.
    delayed: VecDeque<Held<M>>,
    /// Waiting to be overtaken, oldest first: three at most, as each waits for three later ones at most.
    aside: Vec<Held<M>>,
    /// Buffers to be used again.
    spare: Vec<Vec<u8>>,
    held: usize,
    counts: FaultCounts,
}

struct Held<M> {
    meta: M,
    bytes: Vec<u8>,
    fate: Fate,
    /// Nanoseconds.
    due: u64,
    /// How many later ones shall overtake it.
    overtakers: u8,
    overtaken: bool,
}

/// What chance has for one datagram.
struct Lot {
    lost: bool,
    duplicated: bool,
    corrupted: bool,
    overtakers: u8,
    /// Nanoseconds.
    delay: u64,
    /// For the bits to flip.
    rng: Rng,
}

/// Nanoseconds after which a datagram that nobody overtakes goes on.
const PATIENCE: u64 = 1_000_000;
/// Bytes of delayed datagrams beyond which further ones are lost.
const MAX_HELD: usize = 32 << 20;
const MAX_SPARE: usize = 256;

impl<M: Copy> Line<M> {
    pub fn new(spec: &FaultSpec, seed: u64) -> Self {
        Line {
            spec: spec.clone(),
            rng: Rng::with_seed(seed),
            delayed: VecDeque::new(),
            aside: Vec::with_capacity(4),
            spare: Vec::with_capacity(MAX_SPARE),
            held: 0,
            counts: FaultCounts::default(),
        }
    }

    pub fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// When something is due next.
    pub fn due(&self) -> Option<u64> {
        self.delayed.front().into_iter().chain(&self.aside).map(|held| held.due).min()
    }

    /// Bytes and datagrams that one `offer` of `len` bytes can give to the sink at most.
    pub fn most(&self, len: usize) -> (usize, usize) {
        let aside: usize = self.aside.iter().map(|held| held.bytes.len()).sum();
        (2 * len + aside, 2 + self.aside.len())
    }

    /// A datagram comes.
    pub fn offer(&mut self, now: u64, meta: M, bytes: &[u8], sink: &mut impl Sink<M>) {
        let lot = self.draw();
        self.counts.datagrams += 1;
        if lot.lost {
            self.counts.lost += 1;
            return self.enter(now, lot.delay, meta, bytes, Fate::LOST, 0, sink);
        }
        if lot.corrupted && !bytes.is_empty() {
            self.counts.corrupted += 1;
            let mut damaged = self.copy(bytes);
            flip_bits(&mut damaged, lot.rng);
            self.enter(now, lot.delay, meta, &damaged, Fate::CORRUPTED, lot.overtakers, sink);
            self.recycle(damaged);
        } else {
            self.enter(now, lot.delay, meta, bytes, Fate::empty(), lot.overtakers, sink);
        }
        if lot.duplicated {
            self.counts.duplicated += 1;
            self.enter(now, lot.delay, meta, bytes, Fate::DUPLICATED, 0, sink);
        }
    }

    /// Lets go what is due, as far as there is room for it.
    pub fn release(&mut self, now: u64, sink: &mut impl Sink<M>) {
        while let Some(first) = self.delayed.front().filter(|held| held.due <= now) {
            let (bytes, datagrams) = self.most(first.bytes.len());
            if !sink.has_room(bytes, datagrams) {
                return;
            }
            let held = self.delayed.pop_front().expect("it has a front");
            self.held -= held.bytes.capacity();
            self.exit(now, held.meta, &held.bytes, held.fate, held.overtakers, sink);
            self.recycle(held.bytes);
        }
        while let Some(at) = self.aside.iter().position(|held| held.due <= now) {
            if !sink.has_room(self.aside[at].bytes.len(), 1) {
                return;
            }
            self.let_go(at, sink);
        }
    }

    /// One number from the main sequence per datagram, so that no fate depends on another's.
    fn draw(&mut self) -> Lot {
        let mut rng = Rng::with_seed(self.rng.u64(..));
        let mut happens = |probability: f64| rng.f64() < probability;
        let (lost, duplicated) = (happens(self.spec.loss), happens(self.spec.duplicate));
        let (reordered, corrupted) = (happens(self.spec.reorder), happens(self.spec.corrupt));
        let overtakers = rng.u8(1..=3);
        let jitter = self.spec.jitter.mul_f64(rng.f64());
        Lot {
            lost,
            duplicated,
            corrupted,
            overtakers: if reordered { overtakers } else { 0 },
            delay: (self.spec.delay + jitter).as_nanos() as u64,
            rng,
        }
    }

    /// Into the queue that delays, or past it.
    #[expect(clippy::too_many_arguments, reason = "the parts of a datagram that is not held yet")]
    fn enter(
        &mut self,
        now: u64,
        delay: u64,
        meta: M,
        bytes: &[u8],
        fate: Fate,
        overtakers: u8,
        sink: &mut impl Sink<M>,
    ) {
        if delay == 0 && self.delayed.is_empty() {
            return self.exit(now, meta, bytes, fate, overtakers, sink);
        }
        if self.held + bytes.len() > MAX_HELD {
            self.counts.overflowed += 1;
            return sink.take(&meta, bytes, fate | Fate::LOST);
        }
        let fate = if fate.contains(Fate::LOST) { fate } else { fate | Fate::DELAYED };
        // Jitter does not reorder: that is a fate of its own.
        let due = self.delayed.back().map_or(0, |last| last.due).max(now + delay);
        let bytes = self.copy(bytes);
        self.held += bytes.capacity();
        self.counts.delayed += u64::from(fate.contains(Fate::DELAYED));
        self.delayed.push_back(Held { meta, bytes, fate, due, overtakers, overtaken: false });
    }

    /// Out, or aside.
    fn exit(&mut self, now: u64, meta: M, bytes: &[u8], fate: Fate, overtakers: u8, sink: &mut impl Sink<M>) {
        // A copy does not overtake: its original may be the one aside.
        if fate.intersects(Fate::LOST | Fate::DUPLICATED) {
            return sink.take(&meta, bytes, fate);
        }
        if overtakers == 0 {
            sink.take(&meta, bytes, fate);
            self.aside.iter_mut().for_each(|held| held.overtaken = true);
        }
        for held in &mut self.aside {
            held.overtakers -= 1;
        }
        while let Some(at) = self.aside.iter().position(|held| held.overtakers == 0) {
            self.let_go(at, sink);
        }
        if overtakers > 0 {
            let bytes = self.copy(bytes);
            self.aside.push(Held { meta, bytes, fate, due: now + PATIENCE, overtakers, overtaken: false });
        }
    }

    /// Out of those aside.
    fn let_go(&mut self, at: usize, sink: &mut impl Sink<M>) {
        let held = self.aside.remove(at);
        self.aside[..at].iter_mut().for_each(|older| older.overtaken = true);
        let how = if held.overtaken { Fate::REORDERED } else { Fate::DELAYED };
        self.counts.reordered += u64::from(held.overtaken);
        self.counts.delayed += u64::from(!held.overtaken && !held.fate.contains(Fate::DELAYED));
        sink.take(&held.meta, &held.bytes, held.fate | how);
        self.recycle(held.bytes);
    }

    fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        copy
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < MAX_SPARE {
            self.spare.push(buffer);
        }
    }
}

/// Flips one to three different bits.
fn flip_bits(bytes: &mut [u8], mut rng: Rng) {
    let bits = bytes.len() * 8;
    let mut flipped = [usize::MAX; 3];
    for i in 0..rng.usize(1..=3) {
        let bit = rng.usize(..bits);
        if !flipped.contains(&bit) {
            flipped[i] = bit;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
