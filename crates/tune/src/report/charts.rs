//! The charts of a report, after the paper's figures.

use super::rows::setting;
use crate::findings::{Findings, Measured, Setting};
use crate::search::Stage;
use crate::statistics::Estimate;
use crate::units::size;
use weir_lab::figure::{Axis, Bars, Drawing, Panel, Point, Series, sheet};

/// A chart or two with a title, and the paper's figure.
pub struct Chart {
    pub title: &'static str,
    pub paper: &'static str,
    pub svg: String,
}

/// Lines in a chart.
const LINES: usize = 6;
const GBITS: &str = "Gbit/s";

/// All charts for which something was measured.
pub fn charts(findings: &Findings) -> Vec<Chart> {
    let all = [
        ("Throughput against outstanding messages", "F fig. 4", outstanding(findings)),
        ("Predicted and observed best B", "F fig. 8", predictions(findings)),
        ("Polling and sleeping", "F fig. 9 and 10", wake(findings)),
        ("Signalling", "F fig. 11", over_sizes(findings, Stage::Signal, "Signalling")),
        ("Alignment", "F fig. 2", bars(findings, Stage::Offset)),
        ("Places of both sides", "F fig. 12 and 13", bars(findings, Stage::Place)),
    ];
    let drawn = all.into_iter().filter(|(_, _, drawings)| !drawings.is_empty());
    drawn
        .map(|(title, paper, drawings)| {
            let drawings: Vec<&dyn Drawing> = drawings.iter().map(|drawing| &**drawing).collect();
            Chart { title, paper, svg: sheet("", &drawings) }
        })
        .collect()
}

type Drawings = Vec<Box<dyn Drawing>>;

/// Throughput against B, a line for each size, at most six in a chart.
fn outstanding(findings: &Findings) -> Drawings {
    let line = |measured: &Measured| {
        let points = measured.settings.iter().filter_map(|s| Some(point(s.outstanding.into(), &s.gbits?)));
        Series::line(size(measured.size), points)
    };
    let lines: Vec<Series> = findings.of_stage(Stage::Outstanding).map(line).collect();
    let charts = lines.chunks(LINES).map(|lines| {
        let x = Axis::log("outstanding messages (B)");
        Box::new(Panel::new("Throughput", x, Axis::linear(GBITS), lines.to_vec())) as Box<dyn Drawing>
    });
    charts.collect()
}

fn predictions(findings: &Findings) -> Drawings {
    let Some(equation) = &findings.equation1 else { return vec![] };
    let sizes = || equation.sizes.iter();
    let x = |size: u64| size as f64;
    let mut numbers = vec![
        Series::line("observed", sizes().map(|p| (x(p.size), f64::from(p.observed)))),
        Series::line("equation 1", sizes().map(|p| (x(p.size), f64::from(p.predicted)))),
    ];
    if equation.fit.is_some() {
        let fitted = sizes().filter_map(|p| Some((x(p.size), f64::from(p.fitted?))));
        numbers.push(Series::line("fitted constants", fitted));
    }
    let throughputs = vec![
        Series::line("observed", sizes().map(|p| point(x(p.size), &p.observed_gbits))),
        Series::line("equation 1", sizes().filter_map(|p| Some(point(x(p.size), &p.predicted_gbits?)))),
    ];
    vec![
        Box::new(Panel::new("Best B", Axis::sizes("message"), Axis::log("outstanding messages (B)"), numbers)),
        Box::new(Panel::new("Throughput", Axis::sizes("message"), Axis::linear(GBITS), throughputs)),
    ]
}

fn wake(findings: &Findings) -> Drawings {
    let mut charts = over_sizes(findings, Stage::Wake, "Throughput");
    if !charts.is_empty() {
        let cpu = lines(findings, Stage::Wake, |s, size| Some((size, s.cpu_per_gb?).into()));
        charts.push(Box::new(Panel::new(
            "CPU time",
            Axis::sizes("message"),
            Axis::linear("CPU s/GB, both sides"),
            cpu,
        )));
    }
    charts
}

/// Throughput against the size, a line for each setting.
fn over_sizes(findings: &Findings, stage: Stage, title: &str) -> Drawings {
    let lines = lines(findings, stage, |s, size| Some(point(size, &s.gbits?)));
    if lines.is_empty() {
        return vec![];
    }
    vec![Box::new(Panel::new(title, Axis::sizes("message"), Axis::linear(GBITS), lines))]
}

fn lines(findings: &Findings, stage: Stage, of: impl Fn(&Setting, f64) -> Option<Point>) -> Vec<Series> {
    let mut names: Vec<&str> = vec![];
    for setting in findings.of_stage(stage).flat_map(|measured| &measured.settings) {
        if !names.contains(&setting.name.as_str()) {
            names.push(&setting.name);
        }
    }
    let line = |name: &&str| {
        let all = findings.of_stage(stage).flat_map(|m| m.settings.iter().map(|s| (s, m.size as f64)));
        let points = all.filter(|(s, _)| s.name == *name).filter_map(|(s, size)| of(s, size));
        Series::line(setting(stage, name), points)
    };
    names.iter().map(line).collect()
}

/// Throughput of each setting, a chart for each size.
fn bars(findings: &Findings, stage: Stage) -> Drawings {
    let chart = |measured: &Measured| {
        let bar = |s: &Setting| Some((setting(stage, &s.name), s.gbits?.mean));
        let bars = measured.settings.iter().filter_map(bar).collect();
        let title = format!("Messages of {}", size(measured.size));
        Box::new(Bars { title, x: Axis::linear(GBITS), bars }) as Box<dyn Drawing>
    };
    findings.of_stage(stage).map(chart).collect()
}

fn point(x: f64, estimate: &Estimate) -> Point {
    Point { x, y: estimate.mean, range: estimate.interval.map(|[low, high]| (low, high)) }
}
