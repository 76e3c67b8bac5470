//! Duplicates and packets out of the window, without a loss that explains them.
//!
//! Evidence: responses that no open request explains, second responses to requests that were sent once, and requests
//! that came twice although nothing was lost and no timer can have run out. A few of them follow every loss; so the
//! finding needs [`FEW`] of them, and more than twice as many as repetitions with a known cause. Out of the requester's
//! host nothing comes twice: it repeats.

use super::common::{Alike, PerFlow, Sightings, paired};
use super::end::End;
use crate::advice;
use crate::finding::{Finding, FindingKind};
use crate::flow::{Cause, FlowId, Repeat, Request};
use crate::packet::Seen;
use weir_capture::Direction;

/// Such packets by flow.
#[derive(Debug, Default)]
pub struct OutOfWindow {
    flows: PerFlow<Outside>,
}

#[derive(Debug, Default)]
struct Outside {
    seen: Sightings,
    strays: u64,
    twice: u64,
    explained: u64,
}

/// Fewer are no finding.
const FEW: u64 = 5;

impl OutOfWindow {
    pub fn stray(&mut self, flow: FlowId, at: &Seen) {
        let outside = self.flows.entry(flow).or_default();
        outside.strays += 1;
        outside.seen.see(at.time, &[at.frame]);
    }

    /// A second response to a request that was sent once.
    pub fn answered_again(&mut self, flow: FlowId, at: &Seen, request: &Request) {
        if request.sent == 1 {
            self.stray(flow, at);
        }
    }

    pub fn repeat(&mut self, flow: FlowId, repeat: &Repeat) {
        let outside = self.flows.entry(flow).or_default();
        if repeat.cause == Cause::Unseen && !repeat.follows {
            outside.twice += 1;
            outside.seen.see(repeat.time, &[repeat.previous, repeat.frame]);
            outside.seen.cost.add_packet(repeat.payload);
        } else if repeat.cause != Cause::Unseen {
            outside.explained += 1;
        }
    }

    /// What came twice or belongs to no request in a flow.
    pub fn count(&self, flow: FlowId) -> u64 {
        self.flows.get(&flow).map_or(0, |outside| outside.strays + outside.twice)
    }

    pub fn findings(&self, end: &End<'_>) -> Vec<Finding> {
        let mut findings = Vec::new();
        let alike = Alike::of(end);
        for (flow, outside) in &self.flows {
            // The responses of another QP, and repetitions for a NAK that was counted for another QP.
            if alike.has(end, *flow) {
                continue;
            }
            let repeats = end.flow(*flow).half.direction() == Some(Direction::Out);
            let count = outside.strays + if repeats { 0 } else { outside.twice };
            if count < FEW || count <= 2 * outside.explained || !end.flow(*flow).half.has_responses() {
                continue;
            }
            let text = format!(
                "{} responses belong to no open request, and {} requests came twice, without a loss.",
                outside.strays, outside.twice
            );
            let confidence = paired(end, *flow, 0.8);
            findings.push(outside.seen.finding(
                FindingKind::OutOfWindow,
                *flow,
                confidence,
                text,
                [advice::one_path(), advice::cables()].concat(),
            ));
        }
        findings
    }
}
