//! One half of a connection: the requests of one end, and the responses of the other.
//!
//! Captures are not perfect: they may begin in the middle, lack packets, and have packets in the wrong order. A half
//! takes whatever comes and reports what it means ([`Event`]); it never refuses a packet. Its memory is bounded by the
//! number of open requests, of which it keeps [`OPEN`] at most.

use super::event::{Cause, Event, Nak, Repeat};
use super::replay::Replay;
use super::request::{LARGEST_MTU, Request, SMALLEST_MTU, psns_of};
use crate::packet::Seen;
use std::collections::VecDeque;
use weir_capture::Direction;
use weir_wire::Psn;

/// The state of one half.
#[derive(Debug, Default)]
pub struct Half {
    /// Which way its requests pass the point of capture: out of the requester's host, or into the responder's. `None`:
    /// the capture does not tell.
    pub(super) direction: Option<Direction>,
    /// The PSN of the first packet, and its time.
    pub(super) start: Option<(Psn, u64)>,
    /// The PSN after the last new request.
    pub(super) next: Option<Psn>,
    /// Requests without a complete response, in the order of their PSNs.
    pub(super) open: VecDeque<Request>,
    /// READs and atomics with a complete response, which the requester may still drop and repeat.
    pub(super) done: VecDeque<Request>,
    /// Responses that came before their requests: time stamps of some captures jitter.
    pub(super) early: VecDeque<Seen>,
    /// Packets with PSNs that were missing: they came late, or were sent again for a NAK. If they come once more they
    /// came late.
    pub(super) late: VecDeque<Late>,
    /// When PSNs were last passed over, ns since 1970.
    pub(super) passed: u64,
    /// PSNs that were passed over: each range's first, and the one behind its last.
    pub(super) missing: VecDeque<(Psn, Psn)>,
    /// Repetitions in a row that may be duplicates: what follows decides.
    pub(super) doubt: Vec<Repeat>,
    /// PSN and time of the last request packet.
    pub(super) newest: Option<Psn>,
    pub(super) last_sent: u64,
    /// Repetitions before the first response: that there is one shows that the capture has both directions.
    pub(super) unanswered: Vec<Repeat>,
    pub(super) mtu: Option<u32>,
    /// Start of the message that is being sent.
    pub(super) began: u64,
    /// The last repetition of a row.
    pub(super) burst: Option<Burst>,
    /// When the ACK timer was last restarted by a response.
    pub(super) progress: u64,
    pub(super) nak: Option<LastNak>,
    /// The NAK before it: the requester may not have obeyed it yet.
    pub(super) nak_before: Option<LastNak>,
    /// When a response was last missing although a later response arrived.
    pub(super) gap: Option<u64>,
    pub(super) replay: Replay,
    /// The last PSN that an ACK covered.
    pub(super) acknowledged: Option<Psn>,
    pub(super) acks: Acks,
    /// Some response was seen.
    pub(super) has_responses: bool,
}

/// A packet with a PSN that was missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Late {
    pub first: Seen,
    /// The last of the missing packets that came behind it.
    pub last: Psn,
    /// The responder has not complained, and no timer can have run out.
    pub unasked: bool,
    /// It came once more.
    pub again: Option<Seen>,
    /// The requester sent it again, and all that follows.
    pub resent: bool,
    /// The packet before it when it came once more.
    pub within: Option<Psn>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    pub psn: Psn,
    /// The PSN after what was repeated.
    pub end: Psn,
    pub time: u64,
    pub cause: Cause,
}

/// The last RNR or sequence NAK.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastNak {
    pub psn: Psn,
    pub time: u64,
    /// The timer's code; `None`: a sequence NAK.
    pub rnr: Option<u8>,
    /// The requester has repeated what it asked for.
    pub obeyed: bool,
    /// When what it asked for last came again, be it for another reason; 0: it did not.
    pub repeated: u64,
}

/// The PSNs of the last ACKs.
#[derive(Debug, Default)]
pub(super) struct Acks {
    psns: [Psn; ACKS],
    count: usize,
}

/// ACKs that are kept: those of a round trip, after which none comes twice.
const ACKS: usize = 32;

/// The most open requests that are kept. Adapters have up to 32,768 work requests in a queue, of which few are open.
pub const OPEN: usize = 16_384;
/// READs and atomics that are kept for their repetition; adapters have 16 in flight, 128 at most.
const DONE: usize = 32;
/// Responses that are kept for a request that comes later.
const EARLY: usize = 8;
/// A requester has fewer packets in flight.
const NEAR: u32 = 1 << 12;
/// A jump of PSNs beyond this is a new connection of the same QP numbers.
const RESTART: u32 = 1 << 15;
/// Packets that may have been late.
pub(super) const LATE: usize = 16;

impl Acks {
    pub fn enter(&mut self, psn: Psn) {
        self.psns[self.count % ACKS] = psn;
        self.count += 1;
    }

