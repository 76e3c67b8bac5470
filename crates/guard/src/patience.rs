//! How long a request may be open before a guard acts.
//!
//! Time is judged from when the adapter could have begun with a request: since it was posted, or since the completion
//! before its own. What requests of a size usually take is learned, so that a slow network is no reason to act.

/// Nothing shorter is a stall, ns: a page fault takes as long, and so does another process on the core.
const LEAST: u64 = 2_000_000;
/// A READ that waits for a page fault of its own memory is over in this time if it is not stuck, ns (thesis 5.2.1).
const STUCK: u64 = 4_000_000;
/// How many times longer than usual a stall takes.
const TIMES: u64 = 4;
/// Distance of the first dummies, ns. A peer that replays a READ loses them, too: so others follow.
const APART: u64 = 2_000_000;
/// Dummies at that distance; after them it doubles each time.
const SOON: u32 = 6;
/// The longest that a READ may be open before it starts again, after earlier ones started again in vain, ns.
const MOST: u64 = 4_000_000_000;

/// What requests take, and how patient the guards are.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Running means of service times by powers of 4 of their bytes, ns; 0: unknown.
    usual: [u64; 20],
    stuck: u64,
}

impl Patience {
    pub fn new() -> Patience {
        Patience { usual: [0; 20], stuck: STUCK }
    }

    /// A request was served.
    pub fn learn(&mut self, bytes: u64, took: u64) {
        let usual = &mut self.usual[class(bytes)];
        if *usual == 0 {
            // The first may have met a page fault: what it says is no reason to wait longer than for an unknown size.
            *usual = took.clamp(1, LEAST / TIMES);
            return;
        }
        // An exception counts little, but what always takes long becomes usual. Stalls may be frequent, so what is fast
        // counts more.
        let counted = took.min(2 * *usual + LEAST);
        *usual =
            if counted > *usual { *usual + (counted - *usual) / 16 } else { *usual - (*usual - counted) / 4 }.max(1);
    }

    /// After this time, ns, the first dummy follows requests of so many bytes.
    pub fn dummy_after(&self, bytes: u64) -> u64 {
        LEAST.max(TIMES * self.expected(bytes))
    }

    /// The time from the `nth` dummy to the next, from 1.
    pub fn next_dummy_after(&self, nth: u32) -> u64 {
        APART << nth.saturating_sub(SOON).min(20)
    }

    /// After this time, ns, a READ starts again.
    pub fn stuck_after(&self, bytes: u64) -> u64 {
        self.stuck.max(TIMES * self.expected(bytes))
    }

    /// A READ that started again has completed, so long after that.
    pub fn started_again(&mut self, took: u64) {
        // It was not stuck for its own memory's sake if that took as long.
        self.stuck = if took < self.stuck { STUCK } else { (2 * self.stuck).min(MOST) };
    }

    fn expected(&self, bytes: u64) -> u64 {
        // Without experience, 1 GB/s.
        Some(self.usual[class(bytes)]).filter(|usual| *usual > 0).unwrap_or(bytes)
    }
}

fn class(bytes: u64) -> usize {
    (64 - bytes.leading_zeros() as usize) / 2 % 20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_network_needs_more_patience() {
        let mut patience = Patience::new();
        assert_eq!((patience.dummy_after(8), patience.stuck_after(8)), (LEAST, STUCK));
        assert_eq!(patience.dummy_after(1 << 30), TIMES << 30);
        (0..100).for_each(|_| patience.learn(8, 30_000_000));
        assert!(patience.dummy_after(8) > 60_000_000, "{}", patience.dummy_after(8));
        (0..100).for_each(|_| patience.learn(8, 10_000));
        assert_eq!(patience.dummy_after(8), LEAST);
        patience.learn(8, 500_000_000);
        assert_eq!(patience.dummy_after(8), LEAST, "a single stall is no rule");
        for _ in 0..100 {
            patience.learn(8, 5_000_000);
            patience.learn(8, 10_000);
        }
        assert!(patience.dummy_after(8) < 4_000_000, "half of the requests stall: {}", patience.dummy_after(8));
        let mut patience = Patience::new();
        patience.learn(8, 500_000_000);
        assert_eq!(patience.dummy_after(8), LEAST, "nor is the first");
    }

    #[test]
    fn dummies_follow_soon_and_then_more_and_more_rarely() {
        let patience = Patience::new();
        let times: Vec<u64> = (1..=9).map(|nth| patience.next_dummy_after(nth) / APART).collect();
        assert_eq!(times, [1, 1, 1, 1, 1, 1, 2, 4, 8]);
        assert!(patience.next_dummy_after(u32::MAX) > 0);
    }

    #[test]
    fn starting_again_in_vain_becomes_rare() {
        let mut patience = Patience::new();
        for _ in 0..30 {
            patience.started_again(patience.stuck_after(8));
        }
        assert_eq!(patience.stuck_after(8), MOST);
        patience.started_again(100_000);
        assert_eq!(patience.stuck_after(8), STUCK);
    }
}
