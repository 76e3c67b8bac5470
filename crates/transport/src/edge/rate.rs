//! How fast a link is, as its acknowledgements show.
//!
//! What arrives between the departure of a packet and its arrival is at most what the link carries, and exactly that if the
//! link was full. So the rate is the largest of such samples lately.

use crate::Instant;
use std::time::Duration;

/// A sample counts for one to two of these spans.
const SPAN: Duration = Duration::from_millis(10);
const COST_BITS: u32 = 16;

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
    /// Running mean of round trips, and the shortest.
    smoothed: Option<Duration>,
    shortest: Option<Duration>,
    /// What a byte takes, ns, in units of 1 / 2^16: it is needed for each link and packet.
    cost: u64,
}

/// What had arrived when a packet left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub bytes: u64,
    /// When the link had carried the latest of them, when that had left, and when its arrival was known.
    pub carried: Instant,
    pub left: Instant,
    pub known: Instant,
}

impl Rate {
    /// Begins with a guess, in bytes per second.
    pub fn new(guess: f64) -> Rate {
        let progress = Progress::default();
        Rate {
            guess,
            samples: [None; 2],
            since: Instant(0),
            progress,
            smoothed: None,
            shortest: None,
            cost: cost(guess),
        }
    }

    /// Bytes per second.
    pub fn bytes_per_second(&self) -> f64 {
        self.samples.iter().flatten().copied().reduce(f64::max).unwrap_or(self.guess)
    }

    /// How long the link takes to carry so many bytes, ns.
    pub fn carries(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.cost) >> COST_BITS
    }

    /// Running mean of the round trips, without the time for which the peer held an acknowledgement.
    pub fn round_trip(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The link has run empty: its round trip may be another.
    pub fn forget_shortest(&mut self) {
        self.shortest = None;
    }

    /// The link works, and has carried nothing for a while: it may be faster than it was.
    pub fn try_more(&mut self) {
        self.samples[1] = Some(self.bytes_per_second().max(self.guess.min(2.0 * self.bytes_per_second())));
        self.cost = cost(self.bytes_per_second());
    }

    /// What has arrived, as far as it is known.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// The link is empty: so many bytes of all that was put on it have arrived.
    pub fn is_empty(&mut self, now: Instant, bytes: u64) {
        self.progress = Progress { bytes, carried: now, left: now, known: now };
    }

    /// A packet's round trip, without the time for which the peer held the acknowledgement.
    pub fn took(&mut self, round_trip: Duration) {
        // A link that becomes slower is not silent: that must be known soon.
        self.smoothed = Some(self.smoothed.map_or(round_trip, |smoothed| match round_trip > smoothed {
            true => (smoothed + round_trip) / 2,
            false => (smoothed * 7 + round_trip) / 8,
        }));
        self.shortest = Some(self.shortest.map_or(round_trip, |shortest| shortest.min(round_trip)));
    }

    /// A packet has arrived; `progress`: with it. It left when `before` had arrived. `all`: the caller had no more for the
    /// links than it sent, so a low rate says nothing.
    pub fn arrived(&mut self, progress: Progress, before: Progress, all: bool) {
        if progress.bytes <= self.progress.bytes {
            return;
        }
        self.progress = progress;
        let elapsed = match before.left == before.known {
            // The link was empty, and the times of few packets are not exact enough: at most all of this time.
            true => progress.known - before.known,
            // The peer may take packets late, and then many together; and packets may have left so.
            false => (progress.carried - before.carried).max(progress.left - before.left),
        }
        .as_secs_f64();
        if elapsed <= 0.0 {
            return;
        }
        let sample = (progress.bytes - before.bytes) as f64 / elapsed;
        if all && sample <= self.bytes_per_second() {
            return;
        }
        if progress.carried - self.since > SPAN.max(2 * self.shortest.unwrap_or_default()) {
            (self.samples, self.since) = ([self.samples[1], None], progress.carried);
        }
        self.samples[1] = Some(self.samples[1].map_or(sample, |largest| largest.max(sample)));
        self.cost = cost(self.bytes_per_second());
    }
}

fn cost(bytes_per_second: f64) -> u64 {
    (f64::from(1 << COST_BITS) * 1e9 / bytes_per_second) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// A link that takes 10 µs for each packet of 1000 bytes: 1e8 bytes per second.
    struct Sending {
        rate: Rate,
        now: Instant,
        bytes: u64,
        flight: VecDeque<(Instant, Progress)>,
    }

    impl Sending {
        fn new(guess: f64) -> Sending {
            Sending { rate: Rate::new(guess), now: Instant(0), bytes: 0, flight: VecDeque::new() }
        }

        /// Keeps so many packets on the link, while so many arrive one after the other; returns the estimate.
        fn run(&mut self, on_the_link: usize, arrivals: u32, gap: u64, all: bool) -> f64 {
            for _ in 0..arrivals {
                while self.flight.len() < on_the_link {
                    if self.flight.is_empty() {
                        self.rate.is_empty(self.now, self.bytes);
                    }
                    self.flight.push_back((self.now, self.rate.progress()));
                }
                self.now = Instant(self.now.0 + gap);
                self.bytes += 1000;
                let (left, before) = self.flight.pop_front().unwrap();
                let progress = Progress { bytes: self.bytes, carried: self.now, left, known: self.now };
                self.rate.arrived(progress, before, all);
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
    fn what_a_link_carries_takes_its_time() {
        for (rate, bytes, ns) in [(125e6, 1500, 12_000), (50e9, 9000, 180), (1e3, 1500, 1_500_000_000)] {
            let carries = Rate::new(rate).carries(bytes);
            assert!(carries.abs_diff(ns) <= 1 + ns / 1000, "{rate}: {carries}");
        }
        assert!(Rate::new(1e-9).carries(u64::MAX) > 1 << 40, "no rate is too small");
    }

    #[test]
    fn round_trips_grow_faster_than_they_shrink() {
        let mut rate = Rate::new(1e8);
        for (took, mean) in [(100, 100), (300, 200), (40, 180)] {
            rate.took(Duration::from_micros(took));
            assert_eq!(rate.round_trip(), Some(Duration::from_micros(mean)));
        }
    }
}