    pub fn newest(&self) -> Option<Psn> {
        self.count.checked_sub(1).map(|last| self.psns[last % ACKS])
    }

    pub fn contain(&self, psn: Psn) -> bool {
        self.psns[..self.count.min(ACKS)].contains(&psn)
    }
}

impl Half {
    pub fn new(direction: Option<Direction>) -> Half {
        Half { direction, ..Half::default() }
    }

    /// Takes a request of this half's requester.
    pub fn request(&mut self, packet: &Seen, sink: &mut impl FnMut(Event<'_>)) {
        self.decide(packet, sink);
        self.decide_late(packet, sink);
        if packet.opcode.starts_message() {
            self.began = packet.time;
        }
        if packet.opcode.has_payload() && !packet.opcode.ends_message() {
            self.learn_mtu(packet.payload);
        }
        // A READ of which the number of PSNs was a guess may end here.
        let known = self.next.is_some_and(|next| next.before(packet.psn)) && self.correct_length(packet.psn);
        if let Some(next) = self.next
            && !known
            && packet.psn.since(next).unsigned_abs() > RESTART
            && self.place(packet.psn).is_none()
        {
            self.settle_all(sink);
            let Half { has_responses, direction, .. } = *self;
            *self = Half { began: packet.time, has_responses, direction, ..Half::default() };
        }
        self.start.get_or_insert((packet.psn, packet.time));
        let next = *self.next.get_or_insert(packet.psn);
        let ahead = if known { 0 } else { packet.psn.since(next) };
        if ahead >= 0 {
            if ahead > 0 {
                self.passed = packet.time;
                self.pass_over(next, packet.psn);
            }
            self.add_new(packet, sink);
        } else {
            self.add_earlier(packet, sink);
        }
        self.last_sent = packet.time;
        self.newest = Some(packet.psn);
    }

    /// The first request that is not completed.
    pub fn oldest(&self) -> Option<&Request> {
        self.open.front()
    }

    /// The open requests, oldest first.
    pub fn open(&self) -> impl ExactSizeIterator<Item = &Request> {
        self.open.iter()
    }

    /// Whether a response with this PSN belongs to a request that is open, or was a moment ago.
    pub fn expects(&self, psn: Psn) -> bool {
        self.place(psn).is_some() || self.done.iter().any(|request| request.covers(psn))
    }

    /// Whether the PSN is near the last new request's.
    pub fn is_near(&self, psn: Psn) -> bool {
        self.next.is_none_or(|next| psn.since(next).unsigned_abs() <= NEAR)
    }

    /// Which way its requests pass the point of capture.
    pub fn direction(&self) -> Option<Direction> {
        self.direction
    }

    /// Whether any response was seen.
    pub fn has_responses(&self) -> bool {
        self.has_responses
    }

    /// When the last response that restarted the ACK timer came, ns since 1970; 0: none.
    pub fn last_response(&self) -> u64 {
        self.progress
    }

    /// Time and timer code of the last NAK, if it is an RNR NAK.
    pub fn last_rnr_nak(&self) -> Option<(u64, u8)> {
        self.nak.and_then(|nak| Some((nak.time, nak.rnr?)))
    }

    /// Reports the requests that were completed; called at the end of a capture.
    pub fn settle_all(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        self.decide_now(sink);
        let late = std::mem::take(&mut self.late);
        let again = late.iter().filter_map(|late| late.again.or(late.unasked.then_some(late.first)));
        again.for_each(|again| sink(Event::Late { at: &again }));
        std::mem::take(&mut self.unanswered).iter().for_each(|repeat| sink(Event::Repeat(repeat)));
        while self.settle(sink) {}
    }

    /// A packet with a PSN before those that were seen last.
    fn add_earlier(&mut self, packet: &Seen, sink: &mut impl FnMut(Event<'_>)) {
        self.end_read_at_request(packet);
        if let Some(at) = self.place(packet.psn) {
            self.repeat_open(at, packet, sink);
        } else if let Some(at) = self.done.iter().position(|request| request.covers(packet.psn)) {
            self.repeat_done(at, packet, sink);
        } else if self.was_missing(packet.psn) {
            if self.is_overtaken(packet) {
                if self.late.len() == LATE {
                    self.late.pop_front();
                }
                let unasked = self.is_unasked(packet);
                let late = Late { first: *packet, last: packet.psn, unasked, again: None, resent: false, within: None };
                self.late.push_back(late);
            }
            let request = Request::new(packet, self.mtu, self.began);
            sink(Event::New(&request));
            self.insert(request);
        } else {
            self.repeat_forgotten(packet, sink);
        }
    }

    fn add_new(&mut self, packet: &Seen, sink: &mut impl FnMut(Event<'_>)) {
        let mut request = Request::new(packet, self.mtu, self.began);
        request.during_replay = self.replay.covers(&request, packet.time);
        request.first_during_replay = request.during_replay;
        self.next = Some(request.end());
        self.burst = None;
        sink(Event::New(&request));
        self.insert(request);
        if self.early.is_empty() {
            return;
        }
        // Each once: a response that still fits nothing is kept again.
        let (now, later) = std::mem::take(&mut self.early).into_iter().partition(|early| request.covers(early.psn));
        self.early = later;
        let now: VecDeque<Seen> = now;
        now.iter().for_each(|response| self.response(response, sink));
    }

    /// Enters an open request at its place; the oldest one leaves if there are too many.
    fn insert(&mut self, request: Request) {
        while self.open.len() >= OPEN {
            self.open.pop_front();
        }
        // Most are new, and so the last.
        if self.open.back().is_none_or(|last| last.psn.before(request.psn)) {
            return self.open.push_back(request);
        }
        let at = self.open.partition_point(|open| open.psn.before(request.psn));
        self.open.insert(at, request);
    }

    fn repeat_open(&mut self, at: usize, packet: &Seen, sink: &mut impl FnMut(Event<'_>)) {
        let mut request = self.open[at];
        self.repeat(&mut request, packet, sink);
        self.open[at] = request;
    }

    fn repeat_done(&mut self, at: usize, packet: &Seen, sink: &mut impl FnMut(Event<'_>)) {
        let mut request = self.done.remove(at).expect("its place was found");
        self.repeat(&mut request, packet, sink);
        self.insert(request);
    }

    /// The open request with this PSN.
    pub(super) fn place(&self, psn: Psn) -> Option<usize> {
        let after = self.open.partition_point(|open| !psn.before(open.psn));
        let at = after.checked_sub(1)?;
        self.open[at].covers(psn).then_some(at)
    }

    /// Corrects the number of PSNs of the last request, a READ, if it was a guess; true if `next` is its end.
    fn correct_length(&mut self, next: Psn) -> bool {
        let Half { open, done, .. } = self;
        let last = open.iter_mut().chain(done).max_by_key(|request| request.psn.since(next));
        let Some(last) = last.filter(|last| !last.psns_certain) else { return false };
        let psns = next.since(last.psn) as u32;
        // The smallest MTU gives the largest number.
        if psns > psns_of(last.bytes, SMALLEST_MTU) {
            return false;
        }
        (last.psns, last.psns_certain) = (psns, true);
        true
    }

    /// A packet that is not the last of its message carries as much as the path MTU.
    pub(super) fn learn_mtu(&mut self, payload: u32) {
        if self.mtu.is_none() && (SMALLEST_MTU..=LARGEST_MTU).contains(&payload) {
            self.mtu = Some(payload);
            for request in self.open.iter_mut().filter(|request| !request.psns_certain) {
                (request.psns, request.psns_certain) = (psns_of(request.bytes, payload), true);
            }
            if let (Some(last), Some(next)) = (self.open.back(), self.next)
                && next.before(last.end())
            {
                self.next = Some(last.end());
            }
        }
    }

    /// The end of the last request is known.
    pub(super) fn ends_at(&mut self, end: Psn) {
        if self.next.is_some_and(|next| next.before(end)) {
            self.next = Some(end);
        }
    }

    /// Whether the PSN is beyond all requests seen.
    pub(super) fn is_beyond(&self, psn: Psn) -> bool {
        self.next.is_none_or(|next| !psn.before(next))
    }

    pub(super) fn keep_early(&mut self, packet: &Seen) {
        if self.early.len() == EARLY {
            self.early.pop_front();
        }
        self.early.push_back(*packet);
    }

    /// A response came: it is the first one behind those that were answered last.
    pub(super) fn follow(&mut self, response: &Seen) {
        let first = |done: &&mut Request| done.followed == 0 && done.psn.before(response.psn);
        self.done.iter_mut().rev().take_while(first).for_each(|done| done.followed = response.time);
    }

    /// A READ or an atomic has its response.
    pub(super) fn keep_done(&mut self, mut request: Request, sink: &mut impl FnMut(Event<'_>)) {
        request.followed = 0;
        if self.done.len() == DONE {
            self.settle(sink);
        }
        self.done.push_back(request);
    }

    /// Reports the oldest completed READ or atomic.
    fn settle(&mut self, sink: &mut impl FnMut(Event<'_>)) -> bool {
        let Some(request) = self.done.pop_front() else { return false };
        let at = request.answered().map_or(request.last.time, |answered| answered.time);
        sink(Event::Completed { request: &request, at });
        true
    }

    pub(super) fn note_nak(&mut self, nak: &Nak, rnr: Option<u8>) {
        // A requester that waits for a receiver obeys the NAK that made it wait, whatever follows.
        let waits = |old: &LastNak| old.rnr.is_some() && self.last_sent <= old.time && !nak.psn.before(old.psn);
        if !self.nak.as_ref().is_some_and(waits) {
            self.nak_before = self.nak;
            self.nak = Some(LastNak { psn: nak.psn, time: nak.time, rnr, obeyed: false, repeated: 0 });
        }
    }
}
