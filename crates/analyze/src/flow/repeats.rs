//! Repetitions of requests: why each was sent again.

use super::event::{Cause, Event, Repeat};
use super::half::{Burst, Half, LATE, LastNak};
use super::request::{LARGEST_MTU, Request, Transmission, psns_of};
use crate::packet::{Kind, Seen};
use weir_capture::Direction;
use weir_wire::{Psn, RnrTimer};

/// Requests that are repeated together follow each other within this time, ns.
const BURST: u64 = 1_000_000;
/// No ACK timer is shorter in practice, ns: 8 µs can be set, but adapters have floors of milliseconds, and round trips
/// of a busy network take some 100 µs.
const SHORTEST_TIMEOUT: u64 = 1_000_000;
/// A requester that dropped a response for a missing page repeats between these times, ns: after 0.5 to 0.8 ms (T 4.2),
/// and time stamps jitter. Sooner, a later response made it repeat; later, its ACK timer: the response was lost behind
/// the point of capture.
const DISCARDED: std::ops::Range<u64> = 300_000..3_000_000;
/// For a missing page, adapters repeat between these times, ns: 0.5 to 0.8 ms (T 4.2).
const FAULT: std::ops::Range<u64> = 480_000..950_000;
/// A requester that misses a response repeats within this time after a later one has come, ns: at its own host, and at
/// the responder's, after a round trip over a busy network and over a network without load.
const AT_ONCE: u64 = 5_000;
const ROUND_TRIP: u64 = 100_000;
const SHORT_ROUND_TRIP: u64 = 20_000;
/// No NAK brings a packet from another host sooner, ns.
const SHORTEST_ROUND_TRIP: u64 = 1_500;
const LONG_ROUND_TRIP: u64 = 150_000;
/// An RNR wait may become this much longer than the delay asked for; adapters wait up to five times as long (T fig 6.2).
const RNR_FACTOR: u64 = 20;
/// Repetitions that wait for the first response.
const UNANSWERED: usize = 64;
/// A capture that begins with a packet that overtook others lacks so many PSNs at most.
const AT_START: i32 = 256;
/// So many packets that come again in a row did not come twice by chance.
const GO_BACK: usize = 5;

impl LastNak {
    /// Whether a sequence NAK, a moment ago, asked for this packet, and the requester has not obeyed yet.
    fn asked_for(&self, packet: &Seen) -> bool {
        self.rnr.is_none() && self.psn == packet.psn && self.is_recent(packet.time) && !self.obeyed
    }

    /// Whether a requester may repeat for it now: it does so at once.
    fn is_recent(&self, now: u64) -> bool {
        now < self.time + DISCARDED.start
    }
}

