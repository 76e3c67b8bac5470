//! The open requests of a QP's send queue: what was posted, and which of it a completion ends.
//!
//! A completion of a reliable or unreliable connection ends all requests before its own (IBTA 10.8.5.1), so the queue
//! needs no search: the first request that asks for a completion is the one that got it. The work request's ID is
//! compared all the same. Two threads that poll one CQ can report two completions in the other order, and an error
//! completes requests that asked for no completion.
//!
//! Posting and completing threads share the queue without a lock between them. The caller serializes posts with posts,
//! and completions with completions. A queue is allocated once; no call below allocates.

use std::sync::atomic::{AtomicU64, Ordering::*};

/// A request that was posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Posted {
    pub wr_id: u64,
    /// The time, in any unit; 0: not known when it was posted.
    pub at: u64,
    /// The first byte of its data, if that is in ODP memory.
    pub address: u64,
    pub bytes: u32,
    pub opcode: u8,
    pub odp: bool,
    /// It asks for a completion.
    pub signaled: bool,
    /// Open requests before it; at most 65535 are counted.
    pub ahead: u16,
}

/// The open requests, at most as many as it has entries.
pub struct SendQueue {
    entries: Box<[Entry]>,
    head: AtomicU64,
    tail: AtomicU64,
    /// No open request before this place asks for a completion, so that each place is looked at once.
    silent: AtomicU64,
}

/// Bytes, opcode, bits and the number of requests ahead are in `rest`, from the lowest bit.
#[derive(Default)]
struct Entry {
    wr_id: AtomicU64,
    at: AtomicU64,
    address: AtomicU64,
    rest: AtomicU64,
}

const ODP: u64 = 1 << 40;
const SIGNALED: u64 = 1 << 41;

impl SendQueue {
    /// A queue for at least `capacity` requests.
    pub fn new(capacity: u32) -> SendQueue {
        let capacity = capacity.max(1).next_power_of_two() as usize;
        let entries = (0..capacity).map(|_| Entry::default()).collect();
        SendQueue { entries, head: AtomicU64::new(0), tail: AtomicU64::new(0), silent: AtomicU64::new(0) }
    }

    /// Number of entries.
    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Number of open requests.
    #[inline]
    pub fn open(&self) -> u64 {
        self.tail.load(Acquire).saturating_sub(self.head.load(Acquire))
    }

    /// Writes the request that will be the `nth` of the next [`SendQueue::publish`], from 0. False: there is no room,
    /// so this request will not be seen.
    #[inline]
    pub fn stage(&self, nth: u64, mut posted: Posted) -> bool {
        let tail = self.tail.load(Relaxed);
        let mut head = self.head.load(Acquire);
        if head > tail {
            // A completion with the same ID has ended a request that was then taken back.
            head = self.head.fetch_min(tail, AcqRel).min(tail);
        }
        let at = tail + nth;
        if at - head >= self.entries.len() as u64 {
            return false;
        }
        posted.ahead = (at - head).min(u16::MAX.into()) as u16;
        self.entry(at).write(&posted);
        true
    }

    /// Opens the staged requests. They must be open before the adapter gets them: their completions may come at once.
    #[inline]
    pub fn publish(&self, count: u64) {
        self.tail.store(self.tail.load(Relaxed) + count, Release);
    }

    /// Sets the time of the last requests, which were published without one (0).
    #[inline]
    pub fn set_time(&self, count: u64, at: u64) {
        let tail = self.tail.load(Relaxed);
        (tail - count..tail).for_each(|place| self.entry(place).at.store(at, Relaxed));
    }

    /// Takes back the last requests, which the adapter has refused.
    pub fn withdraw(&self, count: u64) {
        let tail = self.tail.load(Relaxed).saturating_sub(count);
        self.head.fetch_min(tail, AcqRel);
        self.tail.store(tail, Release);
        self.silent.fetch_min(tail, Relaxed);
    }

