//! The figures of `weir edge bench`, as tables and as JSON.

use super::baselines::Figure;
use super::configuration::Configuration;
use super::failure::{FailureRow, Phase};
use super::row::Row;
use super::settings::Settings;
use crate::table::{Spread, columns};
use serde::Serialize;
use std::fmt::Write;

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Of all runs of Weir.
    pub settings: Settings,
    pub rows: Vec<Row>,
    pub failures: Vec<FailureRow>,
    pub comparisons: Vec<Comparison>,
    /// Why some of it was not measured.
    pub errors: Vec<String>,
}

/// WRITEs one way, in turns with a baseline.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub links: String,
    pub mtu: u32,
    pub size: usize,
    pub against: &'static str,
    /// Medians, Gbit/s.
    pub weir: Option<f64>,
    pub baseline: Option<f64>,
    /// Weir divided by the baseline, round by round.
    pub ratio: Option<Spread>,
    /// The median share of the baseline's datagrams that were lost, if it has no protocol.
    pub lost: Option<f64>,
    /// Why the baseline cannot run here.
    pub skipped: Option<String>,
    pub failed: Option<String>,
}

impl Comparison {
    pub fn new(links: &Configuration, mtu: u32, size: usize, against: &'static str) -> Comparison {
        let links = links.name.clone();
        Comparison {
            links,
            mtu,
            size,
            against,
            weir: None,
            baseline: None,
            ratio: None,
            lost: None,
            skipped: None,
            failed: None,
        }
    }

    /// With the figures of rounds: Weir's Gbit/s and the baseline's figure.
    pub fn measured(self, rounds: &[(f64, Figure)]) -> Comparison {
        let spread = |figure: fn(&(f64, Figure)) -> f64| Spread::of(&rounds.iter().map(figure).collect::<Vec<_>>());
        let lost: Vec<f64> = rounds.iter().filter_map(|(_, figure)| figure.lost).collect();
        let median = |spread: Option<Spread>| spread.map(|spread| spread.median);
        Comparison {
            weir: median(spread(|round| round.0)),
            baseline: median(spread(|round| round.1.gigabits)),
            ratio: spread(|round| round.0 / round.1.gigabits),
            lost: median(Spread::of(&lost)),
            ..self
        }
    }
}

