//! Which runs a sweep consists of.

use std::fmt;

/// The smallest and the largest size of perftest's `-a`.
const SMALLEST: usize = 2;
const LARGEST: usize = 8 << 20;
/// Iterations of each size.
const ITERATIONS: u64 = 2_000;
/// Iterations of a longer run, of sizes up to `LONG_LARGEST`: with larger ones it would take minutes.
const LONG_ITERATIONS: u64 = 50_000;
const LONG_LARGEST: usize = 64 << 10;
/// Sizes of the latencies.
const LATENCY_SIZES: [usize; 5] = [8, 4 << 10, 8 << 10, 64 << 10, 1 << 20];

/// All runs of a round, in their order.
pub struct Plan {
    pub ours: Vec<Ours>,
    pub theirs: Vec<Theirs>,
}

/// A run of perftest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ours {
    pub program: Program,
    /// Each side on a core of its own.
    pub pinned: bool,
    pub iterations: u64,
    /// `None`: all sizes.
    pub size: Option<usize>,
}

/// A run of `ucx_perftest` over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Theirs {
    pub test: &'static str,
    pub pinned: bool,
    pub iterations: u64,
    pub size: usize,
}

/// A program of perftest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    WriteBw,
    SendBw,
    ReadBw,
    WriteLat,
    SendLat,
    ReadLat,
}

impl Program {
    const BANDWIDTHS: [Program; 3] = [Program::WriteBw, Program::SendBw, Program::ReadBw];
    const LATENCIES: [Program; 3] = [Program::WriteLat, Program::SendLat, Program::ReadLat];

    pub fn name(self) -> &'static str {
        match self {
            Program::WriteBw => "ib_write_bw",
            Program::SendBw => "ib_send_bw",
            Program::ReadBw => "ib_read_bw",
            Program::WriteLat => "ib_write_lat",
            Program::SendLat => "ib_send_lat",
            Program::ReadLat => "ib_read_lat",
        }
    }

    /// Whether it measures latencies.
    pub fn is_latency(self) -> bool {
        Self::LATENCIES.contains(&self)
    }

    /// Its arguments apart from sizes and iterations.
    pub fn arguments(self) -> &'static str {
        if self.is_latency() { "" } else { " --report_gbits" }
    }

    /// The tests of UCX that it is compared with: the better of them counts.
    pub fn tests(self) -> &'static [&'static str] {
        match self {
            Program::ReadLat => &["ucp_get"],
            Program::WriteLat | Program::SendLat => &["tag_lat"],
            Program::WriteBw | Program::SendBw | Program::ReadBw => &["tag_bw", "ucp_put_bw"],
        }
    }
}

impl Plan {
    /// The runs of a round; `quick` leaves the long runs out.
    pub fn new(quick: bool) -> Plan {
        let mut plan = Plan { ours: Vec::new(), theirs: Vec::new() };
        for pinned in [true, false] {
            plan.bandwidths(pinned, ITERATIONS, None, &sizes(LARGEST));
            if !quick {
                for size in sizes(LONG_LARGEST) {
                    plan.bandwidths(pinned, LONG_ITERATIONS, Some(size), &[size]);
                }
            }
            for size in LATENCY_SIZES {
                let tests = ["tag_lat", "ucp_get"];
                plan.theirs.extend(tests.map(|test| Theirs { test, pinned, iterations: ITERATIONS, size }));
                let run = |program| Ours { program, pinned, iterations: ITERATIONS, size: Some(size) };
                plan.ours.extend(Program::LATENCIES.map(run));
            }
        }
        plan
    }

    /// Number of runs.
    pub fn runs(&self) -> usize {
        self.ours.len() + self.theirs.len()
    }

    fn bandwidths(&mut self, pinned: bool, iterations: u64, size: Option<usize>, sizes: &[usize]) {
        for &size in sizes {
            let tests = ["tag_bw", "ucp_put_bw"];
            self.theirs.extend(tests.map(|test| Theirs { test, pinned, iterations, size }));
        }
        self.ours.extend(Program::BANDWIDTHS.map(|program| Ours { program, pinned, iterations, size }));
    }
}

impl Theirs {
    /// Whether it measures latencies.
    pub fn is_latency(&self) -> bool {
        matches!(self.test, "tag_lat" | "ucp_get")
    }
}

impl Ours {
    /// Whether both belong to one series of sizes.
    pub fn is_alike(&self, other: &Ours) -> bool {
        let series = |run: &Ours| (run.program, run.pinned, run.iterations);
        series(self) == series(other)
    }
}

impl fmt::Display for Ours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.size.map_or("-a".to_owned(), |size| format!("-s {size}"));
        write!(f, "{} {size} -n {}{}", self.program.name(), self.iterations, pinning(self.pinned))
    }
}

impl fmt::Display for Theirs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ucx_perftest -t {} -s {} -n {}{}", self.test, self.size, self.iterations, pinning(self.pinned))
    }
}

fn pinning(pinned: bool) -> &'static str {
    if pinned { "" } else { " unpinned" }
}

/// The powers of two up to `largest`.
pub fn sizes(largest: usize) -> Vec<usize> {
    std::iter::successors(Some(SMALLEST), |size| Some(size * 2)).take_while(|size| *size <= largest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_has_the_runs_that_it_is_compared_with() {
        for quick in [true, false] {
            let plan = Plan::new(quick);
            for ours in &plan.ours {
                let sizes = ours.size.map_or_else(|| sizes(LARGEST), |size| vec![size]);
                for (test, size) in
                    ours.program.tests().iter().flat_map(|test| sizes.iter().map(move |size| (test, size)))
                {
                    let (pinned, iterations) = (ours.pinned, ours.iterations);
                    assert!(plan.theirs.contains(&Theirs { test, pinned, iterations, size: *size }), "{ours}, {test}");
                }
            }
        }
        assert_eq!(sizes(LARGEST).len(), 23);
    }
}
