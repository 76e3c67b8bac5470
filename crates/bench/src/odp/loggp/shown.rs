//! The results as text and as a picture.

use super::super::observation::{self, cell};
use super::model::{SCENARIOS, Scenario};
use super::observations::size;
use super::results::{BY_SIZE, Results};
use crate::table::Spread;
use std::fmt::Write;
use weir_lab::figure::{Axis, Drawing, Panel, Point, Series, sheet};

/// Width of a column of a size.
const COLUMN: usize = 13;
/// Scenarios beside each other.
const BESIDE: usize = 4;

impl Results {
    /// Tables and observations as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.write_overall(&mut text);
        self.write_eager(&mut text);
        self.write_by_size(&mut text);
        for scenarios in SCENARIOS.chunks(BESIDE) {
            self.write_comparisons(&mut text, scenarios);
        }
        self.write_faults(&mut text);
        let _ = writeln!(text, "\n{} bytes were received and compared with the sent ones.", self.verified);
        text + &observation::render(&self.observations())
    }

    fn write_overall(&self, text: &mut String) {
        let nanoseconds =
            |spread: Spread| Spread { median: spread.median * 1e3, min: spread.min * 1e3, max: spread.max * 1e3 };
        let rows = [
            ("o_post", "µs", self.overall(|c| c.post), "a call of ibv_post_send"),
            ("l", "µs", self.latency(), "half a round trip without o_post; it has the receive"),
            ("g", "µs", self.overall(|c| c.gap), "from a WRITE of m_control bytes to the next, 64 outstanding"),
            (
                "G",
                "ns/byte",
                self.overall(|c| c.byte).map(nanoseconds),
                "the same by byte, WRITEs of 1 MiB, 16 outstanding",
            ),
        ];
        let _ = writeln!(text, "{:<12} {:>9}  {:<18} {:<8} what it is", "parameter", "median", "range", "unit");
        for (name, unit, spread, what) in rows {
            let _ = writeln!(text, "{name:<12} {:>9}  {:<18} {unit:<8} {what}", middle(spread), range(spread));
        }
        let c = cell(self.copy_per_byte().map(|c| c * 1e3));
        let _ = writeln!(text, "{:<12} {c:>9}  {:<18} {:<8} copies from 64 B to 256 KiB", "c", "", "ns/byte");
        let _ = writeln!(text, "{:<12} {:>9}  {:<18} {:<8} a control message", "m_control", self.control, "", "bytes");
    }

    fn write_eager(&self, text: &mut String) {
        let _ = writeln!(text, "\nEager messages, µs: c + o_post pinned, c + o_post + o_prefetch on demand");
        let _ = write!(text, "{:<31}", "");
        self.eager.keys().for_each(|&bytes| text.push_str(&format!("{:>COLUMN$}", size(bytes))));
        let post = self.overall(|c| c.post).map(|post| post.median);
        let columns = self.eager.values().map(|eager| {
            let [copy, prefetch] = [&eager.copy, &eager.prefetch].map(|all| Spread::of(all).map(|s| s.median));
            let pinned = copy.zip(post).map(|(copy, post)| copy + post);
            let on_demand = pinned.zip(prefetch).map(|(pinned, prefetch)| pinned + prefetch);
            [copy.map(|copy| copy * 1e3), prefetch, pinned, on_demand]
        });
        let columns: Vec<[Option<f64>; 4]> = columns.collect();
        for (row, name) in ["c, ns", "o_prefetch", "pinned", "on demand"].iter().enumerate() {
            let _ = write!(text, "\n{name:<31}");
            columns.iter().for_each(|column| text.push_str(&format!("{:>COLUMN$}", cell(column[row]))));
        }
        text.push('\n');
    }

    fn write_by_size(&self, text: &mut String) {
        let _ = write!(text, "\n{:<31}", "µs, median and range");
        self.sizes.keys().for_each(|&bytes| text.push_str(&format!("{:>COLUMN$}", size(bytes))));
        for parameter in &BY_SIZE {
            let spreads: Vec<Option<Spread>> = self.sizes.values().map(|size| size.spread(parameter.of)).collect();
            let _ = write!(text, "\n{:<31}", parameter.title);
            spreads.iter().for_each(|&spread| text.push_str(&format!("{:>COLUMN$}", middle(spread))));
            let _ = write!(text, "\n{:<31}", "");
            spreads.iter().for_each(|&spread| text.push_str(&format!("{:>COLUMN$}", range(spread))));
        }
        text.push('\n');
    }

    fn write_comparisons(&self, text: &mut String, scenarios: &[Scenario]) {
        let _ = write!(text, "\n{:>8}", "µs");
        scenarios.iter().for_each(|s| text.push_str(&format!(" │ {:^26}", s.title())));
        let _ = write!(text, "\n{:>8}", "");
        scenarios
            .iter()
            .for_each(|_| text.push_str(&format!(" │ {:>9} {:>9} {:>6}", "predicted", "measured", "ratio")));
        for &bytes in self.sizes.keys() {
            let _ = write!(text, "\n{:>8}", size(bytes));
            for &scenario in scenarios {
                let comparison = self.comparison(scenario, bytes);
                let _ = write!(
                    text,
                    " │ {:>9} {:>9} {:>6}",
                    short(comparison.map(|c| c.predicted)),
                    short(comparison.map(|c| c.measured.median)),
                    cell(comparison.map(|c| c.ratio))
                );
            }
        }
        text.push('\n');
    }

    fn write_faults(&self, text: &mut String) {
        let _ = writeln!(text, "\n{:<18} {:>14}  published equation", "", "page faults");
        for scenario in SCENARIOS {
            let [sender, receiver] = self.faults.get(&scenario).copied().unwrap_or_default();
            let shown = |faults: Option<u64>| faults.map_or("–".into(), |faults| faults.to_string());
            let both = format!("{} + {}", shown(sender), shown(receiver));
            let _ = writeln!(text, "{:<18} {both:>14}  {}", scenario.title(), scenario.equation());
        }
        let _ = writeln!(text, "Page faults: sender + receiver, of one message of each size.");
    }

    /// Predicted and measured times, and their ratios, on a sheet.
    pub fn svg(&self) -> String {
        let sizes = || Axis::sizes("message size");
        let mut panels: Vec<Panel> = SCENARIOS
            .iter()
            .map(|&scenario| {
                let all = self.comparisons(scenario);
                let predicted: Vec<(f64, f64)> = all.iter().map(|(b, c)| (*b as f64, c.predicted)).collect();
                let measured: Vec<Point> = all
                    .iter()
                    .map(|(b, c)| {
                        let range = Some((c.measured.min, c.measured.max));
                        Point { x: *b as f64, y: c.measured.median, range }
                    })
                    .collect();
                let series =
                    vec![Series::line("measured, with its range", measured), Series::line("predicted", predicted)];
                Panel::new(format!("{}: predicted and measured", scenario.title()), sizes(), Axis::log("µs"), series)
            })
            .collect();
        let ratios = SCENARIOS.iter().map(|&scenario| {
            let all = self.comparisons(scenario);
            Series::line(scenario.title(), all.iter().map(|(b, c)| (*b as f64, c.ratio)).collect::<Vec<_>>())
        });
        let axis = Axis::log("measured by predicted").showing(0.5, 2.0);
        panels.push(Panel::new("Ratio of measured and predicted time", sizes(), axis, ratios.collect()));
        let drawings: Vec<&dyn Drawing> = panels.iter().map(|panel| panel as &dyn Drawing).collect();
        sheet("The extended LogGP model: rendezvous and Put", &drawings)
    }
}

