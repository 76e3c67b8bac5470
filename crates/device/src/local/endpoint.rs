//! One side's ends of the two rings of a segment.

use crate::local::arming;
use crate::local::ring::{Consumer, Producer};
use crate::local::segment::Segment;
use crate::os::locks::LeafMutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The most rings of an adapter. Peers beyond that are reached by UDP.
pub const MAX_RINGS: usize = 128;

/// The side of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It made the segment.
    Maker,
    /// It was handed the segment.
    Taker,
}

/// One side's ends of two rings.
pub struct Endpoint {
    pub producer: Producer,
    pub consumer: Consumer,
    segment: Arc<Segment>,
    outgoing: usize,
}

/// Makes the producer of a ring wake this process's sleeping thread.
pub struct Sleeper {
    segment: Arc<Segment>,
    incoming: usize,
}

/// The rings that the engine's thread waits for when it sleeps.
pub struct Sleepers {
    list: LeafMutex<List>,
    /// There are some.
    any: AtomicBool,
    armed: AtomicBool,
}

struct List {
    /// By their numbers.
    sleepers: Vec<(u64, Sleeper)>,
    /// The thread sleeps, or is about to: no other thread disarms.
    asleep: bool,
}

impl List {
    fn each(&self, change: fn(&AtomicU32)) {
        self.sleepers.iter().for_each(|(_, Sleeper { segment, incoming })| change(segment.armed(*incoming)));
    }
}

impl Endpoint {
    /// The ends of a side of a new segment.
    pub fn new(segment: Segment, side: Side) -> Endpoint {
        let segment = Arc::new(segment);
        let outgoing = if side == Side::Maker { 0 } else { 1 };
        Endpoint {
            producer: Producer::new(segment.clone(), outgoing),
            consumer: Consumer::new(segment.clone(), 1 - outgoing),
            segment,
            outgoing,
        }
    }

    /// Packets were published. Returns whether the peer's thread must be woken.
    #[inline]
    pub fn must_wake_peer(&self) -> bool {
        arming::must_wake(self.segment.armed(self.outgoing))
    }

    /// What makes the peer wake this process.
    pub fn sleeper(&self) -> Sleeper {
        Sleeper { segment: self.segment.clone(), incoming: 1 - self.outgoing }
    }
}

impl Sleepers {
    /// None, with room for `most`.
    pub fn new(most: usize) -> Sleepers {
        let list = LeafMutex::new(List { sleepers: Vec::with_capacity(most), asleep: false });
        Sleepers { list, any: AtomicBool::new(false), armed: AtomicBool::new(false) }
    }

    /// The thread will wait for a further ring, which has the number `token`.
    pub fn add(&self, token: u64, sleeper: Sleeper) {
        let list = &mut self.list.lock().sleepers;
        if list.len() < list.capacity() {
            list.push((token, sleeper));
            self.any.store(true, Ordering::Relaxed);
        }
    }

    /// The thread no longer waits for a ring. The caller drops what is returned.
    pub fn remove(&self, token: u64) -> Option<Sleeper> {
        let list = &mut self.list.lock().sleepers;
        let at = list.iter().position(|(other, _)| *other == token)?;
        let (_, sleeper) = list.swap_remove(at);
        self.any.store(!list.is_empty(), Ordering::Relaxed);
        Some(sleeper)
    }

    /// The thread will sleep unless it finds packets in a turn after this call. Returns whether there are rings.
    pub fn arm(&self) -> bool {
        self.set(true)
    }

    /// The thread is awake.
    pub fn disarm(&self) {
        self.clear(true);
    }

    /// A program that polls may stop: packets wake the thread unless they are found in a turn after this call. Returns
    /// whether there are rings.
    pub fn watch(&self) -> bool {
        self.set(false)
    }

    /// The program polls. A thread that sleeps is woken nevertheless.
    pub fn unwatch(&self) {
        self.clear(false);
    }

    /// `sleeps`: the thread does.
    fn set(&self, sleeps: bool) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let mut list = self.list.lock();
        self.armed.store(true, Ordering::Relaxed);
        list.asleep |= sleeps;
        list.each(arming::arm);
        true
    }

    /// `wakes`: the thread does.
    fn clear(&self, wakes: bool) {
        if !self.armed.load(Ordering::Relaxed) {
            return;
        }
        let mut list = self.list.lock();
        list.asleep &= !wakes;
        if !list.asleep {
            self.armed.store(false, Ordering::Relaxed);
            list.each(arming::disarm);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_polls_leaves_the_sleeping_thread_its_wake_up() {
        let (segment, file) = Segment::create().unwrap();
        let producer = Endpoint::new(Segment::open(&file).unwrap(), Side::Taker);
        let sleepers = Sleepers::new(1);
        assert!(!sleepers.watch(), "there are no rings");
        sleepers.add(1, Endpoint::new(segment, Side::Maker).sleeper());
        // A program looks at its memory, and polls again.
        assert!(sleepers.watch() && producer.must_wake_peer());
        assert!(sleepers.watch());
        sleepers.unwatch();
        assert!(!producer.must_wake_peer());
        // The thread sleeps.
        assert!(sleepers.watch() && sleepers.arm());
        sleepers.unwatch();
        assert!(producer.must_wake_peer() && !producer.must_wake_peer());
        sleepers.arm();
        sleepers.disarm();
        assert!(!producer.must_wake_peer());
    }
}
