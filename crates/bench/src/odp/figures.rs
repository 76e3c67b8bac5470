//! The paper's figures, measured on this machine: as a table, as a picture, and checked against its observations.

use super::observation::{self, Observation, cell};
use super::program::{Line, Memory, Prefetch};
use crate::table::Spread;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use weir_lab::figure::{Axis, Drawing, Panel, Series, sheet};

/// All figures, by message size or by iteration.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// By message size.
    pub sizes: BTreeMap<u64, Size>,
    /// Latency of the first iterations of 1 MiB: pinned and on demand, µs.
    pub iterations: BTreeMap<u64, [Option<f64>; 2]>,
}

/// The figures of a message size. Pairs are pinned and ODP memory.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Size {
    /// Mean over all iterations, the first included, µs.
    pub latency: [Option<f64>; 2],
    pub first: [Option<f64>; 2],
    pub median: [Option<f64>; 2],
    /// Page faults of the client; `None` if the adapter does not count them.
    pub faults: Option<u64>,
    /// Bytes per second.
    pub bandwidth: [Option<f64>; 2],
    /// A prefetch, mean of five over the same memory, µs: asynchronous, and synchronous (IBV_ADVISE_MR_FLAG_FLUSH).
    pub prefetch: [Option<f64>; 2],
    /// The first of the synchronous prefetches, µs.
    pub first_prefetch: Option<f64>,
    /// A message through cold memory and a short reply, µs: no prefetch, at the sender, at the receiver, at both.
    pub sides: [Option<f64>; 4],
}

impl Figures {
    /// The figures in the output of `weir-odp`.
    pub fn of(lines: &[Line]) -> Figures {
        let mut figures = Figures::default();
        for line in lines {
            figures.enter(line);
        }
        figures
    }

    fn enter(&mut self, line: &Line) {
        match *line {
            Line::Latency { memory, bytes, average, first, median, faults } => {
                let size = self.sizes.entry(bytes).or_default();
                let index = memory as usize;
                size.latency[index] = Some(average);
                size.first[index] = Some(first);
                size.median[index] = Some(median);
                if memory == Memory::Odp {
                    size.faults = u64::try_from(faults).ok();
                }
            }
            Line::Bandwidth { memory, bytes, value } => {
                self.sizes.entry(bytes).or_default().bandwidth[memory as usize] = Some(value);
            }
            Line::Iteration { memory, number, value } => {
                self.iterations.entry(number).or_default()[memory as usize] = Some(value);
            }
            Line::PrefetchCost { bytes, waits, average, first } => {
                let size = self.sizes.entry(bytes).or_default();
                size.prefetch[usize::from(waits)] = Some(average);
                if waits {
                    size.first_prefetch = Some(first);
                }
            }
            Line::Sides { prefetch, bytes, value } => {
                self.sizes.entry(bytes).or_default().sides[prefetch as usize] = Some(value);
            }
            Line::WarmLatency { .. } | Line::WarmThroughput { .. } | Line::Cold(_) | Line::OutOfCore(_) => {}
        }
    }

