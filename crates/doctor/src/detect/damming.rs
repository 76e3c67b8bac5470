//! Packet damming: the peer loses a request while it repeats a READ that met a page fault (T 5.1).
//!
//! Of two requests of a QP, the first is a READ that was late by a page fault or an RNR delay, not more. The second was
//! posted before the first completed, or immediately after it (T fig 6.2). It was then served for as long as an ACK
//! timeout, and completed successfully. A packet that the network lost has the same effect, but in one request of many:
//! a READ that was lost itself takes a whole timeout, not the time of a page fault, and losses hit requests without
//! such a READ ahead of them too. If requests of this process also time out alone, the confidence falls.

use super::stall::Stall;
use super::timing::{PENDING, SHORTEST_TIMEOUT, is_floor, longest_pending, shortest_timeout};
use crate::layout::Request;
use crate::trace::Trace;
use crate::verbs;
use std::collections::{HashMap, HashSet};

/// After a later request it takes this time at most until the lost one is repeated, ns.
const REVEALED: u64 = 5_000_000;
/// So many stalls of other QPs are page faults.
const MANY: usize = 2;

/// The indices of stalls that are dammed. `flooded` are stalls of a packet flood, which can be as long as a short
/// timeout.
pub fn find(trace: &Trace, stalls: &[Stall], flooded: &HashSet<usize>) -> Vec<usize> {
    let mut pending: HashMap<usize, Vec<&Stall>> = HashMap::new();
    let mut found = vec![];
    for (index, stall) in stalls.iter().enumerate() {
        let qp = &trace.qps[stall.request.qp];
        let earlier = pending.entry(stall.request.qp).or_default();
        let long = stall.late >= shortest_timeout(qp.timeout).max(SHORTEST_TIMEOUT);
        let sure = is_floor(stall.late);
        let lost = stall.succeeded() && long && (sure || !flooded.contains(&index) && is_alone(stalls, index));
        if lost && !was_revealed(stall) && earlier.iter().any(|read| overlaps(read, stall)) {
            found.push(index);
        }
        let read = verbs::has_response(stall.request.opcode) && stall.succeeded();
        if read && stall.late >= PENDING && stall.late <= longest_pending(qp.min_rnr_timer) {
            // Only the last ones can matter: the requests of a QP complete in order.
            if earlier.len() == 4 {
                earlier.remove(0);
            }
            earlier.push(stall);
        }
    }
    found
}

/// Whether hardly any stall of another QP ended meanwhile. Otherwise the adapter was busy with page faults, for which a
/// request can wait as long as for a short timeout.
fn is_alone(stalls: &[Stall], index: usize) -> bool {
    let this = &stalls[index].request;
    let others = stalls[..index].iter().rev().take_while(|other| other.request.done > this.begun);
    others.filter(|other| other.request.qp != this.qp).take(MANY).count() < MANY
}

/// Whether the peer got a later request long before the end of the stall. From that it learns that a request is
/// missing, and asks for it, without a timeout (T fig 5.6); so the packets of this stall were lost again and again.
fn was_revealed(stall: &Stall) -> bool {
    let request = &stall.request;
    request.next != 0 && request.next.saturating_add(REVEALED) < request.done
}

/// Whether a request was posted while the READ was pending.
fn overlaps(read: &Stall, stall: &Stall) -> bool {
    let (read, request) = (read.request, stall.request);
    // Posts that the program makes together have one time.
    request.posted >= read.posted
        && request.posted <= read.done.saturating_add(Request::TOGETHER)
        && request.begun >= read.done
}
