//! Packet flood: a requester hears late that its page is there, and repeats its READs all the while (T 5.2).
//!
//! Seen: 128 READs of 32 bytes, each on a QP of its own, whose answers all go to one page that is missing. Completions
//! start after 1 ms, when the fault is resolved; but the *first* 30 READs stay open until 6 ms, and "the client kept
//! repeating the retransmission of the request, receiving the response, and discarding it" (T 5.2.2, fig 5.9). With more
//! QPs or pages it is far worse, and with few QPs nothing is seen of it (T fig 5.7).
//!
//! Supposed: the adapter keeps what it knows of waiting requests in a place for about a hundred of them. Whom it still
//! knows is told at once when the page is there. For those who were pushed out by newer ones it goes through all that
//! still waits, one READ after the other whatever its page, and tells them when it is through: 30 READs take 5 ms, and
//! so 700 of the 800 that 200 QPs have outstanding take more than 100 ms. Meanwhile it sees to no other page: whoever's
//! comes during a search is told nothing before its end, and there may be one for each page. A requester that was not told
//! goes on as if its page were missing (`Qp::unaware_reads`).

use crate::{Flood, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Decides when each QP's requester is told that its page is there. There is one for all QPs of an adapter; its host
/// says who waits and what is there, and calls `Qp::page_resolved(now, Side::Requester)` when it is told to.
#[derive(Clone, Debug, Default)]
pub struct Announcer {
    flood: Option<Flood>,
    /// Who waits, in the order in which they began to.
    waiters: BTreeMap<u64, Waiter>,
    /// Where each QP stands among them.
    places: BTreeMap<u32, u64>,
    /// The place of the next one.
    next_place: u64,
    /// All before this place were pushed out.
    oldest_remembered: u64,
    /// READs of those that were not, and of all.
    remembered: u64,
    reads: u64,
    /// Pushed out, and their pages are there: since when.
    lost: BTreeMap<u64, Instant>,
    /// All that waits is being gone through.
    search: Option<Search>,
    /// The end of the last search.
    searched: Instant,
    /// Whose pages came during the search: their places.
    later: Vec<u64>,
    /// To be told now: since when.
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
    /// `None`: everybody is told at once.
    pub fn new(flood: Option<Flood>) -> Announcer {
        Announcer { flood, ..Announcer::default() }
    }

    /// The requester of a QP dropped an answer for want of a page: it has so many READs outstanding
    /// ([`crate::Qp::unaware_reads`]). If it waits already it keeps its place.
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
        // The newest one is remembered in any case.
        while self.remembered > u64::from(flood.remembered) {
            let Some((&place, oldest)) = self.waiters.range(self.oldest_remembered..).next() else { break };
            if place + 1 == self.next_place {
                break;
            }
            self.remembered -= u64::from(oldest.reads);
            self.oldest_remembered = place + 1;
        }
    }

    /// The page that a QP's requester met a fault for is there (or never will be).
    pub fn resolved(&mut self, now: Instant, qp: u32) {
        match self.places.get(&qp) {
            Some(&place) if self.search.is_some_and(|search| now < search.end) => self.later.push(place),
            Some(&place) => self.there(place, now),
            None => self.found.push_back((qp, now)),
        }
    }

    /// The page that is waited for in a place is there, and the adapter is free to look after it.
    fn there(&mut self, place: u64, now: Instant) {
        if place < self.oldest_remembered {
            self.lost.entry(place).or_insert(now);
        } else {
            self.find(place, now);
        }
    }

    /// A QP that is to be told by now: `Qp::page_resolved(now, Side::Requester)`. To be called until there is none.
    pub fn poll(&mut self, now: Instant) -> Option<u32> {
        if self.flood.is_some() {
            self.search(now);
        }
        self.found.pop_front().map(|(qp, _)| qp)
    }

    /// When to poll next; it may have passed.
    pub fn next(&self) -> Option<Instant> {
        let found = self.found.front().map(|(_, since)| *since);
        let search = match self.search {
            Some(search) => Some(search.end),
            None => self.lost.values().min().map(|since| self.searched.max(*since)),
        };
        found.into_iter().chain(search).min()
    }

    /// A QP is no more, or begins afresh: it is told nothing.
    pub fn forget(&mut self, qp: u32) {
        if let Some(place) = self.places.get(&qp).copied() {
            self.leave(place);
        }
        self.found.retain(|(each, _)| *each != qp);
    }

    /// Goes on searching, as far as time has come.
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

    /// Tells everybody whose page was there when the search began.
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

    /// How long it takes to go through all that waits now.
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

    fn told(announcer: &mut Announcer, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| announcer.poll(now)).collect()
    }

    /// Everybody until nobody is left, with when he was told.
    fn all(announcer: &mut Announcer) -> Vec<(u32, u64)> {
        let mut all = Vec::new();
        while let Some(next) = announcer.next() {
            all.extend(told(announcer, next).into_iter().map(|qp| (qp, next.0 / 1000)));
        }
        all
    }

    #[test]
    fn the_newest_are_told_at_once_and_the_others_when_all_was_gone_through() {
        let mut announcer = announcer(3);
        (0..6).for_each(|qp| announcer.waits(qp, 1));
        (0..6).for_each(|qp| announcer.resolved(Instant(1_000_000), qp));
        assert_eq!(all(&mut announcer), [(3, 1000), (4, 1000), (5, 1000), (2, 1300), (1, 1300), (0, 1300)]);
        assert_eq!(announcer.next(), None);
    }

    #[test]
    fn each_read_of_a_qp_takes_its_place_and_its_time() {
        let mut announcer = announcer(8);
        (0..4).for_each(|qp| announcer.waits(qp, 4));
        (0..4).for_each(|qp| announcer.resolved(Instant(0), qp));
        assert_eq!(all(&mut announcer), [(2, 0), (3, 0), (1, 800), (0, 800)]);
    }

    #[test]
    fn who_was_pushed_out_is_not_remembered_again() {
        let mut announcer = announcer(2);
        (0..3).for_each(|qp| announcer.waits(qp, 1));
        (1..3).for_each(|qp| announcer.resolved(Instant(0), qp));
        assert_eq!(told(&mut announcer, Instant(0)), [1, 2]);
        announcer.resolved(Instant(0), 0);
        // Waiting again changes nothing of it.
        announcer.waits(0, 1);
        assert_eq!(told(&mut announcer, Instant(99_999)), []);
        assert_eq!(announcer.next(), Some(Instant(100_000)));
        assert_eq!(told(&mut announcer, Instant(100_000)), [0]);
        // Once told, it begins anew.
        announcer.waits(0, 1);
        announcer.resolved(Instant(200_000), 0);
        assert_eq!(told(&mut announcer, Instant(200_000)), [0]);
    }

    #[test]
    fn nobody_is_told_before_his_page_is_there() {
        let mut announcer = announcer(1);
        (0..3).for_each(|qp| announcer.waits(qp, 1));
        assert_eq!((announcer.next(), told(&mut announcer, Instant(1 << 40))), (None, vec![]));
        announcer.resolved(Instant(5_000_000), 0);
        // What waits for other pages is gone through, too.
        assert_eq!(all(&mut announcer), [(0, 5300)]);
        // A late look makes up for what it missed.
        announcer.resolved(Instant(6_000_000), 1);
        announcer.resolved(Instant(6_000_000), 2);
        assert_eq!(told(&mut announcer, Instant(9_000_000)), [2, 1]);
    }

    #[test]
    fn whose_page_comes_during_a_search_waits_for_the_next() {
        let mut announcer = announcer(1);
        (0..5).for_each(|qp| announcer.waits(qp, 1));
        (0..2).for_each(|qp| announcer.resolved(Instant(0), qp));
        assert_eq!((announcer.poll(Instant(0)), announcer.next()), (None, Some(Instant(500_000))));
        announcer.resolved(Instant(100_000), 2);
        assert_eq!(told(&mut announcer, Instant(500_000)), [1, 0]);
        assert_eq!(all(&mut announcer), [(2, 800)]);
    }

    #[test]
    fn during_a_search_nobody_hears_of_another_page() {
        let mut announcer = announcer(2);
        (0..4).for_each(|qp| announcer.waits(qp, 1));
        announcer.resolved(Instant(0), 0);
        assert_eq!((announcer.poll(Instant(0)), announcer.next()), (None, Some(Instant(400_000))));
        // It is remembered; but the adapter is busy.
        announcer.resolved(Instant(100_000), 3);
        announcer.resolved(Instant(200_000), 2);
        announcer.forget(2);
        assert_eq!(told(&mut announcer, Instant(399_999)), []);
        assert_eq!(told(&mut announcer, Instant(400_000)), [0, 3]);
        assert_eq!(announcer.next(), None);
        announcer.resolved(Instant(500_000), 1);
        assert_eq!(all(&mut announcer), [(1, 600)]);
    }

    #[test]
    fn the_newest_one_is_always_remembered() {
        let mut announcer = announcer(1);
        announcer.waits(7, 16);
        announcer.resolved(Instant(0), 7);
        assert_eq!(told(&mut announcer, Instant(0)), [7]);
    }

    #[test]
    fn without_the_flaw_all_are_told_at_once() {
        let mut announcer = Announcer::new(None);
        (0..1000).for_each(|qp| announcer.waits(qp, 16));
        (0..1000).for_each(|qp| announcer.resolved(Instant(3), qp));
        assert_eq!(told(&mut announcer, Instant(3)), (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn who_is_gone_is_told_nothing() {
        let mut announcer = announcer(1);
        (0..4).for_each(|qp| announcer.waits(qp, 1));
        (0..4).for_each(|qp| announcer.resolved(Instant(0), qp));
        assert_eq!(announcer.poll(Instant(0)), Some(3));
        [0, 2].into_iter().for_each(|qp| announcer.forget(qp));
        assert_eq!(told(&mut announcer, Instant(1 << 40)), [1]);
        // QPs that never waited are told too: somebody else's fault.
        announcer.resolved(Instant(0), 9);
        announcer.forget(9);
        assert_eq!(announcer.poll(Instant(0)), None);
    }
}
