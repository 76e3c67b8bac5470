//! Which requests took so long that they are kept for analysis.
//!
//! This runs at each completion, so it is a comparison with a running mean for each class of size. It keeps more than
//! what is a stall: the analysis sees the whole run, and decides (`detect`).

use crate::layout::{SIZES, size_class};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Below this service time, ns, nothing is a stall: an interrupt or a preemption takes as long.
pub const FLOOR: u64 = 150_000;
/// How many times longer than usual a request takes to be kept.
const TIMES_LONGER: u64 = 4;

/// What requests of a QP usually take: running means of service times, ns.
#[derive(Default)]
pub struct Expectation {
    means: [AtomicU32; SIZES],
}

impl Expectation {
    /// Whether a request is kept that was served for `ns`; its time then counts for later requests.
    #[inline]
    pub fn is_late(&self, bytes: u32, ns: u64) -> bool {
        let mean = &self.means[size_class(bytes)];
        let before = u64::from(mean.load(Relaxed));
        // Without experience, 1 GB/s.
        let usual = if before == 0 { u64::from(bytes) } else { before };
        let late = ns >= FLOOR.max(TIMES_LONGER * usual);
        // An exception counts little, but what always takes long becomes usual.
        let counted = ns.min(2 * usual + 20_000);
        let after = if before == 0 { counted } else { before + counted / 8 - before / 8 };
        mean.store(after.clamp(1, u32::MAX.into()) as u32, Relaxed);
        late
    }

    /// Forgets all experience.
    pub fn clear(&self) {
        self.means.iter().for_each(|mean| mean.store(0, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_requests_are_never_late_and_rare_long_ones_always() {
        let expectation = Expectation::default();
        for n in 0..10_000u64 {
            assert!(!expectation.is_late(8, 2_000 + n % 100_000), "{n}");
            if n % 100 == 0 {
                assert!(expectation.is_late(8, 500_000_000), "{n}");
            }
        }
    }

    #[test]
    fn large_requests_may_take_the_time_of_their_bytes() {
        let expectation = Expectation::default();
        assert!(!expectation.is_late(1 << 20, 2_000_000));
        assert!(expectation.is_late(1 << 20, 100_000_000));
        assert!(expectation.is_late(8, 200_000), "small requests are another class");
    }

    #[test]
    fn what_always_takes_long_becomes_usual() {
        let expectation = Expectation::default();
        let late = (0..1000).filter(|_| expectation.is_late(1 << 20, 100_000_000)).count();
        assert!((1..60).contains(&late), "{late}");
    }
}
