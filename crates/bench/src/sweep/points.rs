//! The figures of a sweep, round by round, and what follows from them.

use super::plan::{Plan, Program, UcxRun, WeirRun};
use crate::table::Spread;
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use weir_stage::perftest::Row;

/// A larger message may have this share of the throughput of the next smaller one, in bytes.
const FALL: f64 = 0.5;
/// The largest ratio of the 99th percentile to the median.
const TAIL: f64 = 3.0;

/// The figures of Weir for one size, in one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Messages per second; a latency: median, seconds.
    pub figure: f64,
    /// 99th percentile of a latency, seconds.
    pub p99: Option<f64>,
}

/// The figures of all rounds.
#[derive(Default)]
pub struct Figures {
    /// Each with the figure of UCX that was measured last before it.
    weir: HashMap<(WeirRun, usize), Vec<(Measured, f64)>>,
    /// Likewise: further rounds of single points.
    again: HashMap<(WeirRun, usize), Vec<(Measured, f64)>>,
    /// Further measurements of the step from the next smaller size.
    steps: HashMap<(WeirRun, usize), Vec<f64>>,
    /// The last of each.
    ucx: HashMap<UcxRun, f64>,
}

/// One operation at one size.
#[derive(Debug, Serialize)]
pub struct Point {
    pub program: &'static str,
    /// Bytes.
    pub size: usize,
    pub pinned: bool,
    pub iterations: u64,
    /// Median of the rounds: bytes per second, or for a latency seconds.
    pub weir: f64,
    /// The better of UCX's tests, in the same unit.
    pub ucx: f64,
    /// Weir's figure divided by UCX's of the same round, of throughput; the inverse for a latency: 1 is as fast as UCX,
    /// more is faster.
    pub speed: Spread,
    /// Throughput divided by that of the next smaller size.
    pub step: Option<f64>,
    /// 99th percentile divided by the median, of a latency.
    pub tail: Option<f64>,
    /// The bars that do not hold.
    pub short: Vec<Bar>,
    /// Number of measurements.
    pub rounds: usize,
    #[serde(skip)]
    pub run: WeirRun,
}

/// A bar of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bar {
    /// At least as fast as UCX.
    Ucx,
    /// Throughput does not fall by more than half from one size to the next.
    Step,
    /// The 99th percentile is at most three times the median.
    Tail,
}

impl Measured {
    /// From a line of perftest's table.
    pub fn of(row: &Row, program: Program) -> Result<Measured> {
        if !program.is_latency() {
            return Ok(Measured { figure: row.rate()? * 1e6, p99: None });
        }
        let microseconds = |name| row.get(name).with_context(|| format!("perftest printed no column {name}"));
        let (figure, p99) = (microseconds("t_typical")? / 1e6, microseconds("99% percentile")? / 1e6);
        Ok(Measured { figure, p99: Some(p99) })
    }
}

impl Figures {
    /// Adds a figure, to be compared with those of UCX that were added last. Error: there are none.
    pub fn add_weir(&mut self, run: WeirRun, size: usize, measured: Measured) -> Result<()> {
        let ucx = self.compared(run, size)?;
        self.weir.entry((run, size)).or_default().push((measured, ucx));
        Ok(())
    }

    /// As [`add_weir`](Self::add_weir), in a further round of this point alone.
    pub fn add_again(&mut self, run: WeirRun, size: usize, measured: Measured) -> Result<()> {
        let ucx = self.compared(run, size)?;
        self.again.entry((run, size)).or_default().push((measured, ucx));
        Ok(())
    }

    /// Adds throughput in bytes divided by that of the next smaller size, measured one after the other.
    pub fn add_step(&mut self, run: WeirRun, size: usize, step: f64) {
        self.steps.entry((run, size)).or_default().push(step);
    }

    /// Number of points that were measured again.
    pub fn measured_again(&self) -> usize {
        self.again.keys().chain(self.steps.keys()).collect::<HashSet<_>>().len()
    }

