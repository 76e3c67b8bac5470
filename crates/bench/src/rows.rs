//! The rows of the bench: what is measured, the baselines, and the bars.

use super::measure::{Measurement, Unit};
use super::peers::Over;
use super::perftest::{Icrc, Verb};

/// Runs of each round of rows with ratios near 1.
const SHORT_RUNS: u32 = 5;

/// A row of the bench: a subject and the baselines that it is compared with.
pub struct Row {
    /// Name for the command line; a part of it up to a dash selects the row too.
    pub name: &'static str,
    pub what: &'static str,
    pub subject: Measurement,
    pub comparisons: Vec<Comparison>,
    /// Whether it runs without being named.
    pub by_default: bool,
    /// Limit of rounds, for rows with a constant figure.
    pub at_most_rounds: u32,
    /// Runs of each measurement in a round, in turns; its figure of the round is their median.
    pub runs: u32,
}

/// A comparison: the subject's figure divided by the baseline's, against a bar.
pub struct Comparison {
    pub baseline: Baseline,
    /// `None`: the ratio is only shown.
    pub bar: Option<Bar>,
}

impl Row {
    /// A row that runs by default.
    pub fn new(name: &'static str, what: &'static str, subject: Measurement, comparisons: Vec<Comparison>) -> Row {
        Row { name, what, subject, comparisons, by_default: true, at_most_rounds: u32::MAX, runs: 1 }
    }

    /// The same with [`SHORT_RUNS`] runs in each round, of a latency shorter ones: where the system places threads changes
    /// a run's figure more than a ratio near 1 differs from 1.
    pub fn in_short_runs(self) -> Row {
        Row { runs: SHORT_RUNS, ..self }
    }

    /// Whether its figures are times, of which the smaller is the better.
    pub fn is_latency(&self) -> bool {
        self.subject.unit() == Unit::Seconds
    }
}

impl Comparison {
    /// With a measurement that runs in turns with the subject.
    pub fn with_bar(measurement: Measurement, bar: Bar) -> Comparison {
        Comparison { baseline: Baseline::Measured(measurement), bar: Some(bar) }
    }

    /// As `with_bar`; the ratio is only shown.
    pub fn without_bar(measurement: Measurement) -> Comparison {
        Comparison { baseline: Baseline::Measured(measurement), bar: None }
    }
}

/// The denominator of a ratio.
#[derive(Clone, Copy)]
pub enum Baseline {
    /// Measured in turns with the subject.
    Measured(Measurement),
    /// A fixed figure, in the subject's base unit.
    Fixed(f64),
}

/// Where the median ratio must lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    /// Whether a ratio meets it.
    pub fn holds(self, ratio: f64) -> bool {
        match self {
            Bar::AtLeast(bar) => ratio >= bar,
            Bar::AtMost(bar) => ratio <= bar,
        }
    }
}

