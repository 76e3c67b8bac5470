//! Slow motion, for experiments about which of two short times is longer.
//!
//! A process needs 1 to 2 ms to send 128 READs, and wakes late. Meanwhile a page fault of 0.5 ms is over, and no
//! response meets it a second time. Live, the times of the adapter are therefore ten times as long as in its profile, and
//! the report divides what it measured by ten.

use super::common::ms;
use crate::adapter::Adapter;
use crate::bench::Bench;
use crate::experiment::Input;
use std::time::Duration;

/// How much longer the adapter's times are in live runs.
const SLOW: u32 = 10;

/// How much longer the times of an adapter are than in its profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace(u32);

impl Pace {
    /// The pace of a run. An adapter of `--profile` stays as it is.
    pub fn of(bench: &Bench<'_>) -> Pace {
        Pace(if bench.live && bench.profile.is_none() { SLOW } else { 1 })
    }

    /// The adapter at this pace.
    pub fn adapter(self, adapter: Adapter) -> Adapter {
        if self.0 == 1 { adapter } else { adapter.slowed(self.0) }
    }

    /// A time of the application at this pace.
    pub fn stretched(self, time: Duration) -> Duration {
        time * self.0
    }

    /// A measured time as the adapter of the profile would take it, in ms.
    pub fn ms(self, measured: Duration) -> f64 {
        ms(measured) / f64::from(self.0)
    }

    /// The input that says so, if the adapter is slowed.
    pub fn inputs(self) -> Vec<Input> {
        let input = Input {
            name: "slow motion",
            paper: "a page fault takes 250 to 1000 µs",
            profile: "a method, not an observation. Live, in the runs of 128 to 512 READs with client-side ODP, the page \
                      faults, stale events, replays and repetitions take ten times as long as in the profile, and the \
                      times of these READs are divided by ten: a process needs 1 to 2 ms to send 128 READs",
            source: "T fig. 5.7",
        };
        if self.0 == 1 { vec![] } else { vec![input] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::Runner;
    use anyhow::Result;

    #[test]
    fn live_runs_of_an_embedded_profile_are_slow() {
        let runner = || -> Result<Box<dyn Runner>> { unreachable!("nothing runs") };
        let real = Bench::small(&runner);
        let slow = Bench { live: true, ..Bench::small(&runner) };
        let own = Bench { profile: Some("ideal"), live: true, ..Bench::small(&runner) };
        assert_eq!([&real, &slow, &own].map(Pace::of), [Pace(1), Pace(SLOW), Pace(1)]);
        let (real, slow) = (Pace::of(&real), Pace::of(&slow));
        let measured = Duration::from_millis(60);
        assert_eq!((real.ms(measured), slow.ms(measured)), (60.0, 6.0));
        assert_eq!(slow.stretched(Duration::from_millis(5)), Duration::from_millis(50));
        let adapter = || Adapter::named("connectx4");
        assert_eq!(real.adapter(adapter()), adapter());
        assert_eq!(slow.adapter(adapter()), adapter().slowed(SLOW));
        assert_eq!((real.inputs().len(), slow.inputs().len()), (0, 1), "the report says so");
    }
}