fn middle(spread: Option<Spread>) -> String {
    short(spread.map(|spread| spread.median))
}

fn range(spread: Option<Spread>) -> String {
    spread.map_or(String::new(), |s| format!("{}–{}", short(Some(s.min)), short(Some(s.max))))
}

/// A figure in a few letters.
fn short(figure: Option<f64>) -> String {
    match figure {
        Some(f) if f.abs() >= 1e4 => format!("{:.0}k", f / 1e3),
        figure => cell(figure),
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::testing::{COSTS, results};
    use super::*;

    #[test]
    fn the_text_has_predictions_measured_times_and_ratios() {
        let text = results(COSTS, |scenario| if scenario == Scenario::Put { 2.0 } else { 1.0 }).text();
        // (5): 1 + 65.536 + 5 + 50.
        assert!(text.contains("      122       243   2.00"), "{text}");
        assert!(text.contains("o_page_fault_r") && text.contains("100 + 100"), "{text}");
        assert!(!text.contains("NaN"), "{text}");
    }

    #[test]
    fn the_picture_has_two_lines_for_each_scenario_and_all_ratios() {
        let svg = results(COSTS, |_| 1.0).svg();
        assert_eq!(svg.matches("<polyline").count(), 3 * SCENARIOS.len());
        assert!(svg.trim_end().ends_with("</svg>") && !svg.contains("NaN"));
    }

    #[test]
    fn large_figures_are_short() {
        assert_eq!([Some(9999.0), Some(1_093_651.0), Some(-2.5), None].map(short), ["9999", "1094k", "-2.50", "–"]);
    }
}