impl std::fmt::Display for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bar::AtLeast(bar) => write!(f, "≥ {bar:.2}"),
            Bar::AtMost(bar) => write!(f, "≤ {bar:.2}"),
        }
    }
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// All rows.
pub fn all() -> Vec<Row> {
    use Bar::{AtLeast, AtMost};
    use Baseline::{Fixed, Measured};
    use Measurement::*;
    let write = |size, icrc| Perftest { verb: Verb::Write, size, icrc, both_ways: false };
    let one_way = |verb| Perftest { verb, size: MIB, icrc: Icrc::Auto, both_ways: false };
    let raw = |size| Raw { size, both_ways: false };
    let tag_lat = UcxLatency { test: "tag_lat", size: 8, over: Over::Tcp };
    let tag_bw = |size| Ucx { test: "tag_bw", size, over: Over::Tcp };
    let bar = |baseline, bar| Comparison { baseline, bar: Some(bar) };
    let without_bar = Comparison::without_bar;
    let row = Row::new;
    let ceiling =
        |name, what, subject, peer| Row { by_default: false, ..row(name, what, subject, vec![without_bar(peer)]) };
    // Memory does not vary, and perftest takes long to make 1,000 QPs.
    let once = |row| Row { at_most_rounds: 1, ..row };
    vec![
        row(
            "write-1m-always",
            "ib_write_bw 1 MiB, ICRC on every packet",
            write(MIB, Icrc::Always),
            vec![bar(Measured(raw(MIB)), AtLeast(0.70)), without_bar(Iperf3)],
        ),
        row(
            "write-1m-auto",
            "ib_write_bw 1 MiB",
            write(MIB, Icrc::Auto),
            vec![bar(Measured(raw(MIB)), AtLeast(0.80)), without_bar(Iperf3)],
        ),
        row(
            "write-64k",
            "ib_write_bw 64 KiB",
            write(64 * KIB, Icrc::Auto),
            vec![bar(Measured(tag_bw(64 * KIB)), AtLeast(1.2)), without_bar(raw(64 * KIB))],
        ),
        row(
            "write-4k",
            "ib_write_bw 4 KiB",
            write(4 * KIB, Icrc::Auto),
            vec![bar(Measured(tag_bw(4 * KIB)), AtLeast(3.0)), without_bar(raw(4 * KIB))],
        ),
        row(
            "read-1m",
            "ib_read_bw 1 MiB",
            one_way(Verb::Read),
            vec![bar(Measured(write(MIB, Icrc::Auto)), AtLeast(0.80))],
        ),
        row(
            "send-1m",
            "ib_send_bw 1 MiB",
            one_way(Verb::Send),
            vec![bar(Measured(write(MIB, Icrc::Auto)), AtLeast(0.80))],
        ),
        row(
            "write-bidir",
            "ib_write_bw -b 1 MiB, both ways summed",
            Perftest { verb: Verb::Write, size: MIB, icrc: Icrc::Auto, both_ways: true },
            vec![bar(Measured(Raw { size: MIB, both_ways: true }), AtLeast(0.75))],
        ),
        row(
            "write-lat",
            "ib_write_lat 8 B, median",
            Latency { verb: Verb::Write, size: 8 },
            vec![bar(Measured(RawLatency), AtMost(1.7)), bar(Measured(tag_lat), AtMost(1.0))],
        ),
        row(
            "msgrate",
            "ib_write_bw 64 B, messages",
            MessageRate { verb: Verb::Write, size: 64 },
            vec![bar(Fixed(0.7e6), AtLeast(1.0))],
        ),
        row(
            "event-cpu-read",
            "ib_read_bw -e 1 MiB, CPU of both processes",
            EventCpu(Verb::Read),
            vec![bar(Measured(Iperf3Cpu), AtMost(1.5))],
        ),
        row(
            "event-cpu-send",
            "ib_send_bw -e 1 MiB, CPU of both processes",
            EventCpu(Verb::Send),
            vec![bar(Measured(Iperf3Cpu), AtMost(1.5))],
        ),
        row("idle", "idle connected processes: CPU of the busier one", Idle, vec![bar(Fixed(0.001), AtMost(1.0))]),
        once(row(
            "qps-1000",
            "memory of 1,000 connected QPs, larger of both processes",
            QpMemory(1000),
            vec![bar(Fixed(64.0 * MIB as f64), AtMost(1.0))],
        )),
        ceiling("raw-1m", "raw UDP bursts, in datagrams as of 1 MiB WRITEs", raw(MIB), Iperf3),
        ceiling("raw-64k", "raw UDP bursts, in datagrams as of 64 KiB WRITEs", raw(64 * KIB), tag_bw(64 * KIB)),
        ceiling("raw-4k", "raw UDP bursts, in datagrams as of 4 KiB WRITEs", raw(4 * KIB), tag_bw(4 * KIB)),
        ceiling("raw-bidir", "raw both ways, summed", Raw { size: MIB, both_ways: true }, raw(MIB)),
        ceiling("raw-lat", "raw UDP ping-pong as of 8 B WRITEs, spinning", RawLatency, tag_lat),
    ]
}

/// The rows that `names` select, each by its name or a part up to a dash; the usual ones if there are no names.
pub fn select(rows: Vec<Row>, names: &[String]) -> anyhow::Result<Vec<Row>> {
    let asks = |name: &str, row: &Row| row.name.strip_prefix(name).is_some_and(|r| r.is_empty() || r.starts_with('-'));
    for name in names {
        let known = rows.iter().any(|row| asks(name, row));
        anyhow::ensure!(known, "there is no bench `{name}`; `weir bench --list` lists them");
    }
    let wanted = |row: &Row| if names.is_empty() { row.by_default } else { names.iter().any(|name| asks(name, row)) };
    Ok(rows.into_iter().filter(wanted).collect())
}

impl Baseline {
    /// A short description; `unit` is the subject's.
    pub fn describe(&self, unit: Unit) -> String {
        match self {
            Baseline::Measured(measurement) => measurement.describe(),
            Baseline::Fixed(value) => format!("the bar, {}", unit.show(*value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(asked: &[&str]) -> Vec<&'static str> {
        let asked: Vec<String> = asked.iter().map(|s| s.to_string()).collect();
        select(all(), &asked).unwrap().iter().map(|row| row.name).collect()
    }

    #[test]
    fn rows_are_selected_by_name_or_its_first_part() {
        assert_eq!(names(&["write-1m"]), ["write-1m-always", "write-1m-auto"]);
        assert_eq!(names(&["read-1m", "idle"]), ["read-1m", "idle"]);
        assert!(names(&[]).len() == 13 && !names(&[]).contains(&"raw-1m"));
        assert!(select(all(), &["writ".into()]).is_err());
    }

    #[test]
    fn subject_and_baseline_have_the_same_unit() {
        for row in all() {
            for comparison in &row.comparisons {
                if let Baseline::Measured(baseline) = comparison.baseline {
                    assert_eq!(baseline.unit(), row.subject.unit(), "{}", row.name);
                }
            }
        }
    }

    #[test]
    fn a_ratio_that_equals_the_bar_meets_it() {
        assert!(Bar::AtLeast(0.7).holds(0.7) && !Bar::AtLeast(0.7).holds(0.69));
        assert!(Bar::AtMost(1.5).holds(1.5) && !Bar::AtMost(1.5).holds(1.51));
    }
}
