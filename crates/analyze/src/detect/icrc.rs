//! Packets with a wrong ICRC (IBTA 7.8.1): receivers drop them without a word.
//!
//! Evidence: the ICRC of a packet that was captured whole differs from the one computed. A packet that carries zero is
//! not counted, and neither is a flow in which no packet has a right one: such captures are taken before the adapter
//! fills it in.

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

    pub fn findings(&self, end: &End<'_>) -> Vec<Finding> {
        let is_sound = |flow: FlowId| {
            let flow = end.flow(flow);
            flow.sound || flow.partner.is_some_and(|partner| end.flow(partner).sound)
        };
        let finding = |(flow, seen): (&FlowId, &Sightings)| {
            let text = format!("{} had a wrong ICRC; the receiver drops such packets.", times(seen.count, "packet"));
            seen.finding(FindingKind::BadIcrc, *flow, 0.99, text, advice::cables())
        };
        self.flows.iter().filter(|(flow, _)| is_sound(**flow)).map(finding).collect()
    }
}