    /// The oldest open request that asks for a completion: of others no completion tells until when they were open.
    #[inline]
    pub fn oldest(&self) -> Option<Posted> {
        let (head, tail) = (self.head.load(Acquire), self.tail.load(Acquire));
        let mut open = head.max(self.silent.load(Relaxed))..tail;
        let found = open.find(|at| self.entry(*at).rest.load(Relaxed) & SIGNALED != 0);
        self.silent.store(found.unwrap_or(tail), Relaxed);
        found.map(|at| self.entry(at).read())
    }

    /// Of the first `most` open requests, the first that was posted at this time or later.
    pub fn posted_since(&self, at: u64, most: u64) -> Option<Posted> {
        let (head, tail) = (self.head.load(Acquire), self.tail.load(Acquire));
        (head..tail.min(head + most)).map(|open| self.entry(open).read()).find(|posted| posted.at >= at)
    }

    /// Ends the request that a completion belongs to, and those before it. `each` gets them, the completed one last,
    /// with true. False: no open request matches.
    #[inline]
    pub fn complete(&self, wr_id: u64, failed: bool, mut each: impl FnMut(Posted, bool)) -> bool {
        let (head, tail) = (self.head.load(Relaxed), self.tail.load(Acquire));
        let Some(at) = self.find(head..tail, wr_id, failed) else { return false };
        for ended in head..=at {
            each(self.entry(ended).read(), ended == at);
        }
        self.head.store(at + 1, Release);
        true
    }

    /// Ends all requests without a word about them: the QP was reset.
    pub fn clear(&self) {
        self.head.store(self.tail.load(Acquire), Release);
    }

    #[inline]
    fn find(&self, mut open: std::ops::Range<u64>, wr_id: u64, failed: bool) -> Option<u64> {
        let completes = |at: &u64| {
            let entry = self.entry(*at);
            entry.wr_id.load(Relaxed) == wr_id && (failed || entry.rest.load(Relaxed) & SIGNALED != 0)
        };
        open.find(completes)
    }

    #[inline]
    fn entry(&self, at: u64) -> &Entry {
        &self.entries[at as usize & (self.entries.len() - 1)]
    }
}

impl Entry {
    #[inline]
    fn write(&self, posted: &Posted) {
        let bits = if posted.odp { ODP } else { 0 } | if posted.signaled { SIGNALED } else { 0 };
        let rest = u64::from(posted.bytes) | u64::from(posted.opcode) << 32 | bits | u64::from(posted.ahead) << 48;
        self.wr_id.store(posted.wr_id, Relaxed);
        self.at.store(posted.at, Relaxed);
        self.address.store(posted.address, Relaxed);
        self.rest.store(rest, Relaxed);
    }

