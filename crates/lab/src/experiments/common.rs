//! Shared by the experiments: parameters, and lookups in an outcome.

use crate::claim::{Claim, Kind::Predicted, Kind::Shaped};
use crate::data::Data;
use crate::figure::Point;
use crate::micro::{Outcome, Sides};
use crate::statistics::{median, range};
use std::time::Duration;

/// Without on-demand paging.
pub const NONE: Sides = Sides { client: false, server: false };
/// Client-side ODP.
pub const CLIENT: Sides = Sides { client: true, server: false };
/// Server-side ODP.
pub const SERVER: Sides = Sides { client: false, server: true };
/// Both-side ODP.
pub const BOTH: Sides = Sides { client: true, server: true };
/// RNR code of 1.28 ms, the papers' usual one.
pub const RNR_1_28: u8 = 14;
/// RNR code of 0.01 ms, the smallest delay.
pub const RNR_0_01: u8 = 1;

/// The papers' name for a choice of sides.
pub fn side(sides: Sides) -> &'static str {
    match (sides.client, sides.server) {
        (false, false) => "without ODP",
        (true, false) => "client-side ODP",
        (false, true) => "server-side ODP",
        (true, true) => "both-side ODP",
    }
}

/// `count` microseconds.
pub fn us(count: u32) -> Duration {
    Duration::from_micros(count.into())
}

/// A time in milliseconds.
pub fn ms(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}

/// T_o, from a run in which a request and its seven retries have no response, ms. It begins with the first packet: live,
/// Weir asks the process at the peer's address for half a second before.
pub fn unanswered(outcome: &Outcome) -> f64 {
    let first = outcome.steps.first().map_or(Duration::ZERO, |step| step.time);
    ms(outcome.time.saturating_sub(first)) / 8.0
}

/// How long a run took, ms; NaN if an operation failed or did not complete, so that it does not count as a fast run.
pub fn took(outcome: &Outcome) -> f64 {
    let whole = outcome.status.is_none() && outcome.completions.iter().all(Option::is_some);
    if whole { ms(outcome.time) } else { f64::NAN }
}

/// The maximum of some values; NaN if one of them is NaN, or if there are none.
pub fn most(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().reduce(|most, v| if most.is_nan() || v <= most { most } else { v }).unwrap_or(f64::NAN)
}

/// Every packet of every trial, for each choice of sides.
pub fn packets(keys: &[Sides], runs: &[Vec<Outcome>]) -> Data {
    let mut data = Data::new(["side", "trial", "from", "packet", "ms"]);
    for (sides, trials) in keys.iter().zip(runs) {
        for (trial, outcome) in trials.iter().enumerate() {
            for step in &outcome.steps {
                let from = if step.from_client { "client" } else { "server" };
                data.push([
                    side(*sides).into(),
                    trial.into(),
                    from.into(),
                    step.what.as_str().into(),
                    ms(step.time).into(),
                ]);
            }
        }
    }
    data
}

/// Time of the nth transmission of an operation's request, n from 0; in ms, NaN if there was none.
pub fn request(outcome: &Outcome, operation: u32, nth: usize) -> f64 {
    seen(outcome, true, operation, nth, |_| true)
}

/// Time of the nth response to an operation that is no NAK; in ms, NaN if there was none.
pub fn response(outcome: &Outcome, operation: u32, nth: usize) -> f64 {
    seen(outcome, false, operation, nth, |what| !what.contains("NAK"))
}

/// Time of the nth NAK of any operation with `name` in its label; in ms, NaN if there was none.
pub fn nak(outcome: &Outcome, name: &str, nth: usize) -> f64 {
    let naks = outcome.steps.iter().filter(|step| !step.from_client && step.what.contains(name));
    naks.map(|step| ms(step.time)).nth(nth).unwrap_or(f64::NAN)
}

fn seen(outcome: &Outcome, from_client: bool, operation: u32, nth: usize, what: fn(&str) -> bool) -> f64 {
    let steps =
        outcome.steps.iter().filter(|step| step.from_client == from_client && step.operation == Some(operation));
    steps.filter(|step| what(&step.what)).map(|step| ms(step.time)).nth(nth).unwrap_or(f64::NAN)
}

/// A packet of a published list: whether the client sent it, its name, its operation.
pub type Listed = (bool, &'static str, u32);

/// Whether the packets are those of a published list, in its order.
pub fn packets_are(outcome: &Outcome, list: &[Listed]) -> bool {
    let packets = outcome.steps.iter().map(|step| (step.from_client, step.what.as_str(), step.operation));
    packets.eq(list.iter().map(|&(from_client, what, operation)| (from_client, what, Some(operation))))
}

/// The claim that the packets of most runs are those of a published list. A list is one run of the authors'.
pub fn same_packets(name: &str, runs: &[Outcome], list: &[Listed]) -> Claim {
    let name = format!("{name}: runs with the packets of the figure, in its order");
    Claim::at_least(Shaped, name, "its list", 0.5, share(runs, |o| packets_are(o, list)), "")
}

/// What the trials of a key found; empty if there is no such key.
pub fn found_for<'a, K: PartialEq, V>(keys: &[K], found: &'a [Vec<V>], key: &K) -> &'a [V] {
    keys.iter().zip(found).find(|(each, _)| *each == key).map_or(&[], |(_, trials)| trials)
}

