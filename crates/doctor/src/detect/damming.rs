//! Packet damming: the peer loses a request while it repeats a READ that met a page fault (T 5.1).
//!
//! Of two requests of a QP, the first is a READ that was late by a page fault or an RNR delay, not more. The second was
//! posted before the first completed, or immediately after it (T fig 6.2). It was then served for as long as one ACK
//! timeout of the adapters that have the flaw, and completed successfully.
//!
//! A packet that the network lost has the same effect, but not only behind such a READ. So these speak for losses: the
//! READ has no ODP memory and was faster than an RNR wait, because a later request revealed that its packet was lost; a
//! request that took more than one timeout; another whole timeout of a request that had been sent meanwhile, and was
//! repeated together with the first; timeouts of other requests. If a process has as many of these as of requests that
//! could be dammed, its packets are lost, and all of them are timeouts.

use super::stall::Stall;
use super::timing::{PENDING, longest_pending, longest_timeout, shortest_rnr_wait, usual_timeout};
use crate::layout::Request;
use crate::trace::{Qp, Trace};
use crate::verbs;
use std::collections::{HashMap, VecDeque};

/// After a later request it takes this time at most until the lost one is repeated, ns.
const REVEALED: u64 = 5_000_000;
/// A READ that meets a page fault alone is repeated after this time at least, ns (0.5 ms: T 4.2, fig 5.3).
const REPEATED: u64 = 400_000;
/// A machine with other work makes such a READ late by this time at most, ns: a timeout is longer.
const BUSY: u64 = 60_000_000;
/// An RNR NAK of a peer with other work comes within this time, ns.
const UNTIL_NAK: u64 = 400_000;
/// Only so many of the last READs of a QP can matter: its requests complete in order.
const READS: usize = 4;

/// The indices of stalls that are dammed.
pub fn find(trace: &Trace, stalls: &[Stall]) -> Vec<usize> {
    let mut qps: HashMap<usize, Seen> = HashMap::new();
    let (mut found, mut lost, mut lost_until) = (vec![], 0, 0);
    for (index, stall) in stalls.iter().enumerate() {
        let qp = &trace.qps[stall.request.qp];
        let seen = qps.entry(stall.request.qp).or_default();
        if is_pending_read(qp, seen.reads.front().copied(), stall) {
            seen.reads.truncate(READS - 1);
            seen.reads.push_front(stall);
        }
        if !is_timeout(qp, stall) {
            continue;
        }
        let again = seen.timeout.is_some_and(|before| is_sent(qp, stall) && stall.request.posted < before.request.done);
        let behind = seen.reads.iter().any(|read| overlaps(qp, read, stall));
        if behind && !again && stall.late <= longest_timeout(qp.timeout) && !was_revealed(stall) {
            found.push(index);
        } else if stall.request.begun >= lost_until {
            // What many QPs lose at the same time is one event.
            (lost, lost_until) = (lost + 1, stall.request.done);
        }
        seen.timeout = Some(stall);
    }
    if found.len() > lost { found } else { vec![] }
}

/// What was seen of a QP.
#[derive(Default)]
struct Seen<'a> {
    /// READs that waited for a page, the last one first.
    reads: VecDeque<&'a Stall>,
    /// The last timeout.
    timeout: Option<&'a Stall>,
}

/// Whether a request was served for as long as a timeout of an adapter that has the flaw.
fn is_timeout(qp: &Qp, stall: &Stall) -> bool {
    stall.succeeded() && stall.late >= usual_timeout(qp.timeout)
}

/// Whether a READ waited for a page: a page of its own memory, or one of the peer, after an RNR NAK. `before` is such a
/// READ before it; what leaves together with that is late too, by the time of a burst.
fn is_pending_read(qp: &Qp, before: Option<&Stall>, stall: &Stall) -> bool {
    let request = &stall.request;
    let follows = before.is_some_and(|read| read.request.done == request.begun) && is_sent(qp, stall);
    let own = if follows { REPEATED } else { PENDING };
    let least = if request.odp { own } else { own.max(shortest_rnr_wait(qp.min_rnr_timer)) };
    let read = verbs::has_response(request.opcode) && stall.succeeded();
    read && (least..=longest_pending(qp.min_rnr_timer).max(BUSY)).contains(&stall.late)
}

/// Whether a request left as soon as it was posted: the adapter sends so many READs and atomics at once.
fn is_sent(qp: &Qp, stall: &Stall) -> bool {
    stall.request.ahead < u32::from(qp.max_rd_atomic.max(1))
}

/// Whether the peer got a later request long before the end of the stall. From that it learns that a request is
/// missing, and asks for it, without a timeout (T fig 5.6); so the packets of this stall were lost again and again.
fn was_revealed(stall: &Stall) -> bool {
    let request = &stall.request;
    request.next != 0 && request.next.saturating_add(REVEALED) < request.done
}

/// Whether the READ can have dammed a request: it was posted while the READ was pending, or up to the time that packets
/// of two posts need to be one burst after it. A READ that waited after an RNR NAK leaves together with the requests
/// behind it, so the peer loses the first of them, and none completes in between. If the request itself was posted before
/// the NAK can have come, so was what completes in between: the peer may have had that before the NAK.
fn overlaps(qp: &Qp, read: &Stall, stall: &Stall) -> bool {
    let waited = read.late >= shortest_rnr_wait(qp.min_rnr_timer);
    let (read, request) = (&read.request, &stall.request);
    // If the program polls rarely, the READ was over long before its completion was polled.
    let until = read.missing.saturating_add(Request::TOGETHER).max(read.done);
    let is_early = request.posted < read.posted.saturating_add(UNTIL_NAK);
    let follows = is_early && request.begun <= read.done.saturating_add(Request::TOGETHER);
    let is_next = follows || request.begun <= read.done.max(request.posted) || !is_sent(qp, stall);
    // Posts that the program makes together have one time.
    request.posted >= read.posted && request.posted <= until && request.begun >= read.done && (is_next || !waited)
}
