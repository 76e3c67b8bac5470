//! The results of the bench of many processes, as text and as JSON.

use super::crowd::{Crowd, PROCESSES};
use super::pairs::Program;
use crate::table::Spread;
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The figures of all rounds.
#[derive(Default)]
pub struct Figures {
    /// By number of pairs: bytes per second of all of them, of Weir and of UCX.
    pairs: BTreeMap<usize, [Vec<f64>; 2]>,
    crowds: Vec<Crowd>,
    failures: Vec<String>,
}

/// The results.
#[derive(Debug, Serialize)]
pub struct Report {
    /// By number of pairs, ascending.
    pub pairs: Vec<Point>,
    /// `None` if no run succeeded.
    pub processes: Option<Processes>,
    /// Runs that failed, and why.
    pub failures: Vec<String>,
}

/// Pairs that run at once. `None`: no run succeeded.
#[derive(Debug, Serialize)]
pub struct Point {
    pub pairs: usize,
    /// Bytes per second of all pairs.
    pub weir: Option<Spread>,
    pub ucx: Option<Spread>,
    /// The medians divided by those of one pair.
    pub weir_to_one: Option<f64>,
    pub ucx_to_one: Option<f64>,
    /// Weir divided by UCX, round by round.
    pub ratio: Option<Spread>,
}

/// Processes that each opened a device and exchanged a message. Times in seconds from the start of the first process,
/// memory in bytes of an average process.
#[derive(Debug, Serialize)]
pub struct Processes {
    pub count: usize,
    pub opened: Option<Spread>,
    pub exchanged: Option<Spread>,
    pub ended: Option<Spread>,
    pub pss: Option<Spread>,
    pub private: Option<Spread>,
}

impl Figures {
    /// Adds the bytes per second of `count` pairs, or why the run failed.
    pub fn add_pairs(&mut self, count: usize, program: Program, figure: Result<f64>) {
        let figures = &mut self.pairs.entry(count).or_default()[program as usize];
        match figure {
            Ok(figure) => figures.push(figure),
            Err(why) => {
                // Without a figure, later rounds of the other program would be compared with another round.
                figures.push(f64::NAN);
                self.failures.push(format!("{count} × {}: {why:#}", program.name()));
            }
        }
    }

    /// Adds a run of many processes, or why it failed.
    pub fn add_crowd(&mut self, crowd: Result<Crowd>) {
        match crowd {
            Ok(crowd) => self.crowds.push(crowd),
            Err(why) => self.failures.push(format!("{PROCESSES} processes: {why:#}")),
        }
    }

    /// The results.
    pub fn report(self) -> Report {
        let spread = |figures: &[f64]| {
            Spread::of(&figures.iter().copied().filter(|figure| !figure.is_nan()).collect::<Vec<f64>>())
        };
        let one = self.pairs.get(&1).map(|figures| [0, 1].map(|i| spread(&figures[i])));
        let to_one = |i: usize, figures: &[f64]| Some(spread(figures)?.median / one.as_ref()?[i]?.median);
        let point = |(&pairs, [weir, ucx]): (&usize, &[Vec<f64>; 2])| Point {
            pairs,
            weir: spread(weir),
            ucx: spread(ucx),
            weir_to_one: to_one(0, weir),
            ucx_to_one: to_one(1, ucx),
            ratio: spread(&weir.iter().zip(ucx).map(|(weir, ucx)| weir / ucx).collect::<Vec<f64>>()),
        };
        let of = |figure: fn(&Crowd) -> f64| Spread::of(&self.crowds.iter().map(figure).collect::<Vec<f64>>());
        let processes = (!self.crowds.is_empty()).then(|| Processes {
            count: PROCESSES,
            opened: of(|crowd| crowd.opened),
            exchanged: of(|crowd| crowd.exchanged),
            ended: of(|crowd| crowd.ended),
            pss: of(|crowd| crowd.pss),
            private: of(|crowd| crowd.private),
        });
        Report { pairs: self.pairs.iter().map(point).collect(), processes, failures: self.failures }
    }
}

