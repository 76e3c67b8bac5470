//! The send queue of a connection: what is posted, and what happens when it completes.
//!
//! Work requests complete in order, so a completion that is signalled also ends the ones before it that are not.

use crate::ids::OpId;
use crate::port::Slot;
use std::collections::VecDeque;

/// Requests without a bounce buffer or an operation that may follow each other without a signal.
const UNSIGNALED: u32 = 15;

/// A posted work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Posted {
    /// The bounce buffer that it uses.
    pub slot: Option<Slot>,
    /// The operation that it is a part of.
    pub op: Option<OpId>,
    /// It is the last request of the operation, which goes on when it completes.
    pub last: bool,
    /// What is in the bounce buffer begins at this byte of the operation.
    pub at: u64,
}

/// A send queue.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    posted: VecDeque<Posted>,
    /// Number of the first of them.
    first: u64,
    /// Most requests that may be posted.
    depth: usize,
    /// Longest inline request, bytes.
    inline: usize,
    unsignaled: u32,
    /// Bounce buffers in use.
    slots: u32,
    /// The adapter has refused the last request: it never completes, and none follows.
    refused: bool,
}

impl SendQueue {
    /// An empty queue for so many requests, with so many bytes inline.
    pub fn new(depth: usize, inline: usize) -> SendQueue {
        SendQueue { depth, inline, ..SendQueue::default() }
    }

    /// Whether another request fits.
    pub fn has_room(&self) -> bool {
        self.posted.len() < self.depth && !self.refused
    }

    /// Longest inline request, bytes.
    pub fn inline(&self) -> usize {
        self.inline
    }

    /// Whether nothing is posted.
    pub fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// The number of the next request, and whether it must be signalled.
    pub fn next(&self, posted: Posted) -> (u64, bool) {
        let nearly_full = self.posted.len() + 1 >= self.depth;
        let signaled = posted.slot.is_some() || posted.last || self.unsignaled >= UNSIGNALED || nearly_full;
        (self.first + self.posted.len() as u64, signaled)
    }

    /// The request of [`Self::next`] has been posted.
    pub fn push(&mut self, posted: Posted, signaled: bool) {
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
        self.slots += u32::from(posted.slot.is_some());
        self.posted.push_back(posted);
    }

    /// The adapter has refused the last request.
    pub fn refuse(&mut self) {
        self.refused = true;
    }

    /// Whether the last request was not signalled, so that its end is not reported before another request follows.
    pub fn ends_unsignaled(&self) -> bool {
        self.unsignaled > 0 && !self.posted.is_empty()
    }

    /// The next request is signalled.
    pub fn signal_next(&mut self) {
        self.unsignaled = UNSIGNALED;
    }

    /// Whether the request with this number, and all before it, have been taken out.
    pub fn has_passed(&self, number: u64) -> bool {
        self.first > number
    }

    /// The next request that has completed, if the one with this number has.
    pub fn pop(&mut self, number: u64) -> Option<Posted> {
        if self.first > number {
            return None;
        }
        let posted = self.posted.pop_front()?;
        self.first += 1;
        self.slots -= u32::from(posted.slot.is_some());
        Some(posted)
    }

    /// Bounce buffers in use.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// All that is posted; the connection has ended.
    pub fn drain(&mut self) -> impl Iterator<Item = Posted> + '_ {
        self.slots = 0;
        self.posted.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_the_requests_before_it() {
        let mut queue = SendQueue::new(20, 64);
        let mut signals = Vec::new();
        while queue.has_room() {
            let (number, signaled) = queue.next(Posted::default());
            queue.push(Posted::default(), signaled);
            if signaled {
                signals.push(number);
            }
        }
        assert_eq!(signals, [15, 19]);
        let ended = std::iter::from_fn(|| queue.pop(15)).count();
        assert_eq!(ended, 16);
        let with_op = Posted { op: Some(3), last: true, ..Posted::default() };
        let (number, signaled) = queue.next(with_op);
        assert!(signaled);
        queue.push(with_op, signaled);
        let ended: Vec<_> = std::iter::from_fn(|| queue.pop(number)).collect();
        assert_eq!(ended.len(), 5);
        assert_eq!(ended[4], with_op);
        assert!(queue.is_empty());
    }
}
