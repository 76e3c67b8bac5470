//! From the log of a half to facts: why its requester went back, what it dropped, and which packets show it.

use super::log::{Event, Half, What};
use std::collections::{BTreeSet, HashMap};
use weir_sim::{HostId, Loss};

/// What happened in a half, with the packets that show it. Packets are by their number in the simulation.
#[derive(Debug, Default)]
pub struct Facts {
    pub go_backs: Vec<GoBack>,
    pub not_ready: Vec<NotReady>,
    pub drops: Vec<Drop>,
    /// NAKs that end the connection.
    pub refusals: Vec<u64>,
    /// Request packets that arrived after later ones, and were not lost.
    pub late_requests: Vec<u64>,
    /// The same of responses.
    pub late_responses: Vec<u64>,
    /// Requests that the adapter lost.
    pub dammed: usize,
    /// Packets that the network lost or damaged.
    pub lost: usize,
    /// Repetitions of data, with their cause.
    pub data_again: Vec<(u64, Again)>,
}

/// A requester went back and repeated.
#[derive(Clone, Debug)]
pub struct GoBack {
    pub why: Why,
    /// The transmission before, and the repetition.
    pub before: u64,
    pub repetition: u64,
    pub psn: u32,
    pub at: u64,
    /// The sequence NAK.
    pub nak: Option<u64>,
    /// Packets that the network lost, of those that go again.
    pub lost: bool,
    /// The request that the adapter lost, and the READ that it replayed.
    pub dammed: Option<[u64; 2]>,
    /// The adapter lost a request, and its requester had repeated no READ: the network had doubled it.
    pub doubled: bool,
    /// The request arrived, and the responder dropped it, because a repeated READ before it still waited for its page.
    pub behind_read: bool,
    /// The requester misses a response that the responder has not sent since it got the request.
    pub left_out: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Timeout,
    SequenceNak,
    ResponseMissing,
}

/// An RNR NAK.
#[derive(Clone, Copy, Debug)]
pub struct NotReady {
    pub psn: u32,
    pub page: bool,
    pub timer: u8,
    pub nak: u64,
    /// The request that it answers.
    pub request: Option<u64>,
}

/// A dropped response to a READ, or a dropped ACK.
#[derive(Clone, Copy, Debug)]
pub struct Drop {
    pub at: u64,
    /// The operation of the READ.
    pub operation: Option<usize>,
    /// The response and the repetition.
    pub response: u64,
    pub repetition: u64,
    pub read: bool,
    /// The page had come this long ago, ns; `None`: it was missing.
    pub late: Option<u64>,
}

/// Why data goes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// A page was missing at the responder.
    Page,
    /// The requester dropped the ACK, or the response to a READ before it.
    Deaf,
    Other,
}

/// Replays of some READs in a row take less, ns.
const REPLAY: u64 = 5_000_000;

impl Facts {
    /// The facts of a half. `pages`: when each page came.
    pub fn of(half: &Half, pages: &HashMap<(HostId, u64), u64>) -> Facts {
        let mut finder = Finder { half, facts: Facts::default(), open: vec![], pending: None, nak: None };
        finder.find(pages);
        finder.facts
    }
}

/// Goes through the entries of a half.
struct Finder<'a> {
    half: &'a Half,
    facts: Facts,
    /// Lost packets that were not repeated yet.
    open: Vec<usize>,
    /// The requester goes back, and has not repeated yet.
    pending: Option<(Why, u64)>,
    /// The last sequence NAK that arrived.
    nak: Option<u64>,
}

