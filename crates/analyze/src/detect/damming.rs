//! Packet damming: a request is lost because the responder was replaying a READ of the same QP (T 5.1).
//!
//! Evidence in the packets: a READ is repeated, after an RNR NAK or a response that the requester dropped. Before its
//! response comes, the requester sends a request that is new to the responder. Nothing answers that request, until an
//! ACK timeout passes (T fig 5.3, 6.2) or a later request makes the responder send a sequence NAK (T fig 5.6).
//!
//! A packet that the network loses at the same moment looks the same. So the decision weighs all requests to the
//! responder: with damming nearly every new request during a replay is lost; without, as many as outside of replays.
//! With D lost requests during replays, S replays during which the responder answered new requests or saw that one was
//! missing, and the share p lost elsewhere, the odds of damming are (0.9/p)^D · (0.1/(1-p))^S. A lost request counts
//! twice if others of its replay brought no NAK either. Where another adapter certainly loses requests, the odds are
//! higher: hosts of a cluster are mostly alike. The finding's confidence follows from the odds; a single lost request
//! beside other losses has 0.6 at most.

use super::common::{PerFlow, Sightings, paired, time, times};
use super::end::End;
use crate::advice;
use crate::finding::{Finding, FindingKind};
use crate::flow::{Cause, FlowId, Nak, Repeat, Request};
use std::collections::HashMap;
use weir_capture::packet::Address;
use weir_wire::Psn;

/// The requests during replays.
#[derive(Debug, Default)]
pub struct Damming {
    flows: PerFlow<Dammed>,
    /// At the end: the probability that an adapter, and not the network, lost requests, by the adapter's address.
    probabilities: HashMap<Address, f64>,
}

#[derive(Debug, Default)]
struct Dammed {
    lost: Sightings,
    /// Replays during which requests were answered without a repetition, and sequence NAKs that came during replays.
    survived: u64,
    /// When the last of these requests was answered, ns since 1970.
    until: u64,
    /// Losses outside of replays.
    elsewhere: u64,
    /// Those that a timeout brought back.
    timeouts: Sightings,
    /// Lost requests behind which others of the same replay were lost: any that had arrived out of sequence would have
    /// brought a NAK.
    silent: u64,
    /// The last repetition was that of a lost request, after a timeout.
    is_last: bool,
    /// Lost requests that a sequence NAK revealed, so that no timeout passed.
    revealed: u64,
    longest: u64,
    psn: Psn,
    kind: &'static str,
}

/// The share of new requests that a damming adapter loses during replays.
const LOST_SHARE: f64 = 0.9;
/// Odds of damming before the packets are seen.
const PRIOR: f64 = 0.3;
/// The same if another adapter in the captures has the flaw for certain: mostly the hosts of a cluster are alike.
const OTHERS: f64 = 3.0;
const CERTAIN: f64 = 0.99;
/// A single loss may be the network's, however rarely it loses a packet.
const SINGLE: f64 = 0.9;
const AMONG_OTHERS: f64 = 0.6;
/// A finding needs this probability.
const ENOUGH: f64 = 0.5;

impl Damming {
    pub fn repeat(&mut self, flow: FlowId, repeat: &Repeat) {
        // What the responder has answered by now came late, and was not lost.
        let during = repeat.request.filter(|request| request.during_replay && !request.executed);
        if repeat.follows {
            let silent = during.is_some() && repeat.cause == Cause::Timeout;
            if let Some(dammed) = self.flows.get_mut(&flow).filter(|dammed| silent && dammed.is_last) {
                (dammed.silent, dammed.is_last) = (dammed.silent + 1, false);
            }
            return;
        }
        if let Some(dammed) = self.flows.get_mut(&flow) {
            dammed.is_last = false;
        }
        match (during, repeat.cause) {
            (Some(request), Cause::Timeout | Cause::SequenceNak) => {
                let dammed = self.flows.entry(flow).or_default();
                dammed.lost.see_repeat(repeat);
                if repeat.cause == Cause::Timeout {
                    dammed.is_last = true;
                    dammed.timeouts.see_repeat(repeat);
                }
                dammed.revealed += u64::from(repeat.cause == Cause::SequenceNak);
                if repeat.waited >= dammed.longest {
                    (dammed.longest, dammed.psn, dammed.kind) = (repeat.waited, repeat.psn, request.kind.name());
                }
            }
            (None, Cause::Timeout | Cause::SequenceNak | Cause::ResponseGap) => {
                self.flows.entry(flow).or_default().elsewhere += 1;
            }
            _ => {}
        }
    }

    pub fn sequence_nak(&mut self, flow: FlowId, nak: &Nak) {
        if nak.during_replay {
            self.flows.entry(flow).or_default().survived += 1;
        }
    }