    /// Tables and observations as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{:>8} │ {:^26} │ {:^15} │ {:^23} │ {:^31}",
            "", "latency µs (fig. 2a)", "GB/s (2b)", "prefetch µs (3b)", "cold message µs (3c): prefetch at"
        );
        let _ = writeln!(
            text,
            "{:>8} │ {:>8} {:>8} {:>8} │ {:>7} {:>7} │ {:>7} {:>7} {:>7} │ {:>7} {:>7} {:>8} {:>6}",
            "bytes",
            "pinned",
            "ODP",
            "faults",
            "pinned",
            "ODP",
            "async",
            "sync",
            "first",
            "none",
            "sender",
            "receiver",
            "both"
        );
        for (bytes, size) in &self.sizes {
            let rate = |figure: Option<f64>| cell(figure.map(|f| f / 1e9));
            let _ = writeln!(
                text,
                "{:>8} │ {:>8} {:>8} {:>8} │ {:>7} {:>7} │ {:>7} {:>7} {:>7} │ {:>7} {:>7} {:>8} {:>6}",
                bytes,
                cell(size.latency[0]),
                cell(size.latency[1]),
                size.faults.map_or("–".into(), |faults| faults.to_string()),
                rate(size.bandwidth[0]),
                rate(size.bandwidth[1]),
                cell(size.prefetch[0]),
                cell(size.prefetch[1]),
                cell(size.first_prefetch),
                cell(size.sides[0]),
                cell(size.sides[1]),
                cell(size.sides[2]),
                cell(size.sides[3])
            );
        }
        for (memory, what) in [(0, "pinned"), (1, "ODP")] {
            let shown: Vec<String> = self.iterations.values().take(8).map(|pair| cell(pair[memory])).collect();
            let _ = writeln!(text, "1 MiB, µs by iteration (3a), {what:<6}: {} …", shown.join(" "));
        }
        text + &observation::render(&self.observations())
    }

    /// The paper's observations about its figures.
    pub fn observations(&self) -> Vec<Observation> {
        vec![
            self.first_byte(),
            self.one_page(),
            self.new_pages(),
            self.same_bandwidth(),
            self.first_iteration(),
            self.later_iterations(),
            self.light_prefetch(),
            self.prefetched_both(),
            self.unlike_sides(),
        ]
    }

    fn first_byte(&self) -> Observation {
        let size = self.sizes.get(&1);
        let holds = size.and_then(|size| Some(size.first[1]? > size.first[0]? && size.faults.unwrap_or(1) > 0));
        let first = |memory: usize| cell(size.and_then(|size| size.first[memory]));
        Observation {
            paper: "With 1 byte the first iteration has a page fault, and is slower than with pinned memory.",
            here: format!("first iteration {} µs pinned, {} µs ODP", first(0), first(1)),
            holds,
        }
    }

    fn one_page(&self) -> Observation {
        let faults = self.faults(2..=4096);
        Observation {
            paper: "From 2 bytes to 4 KiB all data is in a page that is already mapped: there are no more faults.",
            here: faults.map_or("faults are not counted".into(), |faults| format!("{faults} page faults")),
            holds: faults.map(|faults| faults == 0),
        }
    }

    fn new_pages(&self) -> Observation {
        let sizes = || self.sizes.range(8192..).filter_map(|(_, size)| size.faults);
        let with = sizes().filter(|&faults| faults > 0).count();
        let count = sizes().count();
        Observation {
            paper: "From 8 KiB on every size touches new pages, and has faults.",
            here: format!("{with} of {count} sizes had faults, {} in all", sizes().sum::<u64>()),
            holds: (count > 0).then_some(with == count),
        }
    }

    fn same_bandwidth(&self) -> Observation {
        let pair = self.sizes.get(&(1 << 20)).map(|size| size.bandwidth);
        let ratio = pair.and_then(|pair| Some(pair[1]? / pair[0]?));
        Observation {
            paper: "With 1 MiB the bandwidth is the same as with pinned memory.",
            here: format!("the bandwidth with ODP is {} of that with pinned memory", cell(ratio)),
            holds: ratio.map(|ratio| ratio >= 0.9),
        }
    }

    fn first_iteration(&self) -> Observation {
        let first = self.iterations.get(&1).and_then(|pair| pair[1]);
        let later = self.later(1);
        Observation {
            paper: "The first iteration of 1 MiB is significantly slower than those that follow.",
            here: format!("{} µs, later ones {} µs", cell(first), cell(later)),
            holds: first.zip(later).map(|(first, later)| first >= 1.25 * later),
        }
    }

    fn later_iterations(&self) -> Observation {
        let (pinned, odp) = (self.later(0), self.later(1));
        Observation {
            paper: "Once the faults are resolved, iterations are as fast as with pinned memory.",
            here: format!("{} µs pinned, {} µs ODP", cell(pinned), cell(odp)),
            holds: pinned.zip(odp).map(|(pinned, odp)| odp <= 1.1 * pinned),
        }
    }

    fn light_prefetch(&self) -> Observation {
        let shares: Vec<f64> = self
            .sizes
            .values()
            .filter_map(|size| Some(size.prefetch[0]? / (size.sides[0]? - size.sides[3]?).max(0.001)))
            .collect();
        let share = Spread::of(&shares);
        Observation {
            paper: "Posting a prefetch takes much less time than resolving page faults.",
            here: format!(
                "it takes {} of the time that the faults of a message take (median over the sizes)",
                cell(share.map(|share| share.median))
            ),
            holds: share.map(|share| share.median <= 0.5),
        }
    }

    fn prefetched_both(&self) -> Observation {
        let ratio = self.ratio_of_sides(Prefetch::Both, Prefetch::None);
        Observation {
            paper: "A prefetch at both sides reduces the latency significantly.",
            here: format!("it takes {} of the time without (median over the sizes)", cell(ratio)),
            holds: ratio.map(|ratio| ratio <= 0.8),
        }
    }

    fn unlike_sides(&self) -> Observation {
        let ratio = self.ratio_of_sides(Prefetch::Sender, Prefetch::Receiver);
        Observation {
            paper: "A page fault at the receiver costs far more than one at the sender.",
            here: format!(
                "a message with a fault at the receiver takes {} of the time of a message with a fault at the sender; \
                 this adapter waits for the page, the paper's sends an RNR NAK",
                cell(ratio)
            ),
            holds: ratio.map(|ratio| ratio >= 1.5),
        }
    }

    fn faults(&self, sizes: std::ops::RangeInclusive<u64>) -> Option<u64> {
        let mut counted = self.sizes.range(sizes).map(|(_, size)| size.faults).peekable();
        counted.peek()?;
        counted.sum()
    }

    /// Median of all iterations but the first.
    fn later(&self, memory: usize) -> Option<f64> {
        let later: Vec<f64> = self.iterations.range(2..).filter_map(|(_, pair)| pair[memory]).collect();
        Spread::of(&later).map(|later| later.median)
    }

    fn ratio_of_sides(&self, one: Prefetch, other: Prefetch) -> Option<f64> {
        let ratio = |size: &Size| Some(size.sides[one as usize]? / size.sides[other as usize]?);
        let ratios: Vec<f64> = self.sizes.values().filter_map(ratio).collect();
        Spread::of(&ratios).map(|ratios| ratios.median)
    }

    /// All five figures on a sheet.
    pub fn svg(&self) -> String {
        let by_size = |of: &dyn Fn(&Size) -> Option<f64>| -> Vec<(f64, f64)> {
            self.sizes.iter().filter_map(|(bytes, size)| Some((*bytes as f64, of(size)?))).collect()
        };
        let iterations = |memory: usize| -> Vec<(f64, f64)> {
            self.iterations.iter().filter_map(|(number, pair)| Some((*number as f64, pair[memory]?))).collect()
        };
        let size = || Axis::sizes("message size");
        let series = |name: &str, points: Vec<(f64, f64)>| Series::line(name, points);
        let panels = [
            Panel::new(
                "Latency of a ping-pong, first iteration included",
                size(),
                Axis::log("µs"),
                vec![
                    series("pinned", by_size(&|s| s.latency[0])),
                    series("ODP", by_size(&|s| s.latency[1])),
                    series("ODP, first iteration", by_size(&|s| s.first[1])),
                ],
            ),
            Panel::new(
                "Bandwidth of WRITEs",
                size(),
                Axis::linear("GB/s"),
                vec![
                    series("pinned", by_size(&|s| s.bandwidth[0].map(|b| b / 1e9))),
                    series("ODP", by_size(&|s| s.bandwidth[1].map(|b| b / 1e9))),
                ],
            ),
            Panel::new(
                "1 MiB, one iteration after the other",
                Axis::linear("iteration"),
                Axis::linear("µs"),
                vec![series("pinned", iterations(0)), series("ODP", iterations(1))],
            ),
            Panel::new(
                "Cost of a prefetch, five over the same memory",
                size(),
                Axis::log("µs"),
                vec![
                    series("asynchronous", by_size(&|s| s.prefetch[0])),
                    series("synchronous", by_size(&|s| s.prefetch[1])),
                    series("the first, synchronous", by_size(&|s| s.first_prefetch)),
                ],
            ),
            Panel::new(
                "A message through cold memory: prefetch at",
                size(),
                Axis::log("µs"),
                vec![
                    series("neither side", by_size(&|s| s.sides[0])),
                    series("the sender", by_size(&|s| s.sides[1])),
                    series("the receiver", by_size(&|s| s.sides[2])),
                    series("both sides", by_size(&|s| s.sides[3])),
                ],
            ),
        ];
        let drawings: Vec<&dyn Drawing> = panels.iter().map(|panel| panel as &dyn Drawing).collect();
        sheet("On-demand paging at the level of verbs", &drawings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(odp_first: f64) -> Vec<Line> {
        let mut lines = vec![];
        for power in 0..=20 {
            let bytes = 1u64 << power;
            for memory in [Memory::Pinned, Memory::Odp] {
                let cold = memory == Memory::Odp && (power == 0 || power >= 13);
                let first = if cold { odp_first } else { 5.0 };
                let faults = i64::from(cold);
                lines.push(Line::Latency { memory, bytes, average: 3.0, first, median: 2.0, faults });
                lines.push(Line::Bandwidth { memory, bytes, value: bytes as f64 * 1e4 });
            }
            lines.push(Line::PrefetchCost { bytes, waits: false, average: 1.0, first: 1.0 });
            for (prefetch, value) in
                [(Prefetch::None, 90.0), (Prefetch::Sender, 80.0), (Prefetch::Receiver, 30.0), (Prefetch::Both, 20.0)]
            {
                lines.push(Line::Sides { prefetch, bytes, value });
            }
        }
        for number in 1..=20 {
            lines.push(Line::Iteration { memory: Memory::Pinned, number, value: 200.0 });
            lines.push(Line::Iteration { memory: Memory::Odp, number, value: if number == 1 { 900.0 } else { 205.0 } });
        }
        lines
    }

    #[test]
    fn figures_like_the_papers_confirm_all_observations() {
        let figures = Figures::of(&lines(80.0));
        for observation in figures.observations() {
            assert_eq!(observation.holds, Some(true), "{observation:?}");
        }
        assert!(figures.text().contains("1048576"));
    }

    #[test]
    fn other_figures_do_not_confirm_an_observation_and_missing_figures_decide_nothing() {
        let figures = Figures::of(&lines(4.0));
        assert_eq!(figures.first_byte().holds, Some(false));
        assert!(Figures::default().observations().iter().all(|observation| observation.holds != Some(true)));
        assert_eq!(Figures::default().first_byte().holds, None);
    }

    #[test]
    fn the_picture_has_every_figure() {
        let svg = Figures::of(&lines(80.0)).svg();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("<polyline").count(), 3 + 2 + 2 + 1 + 4);
    }
}
