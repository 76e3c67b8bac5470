//! The results of a sweep, as tables and as JSON: the worst points first.

use super::plan::Plan;
use super::points::{Bar, Figures, Point};
use serde::Serialize;
use std::fmt::Write;

/// The number of worst points that the text lists.
const WORST: usize = 20;

/// The results.
#[derive(Serialize)]
pub struct Report {
    /// By program, pinning and iterations, sizes ascending.
    pub points: Vec<Point>,
    /// Number of points that fell short at first, and were measured again.
    pub measured_again: usize,
    /// Number of points with a bar that does not hold.
    pub short: usize,
}

impl Report {
    pub fn new(plan: &Plan, figures: &Figures) -> Report {
        let points = figures.points(plan);
        let short = points.iter().filter(|point| !point.short.is_empty()).count();
        Report { points, measured_again: figures.measured_again(), short }
    }

    /// Whether every bar holds.
    pub fn holds(&self) -> bool {
        self.short == 0
    }

    /// The report as text: a table for each kind of run, then the worst points.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut kinds: Vec<Kind> = Vec::new();
        for point in &self.points {
            let kind = kind(point);
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        for kind in kinds {
            self.table(&mut text, kind);
        }
        self.worst(&mut text);
        text
    }

    fn table(&self, text: &mut String, of_kind @ (latency, pinned, iterations): Kind) {
        let points: Vec<&Point> = self.points.iter().filter(|point| kind(point) == of_kind).collect();
        let (what, unit) = if latency { ("latency, median", "µs") } else { ("throughput", "GB/s") };
        let place = if pinned { "one core a side" } else { "unpinned" };
        let _ = writeln!(text, "{what}, {unit} (× UCX), {place}, -n {iterations}");
        let mut programs: Vec<&str> = points.iter().map(|point| point.program).collect();
        programs.dedup();
        let mut sizes: Vec<usize> = points.iter().map(|point| point.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let _ = write!(text, "{:>8}", "bytes");
        for program in &programs {
            let _ = write!(text, "  {program:>20}");
        }
        text.push('\n');
        for size in sizes {
            let _ = write!(text, "{size:>8}");
            for program in &programs {
                let point = points.iter().find(|point| point.size == size && point.program == *program);
                let _ = write!(text, "  {:>20}", point.map_or(String::new(), |point| cell(point)));
            }
            text.push('\n');
        }
        text.push('\n');
    }

    fn worst(&self, text: &mut String) {
        let mut short: Vec<&Point> = self.points.iter().filter(|point| !point.short.is_empty()).collect();
        short.sort_by(|a, b| a.speed.median.total_cmp(&b.speed.median));
        let (again, all) = (self.measured_again, self.points.len());
        let _ = writeln!(text, "{again} of {all} points fell short of a bar at first, and were measured again");
        let _ = writeln!(text, "{} of {all} points fall short of a bar in the median", short.len());
        for point in short.iter().take(WORST) {
            let pinned = if point.pinned { "pinned" } else { "unpinned" };
            let reasons: Vec<String> = point.short.iter().map(|bar| reason(*bar, point)).collect();
            let _ = writeln!(
                text,
                "  {} -s {} -n {} {pinned}: {} against {}: {}",
                point.program,
                point.size,
                point.iterations,
                shown(point.weir, point.is_latency()),
                shown(point.ucx, point.is_latency()),
                reasons.join("; "),
            );
        }
        if short.len() > WORST {
            let _ = writeln!(text, "  and {} more (--json lists all)", short.len() - WORST);
        }
    }
}

/// What the points of a table have in common: whether they are latencies, pinning and iterations.
type Kind = (bool, bool, u64);

fn kind(point: &Point) -> Kind {
    (point.is_latency(), point.pinned, point.iterations)
}

fn reason(bar: Bar, point: &Point) -> String {
    match bar {
        Bar::Ucx => format!("{} × UCX's speed", significant(point.speed.median)),
        Bar::Step => format!("{:.2} of the next smaller size", point.step.unwrap_or_default()),
        Bar::Tail => format!("p99 is {:.1} × p50", point.tail.unwrap_or_default()),
    }
}

/// A figure, its speed relative to UCX, and a mark if a bar does not hold.
fn cell(point: &Point) -> String {
    let mark = if point.short.is_empty() { ' ' } else { '!' };
    format!("{} ({}){mark}", shown(point.weir, point.is_latency()), significant(point.speed.median))
}

/// A figure in µs or GB/s.
fn shown(figure: f64, latency: bool) -> String {
    significant(if latency { figure * 1e6 } else { figure / 1e9 })
}

/// Three significant digits, more only before the decimal point.
fn significant(figure: f64) -> String {
    let decimals = if figure > 0.0 { (2 - figure.log10().floor() as i32).clamp(0, 6) } else { 0 };
    format!("{figure:.*}", decimals as usize)
}

#[cfg(test)]
mod tests {
    use super::significant;

    #[test]
    fn figures_have_three_significant_digits() {
        assert_eq!(
            [0.0, 0.000_412_3, 0.0526, 1.4321, 17.71, 1014.2].map(significant),
            ["0", "0.000412", "0.0526", "1.43", "17.7", "1014"]
        );
    }
}
