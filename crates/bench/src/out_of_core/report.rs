//! The measured times beside the paper's.

use crate::odp::program::Memory;
use serde::Serialize;
use std::fmt::Write;

/// All runs.
#[derive(Debug, Serialize)]
pub struct Report {
    /// How the buffer is exchanged: verbs or mpi.
    pub way: &'static str,
    pub runs: Vec<Run>,
}

/// A run of `weir-odp` with one need and one kind of memory.
#[derive(Debug, Serialize)]
pub struct Run {
    /// Memory that it needs, percent.
    pub need: u64,
    pub memory: Memory,
    /// Largest number of bytes in swap.
    pub swapped: u64,
    pub ended: Ended,
}

/// How a run ended; times in seconds.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    Well {
        exchange: f64,
        /// Without `others`.
        compute: f64,
        /// Waiting for a core that other processes used.
        others: f64,
        /// CPU time of the computation.
        cpu: f64,
        /// Pages that it read from swap.
        from_swap: u64,
    },
    /// The bench ended it.
    TooLong {
        seconds: f64,
    },
    Failed {
        why: String,
    },
}

/// The paper's times: memory needed (percent), on-demand and pinned memory (seconds).
const PAPER: [(u64, f64, f64); 3] = [(100, 65.16, 65.73), (120, 64.88, 150.21), (140, 65.02, 257.67)];

/// ODP memory is steady if its times are at most this factor above that with 100 %.
const STEADY: f64 = 1.25;
/// Pinned memory thrashes if its time with 140 % is at least this factor above that of ODP memory.
const THRASHES: f64 = 1.5;

/// The name of a kind of memory in the report.
pub fn name(memory: Memory) -> &'static str {
    match memory {
        Memory::Pinned => "pinned",
        Memory::Odp => "on demand",
    }
}

impl Run {
    /// A short text of how it ended.
    pub fn describe(&self) -> String {
        match &self.ended {
            Ended::Well { exchange, compute, .. } => format!("{:.2} s", exchange + compute),
            Ended::TooLong { seconds } => format!("not done after {seconds:.0} s"),
            Ended::Failed { why } => format!("failed: {why}"),
        }
    }

    fn seconds(&self) -> Option<f64> {
        match self.ended {
            Ended::Well { exchange, compute, .. } => Some(exchange + compute),
            _ => None,
        }
    }

    /// A lower bound of its time in seconds; infinite if it failed.
    fn at_least(&self) -> f64 {
        match self.ended {
            Ended::Well { exchange, compute, .. } => exchange + compute,
            Ended::TooLong { seconds } => seconds,
            Ended::Failed { .. } => f64::INFINITY,
        }
    }
}

impl Report {
    fn run(&self, need: u64, memory: Memory) -> Option<&Run> {
        self.runs.iter().find(|run| run.need == need && run.memory == memory)
    }

    /// Whether ODP memory takes the same time for all needs.
    pub fn is_steady(&self) -> bool {
        let time = |need| self.run(need, Memory::Odp).and_then(Run::seconds);
        time(100).is_some_and(|base| [120, 140].iter().all(|need| time(*need).is_some_and(|t| t <= STEADY * base)))
    }

    /// Whether pinned memory takes far longer, or fails, when memory is short.
    pub fn thrashes(&self) -> bool {
        let ratio = || Some(self.run(140, Memory::Pinned)?.at_least() / self.run(140, Memory::Odp)?.seconds()?);
        ratio().is_some_and(|ratio| ratio >= THRASHES)
    }

    /// Whether both hold.
    pub fn holds(&self) -> bool {
        self.is_steady() && self.thrashes()
    }

    /// The report as a text table.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{:>14} │ {:^45} │ {:^45} │ {:^21}\n{:>14} │ {:>45} │ {:>45} │ {:>10} {:>10}\n",
            self.way,
            "on demand, here",
            "pinned, here",
            "the paper, s",
            "memory needed",
            "total s (exchange + compute)  pages from swap",
            "total s (exchange + compute)  pages from swap",
            "on demand",
            "pinned"
        );
        for (need, odp, pinned) in PAPER {
            let cell = |memory| {
                self.run(need, memory).map_or("–".to_owned(), |run| match &run.ended {
                    Ended::Well { exchange, compute, from_swap, .. } => {
                        format!("{:.2} ({exchange:.2} + {compute:.2})  {from_swap:>15}", exchange + compute)
                    }
                    Ended::TooLong { seconds } => format!("not done after {seconds:.0}"),
                    Ended::Failed { why } if why.starts_with("out of memory") => "out of memory".to_owned(),
                    Ended::Failed { .. } => "failed".to_owned(),
                })
            };
            let _ = writeln!(
                text,
                "{:>12} % │ {:>45} │ {:>45} │ {odp:>10.2} {pinned:>10.2}",
                need,
                cell(Memory::Odp),
                cell(Memory::Pinned)
            );
        }
        for run in &self.runs {
            if let Ended::Failed { why } = &run.ended {
                let _ = writeln!(text, "{} %, {}: {why}", run.need, name(run.memory));
            }
        }
        let waited: f64 =
            self.runs.iter().map(|run| if let Ended::Well { others, .. } = run.ended { others } else { 0.0 }).sum();
        if waited > 0.5 {
            let _ = writeln!(text, "not in these times: {waited:.1} s in which other processes used the core");
        }
        let verdict = |holds| if holds { "holds" } else { "does not hold" };
        let _ = writeln!(text, "ODP memory takes the same time for all needs: {}", verdict(self.is_steady()));
        let _ = writeln!(text, "pinned memory thrashes or fails when memory is short: {}", verdict(self.thrashes()));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(times: [(u64, f64, f64); 3]) -> Report {
        let well =
            |seconds: f64| Ended::Well { exchange: 0.5, compute: seconds - 0.5, others: 0.0, cpu: 1.0, from_swap: 0 };
        let run = |need, memory, seconds| Run { need, memory, swapped: 0, ended: well(seconds) };
        let runs = times
            .iter()
            .flat_map(|&(need, odp, pinned)| [run(need, Memory::Odp, odp), run(need, Memory::Pinned, pinned)]);
        Report { way: "verbs", runs: runs.collect() }
    }

    #[test]
    fn the_papers_own_times_hold() {
        assert!(report(PAPER).holds());
        assert!(report(PAPER).text().contains("257.67"));
    }

    #[test]
    fn growing_times_are_not_steady_and_failures_count_as_thrashing() {
        let grows = report([(100, 5.0, 5.0), (120, 6.0, 6.0), (140, 9.0, 9.0)]);
        assert!(!grows.is_steady() && !grows.thrashes());
        let mut fails = report(PAPER);
        fails.runs[5].ended = Ended::Failed { why: "killed".into() };
        assert!(fails.holds() && fails.text().contains("killed"));
    }
}
