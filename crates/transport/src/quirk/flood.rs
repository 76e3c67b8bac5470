//! Packet flood: a requester hears late that its page is there, and repeats its READs all the while (T 5.2).
//!
//! Seen: 128 READs of 32 bytes, each on a QP of its own, whose answers all go to one page that is missing. Completions
//! start after 1 ms, when the fault is resolved; but the *first* 30 READs stay open until 6 ms, and "the client kept
//! repeating the retransmission of the request, receiving the response, and discarding it" (T 5.2.2, fig 5.9). With more
//! QPs or pages it is far worse, and with few QPs nothing is seen of it (T fig 5.7). The vendor was told, and said nothing
//! of it that is known.
//!
//! Supposed: each QP has a page status of its own, and has to learn of each page. It learns of one at once when it waits
//! for it in the moment in which it comes, if it is one of about a hundred QPs that began to wait last, which the adapter
//! remembers. All others, those who were pushed out and those who come to a page that is there already, are told by a
//! search that goes through all QPs that wait, and tells them when it is through: 30 QPs take 5 ms, and 200 take 34 ms,
//! for each page anew. A requester that was not told goes on as if its page were missing (`Qp::is_unaware`).

use crate::{Flood, Instant};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// Decides when each QP's requester is told that its page is there. There is one for all QPs of an adapter; its host
/// says who waits and what is there, and calls `Qp::page_resolved(now, Side::Requester)` when it is told to.
#[derive(Clone, Debug, Default)]
pub struct Announcer {
    flood: Option<Flood>,
    /// Who waits, in the order in which they began to.
    waiters: BTreeMap<u64, u32>,
    /// Where each QP stands among them.
    places: HashMap<u32, u64>,
    /// The place of the next one.
    next_place: u64,
    /// All before this place were pushed out.
    oldest_remembered: u64,
    /// To be found by a search, for their pages are there: since when.
    lost: BTreeMap<u64, Instant>,
    /// All that waits is being gone through.
    search: Option<Search>,
    /// The end of the last search.
    searched: Instant,
    /// To be told now: since when.
    found: VecDeque<(u32, Instant)>,
    /// Pages that each QP has learnt of, and the one that it will learn of when it is told next.
    known: HashMap<u32, HashSet<u64>>,
    learns: HashMap<u32, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Search {
    begin: Instant,
    end: Instant,
}

impl Announcer {
    /// `None`: everybody is told at once.
    pub fn new(flood: Option<Flood>) -> Announcer {
        Announcer { flood, ..Announcer::default() }
    }

    /// Whether a QP's requester has learnt of a page (its number) that an answer goes to. If not, it meets a page fault,
    /// be the page there or not, and learns of it when it is told next.
    pub fn knows(&mut self, qp: u32, page: u64) -> bool {
        let known = self.flood.is_none() || self.known.get(&qp).is_some_and(|pages| pages.contains(&page));
        if !known {
            self.learns.insert(qp, page);
        }
        known
    }

    /// The requester of a QP dropped an answer for want of a page. If it waits already it keeps its place.
    pub fn waits(&mut self, qp: u32) {
        let Some(flood) = self.flood else { return };
        if self.places.contains_key(&qp) {
            return;
        }
        self.places.insert(qp, self.next_place);
        self.waiters.insert(self.next_place, qp);
        self.next_place += 1;
        // The newest one is remembered in any case.
        let remembered = flood.remembered.max(1) as usize;
        if let Some((place, _)) = self.waiters.iter().rev().nth(remembered) {
            self.oldest_remembered = self.oldest_remembered.max(place + 1);
        }
    }

    /// The page that a QP's requester met a fault for has come (or never will).
    pub fn resolved(&mut self, now: Instant, qp: u32) {
        match self.places.get(&qp) {
            Some(&place) if place < self.oldest_remembered => {
                self.lost.entry(place).or_insert(now);
            }
            Some(&place) => self.find(place, now),
            None => self.found.push_back((qp, now)),
        }
    }

    /// The page that a QP's requester met a fault for, and has not learnt of, was there already.
    pub fn is_there(&mut self, now: Instant, qp: u32) {
        match self.places.get(&qp) {
            Some(&place) => {
                self.lost.entry(place).or_insert(now);
            }
            None => self.found.push_back((qp, now)),
        }
    }

