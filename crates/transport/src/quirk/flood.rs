//! Packet flood: a requester is notified late that its page is present, and keeps retransmitting its READs (T 5.2).
//!
//! Observed: 128 READs of 32 bytes, each on its own QP, with all responses to one missing page. Completions start
//! after 1 ms, when the fault is resolved; but the *first* 30 READs stay open until 6 ms, and "the client kept
//! repeating the retransmission of the request, receiving the response, and discarding it" (T 5.2.2, fig 5.9). With
//! more QPs or pages the delay is far longer, and with few QPs there is none (T fig 5.7).
//!
//! Hypothesis: the adapter keeps state of about a hundred waiting requests. It notifies their QPs at once
//! when the page is present. For requests that newer ones have displaced it searches through all waiting READs, one
//! after the other whatever their page, and notifies the displaced ones when the search ends: 30 READs take 5 ms, and
//! so 700 of the 800 that 200 QPs have outstanding take more than 100 ms. During a search it handles no other page: a
//! QP with a page that becomes present meanwhile is notified after the search at the earliest, and each page may need a
//! search of its own. A requester that was not notified keeps dropping responses (`Qp::unnotified_reads`).

use crate::{Flood, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The fault notifier: decides when each QP's requester is notified that its page is present. An adapter has one for
/// all QPs. Its host reports waiting QPs and resolved pages, and calls `Qp::page_resolved(now, Side::Requester)` for
/// the QPs that `poll` returns.
#[derive(Clone, Debug, Default)]
pub struct FaultNotifier {
    flood: Option<Flood>,
    /// The waiting QPs by position, in the order in which they began to wait.
    waiters: BTreeMap<u64, Waiter>,
    /// The position of each waiting QP.
    positions: BTreeMap<u32, u64>,
    /// The next position to assign.
    next_position: u64,
    /// Waiting QPs before this position are no longer tracked.
    oldest_tracked: u64,
    /// READs of the tracked waiting QPs, and of all waiting QPs.
    tracked: u64,
    reads: u64,
    /// Positions of displaced QPs with a present page, and the time since when it is present.
    lost: BTreeMap<u64, Instant>,
    /// The current search through all waiting READs.
    search: Option<Search>,
    /// The end of the last search.
    searched: Instant,
    /// Positions of the QPs with pages that became present during the search.
    later: Vec<u64>,
    /// QPs to notify now, with the time since when.
    found: VecDeque<(u32, Instant)>,
}

#[derive(Clone, Copy, Debug)]
struct Search {
    begin: Instant,
    end: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    qp: u32,
    reads: u32,
}

impl FaultNotifier {
    /// `None`: every QP is notified at once.
    pub fn new(flood: Option<Flood>) -> FaultNotifier {
        FaultNotifier { flood, ..FaultNotifier::default() }
    }

    /// The requester of a QP dropped a response because a page is missing, and has `reads` READs outstanding
    /// ([`crate::Qp::unnotified_reads`]). A QP that waits already keeps its position.
    pub fn waits(&mut self, qp: u32, reads: u32) {
        let Some(flood) = self.flood else { return };
        if self.positions.contains_key(&qp) {
            return;
        }
        let reads = reads.max(1);
        self.positions.insert(qp, self.next_position);
        self.waiters.insert(self.next_position, Waiter { qp, reads });
        self.next_position += 1;
        self.tracked += u64::from(reads);
        self.reads += u64::from(reads);
        // The newest QP is tracked in any case.
        while self.tracked > u64::from(flood.remembered) {
            let Some((&position, oldest)) = self.waiters.range(self.oldest_tracked..).next() else { break };
            if position + 1 == self.next_position {
                break;
            }
            self.tracked -= u64::from(oldest.reads);
            self.oldest_tracked = position + 1;
        }
    }

    /// The page on which a QP's requester faulted is present (or its fault failed).
    pub fn resolved(&mut self, now: Instant, qp: u32) {
        match self.positions.get(&qp) {
            Some(&position) if self.search.is_some_and(|search| now < search.end) => self.later.push(position),
            Some(&position) => self.page_present(position, now),
            None => self.found.push_back((qp, now)),
        }
    }

    /// The page of the QP at `position` is present, and the adapter is not searching.
    fn page_present(&mut self, position: u64, now: Instant) {
        if position < self.oldest_tracked {
            self.lost.entry(position).or_insert(now);
        } else {
            self.find(position, now);
        }
    }

    /// The next QP to notify by `Qp::page_resolved(now, Side::Requester)`. Call it until it returns `None`.
    pub fn poll(&mut self, now: Instant) -> Option<u32> {
        if self.flood.is_some() {
            self.search(now);
        }
        self.found.pop_front().map(|(qp, _)| qp)
    }

    /// When to poll next; this time may have passed.
    pub fn next(&self) -> Option<Instant> {
        let found = self.found.front().map(|(_, since)| *since);
        let search = match self.search {
            Some(search) => Some(search.end),
            None => self.lost.values().min().map(|since| self.searched.max(*since)),
        };
        found.into_iter().chain(search).min()
    }

    /// A QP is destroyed or reset: it is not notified.
    pub fn forget(&mut self, qp: u32) {
        if let Some(position) = self.positions.get(&qp).copied() {
            self.leave(position);
        }
        self.found.retain(|(each, _)| *each != qp);
    }

    /// Advances the search to the time `now`.
    fn search(&mut self, now: Instant) {
        loop {
            match self.search {
                Some(search) if search.end > now => return,
                Some(search) => self.end(search),
                None => {
                    let Some(since) = self.lost.values().min().copied() else { return };
                    let begin = since.max(self.searched);
                    self.search = Some(Search { begin, end: begin + self.time() });
                }
            }
        }
    }

    /// Notifies all displaced QPs with pages that were present when the search began.
    fn end(&mut self, search: Search) {
        (self.search, self.searched) = (None, search.end);
        let present = self.lost.iter().filter(|(_, since)| **since <= search.begin).map(|(position, _)| *position);
        let present: Vec<u64> = present.collect();
        // The newest first.
        for position in present.into_iter().rev() {
            self.find(position, search.end);
        }
        for position in std::mem::take(&mut self.later) {
            if self.waiters.contains_key(&position) {
                self.page_present(position, search.end);
            }
        }
    }

    /// Duration of a search through all READs that wait now.
    fn time(&self) -> Duration {
        let reads = u32::try_from(self.reads).unwrap_or(u32::MAX);
        self.flood.map_or(Duration::ZERO, |flood| flood.search.saturating_mul(reads))
    }

    fn find(&mut self, position: u64, now: Instant) {
        if let Some(waiter) = self.leave(position) {
            self.found.push_back((waiter.qp, now));
        }
    }

    fn leave(&mut self, position: u64) -> Option<Waiter> {
        let waiter = self.waiters.remove(&position)?;
        self.positions.remove(&waiter.qp);
        self.lost.remove(&position);
        self.reads -= u64::from(waiter.reads);
        if position >= self.oldest_tracked {
            self.tracked -= u64::from(waiter.reads);
        }
        Some(waiter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEARCH: Duration = Duration::from_micros(100);

    fn fault_notifier(remembered: u32) -> FaultNotifier {
        FaultNotifier::new(Some(Flood { remembered, search: SEARCH }))
    }

    fn notified(fault_notifier: &mut FaultNotifier, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| fault_notifier.poll(now)).collect()
    }

    /// All QPs in the order of their notification, each with its time in µs.
    fn all(fault_notifier: &mut FaultNotifier) -> Vec<(u32, u64)> {
        let mut all = Vec::new();
        while let Some(next) = fault_notifier.next() {
            all.extend(notified(fault_notifier, next).into_iter().map(|qp| (qp, next.0 / 1000)));
        }
        all
    }

    #[test]
    fn the_newest_are_notified_at_once_and_the_others_after_the_search() {
        let mut fault_notifier = fault_notifier(3);
        (0..6).for_each(|qp| fault_notifier.waits(qp, 1));
        (0..6).for_each(|qp| fault_notifier.resolved(Instant(1_000_000), qp));
        assert_eq!(all(&mut fault_notifier), [(3, 1000), (4, 1000), (5, 1000), (2, 1300), (1, 1300), (0, 1300)]);
        assert_eq!(fault_notifier.next(), None);
    }

    #[test]
    fn each_read_of_a_qp_counts_in_capacity_and_search_time() {
        let mut fault_notifier = fault_notifier(8);
        (0..4).for_each(|qp| fault_notifier.waits(qp, 4));
        (0..4).for_each(|qp| fault_notifier.resolved(Instant(0), qp));
        assert_eq!(all(&mut fault_notifier), [(2, 0), (3, 0), (1, 800), (0, 800)]);
    }

    #[test]
    fn a_displaced_qp_is_not_tracked_again() {
        let mut fault_notifier = fault_notifier(2);
        (0..3).for_each(|qp| fault_notifier.waits(qp, 1));
        (1..3).for_each(|qp| fault_notifier.resolved(Instant(0), qp));
        assert_eq!(notified(&mut fault_notifier, Instant(0)), [1, 2]);
        fault_notifier.resolved(Instant(0), 0);
        // Waiting again does not change this.
        fault_notifier.waits(0, 1);
        assert_eq!(notified(&mut fault_notifier, Instant(99_999)), []);
        assert_eq!(fault_notifier.next(), Some(Instant(100_000)));
        assert_eq!(notified(&mut fault_notifier, Instant(100_000)), [0]);
        // After its notification it starts again.
        fault_notifier.waits(0, 1);
        fault_notifier.resolved(Instant(200_000), 0);
        assert_eq!(notified(&mut fault_notifier, Instant(200_000)), [0]);
    }

    #[test]
    fn no_qp_is_notified_before_its_page_is_present() {
        let mut fault_notifier = fault_notifier(1);
        (0..3).for_each(|qp| fault_notifier.waits(qp, 1));
        assert_eq!((fault_notifier.next(), notified(&mut fault_notifier, Instant(1 << 40))), (None, vec![]));
        fault_notifier.resolved(Instant(5_000_000), 0);
        // The search includes the READs that wait for other pages.
        assert_eq!(all(&mut fault_notifier), [(0, 5300)]);
        // A late poll catches up on missed searches.
        fault_notifier.resolved(Instant(6_000_000), 1);
        fault_notifier.resolved(Instant(6_000_000), 2);
        assert_eq!(notified(&mut fault_notifier, Instant(9_000_000)), [2, 1]);
    }

    #[test]
    fn a_page_that_comes_during_a_search_waits_for_the_next() {
        let mut fault_notifier = fault_notifier(1);
        (0..5).for_each(|qp| fault_notifier.waits(qp, 1));
        (0..2).for_each(|qp| fault_notifier.resolved(Instant(0), qp));
        assert_eq!((fault_notifier.poll(Instant(0)), fault_notifier.next()), (None, Some(Instant(500_000))));
        fault_notifier.resolved(Instant(100_000), 2);
        assert_eq!(notified(&mut fault_notifier, Instant(500_000)), [1, 0]);
        assert_eq!(all(&mut fault_notifier), [(2, 800)]);
    }

    #[test]
    fn no_qp_is_notified_during_a_search() {
        let mut fault_notifier = fault_notifier(2);
        (0..4).for_each(|qp| fault_notifier.waits(qp, 1));
        fault_notifier.resolved(Instant(0), 0);
        assert_eq!((fault_notifier.poll(Instant(0)), fault_notifier.next()), (None, Some(Instant(400_000))));
        // QP 3 is tracked, but the adapter is searching.
        fault_notifier.resolved(Instant(100_000), 3);
        fault_notifier.resolved(Instant(200_000), 2);
        fault_notifier.forget(2);
        assert_eq!(notified(&mut fault_notifier, Instant(399_999)), []);
        assert_eq!(notified(&mut fault_notifier, Instant(400_000)), [0, 3]);
        assert_eq!(fault_notifier.next(), None);
        fault_notifier.resolved(Instant(500_000), 1);
        assert_eq!(all(&mut fault_notifier), [(1, 600)]);
    }

    #[test]
    fn the_newest_qp_is_always_tracked() {
        let mut fault_notifier = fault_notifier(1);
        fault_notifier.waits(7, 16);
        fault_notifier.resolved(Instant(0), 7);
        assert_eq!(notified(&mut fault_notifier, Instant(0)), [7]);
    }

    #[test]
    fn without_the_flaw_all_are_notified_at_once() {
        let mut fault_notifier = FaultNotifier::new(None);
        (0..1000).for_each(|qp| fault_notifier.waits(qp, 16));
        (0..1000).for_each(|qp| fault_notifier.resolved(Instant(3), qp));
        assert_eq!(notified(&mut fault_notifier, Instant(3)), (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_forgotten_qp_is_not_notified() {
        let mut fault_notifier = fault_notifier(1);
        (0..4).for_each(|qp| fault_notifier.waits(qp, 1));
        (0..4).for_each(|qp| fault_notifier.resolved(Instant(0), qp));
        assert_eq!(fault_notifier.poll(Instant(0)), Some(3));
        [0, 2].into_iter().for_each(|qp| fault_notifier.forget(qp));
        assert_eq!(notified(&mut fault_notifier, Instant(1 << 40)), [1]);
        // A QP that never waited is notified too.
        fault_notifier.resolved(Instant(0), 9);
        fault_notifier.forget(9);
        assert_eq!(fault_notifier.poll(Instant(0)), None);
    }
}
