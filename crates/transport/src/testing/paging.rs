//! A node's translation table, and a fault thread in virtual time, which makes pages present after a while.

use super::rng::Rng;
use crate::{Delay, Denied, Instant, Side};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

/// The paging parameters of both nodes.
#[derive(Clone, Copy, Debug)]
pub struct PagingSetup {
    /// Page size in bytes.
    pub page: u64,
    /// Longest resolution time of a fault; the shortest is a tenth of it.
    pub resolve: Duration,
    /// Time from a page's entry into the table to the notification of the QP.
    pub notice: Duration,
    /// The most packets held for each side of a QP; further packets are dropped.
    pub held: usize,
}

impl Default for PagingSetup {
    fn default() -> Self {
        let [resolve, notice] = [50, 1].map(Duration::from_micros);
        PagingSetup { page: 1024, resolve, notice, held: 256 }
    }
}

/// Counters of page events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagingCounts {
    /// Accesses that met a missing page.
    pub met: u64,
    /// Faults that were started: other accesses joined one of them.
    pub begun: u64,
    /// Pages that were entered into the table.
    pub entered: u64,
    /// Faults that ended while their pages were being invalidated, and started again.
    pub raced: u64,
}

/// A pending fault or prefetch.
#[derive(Clone, Debug)]
struct Fault {
    due: Instant,
    pages: Range<u64>,
    write: bool,
    sides: BTreeSet<u8>,
}

/// The translation table.
#[derive(Clone, Debug)]
pub struct Paging {
    /// The time of the following accesses.
    pub now: Instant,
    /// The side on behalf of which received bytes are written.
    pub side: Side,
    pub counts: PagingCounts,
    setup: PagingSetup,
    rng: Rng,
    /// Pages in the table, and whether they are writable.
    present: BTreeMap<u64, bool>,
    /// Unmapped pages, which no fault can resolve.
    holes: BTreeSet<u64>,
    /// Faults that failed: the next access to the page gets the error.
    failed: BTreeSet<u64>,
    faults: Vec<Fault>,
    invalidating: Vec<(Instant, Range<u64>)>,
    /// Resolution time of a fault, if the profile specifies one.
    resolve_time: Delay,
    notices: Vec<(Instant, u8)>,
}

const SIDES: [Side; 2] = [Side::Requester, Side::Responder];

impl Paging {
    /// An empty table.
    pub fn new(setup: PagingSetup, seed: u64) -> Self {
        Paging {
            now: Instant(0),
            side: Side::Responder,
            counts: PagingCounts::default(),
            setup,
            rng: Rng(seed),
            present: BTreeMap::new(),
            holes: BTreeSet::new(),
            failed: BTreeSet::new(),
            faults: Vec::new(),
            invalidating: Vec::new(),
            resolve_time: Delay::exactly(Duration::ZERO),
            notices: Vec::new(),
        }
    }

    /// The number of present bytes from `addr`, up to `len`; starts a fault at the first missing page.
    pub fn reach(&mut self, addr: u64, len: u64, write: bool, side: Side) -> (u64, Result<(), Denied>) {
        let pages = self.pages(addr, len);
        let Some(missing) = pages.clone().find(|page| !self.has(*page, write)) else { return (len, Ok(())) };
        let reach = (missing * self.setup.page).saturating_sub(addr).min(len);
        if self.failed.remove(&missing) {
            return (reach, Err(Denied::Unmapped));
        }
        self.counts.met += 1;
        let merged = self.faults.iter_mut().find(|f| f.pages.contains(&missing) && (f.write || !write));
        match merged {
            Some(fault) => {
                fault.sides.insert(side as u8);
            }
            None => self.begin(missing..pages.end, write, Some(side)),
        }
        (reach, Err(Denied::PageFault))
    }

