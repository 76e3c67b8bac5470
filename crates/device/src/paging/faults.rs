//! Page faults of a QP: which of its sides waits, and which page could not be populated; and what was refused last.

use crate::memory::refusal::Refusal;
use crate::os::clock;
use crate::os::locks::LeafMutex;
use crate::paging::cost::Cost;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use weir_transport::Side;

/// An access to a page that is in the table may fail this many times before the page counts as unmapped.
const MISSES: u32 = 8;

/// The page faults of a QP. Each side waits independently.
#[derive(Debug)]
pub struct QpFaults {
    /// The QP's number.
    pub num: u32,
    sides: [OfSide; 2],
    /// What was refused last.
    refusal: LeafMutex<Option<Refusal>>,
}

/// The QP side that met a fault.
#[derive(Clone, Copy)]
pub struct FaultOrigin<'a> {
    pub faults: &'a Arc<QpFaults>,
    pub side: Side,
}

#[derive(Debug, Default)]
struct OfSide {
    waits: AtomicBool,
    /// The page that could not be populated: page number plus one, doubled, plus one if it was for writing. 0: none.
    failed: AtomicU64,
    /// The failure that `take_failed` last returned.
    returned: AtomicU64,
    /// The page that was in the table but not accessible, plus one. `misses` counts how often.
    missed: AtomicU64,
    misses: AtomicU32,
    /// The cost of a fault that has ended, until the QP continues.
    cost: LeafMutex<Option<Cost>>,
}

impl QpFaults {
    /// No side of the QP with number `num` waits.
    pub fn new(num: u32) -> QpFaults {
        QpFaults { num, sides: Default::default(), refusal: LeafMutex::default() }
    }

    /// An access to memory, or a request about a window, was refused.
    pub fn note_refusal(&self, refusal: Refusal) {
        *self.refusal.lock() = Some(refusal);
    }

    /// What was refused last, if a side of the QP made the request; returned once.
    pub fn take_refusal(&self, side: Side) -> Option<Refusal> {
        self.refusal.lock().take().filter(|refusal| refusal.side() == side)
    }

    /// Begins a wait. Returns false if this side waits already.
    pub fn begin(&self, side: Side) -> bool {
        let begins = !self.of(side).waits.swap(true, Ordering::AcqRel);
        if begins {
            // The side has continued since its last fault ended, before the engine had it on its list.
            self.resume(side);
        }
        begins
    }

    /// Ends the wait. `failed`: the page that could not be populated, and whether it was for writing.
    pub fn end(&self, side: Side, failed: Option<(u64, bool)>) {
        let of = self.of(side);
        if let Some((page, write)) = failed {
            of.failed.store((page + 1) << 1 | u64::from(write), Ordering::Relaxed);
        }
        of.waits.store(false, Ordering::Release);
    }

    /// Keeps the cost of a fault that ends now, until the side continues.
    pub fn keep_cost(&self, side: Side, cost: Cost) {
        *self.of(side).cost.lock() = Some(cost);
    }

    /// The side continues: counts the cost of the fault that it waited for.
    pub fn resume(&self, side: Side) {
        let cost = self.of(side).cost.lock().take();
        if let Some(cost) = cost {
            cost.count(clock::now().0);
        }
    }

    /// Returns whether one of these pages could not be populated at the last wait. A failure is returned once.
    pub fn take_failed(&self, side: Side, pages: &Range<u64>, write: bool) -> bool {
        let of = self.of(side);
        let failed = of.failed.swap(0, Ordering::Relaxed);
        let matches = failed != 0 && pages.contains(&((failed >> 1) - 1)) && (failed & 1 == 1) == write;
        of.returned.store(if matches { failed } else { 0 }, Ordering::Relaxed);
        matches
    }

    /// Restores the failure that `take_failed` last returned, because the caller could not act on it yet.
    pub fn restore_failed(&self) {
        for of in &self.sides {
            let returned = of.returned.swap(0, Ordering::Relaxed);
            if returned != 0 {
                of.failed.store(returned, Ordering::Relaxed);
            }
        }
    }

    /// An access to a page that is in the table failed. Returns whether that happened so often that the page counts as
    /// unmapped.
    pub fn missed(&self, side: Side, page: u64) -> bool {
        let of = self.of(side);
        if of.missed.swap(page + 1, Ordering::Relaxed) != page + 1 {
            of.misses.store(0, Ordering::Relaxed);
        }
        let unmapped = of.misses.fetch_add(1, Ordering::Relaxed) >= MISSES;
        if unmapped {
            of.missed.store(0, Ordering::Relaxed);
        }
        unmapped
    }

    fn of(&self, side: Side) -> &OfSide {
        &self.sides[side as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_returned_once_for_the_same_page_and_access() {
        let faults = QpFaults::new(1);
        assert!(faults.begin(Side::Requester) && !faults.begin(Side::Requester) && faults.begin(Side::Responder));
        faults.end(Side::Requester, Some((7, true)));
        assert!(!faults.take_failed(Side::Responder, &(0..10), true));
        assert!(faults.take_failed(Side::Requester, &(7..8), true));
        faults.restore_failed();
        assert!(faults.take_failed(Side::Requester, &(7..8), true));
        assert!(!faults.take_failed(Side::Requester, &(7..8), true));
        faults.end(Side::Requester, Some((7, true)));
        assert!(!faults.take_failed(Side::Requester, &(7..8), false));
        assert!(faults.begin(Side::Requester));
    }

    #[test]
    fn a_page_that_never_becomes_accessible_counts_as_unmapped() {
        let faults = QpFaults::new(1);
        assert!((0..MISSES).all(|_| !faults.missed(Side::Responder, 5)));
        assert!(!faults.missed(Side::Responder, 6));
        assert!((0..MISSES).all(|_| !faults.missed(Side::Responder, 5)));
        assert!(faults.missed(Side::Responder, 5));
    }
}
