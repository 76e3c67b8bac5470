//! Packet loss, and what go-back-N made of it.
//!
//! Evidence: a sequence NAK (the responder misses a request packet); a response to a READ of which packets are missing,
//! or a later acknowledgement without it; an ACK timeout; a complete response after which the requester repeats at
//! once, with all that follows (it was lost behind the point of capture). Losses that damming explains are not counted,
//! and a packet that the responder missed and that comes late is not lost. A READ that comes again right after its whole
//! response of several packets misses the first of them, unless packets between these hosts come twice. Missing
//! responses alone show no loss where the pairing of the directions is uncertain, because too many QPs are alike.
//!
//! The cost: all packets that went again, lost or not, and the time until they went.

use super::common::{Alike, PerFlow, Sightings, paired, time, times};
use super::damming::Damming;
use super::end::End;
use super::window::OutOfWindow;
use crate::advice;
use crate::finding::{Finding, FindingKind};
use crate::flow::{Cause, FlowId, Nak, Repeat, Request};
use crate::packet::{FrameId, Seen};
use std::collections::{BTreeMap, HashSet, VecDeque};
use weir_capture::packet::Address;
use weir_wire::Psn;

/// Sequence NAKs that are kept.
const MISSED: usize = 16;

/// So many packets at most overtake a late one, and the responder asks for them within this time, ns.
const OVERTAKING: i32 = 256;
const MOMENT: u64 = 300_000;

/// Losses by flow.
#[derive(Debug, Default)]
pub struct Losses {
    flows: PerFlow<Lost>,
}

#[derive(Debug, Default)]
struct Lost {
    seen: Sightings,
    requests: u64,
    responses: u64,
    timeouts: u64,
    /// The repetitions that follow belong to it.
    open: bool,
    /// The last sequence NAKs: PSN and time.
    missed: VecDeque<(Psn, u64)>,
    /// The last packet that came late: PSN and time.
    late: Option<(Psn, u64)>,
    /// The last response behind one that is missing.
    gap: Option<FrameId>,
    /// READs that came again after their whole response of several packets: its first packet was lost behind the point of
    /// capture, or the READ came twice.
    unsure: Sightings,
}

impl Losses {
    pub fn sequence_nak(&mut self, flow: FlowId, nak: &Nak, request: Option<&Request>) {
        if request.is_some_and(|request| request.during_replay) {
            return;
        }
        let lost = self.flows.entry(flow).or_default();
        if lost.late.is_some_and(|late| overtook(late, (nak.psn, nak.time))) {
            return;
        }
        lost.requests += 1;
        if lost.missed.len() == MISSED {
            lost.missed.pop_front();
        }
        lost.missed.push_back((nak.psn, nak.time));
        lost.seen.evidence(&[nak.frame]);
        if let Some(request) = request {
            lost.seen.evidence(&[request.last.frame]);
        }
        lost.seen.see(nak.time, &[]);
    }

    /// What the responder missed came late: it was not lost.
    pub fn late(&mut self, flow: FlowId, at: &Seen) {
        let lost = self.flows.entry(flow).or_default();
        let late = (at.psn, at.time);
        lost.late = Some(late);
        let before = lost.missed.len();
        lost.missed.retain(|missed| missed.0 != at.psn && !overtook(late, *missed));
        let fewer = (before - lost.missed.len()) as u64;
        lost.requests = lost.requests.saturating_sub(fewer);
        lost.seen.count = lost.seen.count.saturating_sub(fewer);
    }

    pub fn response_gap(&mut self, flow: FlowId, at: &Seen) {
        // It counts when the requester repeats for it: a capture, too, may lack packets.
        self.flows.entry(flow).or_default().gap = Some(at.frame);
    }

