//! Packet flood: a requester learns late that its page is present, and keeps retransmitting its READs (T 5.2).
//!
//! Observed: 128 READs of 32 bytes, each on its own QP, with all responses to one missing page. Completions start
//! after 1 ms, when the fault is resolved; but the *first* 30 READs stay open until 6 ms, and "the client kept
//! repeating the retransmission of the request, receiving the response, and discarding it" (T 5.2.2, fig 5.9). With
//! more QPs or pages the delay is far longer, and with few QPs there is none (T fig 5.7).
//!
//! Hypothesis: the adapter keeps state of about a hundred waiting requests. It notifies the remembered ones at once
//! when the page is present. For requests that newer ones have displaced it searches through all waiting READs, one
//! after the other whatever their page, and notifies the displaced ones when the search ends: 30 READs take 5 ms, and
//! so 700 of the 800 that 200 QPs have outstanding take more than 100 ms. During a search it handles no other page: a
//! QP whose page becomes present meanwhile is notified after the search at the earliest, and each page may need a
//! search of its own. A requester that was not notified keeps dropping responses (`Qp::unaware_reads`).

use crate::{Flood, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The fault notifier: decides when each QP's requester is notified that its page is present. An adapter has one for
/// all QPs. Its host reports waiting QPs and resolved pages, and calls `Qp::page_resolved(now, Side::Requester)` for
/// the QPs that `poll` returns.
#[derive(Clone, Debug, Default)]
pub struct Announcer {
    flood: Option<Flood>,
    /// The waiting QPs by position, in the order in which they began to wait.
    waiters: BTreeMap<u64, Waiter>,
    /// The position of each waiting QP.
    places: BTreeMap<u32, u64>,
    /// The next position to assign.
    next_place: u64,
    /// Waiting QPs before this position are no longer remembered.
    oldest_remembered: u64,
    /// READs of the remembered waiting QPs, and of all waiting QPs.
    remembered: u64,
    reads: u64,
    /// Positions of displaced QPs with a present page, and the time since when it is present.
    lost: BTreeMap<u64, Instant>,
    /// The current search through all waiting READs.
    search: Option<Search>,
    /// The end of the last search.
    searched: Instant,
    /// Positions of the QPs whose pages became present during the search.
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

impl Announcer {
    /// `None`: every QP is notified at once.
    pub fn new(flood: Option<Flood>) -> Announcer {
        Announcer { flood, ..Announcer::default() }
    }

    /// The requester of a QP dropped a response because a page is missing, and has `reads` READs outstanding
    /// ([`crate::Qp::unaware_reads`]). A QP that waits already keeps its position.
    pub fn waits(&mut self, qp: u32, reads: u32) {
        let Some(flood) = self.flood else { return };
        if self.places.contains_key(&qp) {
            return;
        }
        let reads = reads.max(1);
        self.places.insert(qp, self.next_place);
        self.waiters.insert(self.next_place, Waiter { qp, reads });
        self.next_place += 1;
        self.remembered += u64::from(reads);
        self.reads += u64::from(reads);
        // The newest QP is remembered in any case.
        while self.remembered > u64::from(flood.remembered) {
            let Some((&place, oldest)) = self.waiters.range(self.oldest_remembered..).next() else { break };
            if place + 1 == self.next_place {
                break;
            }
            self.remembered -= u64::from(oldest.reads);
            self.oldest_remembered = place + 1;
        }
    }

    /// The page on which a QP's requester faulted is present (or its fault failed).
    pub fn resolved(&mut self, now: Instant, qp: u32) {
        match self.places.get(&qp) {
            Some(&place) if self.search.is_some_and(|search| now < search.end) => self.later.push(place),
            Some(&place) => self.there(place, now),
            None => self.found.push_back((qp, now)),
        }
    }

    /// The page of the QP at `place` is present, and the adapter is not searching.
    fn there(&mut self, place: u64, now: Instant) {
        if place < self.oldest_remembered {
            self.lost.entry(place).or_insert(now);
        } else {
            self.find(place, now);
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
        if let Some(place) = self.places.get(&qp).copied() {
            self.leave(place);
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

    /// Notifies all displaced QPs whose pages were present when the search began.
    fn end(&mut self, search: Search) {
        (self.search, self.searched) = (None, search.end);
        let there = self.lost.iter().filter(|(_, since)| **since <= search.begin).map(|(place, _)| *place);
        let there: Vec<u64> = there.collect();
        // The newest first.
        for place in there.into_iter().rev() {
            self.find(place, search.end);
        }
        for place in std::mem::take(&mut self.later) {
            if self.waiters.contains_key(&place) {
                self.there(place, search.end);
            }
        }
    }

    /// Duration of a search through all READs that wait now.
    fn time(&self) -> Duration {
        let reads = u32::try_from(self.reads).unwrap_or(u32::MAX);
        self.flood.map_or(Duration::ZERO, |flood| flood.search.saturating_mul(reads))
    }

    fn find(&mut self, place: u64, now: Instant) {
        if let Some(waiter) = self.leave(place) {
            self.found.push_back((waiter.qp, now));
        }
    }

    fn leave(&mut self, place: u64) -> Option<Waiter> {
        let waiter = self.waiters.remove(&place)?;
        self.places.remove(&waiter.qp);
        self.lost.remove(&place);
        self.reads -= u64::from(waiter.reads);
        if place >= self.oldest_remembered {
            self.remembered -= u64::from(waiter.reads);
        }
        Some(waiter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEARCH: Duration = Duration::from_micros(100);

    fn announcer(remembered: u32) -> Announcer {
        Announcer::new(Some(Flood { remembered, search: SEARCH }))
    }

    fn notified(announcer: &mut Announcer, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| announcer.poll(now)).collect()
    }

    /// All QPs in the order of their notification, each with its time in µs.
    fn all(announcer: &mut Announcer) -> Vec<(u32, u64)> {
        let mut all = Vec::new();
        while let Some(next) = announcer.next() {
            all.extend(notified(announcer, next).into_iter().map(|qp| (qp, next.0 / 1000)));
        }
        all
    }

    #[test]
    fn the_newest_are_notified_at_once_and_the_others_after_the_search() {
        let mut announcer = announcer(3);
        (0..6).for_each(|qp| announcer.waits(qp, 1));
        (0..6).for_each(|qp| announcer.resolved(Instant(1_000_000), qp));
        assert_eq!(all(&mut announcer), [(3, 1000), (4, 1000), (5, 1000), (2, 1300), (1, 1300), (0, 1300)]);
        assert_eq!(announcer.next(), None);
    }

    #[test]
    fn each_read_of_a_qp_counts_in_capacity_and_search_time() {
        let mut announcer = announcer(8);
        (0..4).for_each(|qp| announcer.waits(qp, 4));
        (0..4).for_each(|qp| announcer.resolved(Instant(0), qp));
        assert_eq!(all(&mut announcer), [(2, 0), (3, 0), (1, 800), (0, 800)]);
    }

    #[test]
    fn a_displaced_qp_is_not_remembered_again() {
        let mut announcer = announcer(2);
        (0..3).for_each(|qp| announcer.waits(qp, 1));
        (1..3).for_each(|qp| announcer.resolved(Instant(0), qp));
        assert_eq!(notified(&mut announcer, Instant(0)), [1, 2]);
        announcer.resolved(Instant(0), 0);
        // Waiting again does not change this.
        announcer.waits(0, 1);
        assert_eq!(notified(&mut announcer, Instant(99_999)), []);
        assert_eq!(announcer.next(), Some(Instant(100_000)));
        assert_eq!(notified(&mut announcer, Instant(100_000)), [0]);
        // After its notification it starts again.
        announcer.waits(0, 1);
        announcer.resolved(Instant(200_000), 0);
        assert_eq!(notified(&mut announcer, Instant(200_000)), [0]);
    }

    #[test]
    fn no_qp_is_notified_before_its_page_is_present() {
        let mut announcer = announcer(1);
        (0..3).for_each(|qp| announcer.waits(qp, 1));
        assert_eq!((announcer.next(), notified(&mut announcer, Instant(1 << 40))), (None, vec![]));
        announcer.resolved(Instant(5_000_000), 0);
        // The search includes the READs that wait for other pages.
        assert_eq!(all(&mut announcer), [(0, 5300)]);
        // A late poll catches up on missed searches.
        announcer.resolved(Instant(6_000_000), 1);
        announcer.resolved(Instant(6_000_000), 2);
        assert_eq!(notified(&mut announcer, Instant(9_000_000)), [2, 1]);
    }

    #[test]
    fn a_page_that_comes_during_a_search_waits_for_the_next() {
        let mut announcer = announcer(1);
        (0..5).for_each(|qp| announcer.waits(qp, 1));
        (0..2).for_each(|qp| announcer.resolved(Instant(0), qp));
        assert_eq!((announcer.poll(Instant(0)), announcer.next()), (None, Some(Instant(500_000))));
        announcer.resolved(Instant(100_000), 2);
        assert_eq!(notified(&mut announcer, Instant(500_000)), [1, 0]);
        assert_eq!(all(&mut announcer), [(2, 800)]);
    }

    #[test]
    fn no_qp_is_notified_during_a_search() {
        let mut announcer = announcer(2);
        (0..4).for_each(|qp| announcer.waits(qp, 1));
        announcer.resolved(Instant(0), 0);
        assert_eq!((announcer.poll(Instant(0)), announcer.next()), (None, Some(Instant(400_000))));
        // QP 3 is remembered, but the adapter is searching.
        announcer.resolved(Instant(100_000), 3);
        announcer.resolved(Instant(200_000), 2);
        announcer.forget(2);
        assert_eq!(notified(&mut announcer, Instant(399_999)), []);
        assert_eq!(notified(&mut announcer, Instant(400_000)), [0, 3]);
        assert_eq!(announcer.next(), None);
        announcer.resolved(Instant(500_000), 1);
        assert_eq!(all(&mut announcer), [(1, 600)]);
    }

    #[test]
    fn the_newest_one_is_always_remembered() {
        let mut announcer = announcer(1);
        announcer.waits(7, 16);
        announcer.resolved(Instant(0), 7);
        assert_eq!(notified(&mut announcer, Instant(0)), [7]);
    }

    #[test]
    fn without_the_flaw_all_are_notified_at_once() {
        let mut announcer = Announcer::new(None);
        (0..1000).for_each(|qp| announcer.waits(qp, 16));
        (0..1000).for_each(|qp| announcer.resolved(Instant(3), qp));
        assert_eq!(notified(&mut announcer, Instant(3)), (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_forgotten_qp_is_not_notified() {
        let mut announcer = announcer(1);
        (0..4).for_each(|qp| announcer.waits(qp, 1));
        (0..4).for_each(|qp| announcer.resolved(Instant(0), qp));
        assert_eq!(announcer.poll(Instant(0)), Some(3));
        [0, 2].into_iter().for_each(|qp| announcer.forget(qp));
        assert_eq!(notified(&mut announcer, Instant(1 << 40)), [1]);
        // A QP that never waited is notified too.
        announcer.resolved(Instant(0), 9);
        announcer.forget(9);
        assert_eq!(announcer.poll(Instant(0)), None);
    }
}