    /// A request that was first sent during a replay has its response.
    pub fn completed(&mut self, flow: FlowId, request: &Request) {
        // A response that came before its request may be another QP's.
        let answered = request.answered().filter(|answered| answered.time >= request.first.time);
        let Some(answered) = answered.filter(|_| request.sent == 1) else { return };
        let dammed = self.flows.entry(flow).or_default();
        // A replay counts once: if the network has lost the repeated READ, there was none.
        if request.first.time >= dammed.until {
            (dammed.survived, dammed.until) = (dammed.survived + 1, answered.time);
        }
    }

    /// Weighs the evidence of all flows to each responder; before the other functions of the end.
    pub fn decide(&mut self, end: &End<'_>) {
        let mut sums: HashMap<Address, Sums> = HashMap::new();
        for (at, flow) in end.flows.iter().enumerate() {
            let sums = sums.entry(flow.key.to).or_default();
            sums.requests += flow.record.stats.requests;
            if let Some(dammed) = self.flows.get(&FlowId(at as u32)) {
                sums.lost += dammed.lost.count + dammed.silent;
                sums.survived += dammed.survived;
                sums.elsewhere += dammed.elsewhere;
            }
        }
        let certain: Vec<Address> =
            sums.iter().filter(|(_, sums)| sums.probability(false) >= CERTAIN).map(|(at, _)| *at).collect();
        let probability = |(responder, sums): (Address, Sums)| {
            (responder, sums.probability(certain.iter().any(|other| *other != responder)))
        };
        self.probabilities = sums.into_iter().map(probability).collect();
    }

    /// Whether this repetition's loss is explained by damming, in the flow as a whole.
    pub fn explains(&self, end: &End<'_>, flow: FlowId) -> bool {
        self.flows.get(&flow).is_some_and(|dammed| dammed.lost.count > 0) && self.probability(end, flow) >= ENOUGH
    }

    fn probability(&self, end: &End<'_>, flow: FlowId) -> f64 {
        self.probabilities.get(&end.flow(flow).key.to).copied().unwrap_or(0.0)
    }

    /// The frames of the repetitions that damming explains, as many as were kept.
    pub fn lost(&self, flow: FlowId) -> Option<&Sightings> {
        self.flows.get(&flow).map(|dammed| &dammed.lost)
    }

    /// Those of the repetitions that followed a timeout.
    pub fn timeouts(&self, flow: FlowId) -> Option<&Sightings> {
        self.flows.get(&flow).map(|dammed| &dammed.timeouts)
    }

    pub fn findings(&self, end: &End<'_>) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (flow, dammed) in &self.flows {
            let probability = self.probability(end, *flow);
            if dammed.lost.count == 0 || probability < ENOUGH {
                continue;
            }
            let text = format!(
                "{} lost while the responder replayed a READ of the same QP. The longest wait: {} with PSN {} waited \
                 {}.{}",
                times(dammed.lost.count, "request"),
                dammed.kind,
                dammed.psn.get(),
                time(dammed.longest),
                match dammed.revealed {
                    0 => String::new(),
                    all if all == dammed.lost.count => " Later requests revealed the loss before a timeout.".to_owned(),
                    some => format!(" {} revealed by a later request before a timeout.", times(some, "loss")),
                },
            );
            let advice = [advice::short_rnr(), advice::dummy(), advice::no_odp(), advice::prefetch()].concat();
            let confidence = paired(end, *flow, probability);
            findings.push(dammed.lost.finding(FindingKind::Damming, *flow, confidence, text, advice));
        }
        findings
    }
}

/// Sums over all flows to a responder: damming is a property of its adapter.
#[derive(Clone, Copy, Default)]
struct Sums {
    lost: u64,
    survived: u64,
    elsewhere: u64,
    requests: u64,
}

impl Sums {
    /// The probability that the adapter, and not the network, lost requests. `others`: other adapters certainly do.
    fn probability(self, others: bool) -> f64 {
        // Half a loss more than seen: that none was seen does not exclude one.
        let share = ((self.elsewhere as f64 + 0.5) / (self.requests as f64 + 1.0)).min(0.9);
        let lost = (LOST_SHARE / share).ln() * self.lost as f64;
        let survived = ((1.0 - LOST_SHARE) / (1.0 - share)).ln() * self.survived as f64;
        let probability = 1.0 / (1.0 + (-(lost + survived + if others { OTHERS } else { PRIOR }.ln())).exp());
        match self.lost {
            1 if self.elsewhere > 0 && !others => probability.min(AMONG_OTHERS),
            1 => probability.min(SINGLE),
            _ => probability,
        }
    }
}