    /// The figure of UCX that was added last.
    fn compared(&self, run: WeirRun, size: usize) -> Result<f64> {
        let better = if run.program.is_latency() { f64::min } else { f64::max };
        let ucx = run.compared_with(size).filter_map(|run| self.ucx.get(&run).copied()).reduce(better);
        ucx.with_context(|| format!("{run}: nothing to compare {size} bytes with"))
    }

    /// Adds messages per second, or for a latency seconds.
    pub fn add_ucx(&mut self, run: UcxRun, figure: f64) {
        self.ucx.insert(run, figure);
    }

    /// All points of a plan: by program, pinning and iterations, sizes ascending.
    pub fn points(&self, plan: &Plan) -> Vec<Point> {
        let mut all = BTreeMap::new();
        for (run, size) in self.weir.keys() {
            let order = plan.weir.iter().position(|other| other.is_alike(run)).unwrap_or(usize::MAX);
            all.insert((order, *size), *run);
        }
        let mut points: Vec<Point> = Vec::with_capacity(all.len());
        for ((_, size), run) in all {
            let Some(mut point) = self.point(run, size) else { continue };
            if points.last().is_some_and(|last| last.is_next_smaller(&point)) {
                point.step = self.step(run, size);
            }
            point.judge();
            points.push(point);
        }
        points
    }

    /// Throughput in bytes divided by that of the next smaller size. The further rounds of a single point do not count.
    fn step(&self, run: WeirRun, size: usize) -> Option<f64> {
        let of = |size: usize| {
            let alike = self.weir.iter().find(|((other, bytes), _)| other.is_alike(&run) && *bytes == size)?;
            Some(alike.1.iter().map(move |(measured, _)| measured.figure * size as f64))
        };
        let again = self.steps.get(&(run, size)).into_iter().flatten();
        let steps = of(size)?.zip(of(size / 2)?).map(|(larger, smaller)| larger / smaller);
        Some(Spread::of(&steps.chain(again.copied()).collect::<Vec<_>>())?.median)
    }

    fn point(&self, run: WeirRun, size: usize) -> Option<Point> {
        let WeirRun { program, pinned, iterations, .. } = run;
        let again = self.again.get(&(run, size)).into_iter().flatten();
        let rounds: Vec<_> = self.weir.get(&(run, size))?.iter().chain(again).collect();
        let latency = program.is_latency();
        let scale = if latency { 1.0 } else { size as f64 };
        let weir: Vec<f64> = rounds.iter().map(|(measured, _)| measured.figure * scale).collect();
        let ucx: Vec<f64> = rounds.iter().map(|(_, figure)| figure * scale).collect();
        let ratio = |(weir, ucx): (&f64, &f64)| if latency { ucx / weir } else { weir / ucx };
        let tails: Vec<f64> = rounds.iter().filter_map(|(measured, _)| Some(measured.p99? / measured.figure)).collect();
        Some(Point {
            program: program.name(),
            size,
            pinned,
            iterations,
            weir: Spread::of(&weir)?.median,
            ucx: Spread::of(&ucx)?.median,
            speed: Spread::of(&weir.iter().zip(&ucx).map(ratio).collect::<Vec<_>>())?,
            step: None,
            tail: Spread::of(&tails).map(|spread| spread.median),
            short: Vec::new(),
            rounds: rounds.len(),
            run,
        })
    }
}

impl Point {
    /// Whether it is a latency.
    pub fn is_latency(&self) -> bool {
        self.run.program.is_latency()
    }

    /// Whether `larger` is the next larger size of the same series of throughputs.
    fn is_next_smaller(&self, larger: &Point) -> bool {
        self.run.is_alike(&larger.run) && !self.is_latency() && self.size * 2 == larger.size
    }

