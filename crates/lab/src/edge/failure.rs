//! One of four links fails in the middle of a transfer and is mended: what the connection carries meanwhile, simulated or live.
//!
//! The simulator has no hosts here: packets cost no CPU time, so what it shows is the protocol's own. Links have 1 Gbit/s.

use super::command;
use anyhow::Result;
use std::time::Duration;
use weir_stage::Failure;
use weir_transport::Instant;
use weir_transport::edge::{Order, Parameters, Scheduler};
use weir_transport::testing::{EdgePair, Line};

/// Links of the connection, of 1 Gbit/s each.
pub const LINKS: usize = 4;
/// The link that fails.
pub const BAD: usize = 1;
/// Bytes of a packet, with its IP header.
const MTU: u32 = 9000;
/// Bytes of an operation in live runs.
const SIZE: u32 = 64 << 10;

/// Simulated, ms: when the link fails, when it is mended, and the end; a step of the timeline, which divides them.
const FAILS: u64 = 100;
const MENDED: u64 = 300;
const END: u64 = 500;
const STEP: u64 = 5;
/// What comes so long after a change counts for the rate of what follows, ms.
const SETTLING: u64 = 50;
/// All packets arrive within, ms.
const LIMIT: u64 = 60_000;
/// Live, seconds of each of the three parts.
const PART: f64 = 1.0;

/// What was seen of a transfer.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// When the link fails, when it is mended, and the end, ms.
    pub fails: f64,
    pub mended: f64,
    pub end: f64,
    /// Before, while the link fails, and in the second half of the time after.
    pub phases: [Phase; 3],
    /// The longest time without a packet, ms: from the failure on, and before.
    pub stall: f64,
    pub stall_before: f64,
    /// Packets that went again.
    pub again: u64,
    /// The share of the packets, or operations, that were performed.
    pub performed: f64,
    pub timeline: Vec<Moment>,
}

/// A part of the transfer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Phase {
    /// Of all links.
    pub gbits: f64,
    /// What the failing link has of it.
    pub share: f64,
}

/// A moment.
#[derive(Clone, Debug)]
pub struct Moment {
    /// Its middle, ms.
    pub at: f64,
    pub gbits: f64,
    /// Of each link, with headers; simulated, of what is put on it.
    pub links: Vec<f64>,
}

/// A transfer in virtual time.
pub fn simulated(failure: Failure, scheduler: Scheduler, seed: u64) -> Transfer {
    let good = Line::gigabits(1.0);
    let parameters = if scheduler == Scheduler::Auto { Parameters::TUNED } else { Parameters::MULTIEDGE };
    let mut pair = EdgePair::new(&[good; LINKS], &[1; LINKS], parameters, scheduler, seed);
    let count = (LINKS as f64 * good.rate / 8.0 * END as f64 / 1e3 / f64::from(MTU)) as usize;
    pair.sides[0].packets = vec![(MTU, Order::Any); count];
    let mut timeline: Vec<Moment> = vec![];
    for at in (0..END).step_by(STEP as usize) {
        match at {
            FAILS => change(&mut pair, good, Some(failure)),
            MENDED => change(&mut pair, good, None),
            _ => {}
        }
        let (put, performed) = (pair.sides[0].put.clone(), pair.sides[1].performed.len());
        pair.run(ms(at + STEP));
        let gbits = |bytes: u64| bytes as f64 * 8e-6 / STEP as f64;
        timeline.push(Moment {
            at: at as f64 + STEP as f64 / 2.0,
            gbits: gbits((pair.sides[1].performed.len() - performed) as u64 * u64::from(MTU)),
            links: pair.sides[0].put.iter().zip(put).map(|(now, before)| gbits(now - before)).collect(),
        });
    }
    pair.run(ms(LIMIT));
    let performed = &pair.sides[1].performed;
    let mut once: Vec<u32> = performed.iter().map(|(packet, _)| *packet).collect();
    once.sort_unstable();
    once.dedup();
    let stall = |from: u64, until: u64| {
        // Nothing at all is a stall, too, and one that goes on at the end has taken until then.
        let (from, until) = (ms(from), ms(until));
        let before = performed.iter().rev().map(|(_, at)| *at).find(|at| *at <= from).unwrap_or(from);
        let within = performed.iter().map(|(_, at)| *at).filter(|at| *at > from && *at < until);
        let times: Vec<_> = [before].into_iter().chain(within).chain([until]).collect();
        times.windows(2).map(|two| two[1] - two[0]).max().unwrap_or_default().as_secs_f64() * 1e3
    };
    let between = |from: u64, until: u64| phase(&timeline, from as f64, until as f64);
    Transfer {
        fails: FAILS as f64,
        mended: MENDED as f64,
        end: END as f64,
        phases: [between(SETTLING, FAILS), between(FAILS + SETTLING, MENDED), between((MENDED + END) / 2, END)],
        stall: stall(FAILS, END),
        stall_before: stall(0, FAILS),
        again: pair.sides[0].again as u64,
        // A packet that is performed twice is an error, as one that is not.
        performed: if once.len() == performed.len() { once.len() as f64 / count as f64 } else { f64::NAN },
        timeline,
    }
}

