//! Packet flood: requests stay open although the page of their data has come (T 5.2).
//!
//! Requests of several QPs need the same pages of local ODP memory. As soon as one of them completes, its page is
//! present. Without the flaw the others follow within a millisecond or two: their QPs repeat them at intervals, or
//! resume with the page. With the flaw the oldest requests stay open for many milliseconds more, up to seconds, without
//! any timeout (T fig 5.9). Many page faults one after the other take long too, but then the requests of a page
//! complete together, and after the time of that many page faults.

use super::stall::Stall;
use super::timing::{is_floor, shortest_rnr_wait, shortest_timeout};
use crate::trace::{Request, Trace};
use std::collections::{HashMap, HashSet};

/// A request stays open so long after its page has come, ns, for other reasons too: an interval of the requester, a
/// late thread.
const STALE: u64 = 4_000_000;
/// The same if the peer waits for pages too: each QP has an RNR wait of its own.
const STALE_LONG: u64 = 12_000_000;
/// Fewer requests are no flood: of [`STALE`] and of [`STALE_LONG`].
const MANY: usize = 20;
const MANY_LONG: usize = 8;
/// What a page fault usually takes, ns (0.45 to 0.7 ms: T fig 4.2 to 4.4, 5.3); adapters serve them one by one.
const PAGE_FAULT: u64 = 600_000;
/// So many requests of a flood take longer than its page faults.
const UNEXPLAINED: usize = 8;
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
        let explained = explained(trace, stalls, flood);
        let unexplained = flood.iter().filter(|&&index| stalls[index].late > explained).count();
        qps.len() > 1 && (flood.len() >= MANY || long >= MANY_LONG) && unexplained >= UNEXPLAINED
    });
    floods
}

/// How long the page faults of a flood keep a request open, ns.
fn explained(trace: &Trace, stalls: &[Stall], flood: &[usize]) -> u64 {
    let requests = || flood.iter().map(|&index| &stalls[index].request);
    let from = requests().map(|request| request.begun).min().unwrap_or(0);
    let to = requests().map(|request| request.done).max().unwrap_or(0);
    let meanwhile = trace.requests.iter().filter(|request| request.odp && (from..=to).contains(&request.done));
    let pages: HashSet<(&str, u64)> = meanwhile.map(|request| page(trace, request)).collect();
    STALE + PAGE_FAULT * pages.len() as u64
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