    fn judge(&mut self) {
        let bars = [
            (Bar::Ucx, self.speed.median < 1.0),
            (Bar::Step, self.step.is_some_and(|step| step < FALL)),
            (Bar::Tail, self.tail.is_some_and(|tail| tail > TAIL)),
        ];
        self.short = bars.into_iter().filter(|(_, short)| *short).map(|(bar, _)| bar).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan_and_figures() -> (Plan, Figures) {
        let plan = Plan::new(true);
        let mut figures = Figures::default();
        for run in &plan.ucx {
            // 1 µs, or a million messages, for tags; half as good for put.
            let figure = if run.is_latency() { 1e-6 } else { 1e6 };
            figures.add_ucx(*run, if run.test == "ucp_put_bw" { figure / 2.0 } else { figure });
        }
        for run in &plan.weir {
            for size in run.size.map_or_else(|| super::super::plan::sizes(8 << 20), |size| vec![size]) {
                let (figure, p99) = match (run.program.is_latency(), size) {
                    (true, 8) => (0.5e-6, Some(1e-6)),
                    (true, _) => (2e-6, Some(7e-6)),
                    // A cliff at 16 KiB: an eighth of the messages.
                    (false, 16_384) => (0.25e6, None),
                    (false, _) => (2e6, None),
                };
                figures.add_weir(*run, size, Measured { figure, p99 }).unwrap();
            }
        }
        (plan, figures)
    }

    #[test]
    fn cliffs_and_points_slower_than_ucx_fall_short() {
        let (plan, figures) = plan_and_figures();
        let points = figures.points(&plan);
        assert_eq!(points.len(), 2 * (3 * 23 + 3 * 5));
        for point in &points {
            let expected: &[Bar] = match (point.is_latency(), point.size) {
                (true, 8) => &[],
                (true, _) => &[Bar::Ucx, Bar::Tail],
                (false, 16_384) => &[Bar::Ucx, Bar::Step],
                (false, _) => &[],
            };
            assert_eq!(point.short, expected, "{point:?}");
        }
        let cliff = points.iter().find(|point| point.size == 16_384).unwrap();
        assert_eq!((cliff.weir, cliff.ucx, cliff.speed.median), (0.25e6 * 16_384.0, 1e6 * 16_384.0, 0.25));
        assert_eq!(cliff.step, Some(0.25));
    }

    #[test]
    fn a_figure_is_compared_with_those_of_ucx_before_it() {
        let (plan, mut figures) = plan_and_figures();
        let run = *plan.weir.iter().find(|run| run.program == Program::SendBw).unwrap();
        for (weir, ucx) in [(3e6, 4e6), (3e6, 2e6)] {
            run.compared_with(64).for_each(|run| figures.add_ucx(run, ucx));
            figures.add_weir(run, 64, Measured { figure: weir, p99: None }).unwrap();
        }
        let points = figures.points(&plan);
        let speeds = |program| {
            let point = points.iter().find(|point| point.size == 64 && point.program == program).unwrap();
            [point.speed.min, point.speed.median, point.speed.max]
        };
        assert_eq!((speeds("ib_send_bw"), speeds("ib_write_bw")), ([0.75, 1.5, 2.0], [2.0; 3]));
    }

    #[test]
    fn further_rounds_of_a_point_count_for_its_speed_and_not_for_its_step() {
        let (plan, mut figures) = plan_and_figures();
        let cliff = |figures: &Figures| figures.points(&plan).into_iter().find(|point| point.size == 16_384).unwrap();
        let run = cliff(&figures).run;
        for _ in 0..2 {
            figures.add_again(run, 16_384, Measured { figure: 2e6, p99: None }).unwrap();
        }
        let point = cliff(&figures);
        assert_eq!((point.speed.median, point.step, point.rounds), (2.0, Some(0.25), 3));
        assert_eq!(point.short, [Bar::Step]);
        [0.9, 1.1].into_iter().for_each(|step| figures.add_step(run, 16_384, step));
        let point = cliff(&figures);
        assert_eq!((point.step, point.short.len(), figures.measured_again()), (Some(0.9), 0, 1));
    }
}
