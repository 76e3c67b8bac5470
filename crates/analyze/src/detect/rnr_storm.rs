//! RNR storms: the receiver is not ready again and again, so that packets are repeated for nothing.
//!
//! Evidence: a request that got [`NAKS`] RNR NAKs or more before it was taken, or [`MANY`] RNR NAKs in a flow that are
//! for more than a fifth of its new requests. A single page fault or a receive that is late once is no storm.

use super::common::{PerFlow, Sightings, paired, time, times};
use super::end::End;
use super::page_fault::ResponderFaults;
use crate::advice;
use crate::finding::{Finding, FindingKind};
use crate::flow::{Cause, FlowId, Nak, Repeat, Request};
use weir_wire::RnrTimer;

/// RNR NAKs by flow.
#[derive(Debug, Default)]
pub struct RnrStorm {
    flows: PerFlow<Storm>,
}

#[derive(Debug, Default)]
struct Storm {
    seen: Sightings,
    most: u32,
    timer: u8,
}

/// RNR NAKs for one request.
const NAKS: u32 = 8;
/// RNR NAKs of a flow.
const MANY: u64 = 32;
/// Share of the requests that got them.
const SHARE: f64 = 0.2;

impl RnrStorm {
    pub fn rnr_nak(&mut self, flow: FlowId, nak: &Nak, timer: RnrTimer, request: Option<&Request>) {
        let storm = self.flows.entry(flow).or_default();
        storm.seen.see(nak.time, &[nak.frame]);
        storm.most = storm.most.max(request.map_or(1, |request| request.rnr_naks));
        storm.timer = timer.code();
    }

    pub fn repeat(&mut self, flow: FlowId, repeat: &Repeat) {
        if matches!(repeat.cause, Cause::Rnr { .. })
            && let Some(storm) = self.flows.get_mut(&flow)
        {
            storm.seen.add_cost(repeat);
        }
    }

    pub fn findings(&self, end: &End<'_>, faults: &ResponderFaults) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (flow, storm) in &self.flows {
            let stats = &end.flow(*flow).record.stats;
            let new = stats.requests.saturating_sub(stats.repeats).max(1);
            let many = storm.seen.count >= MANY && storm.seen.count as f64 > SHARE * new as f64;
            if storm.most < NAKS && !many {
                continue;
            }
            let text = format!(
                "{} in {}, up to {} for one request, with timer code {} ({}).",
                times(storm.seen.count, "RNR NAK"),
                time(storm.seen.to.saturating_sub(storm.seen.from)),
                storm.most,
                storm.timer,
                time(RnrTimer::new(storm.timer).delay().as_nanos() as u64),
            );
            let advice = match faults.has(end, *flow) {
                true => [advice::prefetch(), advice::no_odp()].concat(),
                false => [advice::more_receives(), advice::rnr_retry()].concat(),
            };
            findings.push(storm.seen.finding(FindingKind::RnrStorm, *flow, paired(end, *flow, 0.97), text, advice));
        }
        findings
    }
}
