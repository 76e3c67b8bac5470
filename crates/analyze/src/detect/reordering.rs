//! Reordering: request packets arrive in another order than they left.
//!
//! Evidence: a packet with an earlier PSN than a packet before it. Its PSN was missing until then, and it was not
//! sent again for a NAK or a timeout. The capture must be behind the point where the order changes.

use super::common::{PerFlow, Sightings, paired, times};
use super::end::End;
use crate::advice;
use crate::finding::{Finding, FindingKind};
use crate::flow::FlowId;
use crate::packet::Seen;

/// Late packets by flow.
#[derive(Debug, Default)]
pub struct Reordering {
    flows: PerFlow<Sightings>,
}

impl Reordering {
    pub fn late(&mut self, flow: FlowId, at: &Seen) {
        self.flows.entry(flow).or_default().see(at.time, &[at.frame]);
    }

    pub fn findings(&self, end: &End<'_>) -> Vec<Finding> {
        let finding = |(flow, seen): (&FlowId, &Sightings)| {
            let text = format!("{} arrived after later packets of the same QP.", times(seen.count, "packet"));
            seen.finding(FindingKind::Reordering, *flow, paired(end, *flow, 0.9), text, advice::one_path())
        };
        self.flows.iter().map(finding).collect()
    }
}
