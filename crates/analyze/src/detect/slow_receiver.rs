//! A slow receiver: messages arrive before their receives are posted, without on-demand paging.
//!
//! Evidence: RNR NAKs for requests that need a posted receive (SEND, WRITE with immediate), in a flow without signs of
//! page faults at the responder ([`super::page_fault`]).

use super::common::{PerFlow, Sightings, paired, time, times};
use super::end::End;
use super::page_fault::ResponderFaults;
use crate::advice;
use crate::finding::{Finding, FindingKind};
use crate::flow::{Cause, FlowId, Nak, Repeat, Request};

/// Such RNR NAKs, by flow.
#[derive(Debug, Default)]
pub struct SlowReceiver {
    flows: PerFlow<Sightings>,
}

impl SlowReceiver {
    pub fn rnr_nak(&mut self, flow: FlowId, nak: &Nak, request: Option<&Request>) {
        let Some(request) = request.filter(|request| request.takes_receive) else { return };
        self.flows.entry(flow).or_default().see(nak.time, &[request.last.frame, nak.frame]);
    }

    pub fn repeat(&mut self, flow: FlowId, repeat: &Repeat) {
        if matches!(repeat.cause, Cause::Rnr { .. })
            && let Some(seen) = self.flows.get_mut(&flow)
        {
            seen.add_cost(repeat);
            seen.to = seen.to.max(repeat.time);
        }
    }

    pub fn findings(&self, end: &End<'_>, faults: &ResponderFaults) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (flow, seen) in self.flows.iter().filter(|(flow, _)| !faults.has(end, **flow)) {
            let text = format!(
                "{} found no posted receive; the requester waited {}.",
                times(seen.count, "attempt"),
                time(seen.cost.time),
            );
            let advice = [advice::more_receives(), advice::short_rnr()].concat();
            let confidence = paired(end, *flow, 0.95);
            findings.push(seen.finding(FindingKind::SlowReceiver, *flow, confidence, text, advice));
        }
        findings
    }
}