    #[inline]
    fn read(&self) -> Posted {
        let rest = self.rest.load(Relaxed);
        Posted {
            wr_id: self.wr_id.load(Relaxed),
            at: self.at.load(Relaxed),
            address: self.address.load(Relaxed),
            bytes: rest as u32,
            opcode: (rest >> 32) as u8,
            odp: rest & ODP != 0,
            signaled: rest & SIGNALED != 0,
            ahead: (rest >> 48) as u16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(queue: &SendQueue, wr_id: u64, signaled: bool) {
        assert!(queue.stage(0, Posted { wr_id, at: 10 * wr_id, signaled, bytes: 5, opcode: 4, ..Posted::default() }));
        queue.publish(1);
    }

    fn ended(queue: &SendQueue, wr_id: u64, failed: bool) -> Vec<(u64, bool)> {
        let mut ended = vec![];
        queue.complete(wr_id, failed, |posted, own| ended.push((posted.wr_id, own)));
        ended
    }

    #[test]
    fn a_completion_ends_the_requests_before_its_own() {
        let queue = SendQueue::new(8);
        (1..=4).for_each(|id| post(&queue, id, id % 2 == 0));
        assert_eq!(queue.oldest().unwrap().at, 20, "the first asks for no completion");
        assert_eq!(queue.posted_since(20, 4).map(|posted| posted.wr_id), Some(2));
        assert!(queue.posted_since(50, 4).is_none() && queue.posted_since(30, 2).is_none());
        assert_eq!(ended(&queue, 2, false), [(1, false), (2, true)]);
        assert_eq!((queue.open(), queue.oldest().unwrap().wr_id), (2, 4));
        assert_eq!(ended(&queue, 4, false), [(3, false), (4, true)]);
        assert!(queue.oldest().is_none());
    }

    #[test]
    fn an_error_completes_requests_that_asked_for_no_completion() {
        let queue = SendQueue::new(8);
        post(&queue, 1, false);
        post(&queue, 2, true);
        assert_eq!(ended(&queue, 1, false), [], "only an error completes it");
        assert_eq!(ended(&queue, 1, true), [(1, true)]);
        assert_eq!(ended(&queue, 2, true), [(2, true)]);
    }

    #[test]
    fn equal_ids_complete_in_order_and_a_late_report_ends_nothing() {
        let queue = SendQueue::new(4);
        (0..3).for_each(|n| {
            queue.stage(0, Posted { wr_id: 7, at: n, signaled: true, ..Posted::default() });
            queue.publish(1);
        });
        let mut at = vec![];
        (0..3).for_each(|_| assert!(queue.complete(7, false, |posted, _| at.push(posted.at))));
        assert_eq!(at, [0, 1, 2]);
        // Another thread has polled a later completion first.
        post(&queue, 1, true);
        post(&queue, 2, true);
        assert_eq!(ended(&queue, 2, false).len(), 2);
        assert!(!queue.complete(1, false, |_, _| ()));
    }

    #[test]
    fn refused_requests_are_taken_back_and_a_full_queue_accepts_none() {
        let queue = SendQueue::new(4);
        (0..4).for_each(|nth| assert!(queue.stage(nth, Posted { wr_id: nth, signaled: true, ..Posted::default() })));
        assert!(!queue.stage(4, Posted::default()));
        queue.publish(4);
        queue.withdraw(2);
        assert_eq!(queue.open(), 2);
        assert_eq!(ended(&queue, 1, false), [(0, false), (1, true)]);
        assert!(!queue.complete(2, false, |_, _| ()));
        queue.withdraw(1);
        assert_eq!(queue.open(), 0);
        post(&queue, 8, false);
        assert!(queue.oldest().is_none());
        queue.withdraw(1);
        post(&queue, 9, true);
        assert_eq!(queue.oldest().unwrap().wr_id, 9);
        queue.clear();
        assert!(queue.oldest().is_none());
    }

    /// A program may give all requests one ID, and poll a completion while the adapter refuses a request.
    #[test]
    fn a_completion_of_a_request_that_is_taken_back_ends_nothing_else() {
        let queue = SendQueue::new(4);
        post(&queue, 7, true);
        // The completing thread has found the request at place 0, and ends it after the other thread has taken it back.
        queue.withdraw(1);
        queue.head.store(1, Release);
        post(&queue, 8, true);
        assert_eq!((queue.open(), queue.oldest().map(|posted| posted.wr_id)), (1, Some(8)));
        assert_eq!(ended(&queue, 8, false), [(8, true)]);
    }

    #[test]
    fn every_member_is_kept_and_requests_ahead_are_counted() {
        let queue = SendQueue::new(2);
        post(&queue, 1, true);
        let second = Posted {
            wr_id: u64::MAX,
            at: 3,
            address: u64::MAX - 1,
            bytes: u32::MAX,
            opcode: 255,
            odp: true,
            signaled: true,
            ahead: 0,
        };
        queue.stage(0, second);
        queue.publish(1);
        ended(&queue, 1, false);
        assert_eq!(queue.oldest(), Some(Posted { ahead: 1, ..second }));
    }
}
