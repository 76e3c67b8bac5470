//! The figures of `weir edge bench`, as tables and as JSON.

use super::configuration::{Configuration, packets};
use super::job::{Done, Test};
use super::usage::Parts;
use crate::table::Spread;
use serde::Serialize;
use std::fmt::Write;

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub rows: Vec<Row>,
    pub comparisons: Vec<Comparison>,
}

/// One test with one size on one set of links.
#[derive(Debug, Serialize)]
pub struct Row {
    pub links: String,
    pub mtu: u32,
    pub test: &'static str,
    pub size: usize,
    /// Bytes of operations that were performed, both directions together; those of a ping-pong too.
    pub bytes: u64,
    pub seconds: f64,
    /// Gbit/s of them.
    pub gigabits: f64,
    /// What the links carry at most, Gbit/s, both directions together in `two-way`.
    pub nominal: f64,
    pub share: f64,
    /// Packets with bytes of operations, both directions.
    pub packets: u64,
    /// Those of them that were sent before.
    pub again: u64,
    /// One way, microseconds; of `ping-pong` only.
    pub median_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub client: SideUsage,
    pub server: SideUsage,
}

#[derive(Debug, Serialize)]
pub struct SideUsage {
    pub cpu_seconds: f64,
    pub link_bytes: Vec<u64>,
    pub system_calls: u64,
    pub sleeps: u64,
    /// With `--breakdown`.
    pub breakdown: Option<Vec<Share>>,
}

/// CPU time of a part.
#[derive(Debug, PartialEq, Serialize)]
pub struct Share {
    pub part: &'static str,
    /// Microseconds for each packet with bytes of operations.
    pub us_per_packet: f64,
    /// Of the CPU time of the process.
    pub percent: f64,
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
    /// Why the baseline cannot run here.
    pub skipped: Option<String>,
    pub failed: Option<String>,
}

impl Row {
    pub fn new(links: &Configuration, mtu: u32, done: &Done, breakdown: bool) -> Row {
        let Done { job, client, server } = done;
        let operations = client.operations + server.operations;
        let (bytes, seconds) = (operations * job.size as u64, client.seconds.max(server.seconds));
        // A one-way job ends for the client when the server has told it that all is performed.
        let seconds = if job.test == Test::TwoWay { seconds } else { client.seconds };
        let gigabits = bytes as f64 * 8e-9 / seconds;
        let nominal = links.nominal(mtu, job.size) * if job.test == Test::TwoWay { 2.0 } else { 1.0 };
        let sent = client.usage.packets_sent + server.usage.packets_sent;
        // Each side that sends tells the other the end, in a packet of its own.
        let ends = if job.test == Test::TwoWay { 2 } else { 1 };
        let side = |part: &super::job::Part| SideUsage {
            cpu_seconds: part.usage.cpu,
            link_bytes: part.usage.link_bytes.clone(),
            system_calls: part.usage.sends + part.usage.receives + part.usage.empty_receives,
            sleeps: part.usage.sleeps,
            breakdown: breakdown.then(|| shares(&part.usage.parts, part.usage.cpu, sent)),
        };
        Row {
            links: links.name.clone(),
            mtu,
            test: job.test.name(),
            size: job.size,
            bytes,
            seconds,
            gigabits,
            nominal,
            share: gigabits / nominal,
            packets: sent,
            again: sent.saturating_sub(operations * packets(mtu, job.size) + ends),
            median_us: client.latency.map(|[median, _]| median * 1e6),
            p99_us: client.latency.map(|[_, p99]| p99 * 1e6),
            client: side(client),
            server: side(server),
        }
    }
}

/// The parts, and what is left: the program, and the rest of the kernel's time.
fn shares(parts: &Parts, cpu: f64, packets: u64) -> Vec<Share> {
    let named = parts.named();
    let rest = (cpu - named.iter().map(|(_, seconds)| seconds).sum::<f64>()).max(0.0);
    let share = |(part, seconds): (&'static str, f64)| Share {
        part,
        us_per_packet: if packets > 0 { seconds * 1e6 / packets as f64 } else { 0.0 },
        percent: if cpu > 0.0 { seconds * 100.0 / cpu } else { 0.0 },
    };
    named.into_iter().chain([("other", rest)]).map(share).collect()
}

impl Comparison {
    pub fn new(links: &Configuration, mtu: u32, size: usize, against: &'static str) -> Comparison {
        let links = links.name.clone();
        Comparison { links, mtu, size, against, weir: None, baseline: None, ratio: None, skipped: None, failed: None }
    }

