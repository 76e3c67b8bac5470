//! The send queue as the program knows it: the guards have given it more places, and the program must not get them.
//!
//! A request leaves the queue with its completion, or with a later one if it has none (IBTA 10.8.5.1).

use std::collections::VecDeque;

/// How many requests of the program are in the send queue.
#[derive(Debug, Default)]
pub struct Depth {
    limit: u32,
    occupied: u32,
    /// For each request with a completion, how many leave with it.
    runs: VecDeque<u32>,
    /// Requests without a completion since the last one with.
    run: u32,
    failed: bool,
}

impl Depth {
    /// An empty queue for so many requests of the program; 0: no limit.
    pub fn new(limit: u32) -> Depth {
        Depth { limit, ..Depth::default() }
    }

    /// The QP was reset.
    pub fn clear(&mut self) {
        *self = Depth::new(self.limit);
    }

    /// Whether the queue has no room for `more` requests.
    #[inline]
    pub fn is_full(&self, more: u32) -> bool {
        self.limit != 0 && !self.failed && self.occupied + more > self.limit
    }

    /// A request is about to be posted. `signaled`: it has a completion.
    #[inline]
    pub fn post(&mut self, signaled: bool) {
        self.occupied += 1;
        self.run += 1;
        if signaled {
            self.runs.push_back(std::mem::take(&mut self.run));
        }
    }

    /// The adapter has refused the last request.
    pub fn refused(&mut self, signaled: bool) {
        self.occupied = self.occupied.saturating_sub(1);
        if signaled {
            self.run += self.runs.pop_back().unwrap_or(1);
        }
        self.run = self.run.saturating_sub(1);
    }

    /// A completion of a request was polled. After a failure each request has one, and nothing is limited any more.
    #[inline]
    pub fn completed(&mut self, success: bool) {
        self.failed |= !success;
        let left = self.runs.pop_front().unwrap_or(0);
        self.occupied = self.occupied.saturating_sub(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_leave_with_a_completion() {
        let mut depth = Depth::new(3);
        [false, true, false].into_iter().for_each(|signaled| depth.post(signaled));
        assert!(depth.is_full(1) && !depth.is_full(0));
        depth.completed(true);
        assert!(!depth.is_full(2) && depth.is_full(3), "one is left without a completion");
        depth.post(true);
        depth.refused(true);
        assert!(!depth.is_full(2) && depth.is_full(3));
        depth.post(true);
        depth.completed(true);
        assert!(!depth.is_full(3));
    }

    #[test]
    fn after_a_failure_nothing_is_limited() {
        let mut depth = Depth::new(1);
        depth.post(true);
        assert!(depth.is_full(1));
        depth.completed(false);
        assert!(!depth.is_full(5));
        depth.clear();
        assert!(depth.is_full(2));
        assert!(!Depth::new(0).is_full(5));
    }
}
