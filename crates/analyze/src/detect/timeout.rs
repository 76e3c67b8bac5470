//! ACK timeouts: a request was repeated because nothing answered it (IBTA 9.7.6.1.3).
//!
//! Evidence: a repetition without an RNR NAK, a sequence NAK or a response to the transmission before it, more than 1
//! ms after the ACK timer was last restarted. Timeouts that damming explains, and those of a peer that stopped, are not
//! counted here.
//!
//! The wait is compared with the timeout that was set (C_ACK), if the set-up of the connection was captured: T_o should
//! be in T_tr to 4 T_tr. Adapters have a floor, below which a smaller C_ACK has no effect (T fig 4.5).

use super::common::{PerFlow, Sightings, paired, time, times};
use super::damming::Damming;
use super::end::End;
use crate::advice;
use crate::finding::{Finding, FindingKind};
use crate::flow::{Cause, FlowId, Repeat};
use crate::setup::t_tr;
use std::collections::HashSet;

/// Timeouts by flow.
#[derive(Debug, Default)]
pub struct Timeouts {
    flows: PerFlow<Waits>,
}

#[derive(Debug, Default)]
struct Waits {
    seen: Sightings,
    shortest: Option<u64>,
    longest: u64,
}

impl Timeouts {
    pub fn repeat(&mut self, flow: FlowId, repeat: &Repeat) {
        let dammed = repeat.request.is_some_and(|request| request.during_replay);
        if repeat.cause != Cause::Timeout || dammed && !repeat.follows {
            return;
        }
        let waits = self.flows.entry(flow).or_default();
        if repeat.follows && waits.seen.count == 0 {
            return; // it follows a dammed request
        }
        waits.seen.see_repeat(repeat);
        if !repeat.follows {
            waits.shortest = Some(waits.shortest.map_or(repeat.waited, |shortest| shortest.min(repeat.waited)));
            waits.longest = waits.longest.max(repeat.waited);
        }
    }

    pub fn findings(&self, end: &End<'_>, damming: &Damming, explained: &HashSet<FlowId>) -> Vec<Finding> {
        let mut findings = Vec::new();
        for flow in end.flows.iter().enumerate().map(|(at, _)| FlowId(at as u32)) {
            let mut waits =
                self.flows.get(&flow).map_or_else(Waits::default, |waits| Waits { seen: waits.seen.clone(), ..*waits });
            // Losses during replays that are too few for damming are the network's.
            if let Some(lost) = damming.timeouts(flow).filter(|lost| lost.count > 0)
                && !damming.explains(end, flow)
            {
                waits.seen.absorb(lost);
            }
            if waits.seen.count == 0 || explained.contains(&flow) {
                continue;
            }
            findings.push(finding(end, flow, &waits));
        }
        findings
    }
}

fn finding(end: &End<'_>, flow: FlowId, waits: &Waits) -> Finding {
    let shortest = waits.shortest.unwrap_or(waits.seen.cost.time / waits.seen.count.max(1));
    let attributes = end.attributes(flow);
    let floor = match (attributes, end.profile) {
        (Some(set), _) if set.ack_timeout > 0 && shortest > 4 * t_tr(set.ack_timeout) => format!(
            " C_ACK {} asks for {} to {}: the adapter's floor is higher.",
            set.ack_timeout,
            time(t_tr(set.ack_timeout)),
            time(4 * t_tr(set.ack_timeout)),
        ),
        (Some(set), _) if set.ack_timeout > 0 => format!(" C_ACK is {}.", set.ack_timeout),
        (_, Some(profile)) if profile.ack_timeout.least_exponent > 0 => format!(
            " The floor of {} is {} (C_ACK {}).",
            profile.name,
            time(t_tr(profile.ack_timeout.least_exponent)),
            profile.ack_timeout.least_exponent,
        ),
        _ => String::new(),
    };
    let longest = waits.longest.max(shortest);
    let range = if waits.seen.count == 1 { time(longest) } else { format!("{} to {}", time(shortest), time(longest)) };
    let text = format!("{} ran out, after {range} without a response.{floor}", times(waits.seen.count, "ACK timer"));
    let advice = [advice::timeout(14), advice::lossless()].concat();
    waits.seen.finding(FindingKind::Timeout, flow, paired(end, flow, 0.95), text, advice)
}
