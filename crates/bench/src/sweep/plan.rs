//! Which runs a sweep consists of.

use std::fmt;

/// The smallest and the largest size of perftest's `-a`.
const SMALLEST: usize = 2;
const LARGEST: usize = 8 << 20;
/// Iterations of each size.
const ITERATIONS: u64 = 2_000;
/// Iterations of a longer run, of sizes up to `LONG_LARGEST`. With larger ones `ITERATIONS` are gigabytes already, and a
/// run would take minutes.
const LONG_ITERATIONS: u64 = 50_000;
const LONG_LARGEST: usize = 1 << 20;
/// Sizes of the latencies.
const LATENCY_SIZES: [usize; 5] = [8, 4 << 10, 8 << 10, 64 << 10, 1 << 20];
/// Tests of `ucx_perftest`.
const UCX_LATENCIES: [&str; 2] = ["tag_lat", "ucp_get"];
const UCX_THROUGHPUTS: [&str; 2] = ["tag_bw", "ucp_put_bw"];

/// All runs of a round, in their order.
pub struct Plan {
    pub weir: Vec<WeirRun>,
    pub ucx: Vec<UcxRun>,
}

/// A run of perftest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeirRun {
    pub program: Program,
    /// Each side on a core of its own.
    pub pinned: bool,
    pub iterations: u64,
    /// `None`: all sizes.
    pub size: Option<usize>,
}

/// A run of `ucx_perftest` over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UcxRun {
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
}

impl Plan {
    /// The runs of a round; `quick` leaves the long runs out.
    pub fn new(quick: bool) -> Plan {
        let mut plan = Plan { weir: Vec::new(), ucx: Vec::new() };
        for pinned in [true, false] {
            plan.bandwidths(pinned, ITERATIONS, None, &sizes(LARGEST));
            if !quick {
                for size in sizes(LONG_LARGEST) {
                    plan.bandwidths(pinned, LONG_ITERATIONS, Some(size), &[size]);
                }
            }
            for size in LATENCY_SIZES {
                plan.ucx.extend(UCX_LATENCIES.map(|test| UcxRun { test, pinned, iterations: ITERATIONS, size }));
                let run = |program| WeirRun { program, pinned, iterations: ITERATIONS, size: Some(size) };
                plan.weir.extend(Program::LATENCIES.map(run));
            }
        }
        plan
    }

    /// Number of runs.
    pub fn runs(&self) -> usize {
        self.weir.len() + self.ucx.len()
    }

    fn bandwidths(&mut self, pinned: bool, iterations: u64, size: Option<usize>, sizes: &[usize]) {
        for &size in sizes {
            self.ucx.extend(UCX_THROUGHPUTS.map(|test| UcxRun { test, pinned, iterations, size }));
        }
        self.weir.extend(Program::BANDWIDTHS.map(|program| WeirRun { program, pinned, iterations, size }));
    }
}

impl UcxRun {
    /// Whether it measures latencies.
    pub fn is_latency(&self) -> bool {
        UCX_LATENCIES.contains(&self.test)
    }
}

impl WeirRun {
    /// Its argument for sizes.
    pub fn sizes(&self) -> String {
        self.size.map_or("-a".to_owned(), |size| format!("-s {size}"))
    }

    /// The runs of UCX that one of `size` bytes is compared with: the better of them counts.
    pub fn compared_with(self, size: usize) -> impl Iterator<Item = UcxRun> {
        let WeirRun { program, pinned, iterations, .. } = self;
        let tests = match program {
            Program::ReadLat => &["ucp_get"][..],
            Program::WriteLat | Program::SendLat => &["tag_lat"],
            Program::WriteBw | Program::SendBw | Program::ReadBw => &UCX_THROUGHPUTS,
        };
        tests.iter().map(move |test| UcxRun { test, pinned, iterations, size })
    }

    /// The same run with messages of one size.
    pub fn with_size(self, size: usize) -> WeirRun {
        WeirRun { size: Some(size), ..self }
    }

    /// Whether both belong to one series of sizes.
    pub fn is_alike(&self, other: &WeirRun) -> bool {
        let series = |run: &WeirRun| (run.program, run.pinned, run.iterations);
        series(self) == series(other)
    }
}

impl fmt::Display for WeirRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} -n {}{}", self.program.name(), self.sizes(), self.iterations, pinning(self.pinned))
    }
}

impl fmt::Display for UcxRun {
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
            for run in &plan.weir {
                let sizes = run.size.map_or_else(|| sizes(LARGEST), |size| vec![size]);
                for ucx in sizes.iter().flat_map(|size| run.compared_with(*size)) {
                    assert!(plan.ucx.contains(&ucx), "{run}, {ucx}");
                }
            }
        }
        assert_eq!(sizes(LARGEST).len(), 23);
    }
}
