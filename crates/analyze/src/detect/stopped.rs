//! A peer that stopped: it answered before, and then nothing came from it any more.
//!
//! Evidence: an open request was repeated by timeouts, at least two, or one that was followed by eight times as long a
//! silence; and since before them no packet of any kind came from the peer's address to the requester's, on any QP,
//! until the end of the capture. One finding for each pair of addresses. A peer that never answered has not stopped: it
//! was not there (retries exhausted).

use super::common::{Sightings, time, times};
use super::end::End;
use crate::advice;
use crate::finding::{Finding, FindingKind};
use crate::flow::FlowId;
use std::collections::BTreeMap;
use weir_capture::packet::Address;

pub fn findings(end: &End<'_>, exhausted: &[Finding]) -> Vec<Finding> {
    // Time of the last packet between two addresses.
    let mut last: BTreeMap<(Address, Address), u64> = BTreeMap::new();
    for flow in end.flows {
        let time = last.entry((flow.key.from, flow.key.to)).or_default();
        *time = flow.last_packet().max(*time);
    }
    let mut pairs: BTreeMap<(Address, Address), (Sightings, Vec<FlowId>)> = BTreeMap::new();
    for (at, flow) in end.flows.iter().enumerate() {
        let (from, to) = (flow.key.from, flow.key.to);
        let Some(request) = flow.half.oldest() else { continue };
        // On loopback both directions have the same addresses: the partner's packets are the peer's.
        let heard = match from == to {
            true => flow.partner.map(|partner| end.flow(partner).last_packet()),
            false => last.get(&(to, from)).copied(),
        };
        let Some(heard) = heard.filter(|heard| *heard > 0) else { continue };
        // One timeout is a lost packet, unless the silence goes on.
        let waited = end.last.saturating_sub(request.last.time);
        let silent = request.timeouts_in_row > 0 && heard < request.row_began;
        let briefly =
            request.timeouts_in_row == 1 && waited < request.last.time.saturating_sub(heard).saturating_mul(8);
        if !silent || briefly {
            continue;
        }
        let (seen, flows) = pairs.entry((from, to)).or_default();
        seen.see(heard, &[request.first.frame, request.last.frame]);
        seen.to = seen.to.max(request.last.time);
        seen.cost.packets += u64::from(request.sent - 1);
        seen.cost.time = seen.to.saturating_sub(seen.from);
        flows.push(FlowId(at as u32));
    }
    let mut findings = Vec::new();
    for ((_, peer), (seen, flows)) in pairs {
        let gone = exhausted.iter().any(|finding| flows.contains(&finding.flows[0]));
        let text = format!(
            "{peer} stopped: nothing came from it in the last {}, while {} waited for it.",
            time(end.last.saturating_sub(seen.from)),
            times(seen.count, "request"),
        );
        let confidence = if gone { 0.97 } else { 0.85 };
        let mut finding = seen.finding(FindingKind::PeerStopped, flows[0], confidence, text, advice::peer());
        finding.flows = flows;
        findings.push(finding);
    }
    findings
}
