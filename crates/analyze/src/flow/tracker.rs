//! All flows of a capture: finds the half of each packet.
//!
//! A packet names the QP that it goes to and not the QP that it comes from. So the two directions of a connection are
//! two flows, and their pairing is found: by the messages of connection management if they were captured; otherwise by
//! the first response with a PSN that fits the open requests of just one flow of the other direction. QPs that all
//! begin with the same PSN make this ambiguous. Then packets are held back until it is decided: by the UDP source port,
//! which Linux derives from both QP numbers; by later responses; at last by the order of the QP numbers.

use super::clip::Clips;
use super::event::Event;
use super::half::Half;
use super::stats::Stats;
use crate::packet::{FrameId, Kind, Seen};
use foldhash::fast::RandomState;
use std::collections::HashMap;
use weir_capture::{Direction, packet::Address};
use weir_wire::Psn;

/// The packets from an address to a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    pub from: Address,
    pub to: Address,
    pub qpn: u32,
}

/// Index of a flow, and of the half of which it carries the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u32);

/// One direction of a connection.
#[derive(Debug)]
pub struct Flow {
    pub key: FlowKey,
    /// The other direction.
    pub partner: Option<FlowId>,
    /// The requests of this flow, and the responses of its partner.
    pub half: Half,
    pub record: Record,
    /// How the partner was found.
    pub pairing: Pairing,
    source: Source,
    /// Some packet has an ICRC that is not wrong: then those with a wrong one are damaged, and not all captured too
    /// early.
    pub sound: bool,
    /// Another file that has the same packets.
    repeated_in: Option<u16>,
    /// Time of the last packet, ns since 1970.
    last: u64,
    /// Packets that wait until the partner is known; `None`: packets wait no more.
    held: Option<Vec<Seen>>,
    /// Possible partners, and how many responses fit each.
    votes: Vec<(FlowId, u32)>,
}

/// What is kept of a flow for the report.
#[derive(Debug, Default)]
pub struct Record {
    pub stats: Stats,
    pub clips: Clips,
}

/// How the two directions of a connection were found to belong together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pairing {
    /// They were not: only one direction is known.
    #[default]
    None,
    /// By the messages that set up the connection.
    Setup,
    /// A PSN fitted no other flow.
    Psn,
    /// Several flows fitted, and one better than others.
    Likely,
}

/// Where a flow's packets are taken from, if several files or interfaces have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    pub file: u16,
    pub direction: Option<Direction>,
    /// UDP source port; 0: none.
    pub port: u16,
}

