//! Causes of single stalls: timeouts, RNR waits and page faults.
//!
//! The wait of an RNR NAK is the peer's `min_rnr_timer`, which a requester does not know; both ends of a connection
//! usually have the same. A READ or WRITE needs no receive of the peer, so its RNR NAK comes from a page fault there.
//! The peer of a device without ODP is taken to have none either.

use super::stall::Stall;
use super::timing::{PENDING, SHORTEST_TIMEOUT, is_floor, is_timeout, longest_pending, shortest_timeout};
use crate::finding::Kind;
use crate::trace::Trace;
use crate::verbs;

/// A stall with its cause.
#[derive(Clone, Copy, Debug)]
pub struct Cause<'a> {
    pub kind: Kind,
    pub confidence: f64,
    pub stall: &'a Stall,
}

impl<'a> Cause<'a> {
    /// Of a dammed request.
    pub fn damming(stall: &'a Stall) -> Cause<'a> {
        Cause { kind: Kind::Damming, confidence: if is_floor(stall.late) { 0.95 } else { 0.6 }, stall }
    }
}

/// The cause of a stall that is neither dammed nor of a flood; `None`: nothing that is known.
pub fn of<'a>(trace: &Trace, stall: &'a Stall) -> Option<Cause<'a>> {
    let request = &stall.request;
    let qp = &trace.qps[request.qp];
    let cause = |kind, confidence| Some(Cause { kind, confidence, stall });
    match request.status {
        verbs::SUCCESS => {}
        verbs::RETRY_EXCEEDED => return cause(Kind::Timeout, 1.0),
        verbs::RNR_RETRY_EXCEEDED => return cause(Kind::RnrWait, 1.0),
        _ => return None,
    }
    let delay = verbs::rnr_delay(qp.min_rnr_timer);
    let is_long = stall.late >= shortest_timeout(qp.timeout).max(SHORTEST_TIMEOUT);
    let receives = verbs::takes_receive(request.opcode);
    if is_long && is_floor(stall.late) {
        // A receiver can be slow for so long too.
        return cause(Kind::Timeout, if receives { 0.6 } else { 0.9 });
    }
    if request.odp && stall.late >= PENDING {
        return cause(Kind::PageFault, 0.8);
    }
    let is_pending = stall.late <= longest_pending(qp.min_rnr_timer);
    if receives && is_long && !is_pending && is_timeout(qp.timeout, stall.late) {
        // A receiver is seldom slow for just this time.
        return cause(Kind::Timeout, 0.5);
    }
    if receives && stall.late >= delay {
        // After an event the program may have waited for a processor too.
        return cause(Kind::RnrWait, if is_pending && !request.armed { 0.8 } else { 0.5 });
    }
    if !receives && !qp.no_odp && stall.late >= delay.max(PENDING) && is_pending {
        return cause(Kind::PageFault, 0.5);
    }
    if !receives && !is_long && !is_pending && stall.late >= SHORTEST_TIMEOUT {
        // Adaptive retransmission, or a timer that began with an earlier request, as Soft-RoCE's does.
        return cause(Kind::Timeout, 0.3);
    }
    is_long.then_some(Cause { kind: Kind::Timeout, confidence: 0.5, stall })
}

/// What was seen of a QP.
pub fn describe(causes: &[Cause]) -> String {
    let Some(worst) = causes.iter().max_by_key(|cause| cause.stall.late) else { return String::new() };
    let request = &worst.stall.request;
    let operation = verbs::operation(request.opcode);
    let took = format!("{:.1} ms", worst.stall.late as f64 / 1e6);
    let usual = (worst.stall.usual / 1000).max(1);
    match (worst.kind, request.status) {
        (Kind::Damming, _) => {
            format!("a {operation} behind a READ that waited for a page took {took} instead of {usual} us")
        }
        (_, verbs::RETRY_EXCEEDED) => format!("a {operation} failed after {took}: IBV_WC_RETRY_EXC_ERR"),
        (_, verbs::RNR_RETRY_EXCEEDED) => format!("a {operation} failed after {took}: IBV_WC_RNR_RETRY_EXC_ERR"),
        _ if request.open => format!("a {operation} was open for {took} when the process ended"),
        (Kind::PageFault, _) if !request.odp => {
            format!("a {operation} took {took} instead of {usual} us, as with a page fault of the peer")
        }
        _ => format!("a {operation} took {took} instead of {usual} us"),
    }
}