    /// A QP that is to be told by now: `Qp::page_resolved(now, Side::Requester)`. To be called until there is none.
    pub fn poll(&mut self, now: Instant) -> Option<u32> {
        self.search(now);
        let (qp, _) = self.found.pop_front()?;
        if let Some(page) = self.learns.remove(&qp) {
            self.known.entry(qp).or_default().insert(page);
        }
        Some(qp)
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

    /// A QP is no more, or begins afresh: it is told nothing, and knows of nothing.
    pub fn forget(&mut self, qp: u32) {
        if let Some(place) = self.places.get(&qp).copied() {
            self.leave(place);
        }
        self.found.retain(|(each, _)| *each != qp);
        self.learns.remove(&qp);
        self.known.remove(&qp);
    }

    /// Goes on searching, as far as time has come.
    fn search(&mut self, now: Instant) {
        let Some(flood) = self.flood else { return };
        loop {
            match self.search {
                Some(search) if search.end > now => return,
                Some(search) => self.end(search),
                None => {
                    let Some(since) = self.lost.values().min().copied() else { return };
                    let begin = since.max(self.searched);
                    let time = flood.search.saturating_mul(self.waiters.len() as u32);
                    self.search = Some(Search { begin, end: begin + time });
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
    }

    fn find(&mut self, place: u64, now: Instant) {
        if let Some(qp) = self.leave(place) {
            self.found.push_back((qp, now));
        }
    }

    fn leave(&mut self, place: u64) -> Option<u32> {
        let qp = self.waiters.remove(&place)?;
        self.places.remove(&qp);
        self.lost.remove(&place);
        Some(qp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

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
        (0..6).for_each(|qp| announcer.waits(qp));
        (0..6).for_each(|qp| announcer.resolved(Instant(1_000_000), qp));
        assert_eq!(all(&mut announcer), [(3, 1000), (4, 1000), (5, 1000), (2, 1300), (1, 1300), (0, 1300)]);
        assert_eq!(announcer.next(), None);
    }

    #[test]
    fn who_comes_to_a_page_that_is_there_has_to_learn_of_it() {
        let mut announcer = announcer(8);
        for (qp, at) in [(0, 0), (1, 500_000)] {
            assert!(!announcer.knows(qp, 7));
            announcer.waits(qp);
            announcer.is_there(Instant(at), qp);
            assert!(!announcer.knows(qp, 7), "not before it is told");
            assert_eq!(all(&mut announcer), [(qp, at / 1000 + 100)]);
            assert!(announcer.knows(qp, 7) && !announcer.knows(qp, 8));
        }
        announcer.forget(1);
        assert!(announcer.knows(0, 7) && !announcer.knows(1, 7));
    }

    #[test]
    fn who_was_pushed_out_is_not_remembered_again() {
        let mut announcer = announcer(2);
        (0..3).for_each(|qp| announcer.waits(qp));
        (1..3).for_each(|qp| announcer.resolved(Instant(0), qp));
        assert_eq!(told(&mut announcer, Instant(0)), [1, 2]);
        announcer.resolved(Instant(0), 0);
        // Waiting again changes nothing of it.
        announcer.waits(0);
        assert_eq!(told(&mut announcer, Instant(99_999)), []);
        assert_eq!(announcer.next(), Some(Instant(100_000)));
        assert_eq!(told(&mut announcer, Instant(100_000)), [0]);
        // Once told, it begins anew.
        announcer.waits(0);
        announcer.resolved(Instant(200_000), 0);
        assert_eq!(told(&mut announcer, Instant(200_000)), [0]);
    }

    #[test]
    fn nobody_is_told_before_his_page_is_there() {
        let mut announcer = announcer(1);
        (0..3).for_each(|qp| announcer.waits(qp));
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
        (0..5).for_each(|qp| announcer.waits(qp));
        (0..2).for_each(|qp| announcer.resolved(Instant(0), qp));
        assert_eq!((announcer.poll(Instant(0)), announcer.next()), (None, Some(Instant(500_000))));
        announcer.resolved(Instant(100_000), 2);
        assert_eq!(told(&mut announcer, Instant(500_000)), [1, 0]);
        assert_eq!(all(&mut announcer), [(2, 800)]);
    }

    #[test]
    fn the_newest_one_is_always_remembered() {
        let mut announcer = announcer(1);
        announcer.waits(7);
        announcer.resolved(Instant(0), 7);
        assert_eq!(told(&mut announcer, Instant(0)), [7]);
    }

    #[test]
    fn without_the_flaw_all_are_told_at_once() {
        let mut announcer = Announcer::new(None);
        (0..1000).for_each(|qp| announcer.waits(qp));
        (0..1000).for_each(|qp| announcer.resolved(Instant(3), qp));
        assert_eq!(told(&mut announcer, Instant(3)), (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn who_is_gone_is_told_nothing() {
        let mut announcer = announcer(1);
        (0..4).for_each(|qp| announcer.waits(qp));
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