/// Takes the events, with the flow of the requests that they are about.
pub trait Sink: FnMut(FlowId, &mut Record, Event<'_>) {}

impl<F: FnMut(FlowId, &mut Record, Event<'_>)> Sink for F {}

/// All flows.
#[derive(Debug, Default)]
pub struct Tracker {
    ids: HashMap<FlowKey, FlowId, RandomState>,
    flows: Vec<Flow>,
    /// Flows without a partner, by sender and receiver.
    alone: HashMap<(Address, Address), Vec<FlowId>>,
    /// Pairs of QPs that connection management told: an end, and the QP at the other.
    setups: HashMap<(Address, u32), (Address, u32)>,
    last: Option<(FlowKey, FlowId)>,
    /// The file that is read, and whether it is of the same time as the files before it: a capture at another place.
    file: Option<(u16, bool)>,
    /// Times of the first packet, and of the last in files that continue each other.
    start: Option<u64>,
    latest: u64,
}

/// The most packets that a flow holds back.
const HELD: usize = 256;
/// So many more responses must fit the best of several flows than the second best.
const LEAD: u32 = 3;
/// So many flows at most are considered for a response: with more, the order of the QP numbers decides.
pub const CANDIDATES: usize = 64;
/// What an agreeing UDP source port counts as.
const PORT_VOTES: u32 = 3;

impl Tracker {
    /// Takes a packet of a flow.
    pub fn packet(&mut self, key: FlowKey, source: Source, packet: &Seen, sink: &mut impl Sink) {
        let id = match self.last {
            Some((last, id)) if last == key => id,
            _ => self.flow(key, source),
        };
        self.last = Some((key, id));
        if self.file.is_none_or(|(file, _)| file != source.file) {
            let start = *self.start.get_or_insert(packet.time);
            // A file that continues the one before may begin a little before its end.
            let nearer_to_start = packet.time.saturating_sub(start) < self.latest.saturating_sub(packet.time);
            self.file = Some((source.file, packet.time < self.latest && nearer_to_start));
        }
        let beside = self.file.is_some_and(|(_, beside)| beside);
        if !beside {
            self.latest = self.latest.max(packet.time);
        }
        let flow = &mut self.flows[id.0 as usize];
        let owner = if packet.is_response() { flow.partner.unwrap_or(id) } else { id };
        if !flow.takes(source, packet, beside) {
            if packet.marks.is_remarkable() {
                sink(owner, &mut self.flows[owner.0 as usize].record, Event::Elsewhere { at: packet });
            }
            return;
        }
        flow.sound |= !packet.marks.bad_icrc;
        match flow.partner {
            Some(partner) => self.deliver(id, partner, packet, sink),
            None => self.hold(id, packet, sink),
        }
    }

    /// Connection management connected these QPs.
    pub fn connected(&mut self, one: (Address, u32), other: (Address, u32)) {
        self.setups.insert(one, other);
        self.setups.insert(other, one);
    }

    /// Gives all packets that wait to their flows; called at the end of the capture.
    pub fn finish(&mut self, sink: &mut impl Sink) {
        self.pair_rest(sink);
        for at in 0..self.flows.len() {
            let id = FlowId(at as u32);
            self.release(id, sink);
            let Flow { half, record, .. } = &mut self.flows[at];
            half.settle_all(&mut |event| sink(id, record, event));
        }
    }

    /// All flows, in the order in which they were first seen.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    fn flow(&mut self, key: FlowKey, source: Source) -> FlowId {
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        let id = FlowId(self.flows.len() as u32);
        self.ids.insert(key, id);
        self.flows.push(Flow {
            key,
            partner: None,
            half: Half::new(source.direction),
            record: Record::default(),
            pairing: Pairing::None,
            source,
            sound: false,
            repeated_in: None,
            last: 0,
            held: Some(Vec::new()),
            votes: Vec::new(),
        });
        self.alone.entry((key.from, key.to)).or_default().push(id);
        id
    }

    /// A packet of a flow without a partner.
    fn hold(&mut self, id: FlowId, packet: &Seen, sink: &mut impl Sink) {
        if !packet.marks.bad_icrc
            && let Some((partner, pairing)) = self.find_partner(id, packet)
        {
            self.pair(id, partner, pairing, sink);
            return self.deliver(id, partner, packet, sink);
        }
        let flow = &mut self.flows[id.0 as usize];
        match &mut flow.held {
            Some(held) if held.len() < HELD => held.push(*packet),
            Some(_) => {
                let best = self.free_best(id).or_else(|| self.by_rank(id));
                match best.or_else(|| self.of_same_rank(id)).or_else(|| self.that_chose(id)) {
                    Some(partner) => self.pair(id, partner, Pairing::Likely, sink),
                    None => self.release(id, sink),
                }
                self.deliver_unpaired(id, packet, sink);
            }
            None => self.deliver_unpaired(id, packet, sink),
        }
    }

    fn deliver_unpaired(&mut self, id: FlowId, packet: &Seen, sink: &mut impl Sink) {
        let partner = self.flows[id.0 as usize].partner.unwrap_or(id);
        self.deliver(id, partner, packet, sink);
    }

    /// The partner of a flow, if this packet decides it.
    fn find_partner(&mut self, id: FlowId, packet: &Seen) -> Option<(FlowId, Pairing)> {
        let flow = &self.flows[id.0 as usize];
        let FlowKey { from, to, qpn } = flow.key;
        if let Some((peer, number)) = self.setups.get(&(to, qpn))
            && *peer == from
            && let Some(partner) = self.ids.get(&FlowKey { from: to, to: from, qpn: *number })
            && self.flows[partner.0 as usize].partner.is_none()
        {
            return Some((*partner, Pairing::Setup));
        }
        if !packet.is_response() {
            return None;
        }
        let others = self.alone.get(&(to, from))?;
        // On loopback both directions have the same addresses.
        let fits = |other: &&FlowId| **other != id && self.flows[other.0 as usize].may_have_asked(packet);
        let candidates: Vec<FlowId> = others.iter().filter(fits).take(CANDIDATES + 1).copied().collect();
        if let [only] = candidates[..] {
            return Some((only, Pairing::Psn));
        }
        let port = flow.source.port;
        if candidates.len() > CANDIDATES {
            // Counting for some of them would choose one of those.
            let is_first = flow.held.as_ref().is_some_and(Vec::is_empty);
            let agrees = |other: &&FlowId| port == source_port(qpn, self.flows[other.0 as usize].key.qpn);
            let mut agreeing = others.iter().filter(|_| is_first && port != 0).filter(agrees).filter(fits);
            let only = agreeing.next().filter(|_| agreeing.next().is_none());
            return only.map(|partner| (*partner, Pairing::Likely));
        }
        let mut votes = flow.votes.clone();
        for candidate in candidates {
            let other = &self.flows[candidate.0 as usize];
            match votes.iter_mut().find(|(voted, _)| *voted == candidate) {
                Some((_, count)) => *count += 1,
                None => {
                    let agrees = port != 0 && port == source_port(qpn, other.key.qpn);
                    votes.push((candidate, 1 + if agrees { PORT_VOTES } else { 0 }));
                }
            }
        }
        votes.retain(|(voted, _)| self.flows[voted.0 as usize].partner.is_none());
        let decided = best(&votes).filter(|(_, lead)| *lead >= LEAD).map(|(partner, _)| partner);
        self.flows[id.0 as usize].votes = votes;
        decided.map(|partner| (partner, Pairing::Likely))
    }

    /// The flow that has the most votes, of those without a partner.
    fn free_best(&self, id: FlowId) -> Option<FlowId> {
        let is_free = |(voted, _): &&(FlowId, u32)| self.flows[voted.0 as usize].partner.is_none();
        let votes: Vec<(FlowId, u32)> = self.flows[id.0 as usize].votes.iter().filter(is_free).copied().collect();
        best(&votes).map(|(partner, _)| partner)
    }

    /// Of the flows that may be the partner, the one with the same rank among the QP numbers.
    fn of_same_rank(&self, id: FlowId) -> Option<FlowId> {
        let flow = &self.flows[id.0 as usize];
        let number = |id: &FlowId| self.flows[id.0 as usize].key.qpn;
        let sorted = |mut ids: Vec<FlowId>| {
            ids.sort_by_key(number);
            ids
        };
        let free = |voted: &&(FlowId, u32)| self.flows[voted.0.0 as usize].partner.is_none();
        let candidates = sorted(flow.votes.iter().filter(free).map(|(voted, _)| *voted).collect());
        let answering = |id: &&FlowId| !self.flows[id.0 as usize].votes.is_empty();
        let beside = self.alone.get(&(flow.key.from, flow.key.to))?;
        let rank = sorted(beside.iter().filter(answering).copied().collect()).iter().position(|other| *other == id)?;
        candidates.get(rank).or(candidates.last()).copied()
    }

    /// The flow of responses for which this flow of requests is the best.
    fn that_chose(&self, id: FlowId) -> Option<FlowId> {
        let FlowKey { from, to, .. } = self.flows[id.0 as usize].key;
        let chooses = |other: &&FlowId| {
            let votes = &self.flows[other.0 as usize].votes;
            let best = self.free_best(**other).or_else(|| self.of_same_rank(**other));
            **other != id && votes.iter().any(|(voted, _)| *voted == id) && best == Some(id)
        };
        self.alone.get(&(to, from))?.iter().find(chooses).copied()
    }

    fn pair(&mut self, one: FlowId, other: FlowId, pairing: Pairing, sink: &mut impl Sink) {
        let is_paired = |id: FlowId| self.flows[id.0 as usize].partner.is_some();
        if one == other || is_paired(one) || is_paired(other) {
            return;
        }
        let mut waiting = Vec::new();
        for (id, partner) in [(one, other), (other, one)] {
            let flow = &mut self.flows[id.0 as usize];
            (flow.partner, flow.pairing) = (Some(partner), pairing);
            // Packets over several links are in the order of their connection, and not of their frames.
            let mut place = FrameId::default();
            waiting.extend(flow.held.take().unwrap_or_default().into_iter().map(|packet| {
                place = place.max(packet.frame);
                (place, id, partner, packet)
            }));
            flow.votes = Vec::new();
            if let Some(alone) = self.alone.get_mut(&(flow.key.from, flow.key.to)) {
                alone.retain(|flow| *flow != id);
            }
        }
        waiting.sort_by_key(|(place, ..)| *place);
        for (_, id, partner, packet) in waiting {
            self.deliver(id, partner, &packet, sink);
        }
    }

    /// Pairs what is left at the end: the best candidate, of equal ones the one with the same rank among the QP
    /// numbers.
    fn pair_rest(&mut self, sink: &mut impl Sink) {
        let mut waiting: Vec<FlowId> = self.alone.values().flatten().copied().collect();
        waiting.sort_by_key(|id| (self.flows[id.0 as usize].key.qpn, *id));
        for id in waiting {
            let flow = &self.flows[id.0 as usize];
            if flow.partner.is_some() {
                continue;
            }
            let free = flow.votes.iter().filter(|(voted, _)| self.flows[voted.0 as usize].partner.is_none());
            let number = |id: FlowId| self.flows[id.0 as usize].key.qpn;
            let chosen = free.max_by_key(|(voted, count)| (*count, std::cmp::Reverse(number(*voted)))).copied();
            if let Some((partner, _)) = chosen {
                self.pair(id, partner, Pairing::Likely, sink);
            }
        }
        self.pair_by_rank(sink);
    }

    /// Pairs what had more than [`CANDIDATES`] candidates, in the order of the QP numbers.
    fn pair_by_rank(&mut self, sink: &mut impl Sink) {
        let mut pairs = Vec::new();
        for (from, to) in self.alone.keys().filter(|(from, to)| from != to) {
            let both = self.answering(*from, *to).into_iter().zip(self.asking(*to, *from));
            pairs.extend(both.filter(|(answering, asking)| self.fit(*answering, *asking)));
        }
        pairs.into_iter().for_each(|(one, other)| self.pair(one, other, Pairing::Likely, sink));
    }

    /// The flow with the same rank among the QP numbers of the other direction, where too many fit to count them.
    fn by_rank(&self, id: FlowId) -> Option<FlowId> {
        let FlowKey { from, to, .. } = self.flows[id.0 as usize].key;
        let beside = self.alone.get(&(to, from))?;
        if from == to || beside.len() <= CANDIDATES {
            return None;
        }
        let rank = |flows: Vec<FlowId>| flows.iter().position(|flow| *flow == id);
        if let Some(rank) = rank(self.answering(from, to)) {
            return self.asking(to, from).get(rank).copied().filter(|other| self.fit(id, *other));
        }
        let rank = rank(self.asking(from, to))?;
        self.answering(to, from).get(rank).copied().filter(|other| self.fit(*other, id))
    }

    /// The flows between two addresses that wait with responses, in the order of the QP numbers.
    fn answering(&self, from: Address, to: Address) -> Vec<FlowId> {
        self.waiting(from, to, Seen::is_response)
    }

    /// The same of those that wait with requests.
    fn asking(&self, from: Address, to: Address) -> Vec<FlowId> {
        self.waiting(from, to, |packet| !packet.is_response())
    }

    fn waiting(&self, from: Address, to: Address, with: impl Fn(&Seen) -> bool) -> Vec<FlowId> {
        let waits = |id: &&FlowId| self.flows[id.0 as usize].held.as_ref().is_some_and(|held| held.iter().any(&with));
        let mut ids: Vec<FlowId> = self.alone.get(&(from, to)).into_iter().flatten().filter(waits).copied().collect();
        ids.sort_by_key(|id| self.flows[id.0 as usize].key.qpn);
        ids
    }

    /// Whether a response that waits can belong to a request of the other flow.
    fn fit(&self, answering: FlowId, asking: FlowId) -> bool {
        let held = self.flows[answering.0 as usize].held.iter().flatten();
        let asking = &self.flows[asking.0 as usize];
        held.filter(|packet| packet.is_response()).any(|packet| asking.may_have_asked(packet))
    }

    /// A flow's packets wait no longer for a partner.
    fn release(&mut self, id: FlowId, sink: &mut impl Sink) {
        for packet in self.flows[id.0 as usize].held.take().unwrap_or_default() {
            self.deliver_unpaired(id, &packet, sink);
        }
    }

    /// Gives a packet to its half. A flow without a partner is given as its own.
    fn deliver(&mut self, id: FlowId, partner: FlowId, packet: &Seen, sink: &mut impl Sink) {
        let from_requester = !packet.is_response();
        let owner = if from_requester { id } else { partner };
        // A requester drops a damaged response. A damaged request was sent, too, unless its PSN is what is damaged.
        let damaged = packet.marks.bad_icrc && self.flows[id.0 as usize].sound;
        let dropped = damaged && !(from_requester && self.flows[owner.0 as usize].half.is_near(packet.psn));
        let Flow { half, record, .. } = &mut self.flows[owner.0 as usize];
        if dropped {
        } else if from_requester {
            half.request(packet, &mut |event| sink(owner, record, event));
        } else if owner != id {
            half.response(packet, &mut |event| sink(owner, record, event));
        }
        let open = half.open().len() as u32;
        sink(owner, record, Event::Packet { at: packet, from_requester, open });
    }
}

impl Flow {
    /// Whether a packet is new: another file or interface may have captured it, too. The first packet of a file decides
    /// for all of it.
    fn takes(&mut self, source: Source, packet: &Seen, beside: bool) -> bool {
        if source.file != self.source.file {
            if beside || self.repeated_in == Some(source.file) || packet.time < self.last {
                self.repeated_in = Some(source.file);
                return false;
            }
            self.source = source; // the file continues the one before
        }
        self.last = packet.time.max(self.last);
        source.direction == self.source.direction
    }

    /// Time of its last packet, ns since 1970.
    pub fn last_packet(&self) -> u64 {
        self.last
    }

    /// Whether a response to this PSN can belong to a request of this flow.
    fn may_have_asked(&self, response: &Seen) -> bool {
        match &self.held {
            None => self.half.expects(response.psn),
            Some(held) => held.iter().any(|packet| !packet.is_response() && asks(packet, response.psn)),
        }
    }
}

/// Whether a request packet has this PSN, or of a READ perhaps a PSN of its response.
fn asks(request: &Seen, psn: Psn) -> bool {
    let offset = psn.since(request.psn);
    let most =
        if request.kind() == Kind::Read { request.message.div_ceil(super::request::SMALLEST_MTU).max(1) } else { 1 };
    offset >= 0 && (offset as u32) < most
}

/// The candidate with the most votes, and its lead over the second.
fn best(votes: &[(FlowId, u32)]) -> Option<(FlowId, u32)> {
    let (best, most) = votes.iter().max_by_key(|(_, count)| *count).copied()?;
    let second = votes.iter().filter(|(id, _)| *id != best).map(|(_, count)| *count).max().unwrap_or(0);
    (most > second).then_some((best, most - second))
}

/// The UDP source port that Linux derives from the QP numbers of a RoCEv2 connection without a flow label
/// (`rdma_calc_flow_label`, `rdma_flow_label_to_udp_sport`); the same in both directions.
fn source_port(one: u32, other: u32) -> u16 {
    let mut product = u64::from(one) * u64::from(other);
    product ^= product >> 20;
    product ^= product >> 40;
    let label = product as u32 & 0xf_ffff;
    let low = label & 0x3fff;
    let high = (label & 0xf_c000) >> 14;
    ((low ^ high) | 0xc000) as u16
}
