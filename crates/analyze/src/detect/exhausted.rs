//! Retries exhausted: a requester gave up a request.
//!
//! Evidence: the oldest open request ran into [`TIMEOUTS`] timeouts or more in a row without any response, and the
//! capture goes on for longer than one more would have taken. Or its last response is an RNR NAK, and the capture goes
//! on for far longer than the delay without a repetition: the RNR retries are exhausted.

use super::common::{Sightings, paired, time, times};
use super::end::End;
use crate::advice;
use crate::finding::{Finding, FindingKind};
use crate::flow::{Flow, FlowId, Request};

const TIMEOUTS: u32 = 3;
/// An RNR delay may become this much longer: adapters wait up to five times the delay asked for (T fig 6.2).
const RNR_FACTOR: u64 = 20;

pub fn findings(end: &End<'_>) -> Vec<Finding> {
    let flows = end.flows.iter().enumerate();
    flows.filter_map(|(at, flow)| finding(end, FlowId(at as u32), flow)).collect()
}

fn finding(end: &End<'_>, id: FlowId, flow: &Flow) -> Option<Finding> {
    let request = flow.half.oldest()?;
    let silence = end.last.saturating_sub(request.last.time);
    let mut seen = Sightings::default();
    seen.see(request.first.time, &[request.first.frame, request.last.frame]);
    (seen.to, seen.count) = (request.last.time, 1);
    seen.cost.time = request.last.time.saturating_sub(request.first.time);
    seen.cost.packets = u64::from(request.sent - 1);
    let described = || format!("{} with PSN {}", request.kind.name(), request.psn.get());
    if let Some((nak, code)) = flow.half.last_rnr_nak()
        && nak >= request.last.time
        && request.rnr_naks > 0
    {
        let delay = weir_wire::RnrTimer::new(code).delay().as_nanos() as u64;
        if end.last.saturating_sub(nak) < RNR_FACTOR * delay.max(1_000_000) {
            return None;
        }
        let text = format!(
            "{} got {} and was not repeated any more: the RNR retries are exhausted (IBV_WC_RNR_RETRY_EXC_ERR).",
            described(),
            times(u64::from(request.rnr_naks), "RNR NAK"),
        );
        let advice = [advice::rnr_retry(), advice::more_receives()].concat();
        return Some(seen.finding(FindingKind::RetryExhausted, id, paired(end, id, 0.85), text, advice));
    }
    // Without any response the cause of repetitions is not certain, unless the capture has both directions.
    let never = !flow.half.has_responses() && request.sent > TIMEOUTS && hears(end, flow);
    if !(request.timeouts_in_row >= TIMEOUTS || never) || silence < interval(request).saturating_mul(2) {
        return None;
    }
    let text = format!(
        "{} was sent {} in {} without a response, and no more: the retries are exhausted (IBV_WC_RETRY_EXC_ERR).",
        described(),
        times(u64::from(request.sent), "time"),
        time(request.last.time.saturating_sub(request.first.time)),
    );
    let advice = [advice::peer(), advice::more_retries()].concat();
    Some(seen.finding(FindingKind::RetryExhausted, id, paired(end, id, 0.95), text, advice))
}

/// Whether the capture has packets that the requester's host receives, or the responder's host sends.
fn hears(end: &End<'_>, flow: &Flow) -> bool {
    end.flows.iter().any(|other| other.key.to == flow.key.from || other.key.from == flow.key.to)
}

/// The mean time between two transmissions, ns.
fn interval(request: &Request) -> u64 {
    (request.last.time.saturating_sub(request.first.time)) / u64::from(request.sent.max(2) - 1)
}
