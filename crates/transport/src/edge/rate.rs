//! How fast a link is, as its acknowledgements show.
//!
//! What arrives between the departure of a packet and its acknowledgement is at most what the link carries, and exactly
//! that if the link was full. So the rate is the largest of such samples lately.

use crate::Instant;
use std::time::Duration;

/// A sample counts for one to two of these spans.
const SPAN: Duration = Duration::from_millis(10);
/// After this time the shortest round trip is measured anew, because a link's delay may change.
const BASE_LASTS: Duration = Duration::from_secs(5);

/// The measured rate and round trip of a link.
#[derive(Debug)]
pub(super) struct Rate {
    /// Bytes per second before there is a sample.
    guess: f64,
    /// The largest samples of the last span and of the present one, bytes per second.
    samples: [Option<f64>; 2],
    /// The present span began.
    since: Instant,
    /// What has arrived.
    progress: Progress,
    /// Running mean of round trips.
    smoothed: Option<Duration>,
    /// The shortest round trip, and when it was measured.
    base: Option<(Duration, Instant)>,
}

/// What had arrived when a packet left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    bytes: u64,
    /// When the latest of them was known to have arrived, and when it had left.
    known: Instant,
    left: Instant,
}

impl Rate {
    /// Begins with a guess, in bytes per second.
    pub fn new(guess: f64) -> Rate {
        Rate { guess, samples: [None; 2], since: Instant(0), progress: Progress::default(), smoothed: None, base: None }
    }

    /// Bytes per second.
    pub fn bytes_per_second(&self) -> f64 {
        self.samples.iter().flatten().copied().reduce(f64::max).unwrap_or(self.guess)
    }

    /// Running mean of the round trips, without the time for which the peer held an acknowledgement.
    pub fn round_trip(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The shortest round trip.
    pub fn base(&self) -> Option<Duration> {
        self.base.map(|(base, _)| base)
    }

    /// Whether the shortest round trip is so old that the link should run empty once.
    pub fn base_is_old(&self, now: Instant) -> bool {
        self.base.is_some_and(|(_, at)| now - at > BASE_LASTS)
    }

    /// The link works, and has carried nothing for a while: it may be faster than it was.
    pub fn try_more(&mut self) {
        self.samples[1] = Some(self.bytes_per_second().max(self.guess.min(2.0 * self.bytes_per_second())));
    }

    /// The link has run empty so that the shortest round trip can be measured anew.
    pub fn forget_base(&mut self) {
        self.base = None;
    }

    /// A packet leaves. `first`: no other is on the link.
    pub fn leaves(&mut self, now: Instant, first: bool) -> Progress {
        if first {
            (self.progress.known, self.progress.left) = (now, now);
        }
        self.progress
    }

    /// A packet's round trip, without the time for which the peer held the acknowledgement.
    pub fn took(&mut self, now: Instant, round_trip: Duration) {
        // A link that becomes slower is not silent: that must be known soon.
        self.smoothed = Some(self.smoothed.map_or(round_trip, |smoothed| match round_trip > smoothed {
            true => (smoothed + round_trip) / 2,
            false => (smoothed * 7 + round_trip) / 8,
        }));
        if self.base.is_none_or(|(base, _)| round_trip <= base) {
            self.base = Some((round_trip, now));
        }
    }

    /// A packet of so many bytes has arrived, which left at `left`, when `before` had arrived. `all`: the caller had no
    /// more for the links than it sent, so a low rate says nothing.
    pub fn arrived(&mut self, now: Instant, bytes: u64, left: Instant, before: Progress, all: bool) {
        self.progress = Progress { bytes: self.progress.bytes + bytes, known: now, left };
        // Acknowledgements may come closer together than the packets were, and packets may have left so.
        let elapsed = (now - before.known).max(left - before.left).as_secs_f64();
        if elapsed <= 0.0 {
            return;
        }
        let sample = (self.progress.bytes - before.bytes) as f64 / elapsed;
        if all && sample <= self.bytes_per_second() {
            return;
        }
        if now - self.since > SPAN.max(2 * self.base().unwrap_or_default()) {
            (self.samples, self.since) = ([self.samples[1], None], now);
        }
        self.samples[1] = Some(self.samples[1].map_or(sample, |largest| largest.max(sample)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// A link that takes 10 µs for each packet of 1000 bytes: 1e8 bytes per second.
    struct Sending {
        rate: Rate,
        now: Instant,
        flight: VecDeque<(Instant, Progress)>,
    }

    impl Sending {
        fn new(guess: f64) -> Sending {
            Sending { rate: Rate::new(guess), now: Instant(0), flight: VecDeque::new() }
        }

        /// Keeps so many packets on the link, while so many arrive one after the other; returns the estimate.
        fn run(&mut self, on_the_link: usize, arrivals: u32, gap: u64, all: bool) -> f64 {
            for _ in 0..arrivals {
                while self.flight.len() < on_the_link {
                    let progress = self.rate.leaves(self.now, self.flight.is_empty());
                    self.flight.push_back((self.now, progress));
                }
                self.now = Instant(self.now.0 + gap);
                let (left, before) = self.flight.pop_front().unwrap();
                self.rate.took(self.now, self.now - left);
                self.rate.arrived(self.now, 1000, left, before, all);
            }
            self.rate.bytes_per_second()
        }
    }

    #[test]
    fn a_full_link_shows_its_rate_whatever_was_guessed() {
        for guess in [1e6, 1e8, 1e10] {
            let estimate = Sending::new(guess).run(50, 10_000, 10_000, false);
            assert!((0.99e8..1.01e8).contains(&estimate), "{guess}: {estimate}");
        }
    }

    #[test]
    fn a_link_that_becomes_slow_is_known_soon() {
        let mut sending = Sending::new(1e8);
        sending.run(50, 10_000, 10_000, false);
        // 300 packets of 100 µs each: 30 ms.
        let estimate = sending.run(50, 300, 100_000, false);
        assert!((0.99e7..1.01e7).contains(&estimate), "{estimate}");
    }

    #[test]
    fn a_link_that_could_carry_more_is_not_taken_to_be_slow() {
        let mut sending = Sending::new(1e6);
        sending.run(50, 1000, 10_000, false);
        let estimate = sending.run(1, 10_000, 100_000, true);
        assert!((0.99e8..1.01e8).contains(&estimate), "{estimate}");
    }

    #[test]
    fn a_link_that_carries_nothing_is_tried_again() {
        let mut sending = Sending::new(1e8);
        sending.run(1, 1000, 1_000_000, false);
        assert!((0.99e6..1.01e6).contains(&sending.rate.bytes_per_second()));
        sending.rate.try_more();
        assert!((1.98e6..2.02e6).contains(&sending.rate.bytes_per_second()));
        (0..10).for_each(|_| sending.rate.try_more());
        assert_eq!(sending.rate.bytes_per_second(), 1e8, "no more than it began with");
    }

    #[test]
    fn a_base_is_measured_anew() {
        let mut sending = Sending::new(1e8);
        sending.run(20, 1, 10_000, false);
        assert_eq!(sending.rate.base(), Some(Duration::from_micros(10)));
        sending.run(20, 1000, 10_000_000, false);
        assert!(sending.rate.base_is_old(sending.now));
        sending.rate.forget_base();
        sending.flight.clear();
        sending.run(1, 1, 90_000, false);
        assert_eq!(sending.rate.base(), Some(Duration::from_micros(90)));
        assert!(!sending.rate.base_is_old(sending.now));
    }
}
