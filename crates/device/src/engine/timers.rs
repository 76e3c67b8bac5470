//! Deadlines of QPs. Most move later with every ACK, so entries are checked when they fire, not updated.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A heap of deadlines, each with the index of a QP.
#[derive(Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(u64, u16)>>,
}

impl Timers {
    /// Makes room, outside of the hot path.
    pub fn reserve(&mut self, qps: usize) {
        self.heap.reserve((qps * 4).saturating_sub(self.heap.len()));
    }

    /// Enters a deadline (nanoseconds) of a QP.
    pub fn push(&mut self, deadline: u64, index: u16) {
        self.heap.push(Reverse((deadline, index)));
    }

    /// Takes a deadline that is over.
    pub fn pop_due(&mut self, now: u64) -> Option<(u64, u16)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// The earliest.
    pub fn next(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((deadline, _))| *deadline)
    }
}
