//! The protocol's time: the caller supplies it.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since an epoch of the caller's choice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Instant(pub u64);

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(duration.as_nanos() as u64))
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// Time since `earlier`; zero if it is later.
    fn sub(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