    /// Extends a pending fault at `addr` to all of `len` bytes.
    pub fn expect(&mut self, addr: u64, len: u64) {
        let pages = self.pages(addr, len);
        if let Some(fault) = self.faults.iter_mut().rfind(|fault| fault.pages.contains(&pages.start)) {
            fault.pages.end = fault.pages.end.max(pages.end);
        }
    }

    /// Starts to resolve pages before any access.
    pub fn prefetch(&mut self, addr: u64, len: u64, write: bool) {
        let pages = self.pages(addr, len);
        self.begin(pages, write, None);
    }

    /// Removes pages; faults cannot enter them again for `time`.
    pub fn invalidate(&mut self, addr: u64, len: u64, time: Duration) {
        let pages = self.pages(addr, len);
        self.present.retain(|page, _| !pages.contains(page));
        self.invalidating.push((self.now + time, pages));
    }

    /// The application unmaps pages: no fault can resolve them.
    pub fn unmap(&mut self, addr: u64, len: u64) {
        let pages = self.pages(addr, len);
        self.present.retain(|page, _| !pages.contains(page));
        self.holes.extend(pages);
    }

    /// The time of the next fault end or notification.
    pub fn next_event(&self) -> Option<Instant> {
        let faults = self.faults.iter().map(|fault| fault.due);
        faults.chain(self.notices.iter().map(|(at, _)| *at)).min()
    }

    /// Processes what is due, and returns the sides to notify.
    pub fn advance(&mut self, now: Instant) -> Vec<Side> {
        self.now = now;
        self.invalidating.retain(|(until, _)| *until > now);
        let (due, later) = std::mem::take(&mut self.faults).into_iter().partition(|fault: &Fault| fault.due <= now);
        self.faults = later;
        for fault in due {
            self.end(fault);
        }
        let (due, later): (Vec<_>, _) = std::mem::take(&mut self.notices).into_iter().partition(|(at, _)| *at <= now);
        self.notices = later;
        let sides: BTreeSet<u8> = due.into_iter().map(|(_, side)| side).collect();
        SIDES.into_iter().filter(|side| sides.contains(&(*side as u8))).collect()
    }

    fn begin(&mut self, pages: Range<u64>, write: bool, side: Option<Side>) {
        self.counts.begun += 1;
        let due = self.now + self.time();
        self.faults.push(Fault { due, pages, write, sides: side.map(|side| side as u8).into_iter().collect() });
    }

    /// Enters pages into the table. If they were invalidated meanwhile, the fault starts again instead.
    fn end(&mut self, mut fault: Fault) {
        let overlaps = |pages: &Range<u64>| pages.start < fault.pages.end && fault.pages.start < pages.end;
        if let Some(until) = self.invalidating.iter().filter(|(_, p)| overlaps(p)).map(|(until, _)| *until).max() {
            self.counts.raced += 1;
            fault.due = until + self.time();
            self.faults.push(fault);
            return;
        }
        for page in fault.pages {
            if self.holes.contains(&page) {
                self.failed.insert(page);
                break;
            }
            self.counts.entered += 1;
            *self.present.entry(page).or_default() |= fault.write;
        }
        let at = self.now + self.setup.notice;
        self.notices.extend(fault.sides.into_iter().map(|side| (at, side)));
    }

    fn has(&self, page: u64, write: bool) -> bool {
        self.present.get(&page).is_some_and(|writable| *writable || !write)
    }

    fn pages(&self, addr: u64, len: u64) -> Range<u64> {
        addr / self.setup.page..(addr + len).div_ceil(self.setup.page)
    }

    /// Sets the resolution time of all later faults.
    pub fn resolve_time(mut self, time: Delay) -> Self {
        self.resolve_time = time;
        self
    }

    fn time(&mut self) -> Duration {
        if !self.resolve_time.high.is_zero() {
            return self.resolve_time.at(self.rng.below(1000) as f64 / 999.0);
        }
        let tenth = self.setup.resolve / 10;
        tenth + (self.setup.resolve - tenth).mul_f64(self.rng.below(1000) as f64 / 1000.0)
    }
}