/// Transfers of two processes, one after the other, a failure each.
pub fn live(failures: &[Failure], scheduler: Scheduler) -> Result<Vec<Transfer>> {
    let names: Vec<String> = failures.iter().map(Failure::to_string).collect();
    let scheduling = super::live::scheduling(scheduler);
    let mut words: Vec<String> = vec![];
    for (name, value) in [
        ("links", format!("{LINKS}x1")),
        ("mtu", MTU.to_string()),
        ("sizes", SIZE.to_string()),
        ("seconds", PART.to_string()),
        ("scheduler", scheduling[0].into()),
        ("parameters", scheduling[1].into()),
        ("weights", ["1"; LINKS].join(":")),
        ("failure", names.join(",")),
    ] {
        words.extend([format!("--{name}"), value]);
    }
    let transfer = |seen: command::Failure| {
        let phase = |seen: command::Phase| Phase { gbits: seen.gigabits, share: seen.share };
        let moment = |seen: command::Moment| Moment { at: seen.at * 1e3, gbits: seen.gigabits, links: seen.links };
        Transfer {
            fails: seen.fails * 1e3,
            mended: seen.mended * 1e3,
            end: 3e3 * PART,
            phases: [seen.before, seen.failed, seen.after].map(phase),
            stall: seen.stall_ms,
            stall_before: seen.stall_before_ms,
            again: seen.again,
            performed: seen.operations as f64 / (seen.operations + seen.failed_operations) as f64,
            timeline: seen.timeline.into_iter().map(moment).collect(),
        }
    };
    Ok(command::run(&words)?.failures.into_iter().map(transfer).collect())
}

/// The bad link fails, or is as the others again.
fn change(pair: &mut EdgePair, good: Line, failure: Option<Failure>) {
    pair.lines()[BAD] = match failure {
        None => good,
        Some(Failure::Down | Failure::Silent) => Line { loss: 1.0, ..good },
        Some(Failure::Lossy(percent)) => Line { loss: f64::from(percent) / 100.0, ..good },
        Some(Failure::Slow(times)) => Line { rate: good.rate / f64::from(times), ..good },
    };
}

/// What came between two times, ms.
fn phase(timeline: &[Moment], from: f64, until: f64) -> Phase {
    let within: Vec<&Moment> = timeline.iter().filter(|moment| moment.at > from && moment.at < until).collect();
    let sum = |of: fn(&Moment) -> f64| within.iter().map(|moment| of(moment)).sum::<f64>();
    let all = sum(|moment| moment.links.iter().sum());
    Phase { gbits: sum(|moment| moment.gbits) / within.len() as f64, share: sum(|moment| moment.links[BAD]) / all }
}

fn ms(ms: u64) -> Instant {
    Instant(0) + Duration::from_millis(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_link_loses_its_share_and_gets_it_back() {
        let Transfer { phases: [before, failed, after], stall, again, performed, timeline, .. } =
            simulated(Failure::Silent, Scheduler::Auto, 1);
        assert!((before.share - 0.25).abs() < 0.01 && before.gbits > 3.8, "{before:?}");
        assert!(failed.share < 0.02 && failed.gbits > 2.8, "{failed:?}");
        assert!(after.share > 0.2 && after.gbits > 3.6, "{after:?}");
        assert!(stall < 50.0 && again > 0 && performed == 1.0, "{stall} {again} {performed}");
        assert_eq!((timeline.len(), timeline[0].links.len()), (100, LINKS));
    }
}
