//! Congestion: switches marked packets (ECN), and receivers sent congestion notifications (CNPs).
//!
//! Evidence: packets with ECN 3 or the FECN bit, and CNPs (IBTA annex A17). Marked packets are counted by flow, CNPs by
//! the QP that they go to.

use super::common::{PerFlow, Sightings, times};
use super::end::End;
use crate::advice;
use crate::finding::{Cost, Finding, FindingKind};
use crate::flow::{FlowId, FlowKey};
use crate::packet::{FrameId, Seen};
use std::collections::HashMap;
use weir_capture::packet::RdmaPacket;

/// Marks and notifications.
#[derive(Debug, Default)]
pub struct Congestion {
    marked: PerFlow<Sightings>,
    /// CNPs by what they go to.
    notified: HashMap<FlowKey, Sightings>,
}

/// The most QPs with CNPs that are kept.
const NOTIFIED: usize = 1 << 16;

impl Congestion {
    pub fn packet(&mut self, flow: FlowId, at: &Seen) {
        if at.marks.congested {
            self.marked.entry(flow).or_default().see(at.time, &[at.frame]);
        }
    }

    pub fn notification(&mut self, packet: &RdmaPacket<'_>, time: u64, frame: FrameId) {
        let Some(bth) = packet.bth() else { return };
        let key = FlowKey { from: packet.from, to: packet.to, qpn: bth.dest_qp };
        if self.notified.len() < NOTIFIED || self.notified.contains_key(&key) {
            self.notified.entry(key).or_default().see(time, &[frame]);
        }
    }

    pub fn findings(&self, end: &End<'_>) -> Vec<Finding> {
        let mut all: PerFlow<(Sightings, u64, u64)> = PerFlow::default();
        for (flow, seen) in &self.marked {
            let (sum, marks, _) = all.entry(*flow).or_default();
            sum.absorb(seen);
            *marks += seen.count;
        }
        // A CNP goes to the QP that sends too fast: to the requests of the flow's partner.
        for (at, flow) in end.flows.iter().enumerate() {
            if let Some(seen) = self.notified.get(&flow.key) {
                let (sum, _, notifications) = all.entry(flow.partner.unwrap_or(FlowId(at as u32))).or_default();
                sum.absorb(seen);
                *notifications += seen.count;
            }
        }
        let finding = |(flow, (seen, marks, notifications)): (FlowId, (Sightings, u64, u64))| {
            let text = format!(
                "Switches marked {} as congested, and the receiver sent {}.",
                times(marks, "packet"),
                times(notifications, "CNP")
            );
            let seen = Sightings { cost: Cost::default(), ..seen };
            seen.finding(FindingKind::Congestion, flow, 0.99, text, advice::congestion())
        };
        all.into_iter().map(finding).collect()
    }
}
