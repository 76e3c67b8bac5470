//! Packet flood: a requester hears late that its page is there, and repeats its READs all the while (T 5.2).
//!
//! Seen: 128 READs of 32 bytes, each on a QP of its own, whose answers all go to one page that is missing. Completions
//! start after 1 ms, when the fault is resolved; but the *first* 30 READs stay open until 6 ms, and "the client kept
//! repeating the retransmission of the request, receiving the response, and discarding it" (T 5.2.2, fig 5.9). With more
//! QPs or pages it is far worse, and with few QPs nothing is seen of it (T fig 5.7).
//!
//! Supposed: the adapter keeps what it knows of waiting requests in a place for about a hundred of them. Whom it still
//! knows is told at once when the page is there; who was pushed out by newer ones has to be searched for, one after the
//! other, and each outstanding READ of a QP makes that longer. A requester that was not told goes on as if its page were
//! missing (`Qp::unaware_reads`).

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
    /// READs of those that were not.
    remembered: u64,
    /// Pushed out, and their pages are there: since when.
    lost: BTreeMap<u64, Instant>,
    /// Who is being searched for, and when he is found.
    search: Option<(u64, Instant)>,
    /// To be told now: since when.
    found: VecDeque<(u32, Instant)>,
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
            Some(&place) if place < self.oldest_remembered => {
                self.lost.entry(place).or_insert(now);
            }
            Some(&place) => self.find(place, now),
            None => self.found.push_back((qp, now)),
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
            Some((_, end)) => Some(end),
            None => self.lost.values().min().copied(),
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
        let mut free_since = Instant(0);
        loop {
            match self.search {
                Some((_, end)) if end > now => return,
                Some((place, end)) => {
                    self.search = None;
                    free_since = end;
                    if self.waiters.contains_key(&place) {
                        self.find(place, end);
                    }
                }
                None => {}
            }
            // The newest first.
            let Some((place, since)) = self.lost.pop_last() else { return };
            let end = since.max(free_since) + self.time(place);
            self.search = Some((place, end));
        }
    }

    fn time(&self, place: u64) -> Duration {
        let reads = self.waiters.get(&place).map_or(1, |waiter| waiter.reads);
        self.flood.map_or(Duration::ZERO, |flood| flood.search * reads)
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
        if place >= self.oldest_remembered {
            self.remembered -= u64::from(waiter.reads);
        }
        Some(waiter)
    }
}
