//! Network page faults of both sides, and what they cost (T 4.2).
//!
//! At the responder: an RNR NAK for a request that needs no posted receive (READ, WRITE, atomic) can only mean that a
//! page is missing. For a SEND it may also mean that no receive is posted; that NAK leaves at once, while the NAK of a
//! page fault waits until the page has come (T fig 4.3, 4.4). So RNR NAKs for SENDs count as page faults if they came
//! later than [`LATE`], or if the flow has others of which it is certain.
//!
//! At the requester: a complete response to a READ arrives, and the READ is repeated some 0.5 to 0.8 ms later: its
//! buffer's page was missing and the response was dropped. A repetition that comes sooner or later means that the
//! response was lost between the point of capture and the requester ([`crate::flow::Cause`]).

use super::common::{PerFlow, Sightings, paired, time, times};
use super::end::End;
use crate::advice;
use crate::finding::{Finding, FindingKind};
use crate::flow::{Cause, FlowId, Nak, Repeat, Request};

/// Page faults at responders, by the flow of the requests.
#[derive(Debug, Default)]
pub struct ResponderFaults {
    flows: PerFlow<Faults>,
}

#[derive(Debug, Default)]
struct Faults {
    seen: Sightings,
    /// RNR NAKs for requests that need no receive.
    certain: u64,
    /// Times from the last transmission to the RNR NAK, of the others: their sum, and their number.
    latency: u64,
    others: u64,
}

/// Page faults at requesters.
#[derive(Debug, Default)]
pub struct RequesterFaults {
    flows: PerFlow<Dropped>,
}

#[derive(Debug, Default)]
struct Dropped {
    seen: Sightings,
    /// READs that dropped a response.
    reads: u64,
    bytes: u64,
}

/// An RNR NAK that comes later than this may have waited for a page, ns.
const LATE: u64 = 100_000;
/// So many times later than other responses.
const LATER: u64 = 4;

impl ResponderFaults {
    pub fn rnr_nak(&mut self, flow: FlowId, nak: &Nak, request: Option<&Request>) {
        let Some(request) = request else { return };
        let faults = self.flows.entry(flow).or_default();
        faults.seen.see(nak.time, &[request.last.frame, nak.frame]);
        if request.takes_receive {
            faults.latency = faults.latency.saturating_add(nak.latency.unwrap_or(0));
            faults.others += 1;
        } else {
            faults.certain += 1;
        }
    }

    pub fn repeat(&mut self, flow: FlowId, repeat: &Repeat) {
        if let Some(faults) = self.flows.get_mut(&flow)
            && matches!(repeat.cause, Cause::Rnr { .. })
        {
            faults.seen.add_cost(repeat);
            if !repeat.follows {
                faults.seen.evidence(&[repeat.frame]);
                faults.seen.to = repeat.time;
            }
        }
    }

    /// Whether a flow's RNR NAKs are page faults.
    pub fn has(&self, end: &End<'_>, flow: FlowId) -> bool {
        let Some(faults) = self.flows.get(&flow) else { return false };
        let latency = faults.latency / faults.others.max(1);
        let usual = end.flow(flow).record.stats.response_time;
        faults.certain > 0 || latency > LATE && latency > usual.saturating_mul(LATER)
    }

    pub fn findings(&self, end: &End<'_>) -> Vec<Finding> {
        let finding = |(flow, faults): (&FlowId, &Faults)| {
            let text = format!(
                "{} met a missing page at the responder and got an RNR NAK; the repetitions took {} and {}.",
                times(faults.seen.count, "request"),
                time(faults.seen.cost.time),
                times(faults.seen.cost.packets, "packet"),
            );
            let advice = [advice::prefetch(), advice::short_rnr(), advice::no_odp()].concat();
            let confidence = paired(end, *flow, if faults.certain > 0 { 0.99 } else { 0.85 });
            faults.seen.finding(FindingKind::ResponderPageFault, *flow, confidence, text, advice)
        };
        self.flows.iter().filter(|(flow, _)| self.has(end, **flow)).map(finding).collect()
    }
}

impl RequesterFaults {
    pub fn repeat(&mut self, flow: FlowId, repeat: &Repeat) {
        if repeat.cause != Cause::Discarded {
            return;
        }
        let Some(request) = repeat.request else { return };
        let dropped = self.flows.entry(flow).or_default();
        dropped.seen.see_repeat(repeat);
        dropped.bytes += u64::from(request.bytes);
        dropped.reads += u64::from(request.discards == 0);
        if let Some(answered) = request.answered() {
            dropped.seen.evidence(&[answered.frame]);
        }
    }

    pub fn findings(&self, end: &End<'_>) -> Vec<Finding> {
        let finding = |(flow, dropped): (&FlowId, &Dropped)| {
            let text = format!(
                "{} dropped {} ({} bytes of data) because a page of the buffer was missing, and repeated; this took {}.",
                times(dropped.reads, "READ"),
                times(dropped.seen.count, "response"),
                dropped.bytes,
                time(dropped.seen.cost.time),
            );
            let advice = [advice::prefetch(), advice::no_odp()].concat();
            dropped.seen.finding(FindingKind::RequesterPageFault, *flow, paired(end, *flow, 0.95), text, advice)
        };
        self.flows.iter().map(finding).collect()
    }
}