impl Finder<'_> {
    fn find(&mut self, pages: &HashMap<(HostId, u64), u64>) {
        let half = self.half;
        let (mut last_request, mut last_response) = (None, None);
        let mut again = Again::Other;
        let mut dropped: Vec<Drop> = vec![];
        for (n, entry) in half.entries.iter().enumerate() {
            match entry.event {
                Event::Sent(place) => {
                    let packet = &half.packets[place];
                    if packet.what.is_request() && packet.repeated {
                        self.repeated(place);
                        self.facts.drops.extend(dropped.drain(..).map(|drop| Drop { repetition: packet.id, ..drop }));
                        if packet.what == What::Data {
                            self.facts.data_again.push((packet.id, again));
                        }
                    }
                    if packet.what == What::Refusal {
                        self.facts.refusals.push(packet.id);
                    }
                    if packet.lost.is_some() {
                        self.lost(place);
                    }
                }
                Event::Lost(place) => self.lost(place),
                Event::Arrived(place) => {
                    let packet = &half.packets[place];
                    let (last, late) = match packet.what.is_request() {
                        true => (&mut last_request, &mut self.facts.late_requests),
                        false => (&mut last_response, &mut self.facts.late_responses),
                    };
                    let counts = !packet.repeated && !matches!(packet.what, What::Ack | What::RnrNak(_));
                    let offset = half.offset(packet.psn);
                    if counts && last.is_some_and(|last| offset < last) {
                        late.push(packet.id);
                    }
                    *last = (*last).max(Some(offset));
                    if packet.what == What::SequenceNak {
                        self.nak = Some(packet.id);
                    }
                }
                Event::AckTimeout => self.goes_back(Why::Timeout, entry.at, &mut again),
                Event::SequenceNak => self.goes_back(Why::SequenceNak, entry.at, &mut again),
                Event::ResponseMissing => self.goes_back(Why::ResponseMissing, entry.at, &mut again),
                Event::Dropped { psn, page } => {
                    let Some(response) = self.last_arrival(n) else { continue };
                    let read = half.packets[response].what == What::Response;
                    again = Again::Deaf;
                    let late = (!page).then(|| entry.at.saturating_sub(self.page_came(psn, pages)));
                    let response = half.packets[response].id;
                    let operation = half.operation(psn);
                    dropped.push(Drop { at: entry.at, operation, response, repetition: 0, read, late });
                    self.pending = None;
                }
                Event::NotReady { psn, page } => {
                    again = if page { Again::Page } else { Again::Other };
                    let nak = half.entries[n..].iter().find_map(|entry| match entry.event {
                        Event::Sent(place) if matches!(half.packets[place].what, What::RnrNak(_)) => Some(place),
                        _ => None,
                    });
                    let Some(nak) = nak.map(|place| &half.packets[place]) else { continue };
                    let What::RnrNak(timer) = nak.what else { continue };
                    let request = self.transmission(half.packets.len(), psn, entry.at).map(|at| half.packets[at].id);
                    self.facts.not_ready.push(NotReady { psn, page, timer, nak: nak.id, request });
                }
            }
        }
    }

    fn goes_back(&mut self, why: Why, at: u64, again: &mut Again) {
        self.pending = Some((why, at));
        *again = Again::Other;
    }

    fn lost(&mut self, place: usize) {
        match self.half.packets[place].lost {
            Some(Loss::NoDestination) | None => return,
            Some(Loss::Adapter) => self.facts.dammed += 1,
            Some(_) => self.facts.lost += 1,
        }
        self.open.push(place);
    }

    /// A request is sent again: it ends what is pending, and the losses of what goes again.
    fn repeated(&mut self, place: usize) {
        let half = self.half;
        let packet = &half.packets[place];
        let from = half.offset(packet.psn);
        let behind = |lost: &&usize| half.offset(half.packets[**lost].psn) >= from;
        if let Some((why, at)) = self.pending.take()
            && let Some(before) = self.transmission(place, packet.psn, u64::MAX)
        {
            let network = |lost: &&usize| half.packets[**lost].lost != Some(Loss::Adapter);
            let dammed = self.open.iter().filter(behind).find(|lost| !network(lost)).copied();
            let replayed = |dammed: usize| self.replayed(dammed).map(|read| [half.packets[dammed].id, read]);
            self.facts.go_backs.push(GoBack {
                why,
                before: half.packets[before].id,
                repetition: packet.id,
                psn: packet.psn,
                at,
                nak: self.nak.filter(|_| why == Why::SequenceNak),
                lost: self.open.iter().filter(behind).any(|lost| network(&lost)),
                dammed: dammed.and_then(replayed),
                doubled: dammed.is_some_and(|dammed| replayed(dammed).is_none()),
                behind_read: why != Why::ResponseMissing && self.is_behind_read(before),
                left_out: why == Why::ResponseMissing && self.is_left_out(before, packet.psn, at),
            });
        }
        // Go-back-N: what was lost of this PSN goes again with this packet.
        let end = if packet.what == What::Ask { u32::MAX } else { from + 1 };
        self.open.retain(|lost| {
            let offset = half.offset(half.packets[*lost].psn);
            offset < from || offset >= end && half.packets[*lost].what.is_request()
        });
    }

    /// The repeated READ that the responder replayed when it lost a packet; `None`: a READ that arrived twice.
    fn replayed(&self, dammed: usize) -> Option<u64> {
        let half = self.half;
        let lost = &half.packets[dammed];
        let until = lost.arrived.unwrap_or(lost.sent);
        let near = |at: &u64| *at <= until && at + REPLAY > until;
        // The requester repeated what the responder had: that shows in packets.
        let had = |again: &super::log::PacketLog| {
            half.packets.iter().any(|p| {
                let same = p.what == What::Ask && half.operation(p.psn) == half.operation(again.psn);
                same && p.lost.is_none() && p.arrived.is_some_and(|at| at < again.sent)
            })
        };
        // The last duplicate to arrive is the one that is replayed.
        let duplicates = half.packets.iter().filter(|packet| packet.what == What::Ask).flat_map(|packet| {
            let again = packet.arrived.filter(|_| packet.repeated && packet.lost.is_none());
            let again = again.map(|at| (at, had(packet).then_some(packet.id)));
            [again, packet.twice.map(|at| (at, None))].into_iter().flatten()
        });
        duplicates.filter(|(at, _)| near(at)).max_by_key(|(at, _)| *at)?.1
    }

    /// Whether a packet arrived while a READ before it, which had been repeated, had no response.
    fn is_behind_read(&self, place: usize) -> bool {
        let half = self.half;
        let packet = &half.packets[place];
        let (Some(at), None) = (packet.arrived, packet.lost) else { return false };
        let mut reads = half.packets[..place].iter().filter(|p| {
            let near = p.arrived.is_some_and(|arrived| arrived <= at && arrived + REPLAY > at);
            p.what == What::Ask && p.repeated && near && half.offset(p.psn) < half.offset(packet.psn)
        });
        reads.any(|read| {
            let own = |p: &&super::log::PacketLog| {
                p.what == What::Response && half.operation(p.psn) == half.operation(read.psn)
            };
            half.packets.iter().filter(own).any(|response| response.sent > at && response.sent < at + REPLAY)
        })
    }

    /// Whether no response with this PSN was sent between a transmission of its request and now.
    fn is_left_out(&self, before: usize, psn: u32, now: u64) -> bool {
        let since = self.half.packets[before].sent;
        let is = |p: &super::log::PacketLog| p.what == What::Response && p.psn == psn && (since..now).contains(&p.sent);
        !self.half.packets.iter().any(is)
    }

    /// The last transmission, before a place and a time, of the request that has this PSN.
    fn transmission(&self, before: usize, psn: u32, at: u64) -> Option<usize> {
        let half = self.half;
        let offset = half.offset(psn);
        let covers = |place: &usize| {
            let packet = &half.packets[*place];
            let own = half.offset(packet.psn);
            packet.sent <= at
                && packet.what.is_request()
                && (own == offset
                    || packet.what == What::Ask && own < offset && half.operation(psn) == half.operation(packet.psn))
        };
        (0..before).rev().find(covers)
    }

    /// The packet that arrived and led to entry `n`.
    fn last_arrival(&self, n: usize) -> Option<usize> {
        self.half.entries[..n].iter().rev().find_map(|entry| match entry.event {
            Event::Arrived(place) => Some(place),
            _ => None,
        })
    }

    /// When the pages of a PSN's buffer had all come, ns; 0: they were always there.
    fn page_came(&self, psn: u32, pages: &HashMap<(HostId, u64), u64>) -> u64 {
        let Some((addr, size)) = self.half.operation(psn).map(|at| self.half.buffers[at]) else { return 0 };
        let host = self.half.ends.requester.host;
        let touched: BTreeSet<u64> = (addr / 4096..(addr + u64::from(size)).div_ceil(4096)).collect();
        touched.iter().filter_map(|page| pages.get(&(host, page * 4096))).copied().max().unwrap_or(0)
    }
}
