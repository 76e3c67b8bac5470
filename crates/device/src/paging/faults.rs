//! What a QP knows of its page faults: which of its sides waits, and which page it will not get.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use weir_transport::Side;

/// So often a page that was brought in may turn out not to be usable before it counts as missing for good.
const MISSES: u32 = 8;

/// Of one QP. Both sides wait on their own.
#[derive(Debug)]
pub struct QpFaults {
    /// The QP's number.
    pub num: u32,
    sides: [OfSide; 2],
}

#[derive(Debug, Default)]
struct OfSide {
    waits: AtomicBool,
    /// What could not be brought in: page number plus one, doubled, plus one if it was for writing. 0: nothing.
    failed: AtomicU64,
    /// What was last told of it.
    told: AtomicU64,
    /// The page that was there and could not be used, plus one, and how often that came.
    missed: AtomicU64,
    misses: AtomicU32,
}

impl QpFaults {
    pub fn new(num: u32) -> QpFaults {
        QpFaults { num, sides: Default::default() }
    }

    /// It begins to wait; false if it did already.
    pub fn begin(&self, side: Side) -> bool {
        !self.of(side).waits.swap(true, Ordering::AcqRel)
    }

    /// The wait is over, and one of the pages is not to be had.
    pub fn end(&self, side: Side, failed: Option<(u64, bool)>) {
        let of = self.of(side);
        if let Some((page, write)) = failed {
            of.failed.store((page + 1) << 1 | u64::from(write), Ordering::Relaxed);
        }
        of.waits.store(false, Ordering::Release);
    }

    /// Whether one of these pages could not be brought in when it was last waited for. Told once.
    pub fn take_failed(&self, side: Side, pages: &Range<u64>, write: bool) -> bool {
        let of = self.of(side);
        let failed = of.failed.swap(0, Ordering::Relaxed);
        let heeded = failed != 0 && pages.contains(&((failed >> 1) - 1)) && (failed & 1 == 1) == write;
        of.told.store(if heeded { failed } else { 0 }, Ordering::Relaxed);
        heeded
    }

    /// What was told last could not be heeded yet.
    pub fn tell_again(&self) {
        for of in &self.sides {
            let told = of.told.swap(0, Ordering::Relaxed);
            if told != 0 {
                of.failed.store(told, Ordering::Relaxed);
            }
        }
    }

    /// A page that was there could not be used. Whether that came so often that it will never be.
    pub fn missed(&self, side: Side, page: u64) -> bool {
        let of = self.of(side);
        if of.missed.swap(page + 1, Ordering::Relaxed) != page + 1 {
            of.misses.store(0, Ordering::Relaxed);
        }
        let hopeless = of.misses.fetch_add(1, Ordering::Relaxed) >= MISSES;
        if hopeless {
            of.missed.store(0, Ordering::Relaxed);
        }
        hopeless
    }

    fn of(&self, side: Side) -> &OfSide {
        &self.sides[side as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_once_and_for_what_it_was() {
        let faults = QpFaults::new(1);
        assert!(faults.begin(Side::Requester) && !faults.begin(Side::Requester) && faults.begin(Side::Responder));
        faults.end(Side::Requester, Some((7, true)));
        assert!(!faults.take_failed(Side::Responder, &(0..10), true));
        assert!(faults.take_failed(Side::Requester, &(7..8), true));
        faults.tell_again();
        assert!(faults.take_failed(Side::Requester, &(7..8), true));
        assert!(!faults.take_failed(Side::Requester, &(7..8), true));
        faults.end(Side::Requester, Some((7, true)));
        assert!(!faults.take_failed(Side::Requester, &(7..8), false));
        assert!(faults.begin(Side::Requester));
    }

    #[test]
    fn what_never_becomes_usable_is_given_up() {
        let faults = QpFaults::new(1);
        assert!((0..MISSES).all(|_| !faults.missed(Side::Responder, 5)));
        assert!(!faults.missed(Side::Responder, 6));
        assert!((0..MISSES).all(|_| !faults.missed(Side::Responder, 5)));
        assert!(faults.missed(Side::Responder, 5));
    }
}
