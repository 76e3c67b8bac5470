//! The trap of `min_rnr_timer = 0`: code 0 is not the shortest delay, but the longest, 655.36 ms (IBTA table 45).
//!
//! Evidence: an RNR NAK with timer code 0.

use super::common::{PerFlow, Sightings, time, times};
use super::end::End;
use crate::advice;
use crate::finding::{Finding, FindingKind};
use crate::flow::{Cause, FlowId, Nak, Repeat};
use weir_wire::RnrTimer;

/// RNR NAKs with code 0, by flow.
#[derive(Debug, Default)]
pub struct RnrZero {
    flows: PerFlow<Sightings>,
}

impl RnrZero {
    pub fn rnr_nak(&mut self, flow: FlowId, nak: &Nak, timer: RnrTimer) {
        if timer.code() == 0 {
            self.flows.entry(flow).or_default().see(nak.time, &[nak.frame]);
        }
    }

    pub fn repeat(&mut self, flow: FlowId, repeat: &Repeat) {
        if repeat.cause == (Cause::Rnr { code: 0 })
            && let Some(seen) = self.flows.get_mut(&flow)
        {
            seen.add_cost(repeat);
            if !repeat.follows {
                seen.evidence(&[repeat.frame]);
                seen.to = seen.to.max(repeat.time);
            }
        }
    }

    pub fn findings(&self, _end: &End<'_>) -> Vec<Finding> {
        let finding = |(flow, seen): (&FlowId, &Sightings)| {
            let text = format!(
                "The responder's min_rnr_timer is 0, which means 655.36 ms: {} made the requester wait {}.",
                times(seen.count, "RNR NAK"),
                time(seen.cost.time),
            );
            seen.finding(FindingKind::RnrTimerZero, *flow, 1.0, text, advice::rnr_timer_not_zero())
        };
        self.flows.iter().map(finding).collect()
    }
}
