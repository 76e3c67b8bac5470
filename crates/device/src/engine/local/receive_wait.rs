//! How long a ring waits for a receive of UC.
//!
//! A UC packet without a receive is lost. On a wire the receiver's socket buffer gives the program time to post one; a
//! ring is emptied as fast as it is filled, so the packet stays in the ring for a while. All packets behind it wait too,
//! those of other QPs included, so the waits have limits.

use std::time::Duration;
use weir_transport::Instant;

/// The longest wait for one packet.
const ONE: Duration = Duration::from_millis(20);
/// The longest time of all waits together until the ring was empty, where other QPs wait too. It grows again while the
/// ring does not wait.
const ALL: Duration = Duration::from_millis(100);
/// While a ring waits, it is looked at again after this time at the latest: no call of the program tells the engine
/// that a receive was posted.
pub const LOOK: Duration = Duration::from_micros(100);

/// The waits of a ring.
#[derive(Debug, Default)]
pub struct ReceiveWait {
    since: Option<Instant>,
    /// The time of the waits before.
    spent: Duration,
    /// When the last wait ended.
    ended: Instant,
}

impl ReceiveWait {
    /// The next packet lacks a receive. Returns whether the ring waits for it. `others`: other QPs use the ring too.
    pub fn waits(&mut self, now: Instant, others: bool) -> bool {
        if self.since.is_none() {
            self.spent = self.spent.saturating_sub(now - self.ended);
        }
        let waited = now - *self.since.get_or_insert(now);
        let waits = waited < ONE && (!others || self.spent + waited < ALL);
        if !waits {
            self.end(now);
        }
        waits
    }

    /// The next packet has a receive, needs none, or is dropped.
    #[inline]
    pub fn end(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            (self.spent, self.ended) = (self.spent + (now - since), now);
        }
    }

    /// The ring is empty.
    #[inline]
    pub fn reset(&mut self) {
        self.spent = Duration::ZERO;
    }

    /// Returns whether the ring waits.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.since.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// How long a ring waits for a packet from `from` on, if no receive comes.
    fn wait(waits: &mut ReceiveWait, from: u64, others: bool) -> u64 {
        let time = (0..).find(|time| !waits.waits(Instant(from + time * MS), others)).unwrap();
        assert!(!waits.is_waiting());
        time
    }

    #[test]
    fn a_ring_waits_for_a_packet_only_so_long() {
        let mut waits = ReceiveWait::default();
        for at in 0..100 {
            assert_eq!(wait(&mut waits, (7 + 20 * at) * MS, false), 20);
        }
        assert!(waits.waits(Instant(5000 * MS), false) && waits.is_waiting());
        waits.end(Instant(5019 * MS));
        assert!(!waits.is_waiting());
    }

    #[test]
    fn all_waits_of_a_ring_that_is_never_empty_have_a_limit_where_other_qps_use_it() {
        let mut waits = ReceiveWait::default();
        let (mut now, mut total) = (MS, 0);
        for _ in 0..100 {
            let waited = wait(&mut waits, now, true);
            total += waited;
            now += waited * MS;
        }
        assert_eq!(total, 100);
        // It waits again when it did not wait for some time, or was empty.
        assert_eq!(wait(&mut waits, now + 5 * MS, true), 5);
        waits.reset();
        assert_eq!(wait(&mut waits, now + 6 * MS, true), 20);
    }
}
