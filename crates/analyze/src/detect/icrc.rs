//! Packets with a wrong ICRC (IBTA 7.8.1): receivers drop them without a word.
//!
//! Evidence: the ICRC of a packet that was captured whole differs from the one computed. A packet that carries zero is
//! not counted: some captures are taken before the adapter fills it in.

use super::common::{PerFlow, Sightings, times};
use super::end::End;
use crate::advice;
use crate::finding::{Finding, FindingKind};
use crate::flow::FlowId;
use crate::packet::Seen;

/// Wrong ICRCs by flow.
#[derive(Debug, Default)]
pub struct BadIcrc {
    flows: PerFlow<Sightings>,
}

impl BadIcrc {
    pub fn packet(&mut self, flow: FlowId, at: &Seen) {
        if at.marks.bad_icrc {
            let seen = self.flows.entry(flow).or_default();
            seen.see(at.time, &[at.frame]);
            seen.cost.add_packet(at.payload);
        }
    }

    pub fn findings(&self, _end: &End<'_>) -> Vec<Finding> {
        let finding = |(flow, seen): (&FlowId, &Sightings)| {
            let text = format!("{} had a wrong ICRC; the receiver drops such packets.", times(seen.count, "packet"));
            seen.finding(FindingKind::BadIcrc, *flow, 0.99, text, advice::cables())
        };
        self.flows.iter().map(finding).collect()
    }
}
