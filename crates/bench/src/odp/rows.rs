//! The rows with bars: warm on-demand against pinned memory, cold pages against the processor, prefetched against cold.

use super::program::{Cold, Line, Memory};
use crate::measure::Unit;
use crate::rows::Bar;
use crate::table::{Outcome, Rounds};

/// The bar: performance of warm ODP memory relative to pinned memory.
const WARM: f64 = 0.95;

const MICRO: f64 = 1e-6;

/// All rows, from the lines of all rounds.
pub fn outcomes(lines: &[Line]) -> Vec<Outcome> {
    let mut outcomes = vec![];
    for (bytes, name, what) in [
        (8, "odp-lat-8", "ping-pong of 8 B, warm ODP memory"),
        (4096, "odp-lat-4k", "ping-pong of 4 KiB, warm ODP memory"),
        (65536, "odp-lat-64k", "ping-pong of 64 KiB, warm ODP memory"),
    ] {
        let of = |memory| {
            figures(lines, |line| match line {
                Line::WarmLatency { bytes: b, memory: m, value } if *b == bytes && *m == memory => Some(value * MICRO),
                _ => None,
            })
        };
        let bar = Bar::AtMost(1.0 / WARM);
        outcomes.push(row(name, what, "pinned memory", Unit::Seconds, Some(bar), of(Memory::Odp), of(Memory::Pinned)));
    }
    for (bytes, name, what) in [
        (4096, "odp-bw-4k", "WRITEs of 4 KiB, warm ODP memory"),
        (65536, "odp-bw-64k", "WRITEs of 64 KiB, warm ODP memory"),
        (1 << 20, "odp-bw-1m", "WRITEs of 1 MiB, warm ODP memory"),
    ] {
        let of = |memory| {
            figures(lines, |line| match line {
                Line::WarmThroughput { bytes: b, memory: m, value } if *b == bytes && *m == memory => Some(*value),
                _ => None,
            })
        };
        let (weir, baseline) = (of(Memory::Odp), of(Memory::Pinned));
        let bar = Bar::AtLeast(WARM);
        outcomes.push(row(name, what, "pinned memory", Unit::BytesPerSecond, Some(bar), weir, baseline));
    }
    let cold = |of: fn(&Cold) -> f64| {
        figures(lines, |line| match line {
            Line::Cold(cold) => Some(of(cold) * MICRO),
            _ => None,
        })
    };
    outcomes.push(row(
        "odp-cold",
        "time that a page fault at the receiver adds to a WRITE of one page",
        "the processor's first write to a page",
        Unit::Seconds,
        None,
        cold(|c| c.receiver - c.warm_receiver),
        cold(|c| c.raw_write),
    ));
    outcomes.push(row(
        "odp-cold-sender",
        "time that a page fault at the sender adds to a WRITE of one page",
        "the processor's first read of a page",
        Unit::Seconds,
        None,
        cold(|c| c.sender - c.warm_sender),
        cold(|c| c.raw_read),
    ));
    outcomes.push(row(
        "odp-prefetched",
        "a WRITE of one page that was prefetched at its receiver",
        "the same, cold",
        Unit::Seconds,
        Some(Bar::AtMost(1.0)),
        cold(|c| c.prefetched),
        cold(|c| c.receiver),
    ));
    outcomes
}

fn figures(lines: &[Line], of: impl Fn(&Line) -> Option<f64>) -> Vec<f64> {
    lines.iter().filter_map(of).collect()
}

fn row(
    name: &str,
    what: &str,
    against: &str,
    unit: Unit,
    bar: Option<Bar>,
    weir: Vec<f64>,
    baseline: Vec<f64>,
) -> Outcome {
    let rounds = Rounds { weir, baseline, cores_ns: vec![] };
    Outcome::measured(name, what, against.to_owned(), unit, bar, &rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_memory_is_compared_round_by_round_within_a_size() {
        let line = |bytes, memory, value| Line::WarmThroughput { bytes, memory, value };
        let lines = [
            line(4096, Memory::Pinned, 2e9),
            line(4096, Memory::Odp, 1.8e9),
            line(65536, Memory::Pinned, 4e9),
            line(65536, Memory::Odp, 4e9),
        ];
        let outcomes = outcomes(&lines);
        let row = |name: &str| outcomes.iter().find(|outcome| outcome.name == name).unwrap();
        assert_eq!((row("odp-bw-4k").ratio.unwrap().median, row("odp-bw-4k").holds), (0.9, Some(false)));
        assert_eq!((row("odp-bw-64k").holds, row("odp-bw-1m").holds), (Some(true), None));
    }
}