/// The claim that `weir doctor` names UCX's library as the one that registers on demand.
pub fn names_ucx(registrars: &[String]) -> Claim {
    let is_ucx = registrars.len() == 1 && registrars[0].starts_with("libuct_ib");
    let name = format!("weir doctor: on demand registers {}", registrars.join(", "));
    let paper = "UCX preferred it by default, and nothing told";
    Claim::at_least(Predicted, name, paper, 1.0, f64::from(u8::from(is_ucx)), "").from("T 7.1")
}

/// The median over the trials.
pub fn middle<T>(trials: &[T], of: impl Fn(&T) -> f64) -> f64 {
    median(&trials.iter().map(of).collect::<Vec<_>>())
}

/// The share of trials for which `of` is true.
pub fn share<T>(trials: &[T], of: impl Fn(&T) -> bool) -> f64 {
    trials.iter().filter(|trial| of(trial)).count() as f64 / trials.len() as f64
}

/// A point at the median of some values, with their range.
pub fn point(x: f64, values: &[f64]) -> Point {
    Point { x, y: median(values), range: Some(range(values)) }
}

/// Numbers from 0 to at most `last`, in steps of `step`.
pub fn grid(step: u32, last: u32) -> Vec<u32> {
    (0..=last / step).map(|n| n * step).collect()
}

/// The first and the last x at which y is at least 0.5: both ends of a range. NaN if there is none.
pub fn ends(curve: &[(f64, f64)]) -> (f64, f64) {
    let mut reached = curve.iter().filter(|(_, y)| *y >= 0.5).map(|(x, _)| *x);
    let first = reached.next().unwrap_or(f64::NAN);
    (first, reached.next_back().unwrap_or(first))
}

/// The width of a range: the extent of x over which y is at least 0.5, in steps of x.
pub fn width(curve: &[(f64, f64)]) -> f64 {
    let step = if curve.len() > 1 { curve[1].0 - curve[0].0 } else { 0.0 };
    curve.iter().filter(|(_, y)| *y >= 0.5).count() as f64 * step
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::Step;

    #[test]
    fn a_timeout_counts_from_the_first_packet() {
        let request = |micros| Step {
            time: us(micros),
            from_client: true,
            what: "RDMA Read Request".into(),
            operation: Some(0),
            lost: false,
        };
        let steps = vec![request(450_000), request(480_000)];
        assert_eq!(unanswered(&Outcome { steps, time: us(690_000), ..Outcome::default() }), 30.0);
        assert_eq!(unanswered(&Outcome { time: us(240_000), ..Outcome::default() }), 30.0, "none was seen");
    }

    #[test]
    fn packets_are_found_by_operation_and_number() {
        let step = |micros, from_client, what: &str, operation| Step {
            time: us(micros),
            from_client,
            what: what.into(),
            operation: Some(operation),
            lost: false,
        };
        let steps = vec![
            step(0, true, "RDMA Read Request", 0),
            step(140, false, "Acknowledge (RNR NAK)", 0),
            step(500, true, "RDMA Read Request", 1),
            step(4000, true, "RDMA Read Request", 0),
            step(4070, false, "RDMA Read Response", 0),
        ];
        let outcome = Outcome { steps, ..Outcome::default() };
        assert_eq!((request(&outcome, 0, 1), response(&outcome, 0, 0), nak(&outcome, "RNR", 0)), (4.0, 4.07, 0.14));
        assert!(request(&outcome, 1, 1).is_nan() && response(&outcome, 1, 0).is_nan());
    }

    #[test]
    fn the_packets_of_a_list_are_found_in_its_order_only() {
        let step = |from_client, what: &str| Step {
            time: us(1),
            from_client,
            what: what.into(),
            operation: Some(0),
            lost: false,
        };
        let outcome = Outcome { steps: vec![step(true, "A"), step(false, "B")], ..Outcome::default() };
        assert!(packets_are(&outcome, &[(true, "A", 0), (false, "B", 0)]));
        for other in [&[(true, "A", 0)][..], &[(false, "B", 0), (true, "A", 0)], &[(true, "A", 0), (false, "B", 1)]] {
            assert!(!packets_are(&outcome, other), "{other:?}");
        }
        assert_eq!(same_packets("x", &[outcome.clone(), outcome], &[(true, "A", 0)]).weir, 0.0);
    }

    #[test]
    fn a_failed_run_has_no_time() {
        let whole = Outcome { time: us(500), completions: vec![Some(us(500))], ..Outcome::default() };
        assert_eq!(took(&whole), 0.5);
        assert!(took(&Outcome { completions: vec![Some(us(500)), None], ..whole.clone() }).is_nan());
        assert!(took(&Outcome { status: Some("RETRY_EXC_ERR".into()), ..whole }).is_nan());
        assert_eq!(most([1.0, 3.0, 2.0]), 3.0);
        assert!(most([]).is_nan() && most([f64::NAN, 1.0]).is_nan() && most([1.0, f64::NAN, 2.0]).is_nan());
    }

    #[test]
    fn a_range_has_ends_and_a_width() {
        let curve = [(0.0, 0.0), (100.0, 0.6), (200.0, 1.0), (300.0, 0.2)];
        assert_eq!((ends(&curve), width(&curve)), ((100.0, 200.0), 200.0));
        assert!(ends(&[(0.0, 0.0)]).1.is_nan());
        assert_eq!(grid(500, 2000), [0, 500, 1000, 1500, 2000]);
    }
}