impl Report {
    /// Whether nothing has been measured yet.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.failures.is_empty()
    }

    /// As text.
    pub fn text(&self) -> String {
        let mut text = if self.rows.is_empty() { String::new() } else { self.tests() };
        if !self.failures.is_empty() {
            text += &self.failures();
        }
        if self.rows.iter().any(|row| row.client.breakdown.is_some()) {
            let _ = write!(text, "\n{}", self.breakdown());
        }
        if !self.comparisons.is_empty() {
            let _ = write!(text, "\n{}", self.ratios());
        }
        text
    }

    fn tests(&self) -> String {
        let header = [
            "links",
            "MTU",
            "test",
            "bytes",
            "Gbit/s",
            "of nominal",
            "again",
            "µs",
            "99 %",
            "call",
            "client",
            "server",
        ];
        let mut lines = vec![header.map(str::to_owned).to_vec()];
        for row in &self.rows {
            let time = |time: Option<f64>| time.map_or("–".into(), |time| format!("{time:.1}"));
            let streams = row.median_us.is_none();
            lines.push(vec![
                row.links.clone(),
                row.mtu.to_string(),
                row.test.to_owned(),
                row.size.to_string(),
                format!("{:.3}", row.gigabits),
                if streams { format!("{:.2}", row.share) } else { "–".into() },
                row.again.to_string(),
                time(row.median_us),
                time(row.p99_us),
                row.call_median_us.map_or("–".into(), |call| format!("{call:.2}")),
                format!("{:.2} s", row.client.cpu_seconds),
                format!("{:.2} s", row.server.cpu_seconds),
            ]);
        }
        columns(&lines, |column| column >= 3)
    }

    fn failures(&self) -> String {
        let header = [
            "links",
            "MTU",
            "failure",
            "before",
            "failed",
            "after",
            "its share",
            "failed",
            "after",
            "stall",
            "stall before",
            "pause",
            "again",
            "lost",
        ];
        let mut lines = vec![header.map(str::to_owned).to_vec()];
        for one in &self.failures {
            let FailureRow { row, failure, before, failed, after, stall_ms, stall_before_ms, pause_ms, .. } = one;
            let rate = |phase: &Phase| format!("{:.2} Gbit/s", phase.gigabits);
            let share = |phase: &Phase| format!("{:.2}", phase.share);
            let time = |ms: &f64| format!("{ms:.0} ms");
            let what = [row.links.clone(), row.mtu.to_string(), failure.clone()];
            let phases = [before, failed, after];
            let figures = phases.map(rate).into_iter().chain(phases.map(share));
            let times = [stall_ms, stall_before_ms, pause_ms].map(time);
            let rest = times.into_iter().chain([row.again.to_string(), one.failed_operations.to_string()]);
            lines.push(what.into_iter().chain(figures).chain(rest).collect());
        }
        let mut text = columns(&lines, |column| column >= 3);
        for (one, why) in self.failures.iter().filter_map(|one| Some((one, one.why.as_ref()?))) {
            let _ = writeln!(
                text,
                "{} MTU {}, {}: an operation has failed: {why}",
                one.row.links, one.row.mtu, one.failure
            );
        }
        text
    }

    fn breakdown(&self) -> String {
        let mut lines: Vec<Vec<String>> = vec![];
        for row in &self.rows {
            for (name, side) in [("client", &row.client), ("server", &row.server)] {
                let shares = side.breakdown.as_deref().unwrap_or_default();
                if lines.is_empty() {
                    let names = ["links", "MTU", "test", "side", "bytes"].into_iter();
                    lines.push(names.chain(shares.iter().map(|share| share.part)).map(str::to_owned).collect());
                }
                let what = [row.links.clone(), row.mtu.to_string(), row.test.into(), name.into(), row.size.to_string()];
                let figures = shares.iter().map(|s| format!("{:.2} µs {:3.0} %", s.us_per_packet, s.percent));
                lines.push(what.into_iter().chain(figures).collect());
            }
        }
        format!(
            "CPU time for each packet with bytes of operations, and of the side's CPU time:\n{}",
            columns(&lines, |column| column >= 4)
        )
    }

    fn ratios(&self) -> String {
        let header = ["links", "MTU", "against", "bytes", "Weir", "baseline", "ratio", "range"];
        let mut lines = vec![header.map(str::to_owned).to_vec()];
        for one in self.comparisons.iter().filter(|one| one.ratio.is_some()) {
            let figure = |figure: Option<f64>| figure.map_or("–".into(), |figure| format!("{figure:.2} Gbit/s"));
            lines.push(vec![
                one.links.clone(),
                one.mtu.to_string(),
                one.against.to_owned(),
                one.size.to_string(),
                figure(one.weir),
                figure(one.baseline),
                one.ratio.map_or("–".into(), |ratio| format!("{:.2}", ratio.median)),
                one.ratio.map_or("–".into(), |ratio| format!("{:.2}–{:.2}", ratio.min, ratio.max)),
            ]);
        }
        let mut text = if lines.len() > 1 { columns(&lines, |column| column >= 3) } else { String::new() };
        for (one, lost) in self.comparisons.iter().filter_map(|one| Some((one, one.lost?))) {
            let percent = lost * 100.0;
            let _ = writeln!(text, "{} MTU {}, {}: {percent:.2} % were lost", one.links, one.mtu, one.against);
        }
        for one in &self.comparisons {
            let reasons = [("skipped", &one.skipped), ("FAILED", &one.failed)];
            for (word, why) in reasons.iter().filter_map(|(word, why)| Some((word, why.as_ref()?))) {
                let _ = writeln!(text, "{} MTU {}, {}: {word}: {why}", one.links, one.mtu, one.against);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::{Part, Test};
    use super::super::row::tests::{part, row};
    use super::*;

    #[test]
    fn tables_and_json_have_all_rows_and_say_what_was_skipped() {
        let links: Configuration = "2x1".parse().unwrap();
        let skipped = Some("the kernel has no MPTCP".to_owned());
        let report = Report {
            rows: vec![
                row(Test::OneWay, part(100, 1.0, 101), part(0, 1.0, 0)),
                row(Test::PingPong, Part { latency: Some([2e-5, 5e-5]), ..part(9, 1.0, 10) }, part(9, 1.0, 9)),
            ],
            comparisons: vec![
                Comparison::new(&links, 1500, 1000, "TCP").measured(
                    &[(2.0, 1.0), (3.0, 2.0), (1.0, 1.0)]
                        .map(|(weir, gigabits)| (weir, Figure { gigabits, lost: Some(0.015) })),
                ),
                Comparison { skipped, ..Comparison::new(&links, 1500, 1000, "MPTCP") },
            ],
            ..Report::default()
        };
        let text = report.text();
        assert!(text.contains("2x1 MTU 1500, TCP: 1.50 % were lost\n"), "{text}");
        assert!(text.contains("ping-pong") && text.contains("20.0") && text.contains("50.0"), "{text}");
        assert!(text.contains("1.50  1.00–2.00"), "{text}");
        assert!(text.contains("2x1 MTU 1500, MPTCP: skipped: the kernel has no MPTCP\n"), "{text}");
        assert!(text.contains("0.50 µs"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            (json["rows"][0]["test"].as_str(), json["rows"][0]["bytes"].as_u64()),
            (Some("one-way"), Some(100_000))
        );
        assert_eq!(json["rows"][1]["p99_us"].as_f64().map(f64::round), Some(50.0));
        assert_eq!(json["comparisons"][0]["ratio"]["median"], 1.5);
        assert!(json["comparisons"][1]["ratio"].is_null());
    }
}