    pub fn repeat(&mut self, flow: FlowId, repeat: &Repeat) {
        let dammed = repeat.request.is_some_and(|request| request.during_replay);
        if repeat.follows {
            if let Some(lost) = self.flows.get_mut(&flow).filter(|lost| lost.open) {
                lost.seen.add_cost(repeat);
            }
            return;
        }
        if repeat.cause == Cause::Unseen
            && repeat.request.is_some_and(|request| request.psns > 1 && request.answered().is_some())
        {
            self.flows.entry(flow).or_default().unsure.see_repeat(repeat);
        }
        let counts = matches!(repeat.cause, Cause::SequenceNak | Cause::ResponseGap | Cause::Timeout);
        if !counts || dammed && repeat.cause != Cause::ResponseGap {
            if let Some(lost) = self.flows.get_mut(&flow) {
                lost.open = false;
            }
            return;
        }
        let lost = self.flows.entry(flow).or_default();
        lost.open = true;
        if repeat.cause == Cause::Timeout {
            lost.timeouts += 1;
            lost.seen.see(repeat.time, &[repeat.previous]);
        } else if repeat.cause == Cause::ResponseGap {
            lost.responses += 1;
            lost.seen.see(repeat.time, &[repeat.previous]);
            lost.seen.evidence(lost.gap.take().as_slice());
        }
        lost.seen.add_cost(repeat);
        lost.seen.evidence(&[repeat.frame]);
        lost.seen.to = lost.seen.to.max(repeat.time);
    }

    /// Pairs of addresses between which packets come twice.
    fn twice(&self, end: &End<'_>, window: &OutOfWindow) -> HashSet<[Address; 2]> {
        let mut counts: BTreeMap<[Address; 2], [u64; 2]> = BTreeMap::new();
        for flow in (0..end.flows.len() as u32).map(FlowId) {
            let [all, unsure] = counts.entry(ends(end, flow)).or_default();
            *all += window.count(flow);
            *unsure += self.flows.get(&flow).map_or(0, |lost| lost.unsure.count);
        }
        counts.into_iter().filter(|(_, [all, unsure])| all > unsure).map(|(ends, _)| ends).collect()
    }

    pub fn findings(
        &self,
        end: &End<'_>,
        damming: &Damming,
        window: &OutOfWindow,
        explained: &HashSet<FlowId>,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        let alike = Alike::of(end);
        let twice = self.twice(end, window);
        for flow in (0..end.flows.len() as u32).map(FlowId) {
            let mut lost =
                self.flows.get(&flow).map(|lost| (lost.seen.clone(), lost.requests, lost.responses, lost.timeouts));
            // Where other packets come twice, they did too.
            if let Some(unsure) = self.flows.get(&flow).map(|lost| &lost.unsure).filter(|unsure| unsure.count > 0)
                && !twice.contains(&ends(end, flow))
            {
                let lost = lost.get_or_insert_default();
                lost.0.absorb(unsure);
                lost.2 += unsure.count;
            }
            if let Some(others) = damming.lost(flow).filter(|lost| lost.count > 0)
                && !damming.explains(end, flow)
            {
                lost.get_or_insert_default().0.absorb(others);
            }
            let Some((seen, requests, responses, timeouts)) = lost.filter(|(seen, ..)| seen.count > 0) else {
                continue;
            };
            // What a peer that stopped does not answer is not lost.
            if explained.contains(&flow) && requests + responses == 0 {
                continue;
            }
            // They may be those of another QP.
            if alike.has(end, flow) && requests + timeouts == 0 {
                continue;
            }
            let text = format!(
                "Lost packets: {} in requests, {} in responses, {} that only a timeout revealed. {} went again ({} bytes); \
                 the waits add up to {}.",
                requests,
                responses,
                timeouts,
                times(seen.cost.packets, "packet"),
                seen.cost.bytes,
                time(seen.cost.time),
            );
            let advice = [advice::lossless(), advice::cables()].concat();
            let certain = requests + responses > 0;
            let confidence = paired(end, flow, if certain { 0.97 } else { 0.8 });
            findings.push(seen.finding(FindingKind::Loss, flow, confidence, text, advice));
        }
        findings
    }
}

/// The addresses of a flow, the smaller one first.
fn ends(end: &End<'_>, flow: FlowId) -> [Address; 2] {
    let key = end.flow(flow).key;
    [key.from.min(key.to), key.from.max(key.to)]
}

/// Whether a sequence NAK is for a packet that overtook a late one: the responder dropped it, because the late packet was
/// missing, and asks for it once that has come. Both are PSN and time.
fn overtook(late: (Psn, u64), nak: (Psn, u64)) -> bool {
    let behind = nak.0.since(late.0);
    (1..OVERTAKING).contains(&behind) && nak.1 >= late.1 && nak.1 < late.1 + MOMENT
}
