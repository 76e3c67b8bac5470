//! Packet flood by WRITEs (and SENDs): the same packets cross the wire many times (T 5.2.4).
//!
//! At the responder: each RNR NAK for a missing page makes the requester send again all that is open, so N packets on M
//! missing pages become up to N·M. At the requester: a QP with page faults that wait for their events drops ACKs and
//! responses. It repeats what was acknowledged, and the data behind a READ with a dropped response.
//!
//! Evidence: requests that carry data, of which [`PACKETS`] or more were repetitions after RNR NAKs for [`PAGES`] or
//! more different PSNs, or repetitions after dropped ACKs and responses, and at least [`SHARE`] times as many as were new. A
//! lossy network does not look like that: its repetitions follow sequence NAKs and timeouts. A receiver that posts its
//! receives late does not, either: its RNR NAKs come at once and are for SENDs.

use super::common::{PerFlow, Sightings, paired, times};
use super::end::End;
use super::page_fault::ResponderFaults;
use crate::advice;
use crate::finding::{Finding, FindingKind};
use crate::flow::{Cause, FlowId, Nak, Repeat, Request};
use weir_wire::Psn;

/// Flows with repetitions of data.
#[derive(Debug, Default)]
pub struct WriteFlood {
    flows: PerFlow<Repeated>,
}

#[derive(Debug, Default)]
struct Repeated {
    seen: Sightings,
    /// Repetitions after RNR NAKs, and after ACKs and responses that the requester dropped.
    rnr: u64,
    dropped: u64,
    /// Different PSNs with RNR NAKs, one after the other.
    pages: u64,
    last: Option<Psn>,
}

/// Repeated packets of a flood.
const PACKETS: u64 = 64;
/// Different PSNs with RNR NAKs.
const PAGES: u64 = 3;
/// Repeated packets for each new one.
const SHARE: f64 = 2.0;

impl WriteFlood {
    pub fn repeat(&mut self, flow: FlowId, repeat: &Repeat) {
        if repeat.kind.returns_data() {
            return;
        }
        match repeat.cause {
            Cause::Rnr { .. } => {
                let repeated = self.flows.entry(flow).or_default();
                repeated.seen.see_repeat(repeat);
                repeated.rnr += 1;
            }
            Cause::Acknowledged | Cause::Discarded => {
                let repeated = self.flows.entry(flow).or_default();
                repeated.seen.see_repeat(repeat);
                repeated.dropped += 1;
            }
            _ => {}
        }
    }

    pub fn rnr_nak(&mut self, flow: FlowId, nak: &Nak, request: Option<&Request>) {
        if request.is_some_and(|request| !request.kind.returns_data()) {
            let repeated = self.flows.entry(flow).or_default();
            if repeated.last != Some(nak.psn) {
                (repeated.last, repeated.pages) = (Some(nak.psn), repeated.pages + 1);
            }
        }
    }

    pub fn findings(&self, end: &End<'_>, faults: &ResponderFaults) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (flow, repeated) in &self.flows {
            let stats = &end.flow(*flow).record.stats;
            let new = stats.requests.saturating_sub(stats.repeats).max(1);
            let counted = repeated.rnr + repeated.dropped;
            let responder = repeated.rnr >= PACKETS && repeated.pages >= PAGES && faults.has(end, *flow);
            let requester = repeated.dropped >= PACKETS;
            if !(responder || requester) || (counted as f64) < SHARE * new as f64 {
                continue;
            }
            let text = format!(
                "{} carried data that had been sent before ({:.1} times the new packets): {} after RNR NAKs on {}, {} \
                 because the requester dropped ACKs or responses.",
                times(counted, "packet"),
                counted as f64 / new as f64,
                repeated.rnr,
                times(repeated.pages, "page"),
                repeated.dropped,
            );
            let advice = [advice::prefetch(), advice::no_odp(), advice::short_rnr()].concat();
            let confidence = paired(end, *flow, 0.95);
            findings.push(repeated.seen.finding(FindingKind::WriteFlood, *flow, confidence, text, advice));
        }
        findings
    }
}