    /// With the figures of rounds: Weir's and the baseline's.
    pub fn measured(self, rounds: &[(f64, f64)]) -> Comparison {
        let spread = |figure: fn(&(f64, f64)) -> f64| Spread::of(&rounds.iter().map(figure).collect::<Vec<_>>());
        let median = |spread: Option<Spread>| spread.map(|spread| spread.median);
        Comparison {
            weir: median(spread(|round| round.0)),
            baseline: median(spread(|round| round.1)),
            ratio: spread(|round| round.0 / round.1),
            ..self
        }
    }
}

impl Report {
    /// As text.
    pub fn text(&self) -> String {
        let mut text = self.tests();
        if self.rows.iter().any(|row| row.client.breakdown.is_some()) {
            let _ = write!(text, "\n{}", self.breakdown());
        }
        if !self.comparisons.is_empty() {
            let _ = write!(text, "\n{}", self.ratios());
        }
        text
    }

    fn tests(&self) -> String {
        let header =
            ["links", "MTU", "test", "bytes", "Gbit/s", "of nominal", "again", "µs", "99 %", "client", "server"];
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
                format!("{:.2} s", row.client.cpu_seconds),
                format!("{:.2} s", row.server.cpu_seconds),
            ]);
        }
        columns(&lines, 3)
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
            columns(&lines, 4)
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
        let mut text = if lines.len() > 1 { columns(&lines, 3) } else { String::new() };
        for one in &self.comparisons {
            let reasons = [("skipped", &one.skipped), ("FAILED", &one.failed)];
            for (word, why) in reasons.iter().filter_map(|(word, why)| Some((word, why.as_ref()?))) {
                let _ = writeln!(text, "{} MTU {}, {}: {word}: {why}", one.links, one.mtu, one.against);
            }
        }
        text
    }
}

/// Lines of cells of one width; those from column `right` on end together.
fn columns(lines: &[Vec<String>], right: usize) -> String {
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().enumerate().map(|(column, cell)| match width(column).unwrap_or(0) {
            width if column >= right => format!("{cell:>width$}"),
            width => format!("{cell:<width$}"),
        });
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::job::{Job, Part};
    use super::super::usage::Usage;
    use super::*;

    fn part(operations: u64, seconds: f64, packets_sent: u64) -> Part {
        let parts = Parts { protocol: 0.25, system_calls: 0.5, ..Parts::default() };
        let usage = Usage { cpu: 1.0, packets_sent, parts, link_bytes: vec![10, 20], ..Usage::default() };
        Part { operations, seconds, latency: None, usage }
    }

    fn row(test: Test, client: Part, server: Part) -> Row {
        let done = Done { job: Job { test, size: 1000, seconds: 1.0 }, client, server };
        Row::new(&"2x1".parse().unwrap(), 1500, &done, true)
    }

    #[test]
    fn a_stream_has_a_rate_and_packets_that_went_again() {
        let one = row(Test::OneWay, part(100_000, 0.5, 100_008), part(0, 9.0, 0));
        assert!((one.gigabits - 1.6).abs() < 1e-9 && one.bytes == 100_000_000 && one.again == 7, "{one:?}");
        assert!((one.share - 1.6 / one.nominal).abs() < 1e-12 && one.nominal < 2.0);
        let both = row(Test::TwoWay, part(100_000, 0.5, 100_001), part(100_000, 1.0, 100_001));
        assert!((both.gigabits - 1.6).abs() < 1e-9 && both.again == 0, "{both:?}");
        assert!((both.nominal / one.nominal - 2.0).abs() < 1e-12);
    }

    #[test]
    fn a_breakdown_is_per_packet_and_adds_up_to_all_cpu_time() {
        let one = row(Test::OneWay, part(500_000, 1.0, 500_000), part(0, 1.0, 0));
        let shares = one.client.breakdown.unwrap();
        assert_eq!(shares[3], Share { part: "protocol", us_per_packet: 0.5, percent: 25.0 });
        assert_eq!(shares[5], Share { part: "other", us_per_packet: 0.5, percent: 25.0 });
        assert_eq!(shares.iter().map(|share| share.percent).sum::<f64>(), 100.0);
        assert!(super::shares(&Parts::default(), 0.0, 0).iter().all(|share| share.percent == 0.0));
    }

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
                Comparison::new(&links, 1500, 1000, "TCP").measured(&[(2.0, 1.0), (3.0, 2.0), (1.0, 1.0)]),
                Comparison { skipped, ..Comparison::new(&links, 1500, 1000, "MPTCP") },
            ],
        };
        let text = report.text();
        assert!(text.contains("ping-pong") && text.contains("20.0") && text.contains("50.0"), "{text}");
        assert!(text.contains("1.50  1.00–2.00"), "{text}");
        assert!(text.contains("2x1 MTU 1500, MPTCP: skipped: the kernel has no MPTCP\n"), "{text}");
        assert!(text.contains("0.50 µs") || text.contains("system calls"), "{text}");
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
