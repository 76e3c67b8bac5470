//! A direction of the bus.

use weir_transport::Instant;

/// A direction of the bus as a clock: it carries one thing after the other, so its queue is the time at which it is
/// free.
#[derive(Debug, Default)]
pub(super) struct Bus {
    /// When it is free, picoseconds.
    free: u64,
}

impl Bus {
    /// Occupies it for a time, behind everything that came before. Returns when it is free again, rounded up to
    /// nanoseconds.
    pub fn occupy(&mut self, now: Instant, picoseconds: u64) -> Instant {
        // Events have whole nanoseconds: a gap below 1 ns is rounding, and is not kept.
        let gap = (now.0 * 1000).saturating_sub(self.free);
        let start = if gap < 1000 { self.free } else { now.0 * 1000 };
        self.free = start + picoseconds;
        Instant(self.free.div_ceil(1000)).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_carries_in_a_row_is_not_rounded() {
        let (mut bus, mut now) = (Bus::default(), Instant(5));
        for _ in 0..1000 {
            now = bus.occupy(now, 10_180);
        }
        assert_eq!(now, Instant(5 + 10_180));
        assert_eq!(bus.occupy(Instant(20_000), 1500), Instant(20_002), "it was idle");
        assert_eq!(bus.occupy(Instant(20_000), 1500), Instant(20_003), "it is busy");
    }
}
