//! Packet flood: requests stay open although the page of their data has come (T 5.2).
//!
//! Requests of several QPs need the same pages of local ODP memory. As soon as one of them completes, its page is
//! present. Without the flaw the others follow within a millisecond or two: their QPs repeat them at intervals, or
//! resume with the page. With the flaw the oldest requests stay open for many milliseconds more, up to seconds, without
//! any timeout (T fig 5.9). Many page faults one after the other take long too, but then the requests of a page
//! complete together.

use super::stall::Stall;
use super::timing::{is_floor, shortest_rnr_wait, shortest_timeout};
use crate::trace::{Request, Trace};
use std::collections::{HashMap, HashSet};

/// A request stays open so long after its page has come, ns, for other reasons too: an interval of the requester, a
/// late thread.
const STALE: u64 = 4_000_000;
/// The same at most if the first request took long itself: if the peer waits for pages too, each QP has an RNR wait of
/// its own.
const STALE_LONG: u64 = 12_000_000;
/// Fewer requests are no flood: of [`STALE`] and of [`STALE_LONG`].
const MANY: usize = 32;
const MANY_LONG: usize = 8;
/// Requests that are so far apart are different floods, ns.
const APART: u64 = 1_000_000_000;

/// The floods of a process: indices of stalls.
pub fn find(trace: &Trace, stalls: &[Stall]) -> Vec<Vec<usize>> {
    let mut pages: HashMap<(&str, u64), Vec<u64>> = HashMap::new();
    for request in trace.requests.iter().filter(|request| request.odp) {
        pages.entry(page(trace, request)).or_default().push(request.done);
    }
    let enough = if peer_waits(trace) { STALE_LONG } else { STALE };
    let stale = |stall: &Stall| {
        let request = &stall.request;
        let timeout = shortest_timeout(trace.qps[request.qp].timeout);
        // As long as a timeout: a request that was lost.
        let may_be_timeout = is_floor(stall.late) && stall.late >= timeout;
        let done = pages.get(&page(trace, request)).map_or(&[][..], Vec::as_slice);
        let first = done.get(done.partition_point(|&done| done < request.begun)).copied();
        let stale = stall.late.min(request.done.saturating_sub(first.unwrap_or(request.done)));
        if stall.succeeded() && !may_be_timeout && stale >= enough { stale } else { 0 }
    };
    let mut floods: Vec<Vec<usize>> = vec![];
    let mut until = 0u64;
    for (index, stall) in stalls.iter().enumerate().filter(|(_, stall)| stall.request.odp && stale(stall) >= STALE) {
        match floods.last_mut() {
            Some(flood) if stall.request.begun <= until.saturating_add(APART) => flood.push(index),
            _ => floods.push(vec![index]),
        }
        until = stall.request.done;
    }
    floods.retain(|flood| {
        let qps: HashSet<usize> = flood.iter().map(|&index| stalls[index].request.qp).collect();
        let long = flood.iter().filter(|&&index| stale(&stalls[index]) >= STALE_LONG).count();
        qps.len() > 1 && (flood.len() >= MANY || long >= MANY_LONG)
    });
    floods
}

/// Whether the peer waits for pages too: then the first request of each QP waits after an RNR NAK. A machine with other
/// work makes some of them late, but not all.
fn peer_waits(trace: &Trace) -> bool {
    let mut seen = HashSet::new();
    let first = trace.requests.iter().filter(|request| request.odp && seen.insert(request.qp));
    let shortest = first.map(|first| (first.late(), first.qp)).min();
    shortest.is_some_and(|(late, qp)| late >= shortest_rnr_wait(trace.qps[qp].min_rnr_timer))
}

fn page<'a>(trace: &'a Trace, request: &Request) -> (&'a str, u64) {
    (&trace.qps[request.qp].device, request.address >> 12)
}
