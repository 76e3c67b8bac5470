//! Packet flood: requesters drop responses to READs although the page has come (T 5.2).
//!
//! A page fault at the requester makes it drop the response to a READ and repeat the READ some 0.5 to 0.8 ms later.
//! When the page has come, the next response is taken. In a flood some READs go on dropping responses long after others
//! on the same page were taken, because their QPs wait for a page-fault event of their own (T fig 5.9).
//!
//! Evidence: READs of a host, on several QPs, that dropped three responses or more, and were repeated for it more than
//! [`LATE`] after the first READ of the same page at the responder was taken. (The pages of the requester's buffers are
//! not in the packets; buffers mostly follow the responder's.) A page that comes late does not look like that: all its
//! READs are taken at once. Pages that come one after the other do not, either.

use super::common::{PerFlow, paired, time, times};
use super::end::End;
use crate::advice;
use crate::finding::{Cost, Finding, FindingKind};
use crate::flow::{FlowId, Request};
use crate::packet::FrameId;
use std::collections::{BTreeMap, HashMap};
use weir_capture::packet::Address;

/// READs with dropped responses.
#[derive(Debug, Default)]
pub struct Flood {
    /// By flow: the READs with the most dropped responses.
    reads: PerFlow<Vec<Dropped>>,
    /// When the first READ of each page was taken.
    taken: HashMap<Page, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Dropped {
    page: Page,
    discards: u32,
    first: u64,
    /// When it was last repeated for a dropped response.
    again: u64,
    taken: u64,
    frames: [FrameId; 2],
}

/// A page at the responder: flow's key, and number of the page.
type Page = (u32, u64);

/// READs of a flow that are kept.
const KEPT: usize = 64;
/// Pages that are kept.
const PAGES: usize = 1 << 16;
/// So long after the page has come, a READ is late, ns: twice the time of a repetition.
const LATE: u64 = 1_600_000;
/// So many dropped responses make a READ stuck.
const DISCARDS: u32 = 3;
/// A flood needs stuck READs on so many QPs.
const QPS: usize = 3;
/// Floods further apart than this are two, ns.
const APART: u64 = 5_000_000_000;

impl Flood {
    /// A READ that dropped responses was taken.
    pub fn completed(&mut self, flow: FlowId, request: &Request) {
        let Some(taken) = request.answered().map(|answered| answered.time) else { return };
        let page = (request.rkey, request.va >> 12);
        if self.taken.len() < PAGES || self.taken.contains_key(&page) {
            let first = self.taken.entry(page).or_insert(taken);
            *first = taken.min(*first);
        }
        if request.discards < DISCARDS {
            return;
        }
        let dropped = Dropped {
            page,
            discards: request.discards,
            first: request.first.time,
            again: request.discarded,
            taken,
            frames: [request.first.frame, request.last.frame],
        };
        let reads = self.reads.entry(flow).or_default();
        if reads.len() < KEPT {
            reads.push(dropped);
        } else if let Some(least) = reads.iter_mut().min_by_key(|read| read.discards)
            && least.discards < dropped.discards
        {
            *least = dropped;
        }
    }

    pub fn findings(&self, end: &End<'_>) -> Vec<Finding> {
        let late = |read: &&Dropped| self.taken.get(&read.page).is_some_and(|first| read.again > first + LATE);
        let mut hosts: BTreeMap<Address, Vec<(FlowId, Dropped)>> = BTreeMap::new();
        for (flow, reads) in &self.reads {
            let host = end.flow(*flow).key.from;
            hosts.entry(host).or_default().extend(reads.iter().filter(late).map(|read| (*flow, *read)));
        }
        hosts.into_values().flat_map(|reads| episodes(reads, end)).collect()
    }
}

/// The floods of a host.
fn episodes(mut reads: Vec<(FlowId, Dropped)>, end: &End<'_>) -> Vec<Finding> {
    reads.sort_by_key(|(_, read)| read.first);
    let mut findings = Vec::new();
    let mut current: Vec<(FlowId, Dropped)> = Vec::new();
    let mut until = 0;
    for read in reads {
        if !current.is_empty() && read.1.first > until + APART {
            findings.extend(finding(&current, end));
            current.clear();
        }
        until = until.max(read.1.taken);
        current.push(read);
    }
    findings.extend(finding(&current, end));
    findings
}

fn finding(reads: &[(FlowId, Dropped)], end: &End<'_>) -> Option<Finding> {
    let mut flows: Vec<FlowId> = reads.iter().map(|(flow, _)| *flow).collect();
    flows.sort_unstable();
    flows.dedup();
    if flows.len() < QPS {
        return None;
    }
    let discards: u64 = reads.iter().map(|(_, read)| u64::from(read.discards)).sum();
    let from = reads.iter().map(|(_, read)| read.first).min()?;
    let to = reads.iter().map(|(_, read)| read.taken).max()?;
    let worst = reads.iter().map(|(_, read)| read).max_by_key(|read| read.discards)?;
    let bytes: u64 = flows.iter().map(|flow| end.flow(*flow).record.stats.repeated_bytes).sum();
    let text = format!(
        "READs on {} dropped responses {} although the page had come: the READ with the most was repeated {} in {}.",
        times(flows.len() as u64, "QP"),
        times(discards, "time"),
        times(u64::from(worst.discards), "time"),
        time(worst.taken.saturating_sub(worst.first)),
    );
    let mut frames: Vec<FrameId> = worst.frames.to_vec();
    frames.extend(reads.iter().flat_map(|(_, read)| read.frames).take(30));
    frames.sort_unstable();
    frames.dedup();
    let advice = [advice::fewer_qps(), advice::prefetch(), advice::no_odp()].concat();
    Some(Finding {
        kind: FindingKind::Flood,
        confidence: paired(end, flows[0], 1.0 - 0.3 / flows.len() as f64),
        flows,
        frames,
        from,
        to,
        count: reads.len() as u64,
        cost: Cost { time: to.saturating_sub(from), packets: 2 * discards, bytes },
        text,
        advice,
    })
}
