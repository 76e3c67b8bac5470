//! How long a packet waits for its link, as the times show at which packets leave and come.
//!
//! The peer says how long the newest packet of a link took, by two clocks that differ by an unknown time. The least of
//! these delays is that of an empty link, and what a packet took longer it has waited. So this side knows when the link had
//! carried that packet, and by the link's rate when it will have carried those behind it, however long the
//! acknowledgement took: it may have waited behind packets of the other direction.

use crate::Instant;
use std::time::Duration;

/// After this time the least delay is measured anew, because it may change, and clocks drift.
const BASE_LASTS: Duration = Duration::from_secs(5);

/// What waits for a link.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The least delay, and when it was measured.
    base: Option<(Delay, Instant)>,
    /// When the link will have carried what was put on it, but for the delay of an empty link.
    free: Instant,
}

/// How long a packet took, µs, plus a time that is the same for all packets of a connection, and drifts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Delay(pub u32);

impl Delay {
    /// How much longer this is than another, µs.
    pub fn longer_than(self, other: Delay) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

impl Queue {
    /// The delay of the empty link, if it is known.
    pub fn base(&self) -> Option<Delay> {
        self.base.map(|(base, _)| base)
    }

    /// Whether the delay of the empty link is so old that the link should run empty once.
    pub fn base_is_old(&self, now: Instant) -> bool {
        self.base.is_some_and(|(_, at)| now - at > BASE_LASTS)
    }

    /// The link has run empty: its delay can be measured anew.
    pub fn forget_base(&mut self) {
        self.base = None;
    }

    /// How long a packet that is put on the link now waits behind others, ns.
    pub fn wait(&self, now: Instant) -> u64 {
        self.free.0.saturating_sub(now.0)
    }

    /// When a packet will have to wait for no longer than this, ns.
    pub fn waits_for(&self, wait: u64) -> Instant {
        Instant(self.free.0.saturating_sub(wait))
    }

    /// A packet is put on the link, which takes so long to carry it, ns.
    pub fn put(&mut self, now: Instant, carries: u64) {
        self.free = Instant(self.free.max(now).0.saturating_add(carries));
    }

    /// A packet that left at `left` has come, `delay` later; what was put on the link behind it takes `behind` to carry, ns.
    /// Returns when the link had carried the packet.
    pub fn came(&mut self, now: Instant, left: Instant, delay: Delay, behind: u64) -> Instant {
        let base = match self.base {
            Some((base, _)) if delay.longer_than(base) > 0 => base,
            _ => self.base.insert((delay, now)).0,
        };
        let waited = Duration::from_micros(delay.longer_than(base).max(0) as u64);
        // It has come, whatever the clocks say.
        let carried = (left + waited).min(now);
        self.free = Instant(carried.0.saturating_add(behind));
        carried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Instant {
        Instant(us * 1000)
    }

    fn ns(us: u64) -> u64 {
        us * 1000
    }

    /// The peer's clock is behind, and the numbers pass zero.
    const EMPTY: Delay = Delay(-150i32 as u32);

    fn longer(us: u32) -> Delay {
        Delay(EMPTY.0.wrapping_add(us))
    }

    #[test]
    fn a_late_acknowledgement_says_when_the_link_had_carried_a_packet() {
        let mut queue = Queue::default();
        assert_eq!(queue.came(us(100), us(0), EMPTY, 0), us(0));
        // Ten packets of 100 µs, all put on the link at 1 ms. The third took 200 µs longer than on an empty link, which is
        // known 700 µs after it left.
        (0..10).for_each(|_| queue.put(us(1000), ns(100)));
        assert_eq!(queue.wait(us(1000)), ns(1000));
        assert_eq!(queue.came(us(1700), us(1000), longer(200), ns(700)), us(1200));
        assert_eq!(queue.wait(us(1700)), ns(200));
        assert_eq!(queue.waits_for(ns(150)), us(1750));
        assert_eq!(queue.wait(us(5000)), 0);
        queue.put(us(5000), ns(100));
        assert_eq!(queue.wait(us(5000)), ns(100), "an empty link has saved nothing");
    }

    #[test]
    fn the_least_delay_is_that_of_the_empty_link() {
        let mut queue = Queue::default();
        queue.came(us(100), us(0), longer(300), 0);
        queue.came(us(200), us(100), EMPTY, 0);
        queue.came(us(300), us(200), longer(10), 0);
        assert_eq!(queue.base(), Some(EMPTY));
        assert!(!queue.base_is_old(us(5_000_000)) && queue.base_is_old(us(5_001_000)));
        queue.forget_base();
        queue.came(us(400), us(300), longer(20), 0);
        assert_eq!(queue.base(), Some(longer(20)));
    }

    #[test]
    fn clocks_and_peers_that_lie_do_not_fill_a_link() {
        let mut queue = Queue::default();
        queue.came(us(100), us(0), EMPTY, 0);
        assert_eq!(queue.came(us(200), us(100), longer(1 << 30), ns(5)), us(200));
        assert_eq!(queue.wait(us(200)), ns(5));
    }
}