impl Report {
    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = "pairs of processes that send 64 KiB messages at once: GB/s of all together\n".to_owned();
        let _ = writeln!(
            text,
            "{:>6}  {:>12}  {:>10}  {:>14}  {:>10}  {:>10}  range",
            "pairs", "ib_write_bw", "× one pair", "UCX tcp tag_bw", "× one pair", "Weir / UCX"
        );
        for point in &self.pairs {
            let rate = |rate: Option<Spread>| rate.map_or("–".into(), |rate| format!("{:.2}", rate.median / 1e9));
            let share = |share: Option<f64>| share.map_or("–".into(), |share| format!("{share:.2}"));
            let _ = writeln!(
                text,
                "{:>6}  {:>12}  {:>10}  {:>14}  {:>10}  {:>10}  {}",
                point.pairs,
                rate(point.weir),
                share(point.weir_to_one),
                rate(point.ucx),
                share(point.ucx_to_one),
                share(point.ratio.map(|ratio| ratio.median)),
                point.ratio.map_or("–".into(), |ratio| format!("{:.2}–{:.2}", ratio.min, ratio.max)),
            );
        }
        if let Some(processes) = &self.processes {
            processes.describe(&mut text);
        }
        for failure in &self.failures {
            let _ = writeln!(text, "FAILED: {failure}");
        }
        text
    }
}

impl Processes {
    fn describe(&self, text: &mut String) {
        let median = |spread: Option<Spread>| spread.map_or(0.0, |spread| spread.median);
        let range = self.exchanged.map_or(String::new(), |time| format!(" ({:.2}–{:.2})", time.min, time.max));
        let mebibytes = |bytes| median(bytes) / f64::from(1 << 20);
        let _ = writeln!(
            text,
            "{} processes in one namespace, started at once, each with a device, a QP and a message to its partner:\n  \
             all had their message after {:.2} s{range}, and had ended after {:.2} s\n  \
             memory of a process while all are connected: PSS {:.2} MiB, private {:.2} MiB",
            self.count,
            median(self.exchanged),
            median(self.ended),
            mebibytes(self.pss),
            mebibytes(self.private),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    fn crowd(exchanged: f64) -> Crowd {
        Crowd { succeeded: PROCESSES, opened: 1.0, exchanged, ended: 3.0, pss: 1048576.0, private: 524288.0 }
    }

    #[test]
    fn sums_are_compared_with_one_pair_and_with_ucx_of_the_same_round() {
        let mut figures = Figures::default();
        for (weir, ucx) in [(4e9, 2e9), (6e9, 2e9)] {
            figures.add_pairs(1, Program::Weir, Ok(weir));
            figures.add_pairs(1, Program::Ucx, Ok(ucx));
            figures.add_pairs(4, Program::Weir, Ok(2.0 * weir));
            figures.add_pairs(4, Program::Ucx, Ok(ucx));
        }
        figures.add_crowd(Ok(crowd(2.0)));
        let report = figures.report();
        let [one, four] = &report.pairs[..] else { panic!("{report:?}") };
        assert_eq!((one.weir_to_one, one.ucx_to_one), (Some(1.0), Some(1.0)));
        assert_eq!((four.pairs, four.weir_to_one, four.ucx_to_one), (4, Some(2.0), Some(1.0)));
        assert_eq!(four.ratio, Some(Spread { median: 5.0, min: 4.0, max: 6.0 }));
        assert_eq!(four.weir.unwrap().median, 10e9);
        let text = report.text();
        assert!(text.contains("PSS 1.00 MiB, private 0.50 MiB") && !text.contains("FAILED"), "{text}");
    }

    #[test]
    fn a_failed_run_leaves_its_round_out_of_the_ratios() {
        let mut figures = Figures::default();
        for (weir, ucx) in [(Err(anyhow!("why")), Ok(1e9)), (Ok(4e9), Ok(2e9))] {
            figures.add_pairs(16, Program::Weir, weir);
            figures.add_pairs(16, Program::Ucx, ucx);
        }
        figures.add_crowd(Err(anyhow!("3 of 1000 processes failed")));
        let report = figures.report();
        assert_eq!(report.pairs[0].ratio, Some(Spread { median: 2.0, min: 2.0, max: 2.0 }));
        assert_eq!((report.pairs[0].weir_to_one, report.failures.len()), (None, 2));
        assert!(report.processes.is_none());
        let text = report.text();
        assert!(text.contains("FAILED: 16 × ib_write_bw: why") && text.contains("3 of 1000"), "{text}");
        serde_json::to_string(&report).unwrap();
    }
}