impl Half {
    pub(super) fn repeat(&mut self, request: &mut Request, packet: &Seen, sink: &mut impl FnMut(Event<'_>)) {
        let follows = self.follows(packet);
        let (cause, since) = self.cause(request, packet, follows);
        let repeat = Repeat {
            psn: packet.psn,
            kind: request.kind,
            cause,
            waited: packet.time.saturating_sub(since),
            follows: follows.is_some(),
            payload: packet.payload,
            frame: packet.frame,
            previous: request.last.frame,
            time: packet.time,
            request: Some(*request),
        };
        self.report(repeat, sink);
        for nak in self.nak.iter_mut().filter(|nak| nak.psn == packet.psn) {
            nak.repeated = packet.time;
        }
        if follows.is_none() {
            let asked = self.nak.iter_mut().chain(&mut self.nak_before).find(|nak| nak.asked_for(packet));
            asked.into_iter().for_each(|nak| nak.obeyed = true);
        }
        request.sent += 1;
        if cause == Cause::Discarded {
            (request.discards, request.discarded) = (request.discards + 1, packet.time);
        }
        if cause == Cause::Timeout && follows.is_none() {
            if self.progress > request.last.time || request.timeouts_in_row == 0 {
                (request.timeouts_in_row, request.row_began) = (0, packet.time);
            }
            request.timeouts_in_row += 1;
        }
        let sent_before = request.last.time;
        request.last = Transmission { time: packet.time, frame: packet.frame };
        request.set_answered(None);
        request.received = packet.psn.since(request.psn).max(0) as u32;
        let duplicate = self.is_duplicate(request, cause, follows.is_some(), sent_before);
        request.during_replay = !duplicate && self.replay.covers(request, packet.time);
        if duplicate {
            self.replay.repeated(request);
        }
        self.burst = Some(Burst { psn: packet.psn, end: request.end(), time: packet.time, cause });
    }

    /// Whether the responder has a request that is repeated, so that it replays the response.
    fn is_duplicate(&self, request: &Request, cause: Cause, follows: bool, sent_before: u64) -> bool {
        if request.executed {
            return true;
        }
        let refused = self.nak.is_some_and(|nak| nak.time >= sent_before && !request.psn.before(nak.psn));
        match cause {
            // What was in flight behind an answered request has arrived, too, unless the responder lost it.
            Cause::ResponseGap | Cause::Acknowledged => !request.during_replay && !refused,
            // Its response has had the time to come.
            Cause::Discarded => false,
            // A READ that meets a page fault is known from then on. What came behind it was out of sequence.
            Cause::Rnr { .. } => !follows,
            Cause::Timeout => !follows && !request.during_replay,
            Cause::SequenceNak | Cause::Unseen => false,
        }
    }

    pub(super) fn repeat_forgotten(&mut self, packet: &Seen, sink: &mut impl FnMut(Event<'_>)) {
        let follows = self.follows(packet);
        let waited = packet.time.saturating_sub(self.progress);
        // A NAK makes a requester go back that dropped the ACKs before it.
        let obeyed = |nak: &LastNak| match nak.rnr {
            Some(code) if !waits_still(nak.time, code, packet.time) => false,
            Some(_) => nak.time == self.progress || nak.time >= self.last_sent || nak.psn == packet.psn,
            None => nak.time == self.progress && nak.is_recent(packet.time) || nak.asked_for(packet),
        };
        let nak = self.nak.filter(obeyed);
        let by_nak = nak.map(|nak| nak.rnr.map_or(Cause::SequenceNak, |code| Cause::Rnr { code }));
        let cause = follows.or(by_nak).unwrap_or(match waited {
            _ if !self.has_responses => Cause::Unseen,
            waited if waited < DISCARDED.start => Cause::Unseen,
            waited if waited < DISCARDED.end => Cause::Acknowledged,
            _ => Cause::Timeout,
        });
        let repeat = Repeat {
            psn: packet.psn,
            kind: packet.kind(),
            cause,
            // Without a response before it the time is not known: at most since the first packet.
            waited: waited.min(self.start.map_or(0, |(_, start)| packet.time.saturating_sub(start))),
            follows: follows.is_some(),
            payload: packet.payload,
            frame: packet.frame,
            previous: packet.frame,
            time: packet.time,
            request: None,
        };
        self.report(repeat, sink);
        self.burst = Some(Burst { psn: packet.psn, end: packet.psn.next(), time: packet.time, cause });
    }

    /// Reports a repetition, unless what follows decides what it is: a packet that was answered, and comes again soon,
    /// came twice; or its response was lost, and all that follows it is repeated, too.
    fn report(&mut self, repeat: Repeat, sink: &mut impl FnMut(Event<'_>)) {
        let starts = repeat.cause == Cause::Unseen && !repeat.follows && self.has_responses;
        if starts || repeat.follows && !self.doubt.is_empty() {
            self.doubt.push(repeat);
        } else if !self.has_responses && self.unanswered.len() < UNANSWERED {
            self.unanswered.push(repeat);
        } else {
            sink(Event::Repeat(&repeat));
        }
    }

    /// A packet that was missing came late if the responder did not ask for it, or if it comes once more. If packets
    /// after it are repeated behind it, the requester has sent it again.
    pub(super) fn decide_late(&mut self, next: &Seen, sink: &mut impl FnMut(Event<'_>)) {
        if self.late.is_empty() {
            return;
        }
        let known = self.next.is_some_and(|first_new| next.psn.before(first_new));
        let missing = self.is_missing(next.psn);
        // A requester that sends packets again does so in a row.
        let in_row = next.time.saturating_sub(self.last_sent) < BURST;
        let Half { late, newest, nak, .. } = self;
        late.retain_mut(|late| {
            let near = next.time.saturating_sub(late.first.time) < DISCARDED.start;
            let behind = |psn: Psn| *newest == Some(psn) && known && psn.before(next.psn);
            if late.unasked {
                if !behind(late.last) || !in_row {
                    sink(Event::Late { at: &late.first });
                    return false;
                }
                late.last = next.psn;
                return missing; // more of what was missing; otherwise the requester has sent it again
            }
            let follows = behind(late.first.psn);
            match late.again {
                None if follows => late.resent = true,
                None if next.psn == late.first.psn && near && !late.resent => {
                    sink(Event::Late { at: &late.first });
                    return false;
                }
                None if next.psn == late.first.psn && near => (late.again, late.within) = (Some(*next), *newest),
                None => {}
                Some(again) => {
                    // What was being repeated goes on. A repetition would begin anew.
                    let goes_on = |at: Psn| late.first.psn.before(at) && at.before(next.psn);
                    // The requester goes back to what the responder asked for. It had the packet already.
                    let asked = |nak: LastNak| {
                        let later = nak.asked_for(next) && late.first.psn.before(nak.psn);
                        later && nak.time >= late.first.time
                    };
                    if !follows || late.within.is_some_and(goes_on) || nak.is_some_and(asked) {
                        sink(Event::Late { at: &again });
                    }
                    return false;
                }
            }
            near
        });
    }

    /// Decides on repetitions that are in doubt, unless this packet is the next of them.
    pub(super) fn decide(&mut self, next: &Seen, sink: &mut impl FnMut(Event<'_>)) {
        let known = self.next.is_some_and(|first_new| next.psn.before(first_new));
        let goes_on = |last: &Repeat| known && next.psn == last.end() && next.time < last.time + DISCARDED.start;
        if !self.doubt.last().is_some_and(goes_on) {
            self.decide_now(sink);
        }
    }

    /// A requester that goes back repeats all that it has sent; packets that came twice are some of these.
    pub(super) fn decide_now(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        let doubt = std::mem::take(&mut self.doubt);
        let Some(last) = doubt.last() else { return };
        // A READ or an atomic can miss its response while a later one arrives. Data comes twice more easily.
        let least = if doubt[0].kind.returns_data() { 2 } else { 3 };
        let all = doubt.len() >= least && (self.next == Some(last.end()) || doubt.len() >= GO_BACK);
        // The first packets of a row that goes again for a NAK may be lost.
        let asked = |nak: &LastNak| nak.rnr.is_none() && nak.psn.before(doubt[0].psn) && nak.is_recent(doubt[0].time);
        let cause = match all {
            true => Cause::ResponseGap,
            false if doubt.len() > 1 && self.nak.iter().any(asked) => Cause::SequenceNak,
            false => Cause::Unseen,
        };
        for repeat in &doubt {
            sink(Event::Repeat(&Repeat { cause, ..*repeat }));
        }
    }

    /// The first response: repetitions before it followed timeouts.
    pub(super) fn first_response(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        self.has_responses = true;
        for repeat in std::mem::take(&mut self.unanswered) {
            let cause =
                if repeat.waited < SHORTEST_TIMEOUT && !repeat.follows { Cause::Unseen } else { Cause::Timeout };
            sink(Event::Repeat(&Repeat { cause, ..repeat }));
        }
    }

    /// The cause of the repetition before, if this repetition follows it at once.
    fn follows(&self, packet: &Seen) -> Option<Cause> {
        let burst = self.burst?;
        let near = packet.time.saturating_sub(burst.time) < BURST;
        // A row without a known cause goes on with the next packet. Packets that came twice do not make a row.
        let in_row = burst.psn.before(packet.psn) && (burst.cause != Cause::Unseen || packet.psn == burst.end);
        (near && in_row).then_some(burst.cause)
    }

    /// Why a request is repeated, and the time since which the requester waited.
    fn cause(&self, request: &Request, packet: &Seen, follows: Option<Cause>) -> (Cause, u64) {
        let since = request.last.time;
        if let Some(cause) = follows {
            return (cause, packet.time);
        }
        // The requester obeys it although the missing packet came late meanwhile, or followed another one that went again.
        if let Some(nak) = self.nak_before.filter(|nak| nak.asked_for(packet)) {
            return (Cause::SequenceNak, nak.time);
        }
        // A sequence NAK makes a requester repeat at once.
        let obeyed = |nak: &LastNak| match nak.rnr {
            Some(code) if !waits_still(nak.time, code, packet.time) => false,
            Some(_) => nak.time >= since && nak.psn.before(request.end()) || nak.time >= self.last_sent,
            None if nak.asked_for(packet) => true,
            None => nak.time >= since && nak.psn.before(request.end()) && nak.is_recent(packet.time),
        };
        // A NAK for a later request repeats no answered READ, unless the requester dropped the response.
        let later_than_answered = |nak: &LastNak| {
            let waited = request.answered().map(|answered| packet.time.saturating_sub(answered.time));
            !nak.psn.before(request.end()) && waited.is_some_and(|waited| DISCARDED.contains(&waited))
        };
        if let Some(nak) = self.nak.filter(|nak| obeyed(nak) && !later_than_answered(nak)) {
            let cause = nak.rnr.map_or(Cause::SequenceNak, |code| Cause::Rnr { code });
            return (cause, nak.time);
        }
        // The first packet of a long response meets the missing page.
        let faulted = request.received > 0 && FAULT.contains(&packet.time.saturating_sub(request.responding));
        if let Some(answered) = request.answered() {
            // The NAK for a later packet says that this one was executed: the requester misses its response.
            let skipped = |nak: &LastNak| nak.rnr.is_none() && !nak.psn.before(request.end());
            if let Some(nak) = self.nak.filter(|nak| skipped(nak) && nak.is_recent(packet.time))
                && nak.time > answered.time
            {
                return (Cause::ResponseGap, nak.time);
            }
            // A later response has just left, the first one since: it made the requester miss this one.
            let waited = packet.time.saturating_sub(answered.time);
            // What it has dropped for a missing page it drops again.
            let again = request.discards > 0 && (faulted || FAULT.contains(&waited));
            let missed =
                request.followed > answered.time && packet.time < request.followed + self.reaction(waited) && !again;
            // Only a requester that misses a part of the response asks for the rest of it.
            let rest = packet.psn != request.psn;
            let cause = match waited {
                waited if waited < DISCARDED.start && rest && !faulted => Cause::ResponseGap,
                waited if waited < DISCARDED.start && !faulted => Cause::Unseen,
                _ if missed => Cause::ResponseGap,
                waited if waited < DISCARDED.end => Cause::Discarded,
                _ if self.progress > answered.time && packet.time < self.progress + DISCARDED.start => {
                    Cause::ResponseGap
                }
                _ => Cause::Timeout,
            };
            return (cause, answered.time);
        }
        // A requester repeats at once for a missing response, and only once.
        let round_trip = if self.direction == Some(Direction::Out) { SHORT_ROUND_TRIP } else { LONG_ROUND_TRIP };
        let at_once = |gap: u64| gap >= since && packet.time.saturating_sub(gap) < round_trip;
        if let Some(gap) = self.gap.filter(|gap| at_once(*gap))
            && request.kind.returns_data()
        {
            return (Cause::ResponseGap, gap);
        }
        if faulted {
            return (Cause::Discarded, request.responding);
        }
        let since = since.max(self.progress.min(packet.time));
        if !self.has_responses || packet.time.saturating_sub(since) < SHORTEST_TIMEOUT {
            return (Cause::Unseen, since);
        }
        (Cause::Timeout, since)
    }

    /// How long after a later response a requester repeats that misses an earlier one, ns. If it would repeat for a
    /// missing page at this time, too, that is more likely.
    fn reaction(&self, waited: u64) -> u64 {
        match self.direction {
            Some(Direction::Out) => AT_ONCE,
            _ if !FAULT.contains(&waited) => ROUND_TRIP,
            _ => SHORT_ROUND_TRIP,
        }
    }

    /// Whether the responder has not complained about a packet that was passed over, and no timer can have run out.
    pub(super) fn is_unasked(&self, packet: &Seen) -> bool {
        // What goes again comes behind what went again before it.
        if self.follows(packet).is_some() {
            return false;
        }
        // One NAK covers all that is missing until the packets are in sequence again.
        // A requester that has obeyed it repeats for it nothing that it has sent since.
        let recent = |nak: &LastNak| {
            let over = nak.repeated != 0 && nak.repeated < self.passed;
            nak.time >= self.passed || packet.time < nak.time + DISCARDED.start && !over
        };
        // At the responder's host, what follows a NAK sooner than it can reach the requester was on its way.
        let sooner =
            |nak: &LastNak| self.direction == Some(Direction::In) && packet.time < nak.time + SHORTEST_ROUND_TRIP;
        let missed = self.nak.is_some_and(|nak| recent(&nak) && !packet.psn.before(nak.psn) && !sooner(&nak));
        !missed && packet.time.saturating_sub(self.passed) < DISCARDED.start
    }

    /// Whether the packet before has a later PSN. A packet that goes on from the one before is part of a row that is sent
    /// again. Out of the requester's host, packets pass in order.
    pub(super) fn is_overtaken(&self, packet: &Seen) -> bool {
        self.direction != Some(Direction::Out) && self.newest.is_some_and(|newest| packet.psn.before(newest))
    }

    /// A sequence NAK at once for a packet before the first one: what is between them overtook nothing that was seen, and
    /// may still come.
    pub(super) fn missed_at_start(&mut self, nak: Psn, now: u64) {
        let Some((start, time)) = self.start.filter(|(_, time)| now < time + DISCARDED.start) else { return };
        let before = start.since(nak);
        if (1..=AT_START).contains(&before) && !self.is_missing(nak) {
            self.missing.push_front((nak, start));
            self.passed = self.passed.max(time);
        }
    }

    /// A sequence NAK asks for a request. If its PSN is within a READ, the READ ends there.
    pub(super) fn end_read_at_nak(&mut self, nak: Psn) {
        self.shorten(nak, |_| true);
    }

    /// A packet within a READ asks for the rest of its response, or it is another request: then the READ ends there.
    pub(super) fn end_read_at_request(&mut self, packet: &Seen) {
        let end = |va: u64, bytes: u32| va.wrapping_add(bytes.into());
        let rest = |read: &Request| {
            let less = packet.kind() == Kind::Read && packet.message < read.bytes;
            less && end(packet.va, packet.message) == end(read.va, read.bytes)
        };
        self.shorten(packet.psn, |read| !rest(read));
    }

    /// The number of PSNs of a READ was guessed from the request behind it, while the path MTU was not known. If the READ
    /// ends at an earlier PSN, requests from there on were passed over.
    fn shorten(&mut self, to: Psn, ends: impl Fn(&Request) -> bool) {
        let least = |read: &Request| psns_of(read.bytes, self.mtu.unwrap_or(LARGEST_MTU));
        let within = |read: &Request| read.kind == Kind::Read && read.covers(to) && read.psn != to;
        let guessed = |read: &&mut Request| within(read) && to.since(read.psn) as u32 >= least(read) && ends(read);
        let read = match self.place(to) {
            Some(at) => self.open.get_mut(at),
            None => self.done.iter_mut().find(|read| within(read)),
        };
        let Some(read) = read.filter(guessed) else { return };
        let end = read.end();
        read.psns = to.since(read.psn) as u32;
        let behind = self.place(end).map_or(0, |at| self.open[at].first.time);
        self.passed = self.passed.max(behind);
        self.pass_over(to, end);
    }

    /// No request of these PSNs was seen, although one behind them was.
    pub(super) fn pass_over(&mut self, from: Psn, to: Psn) {
        while self.missing.len() >= LATE {
            self.missing.pop_front();
        }
        self.missing.push_back((from, to));
    }

    /// Whether no request with this PSN was seen, although one behind it was.
    pub(super) fn is_missing(&self, psn: Psn) -> bool {
        self.missing.iter().any(|(from, to)| !psn.before(*from) && psn.before(*to))
    }

    /// Whether this PSN was passed over; it is not missing any more.
    pub(super) fn was_missing(&mut self, psn: Psn) -> bool {
        let covers = |(from, to): &(Psn, Psn)| !psn.before(*from) && psn.before(*to);
        let Some(at) = self.missing.iter().position(covers) else { return false };
        let (from, to) = self.missing.remove(at).expect("its place was found");
        let rest = [(from, psn), (psn.next(), to)];
        self.missing.extend(rest.into_iter().filter(|(from, to)| from.before(*to)));
        // The rest of a gap that is filled in its middle is two gaps.
        while self.missing.len() > LATE {
            self.missing.pop_front();
        }
        true
    }
}

/// Whether a requester may still wait for an RNR NAK with this timer code.
fn waits_still(nak: u64, code: u8, now: u64) -> bool {
    let delay = RnrTimer::new(code).delay().as_nanos() as u64;
    now.saturating_sub(nak) <= RNR_FACTOR * delay.max(1_000_000)
}
