//! Future events, ordered by time; events of the same time in the order in which they were added.

use crate::ids::{HostId, QpId};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use weir_transport::Instant;

/// A future event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A host's port is free for the next packet.
    PortFree(HostId),
    /// The first packet in a pipe arrives at its end.
    Arrival(u32),
    /// A QP's deadline, unless it has moved.
    Deadline(QpId),
    /// A page fault of a host ends.
    FaultEnds(HostId, u32),
    /// The fault notifier of a host is due.
    NotifyRequesters(HostId),
    /// A timer of the application.
    Timer(u64),
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Entry>,
    put: u64,
}

#[derive(Debug)]
struct Entry {
    at: Instant,
    order: u64,
    event: Event,
}

impl Queue {
    /// Adds an event at a time that is not before the current one.
    pub fn put(&mut self, at: Instant, event: Event) {
        self.put += 1;
        self.heap.push(Entry { at, order: self.put, event });
    }

    /// Time of the earliest event.
    pub fn next_time(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Removes the earliest event.
    pub fn take(&mut self) -> Option<(Instant, Event)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }
}

impl Ord for Entry {
    /// The greatest entry of the heap is the earliest event.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}
