//! The fault model of one direction: a queue for delayed datagrams, and a list of those that wait to be overtaken.

use super::FaultSpec;
use crate::Fate;
use fastrand::Rng;
use std::collections::VecDeque;

/// How many datagrams met which fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// All datagrams.
    pub datagrams: u64,
    /// Dropped at the rate of `loss`.
    pub lost: u64,
    /// Dropped because too many datagrams were delayed.
    pub overflowed: u64,
    /// Extra copies.
    pub duplicated: u64,
    /// Overtaken by later datagrams.
    pub reordered: u64,
    /// With flipped bits.
    pub corrupted: u64,
    /// Held back without being overtaken: for a delay, or aside while no later datagram came.
    pub delayed: u64,
}

impl FaultCounts {
    /// The sum of both counts.
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

/// The destination of the datagrams of a line.
pub(super) trait Sink<M> {
    /// Whether it has room for `bytes` bytes in `datagrams` datagrams.
    fn has_room(&self, bytes: usize, datagrams: usize) -> bool;
    /// Takes one datagram.
    fn take(&mut self, meta: &M, bytes: &[u8], fate: Fate);
}

/// The state of one direction. `M` is the metadata of a datagram.
pub(super) struct FaultLine<M> {
    spec: FaultSpec,
    rng: Rng,
    /// Delayed datagrams, by due time.
    delayed: VecDeque<Held<M>>,
    /// Datagrams that wait to be overtaken, oldest first: at most three, as each waits for at most three later
    /// datagrams.
    aside: Vec<Held<M>>,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
    held: usize,
    counts: FaultCounts,
}

struct Held<M> {
    meta: M,
    bytes: Vec<u8>,
    fate: Fate,
    /// Due time, nanoseconds.
    due: u64,
    /// How many later datagrams have still to overtake it.
    overtakers: u8,
    overtaken: bool,
}

/// The random draw for one datagram.
struct Draw {
    lost: bool,
    duplicated: bool,
    corrupted: bool,
    overtakers: u8,
    /// Nanoseconds.
    delay: u64,
    /// Draws the bits to flip.
    rng: Rng,
}

/// Nanoseconds after which a datagram is sent even if it has not been overtaken.
const REORDER_WAIT: u64 = 1_000_000;
/// Bytes of delayed datagrams beyond which further datagrams are dropped.
const MAX_HELD: usize = 32 << 20;
const MAX_SPARE: usize = 256;

impl<M: Copy> FaultLine<M> {
    /// A line that holds no datagram; equal seeds give equal faults.
    pub fn new(spec: &FaultSpec, seed: u64) -> Self {
        FaultLine {
            spec: spec.clone(),
            rng: Rng::with_seed(seed),
            delayed: VecDeque::new(),
            aside: Vec::with_capacity(4),
            spare: Vec::with_capacity(MAX_SPARE),
            held: 0,
            counts: FaultCounts::default(),
        }
    }

    /// Faults so far.
    pub fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// The next due time, nanoseconds.
    pub fn due(&self) -> Option<u64> {
        self.delayed.front().into_iter().chain(&self.aside).map(|held| held.due).min()
    }

    /// The most bytes and datagrams that one `offer` of `len` bytes can pass to the sink.
    pub fn most(&self, len: usize) -> (usize, usize) {
        let aside: usize = self.aside.iter().map(|held| held.bytes.len()).sum();
        (2 * len + aside, 2 + self.aside.len())
    }

    /// Passes a datagram through the fault model.
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

    /// Releases the datagrams that are due, as far as the sink has room.
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
            self.pass_on(at, sink);
        }
    }

    /// Takes one number per datagram from the main sequence, so that no fate depends on another.
    fn draw(&mut self) -> Draw {
        let mut rng = Rng::with_seed(self.rng.u64(..));
        let mut happens = |probability: f64| rng.f64() < probability;
        let (lost, duplicated) = (happens(self.spec.loss), happens(self.spec.duplicate));
        let (reordered, corrupted) = (happens(self.spec.reorder), happens(self.spec.corrupt));
        let overtakers = rng.u8(1..=3);
        let jitter = self.spec.jitter.mul_f64(rng.f64());
        Draw {
            lost,
            duplicated,
            corrupted,
            overtakers: if reordered { overtakers } else { 0 },
            delay: (self.spec.delay + jitter).as_nanos() as u64,
            rng,
        }
    }

    /// Puts a datagram into the delay queue, or past it if it has no delay.
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
        // Jitter does not reorder: reordering is a fault of its own.
        let due = self.delayed.back().map_or(0, |last| last.due).max(now + delay);
        let bytes = self.copy(bytes);
        self.held += bytes.capacity();
        self.counts.delayed += u64::from(fate.contains(Fate::DELAYED));
        self.delayed.push_back(Held { meta, bytes, fate, due, overtakers, overtaken: false });
    }

    /// Passes a datagram to the sink, or puts it aside to be overtaken.
    fn exit(&mut self, now: u64, meta: M, bytes: &[u8], fate: Fate, overtakers: u8, sink: &mut impl Sink<M>) {
        // A copy overtakes nothing: its original may be aside.
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
            self.pass_on(at, sink);
        }
        if overtakers > 0 {
            let bytes = self.copy(bytes);
            self.aside.push(Held { meta, bytes, fate, due: now + REORDER_WAIT, overtakers, overtaken: false });
        }
    }

    /// Passes a datagram from the list aside to the sink.
    fn pass_on(&mut self, at: usize, sink: &mut impl Sink<M>) {
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
