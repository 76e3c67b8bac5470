//! Finds stalls and their causes in what a process left.
//!
//! A packet tells more than a completion does; each cause here is what the times, attributes and ODP flags of a
//! program's requests agree with. Each file says how it decides. A stall has one cause.

mod causes;
mod damming;
mod flood;
mod stall;
mod timing;

use crate::advice;
use crate::finding::{Finding, Kind};
use crate::trace::{Source, Trace};
use causes::Cause;
use stall::Stall;
use std::collections::{BTreeMap, HashSet};

/// All findings of a process: by kind, then by cost.
pub fn detect(trace: &Trace) -> Vec<Finding> {
    let stalls = stall::stalls(trace);
    let floods = flood::find(trace, &stalls);
    let flooded: HashSet<usize> = floods.iter().flatten().copied().collect();
    let dammed: HashSet<usize> = damming::find(trace, &stalls).into_iter().collect();
    let mut groups: BTreeMap<(Kind, usize), Vec<Cause>> = BTreeMap::new();
    for (index, stall) in stalls.iter().enumerate() {
        let cause = if dammed.contains(&index) {
            Some(Cause::damming(stall))
        } else if flooded.contains(&index) {
            None
        } else {
            causes::of(trace, stall)
        };
        if let Some(cause) = cause {
            groups.entry((cause.kind, stall.request.qp)).or_default().push(cause);
        }
    }
    let alone = groups.iter().filter(|((kind, _), _)| *kind == Kind::Timeout).map(|(_, causes)| causes.len()).sum();
    let mut findings: Vec<Finding> = together(groups)
        .into_iter()
        .map(|(kind, causes)| of_qps(trace, kind, &causes, if kind == Kind::Damming { alone } else { 0 }))
        .collect();
    findings.extend(floods.iter().map(|flood| of_flood(trace, &stalls, flood, &dammed)));
    findings
        .extend(trace.sources.iter().filter(|source| is_other(trace, source)).map(|source| on_demand(trace, source)));
    findings.sort_by_key(|finding| (finding.kind, std::cmp::Reverse(finding.cost_ns), finding.qp));
    findings
}

/// A finding for each QP; but one for all QPs of a kind that many QPs have.
fn together(groups: BTreeMap<(Kind, usize), Vec<Cause>>) -> Vec<(Kind, Vec<Cause>)> {
    const MANY: usize = 8;
    let mut kinds: BTreeMap<Kind, Vec<Vec<Cause>>> = BTreeMap::new();
    for ((kind, _), causes) in groups {
        kinds.entry(kind).or_default().push(causes);
    }
    let merged = |(kind, qps): (Kind, Vec<Vec<_>>)| -> Vec<(Kind, Vec<_>)> {
        if qps.len() > MANY {
            vec![(kind, qps.concat())]
        } else {
            qps.into_iter().map(|causes| (kind, causes)).collect()
        }
    };
    kinds.into_iter().flat_map(merged).collect()
}

/// Stalls with one kind of cause. `against`: stalls of the process that contradict the cause.
fn of_qps(trace: &Trace, kind: Kind, causes: &[Cause], against: usize) -> Finding {
    let requests = || causes.iter().map(|cause| cause.stall.request);
    let sure: f64 = causes.iter().map(|cause| cause.confidence).sum::<f64>() / causes.len() as f64;
    let support = causes.len() as f64 / (causes.len() as f64 + 0.5 * against as f64);
    let qps: HashSet<usize> = requests().map(|request| request.qp).collect();
    let qp = &trace.qps[causes[0].stall.request.qp];
    let intervals = requests().map(|request| (request.begun, request.done)).collect();
    Finding {
        kind,
        device: qp.device.clone(),
        qp: (qps.len() == 1).then_some(qp.number),
        qps: qps.len(),
        from: requests().map(|request| request.posted).min().unwrap_or(0),
        to: requests().map(|request| request.done).max().unwrap_or(0),
        cost_ns: if qps.len() == 1 {
            causes.iter().fold(0, |sum: u64, cause| sum.saturating_add(cause.stall.cost()))
        } else {
            covered(intervals)
        },
        requests: causes.len(),
        confidence: rounded(sure * support),
        what: causes::describe(causes),
        advice: advice::of(kind, qp),
    }
}

fn of_flood(trace: &Trace, stalls: &[Stall], flood: &[usize], dammed: &HashSet<usize>) -> Finding {
    let of = || flood.iter().filter(|index| !dammed.contains(index)).map(|&index| &stalls[index]);
    let qps: HashSet<usize> = of().map(|stall| stall.request.qp).collect();
    let pages: HashSet<u64> = of().map(|stall| stall.request.address >> 12).collect();
    let longest = of().map(|stall| stall.late).max().unwrap_or(0);
    let first = flood[0];
    let qp = &trace.qps[stalls[first].request.qp];
    Finding {
        kind: Kind::Flood,
        device: qp.device.clone(),
        qp: None,
        qps: qps.len(),
        from: of().map(|stall| stall.request.posted).min().unwrap_or(0),
        to: of().map(|stall| stall.request.done).max().unwrap_or(0),
        cost_ns: covered(of().map(|stall| (stall.request.begun, stall.request.done)).collect()),
        requests: of().count(),
        confidence: rounded(1.0 - 2.0 / flood.len() as f64),
        what: format!(
            "{} requests of {} QPs stayed open after their pages had come ({} pages), up to {} ms",
            of().count(),
            qps.len(),
            pages.len(),
            longest / 1_000_000
        ),
        advice: advice::of(Kind::Flood, qp),
    }
}

fn on_demand(trace: &Trace, source: &Source) -> Finding {
    let name = source.path.rsplit('/').next().unwrap_or(&source.path);
    let memory = if source.implicit { "all memory of the process".to_owned() } else { bytes(source.bytes) };
    Finding {
        kind: Kind::OnDemand,
        device: trace.qps.first().map(|qp| qp.device.clone()).unwrap_or_default(),
        qp: None,
        qps: 0,
        from: 0,
        to: trace.end,
        cost_ns: 0,
        requests: 0,
        confidence: 1.0,
        what: format!("{name} registered {memory} on demand, in {} regions", source.regions),
        advice: advice::of_library(name),
    }
}

/// Whether a source is not the program itself.
fn is_other(trace: &Trace, source: &Source) -> bool {
    let name = source.path.rsplit('/').next().unwrap_or(&source.path);
    // The kernel cuts a program's name.
    !name.starts_with(&trace.program)
}

/// The time that intervals cover together.
fn covered(mut intervals: Vec<(u64, u64)>) -> u64 {
    intervals.sort_unstable();
    let (mut sum, mut until) = (0u64, 0);
    for (from, to) in intervals {
        sum = sum.saturating_add(to.saturating_sub(from.max(until)));
        until = until.max(to);
    }
    sum
}

fn rounded(confidence: f64) -> f64 {
    (confidence.clamp(0.0, 1.0) * 100.0).round() / 100.0
}

/// A size as people read it.
fn bytes(size: u64) -> String {
    match size {
        size if size >= 1 << 30 => format!("{:.1} GiB", size as f64 / (1u64 << 30) as f64),
        size if size >= 1 << 20 => format!("{:.1} MiB", size as f64 / (1u64 << 20) as f64),
        size => format!("{} KiB", size.div_ceil(1 << 10)),
    }
}

#[cfg(test)]
mod tests;
