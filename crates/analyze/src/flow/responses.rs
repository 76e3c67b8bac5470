//! Responses of a half: ACKs, NAKs, READ responses and atomic responses, and which requests they complete.

use super::event::{Event, Nak};
use super::half::Half;
use super::replay::SECOND_RESPONSE;
use super::request::{Request, Transmission};
use crate::packet::{Kind, Seen};
use weir_wire::{NakCode, Operation, Psn, Syndrome};

/// READs and atomics in flight; adapters have 128 at most.
const IN_FLIGHT: usize = 128;

impl Half {
    /// Takes a response of this half's responder.
    pub fn response(&mut self, packet: &Seen, sink: &mut impl FnMut(Event<'_>)) {
        use Operation::*;
        if !self.has_responses {
            self.first_response(sink);
        }
        match packet.opcode.operation() {
            Some(ReadResponseFirst | ReadResponseMiddle | ReadResponseLast | ReadResponseOnly) => {
                self.read_response(packet, sink);
            }
            Some(AtomicAcknowledge) => self.data_response(packet, sink),
            Some(Acknowledge) => match packet.acknowledgement() {
                Some(Syndrome::Ack(_)) => self.ack(packet, sink),
                Some(Syndrome::RnrNak(timer)) => {
                    let nak = self.nak(packet, sink);
                    self.note_nak(&nak, Some(timer.code()));
                    let place = self.place(nak.psn);
                    if let Some(at) = place {
                        self.open[at].rnr_naks += 1;
                    }
                    let request = place.map(|at| &self.open[at]);
                    sink(Event::RnrNak { nak, timer, request });
                }
                Some(Syndrome::Nak(NakCode::PsnSequence)) => {
                    self.end_read_at_nak(packet.psn);
                    let mut nak = self.nak(packet, sink);
                    // What was in flight behind a request that got an RNR NAK is out of sequence. That is no loss.
                    if !self.waits_for_receiver(nak.psn) {
                        self.missed_at_start(nak.psn, nak.time);
                        self.note_nak(&nak, None);
                        nak.during_replay = self.refute_damming(&nak);
                        let request = self.place(nak.psn).map(|at| &self.open[at]);
                        sink(Event::SequenceNak { nak, request });
                    }
                }
                Some(Syndrome::Nak(code)) => {
                    let nak = self.nak(packet, sink);
                    let request = self.place(nak.psn).map(|at| &self.open[at]);
                    sink(Event::Fatal { nak, code, request });
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn ack(&mut self, packet: &Seen, sink: &mut impl FnMut(Event<'_>)) {
        if self.place(packet.psn).is_some() {
            self.complete_until(packet.psn.next(), packet, sink);
        } else if self.is_beyond(packet.psn) {
            // Its request was not captured, or comes later in the file.
            self.complete_until(packet.psn.next(), packet, sink);
            self.keep_early(packet);
        } else {
            // The peer responds, although with nothing new. An ACK that a later one has overtaken is not there twice.
            self.progress = packet.time;
            let newest = self.acks.newest() == Some(packet.psn) || self.acknowledged == Some(packet.psn);
            if !newest && self.acks.contain(packet.psn) && !self.done.iter().any(|done| done.covers(packet.psn)) {
                sink(Event::Stray { at: packet });
            }
        }
        self.acks.enter(packet.psn);
    }

    /// The common part of NAKs: requests before theirs are acknowledged.
    fn nak(&mut self, packet: &Seen, sink: &mut impl FnMut(Event<'_>)) -> Nak {
        self.complete_until(packet.psn, packet, sink);
        self.progress = packet.time;
        let latency = self.place(packet.psn).map(|at| packet.time.saturating_sub(self.open[at].last.time));
        Nak { psn: packet.psn, time: packet.time, frame: packet.frame, latency, during_replay: false }
    }

    /// Whether the last transmission of the request with this PSN got an RNR NAK.
    fn waits_for_receiver(&self, psn: Psn) -> bool {
        let sent = self.place(psn).map_or(0, |at| self.open[at].last.time);
        self.nak.is_some_and(|nak| nak.rnr.is_some() && nak.psn == psn && nak.time >= sent)
    }

    /// A responder that loses what is new during a replay does not see that a request behind a lost one is out of sequence.
    /// If it says so before the replay ends, it loses none.
    fn refute_damming(&mut self, nak: &Nak) -> bool {
        // A NAK for the repeated READ itself tells that there is no replay.
        let during = |at: &usize| self.replay.lasts() && self.open[*at].during_replay;
        let Some(at) = self.place(nak.psn).filter(during) else { return false };
        (self.open[at].during_replay, self.open[at].first_during_replay) = (false, false);
        true
    }

    /// Completes the requests before `end` that an ACK completes.
    fn complete_until(&mut self, end: Psn, packet: &Seen, sink: &mut impl FnMut(Event<'_>)) {
        let covered = |open: &Request| !end.before(open.end());
        let count = self.open.iter().take_while(|open| covered(open)).count();
        if count == 0 {
            return;
        }
        self.follow(packet);
        let mut at = 0;
        for _ in 0..count {
            if self.open[at].kind.returns_data() {
                // The responder executed it, so that its response is lost or late.
                self.gap = Some(packet.time);
                self.open[at].executed = true;
                at += 1;
                continue;
            }
            let mut request = self.open.remove(at).expect("it was counted");
            request.set_answered(Some(Transmission { time: packet.time, frame: packet.frame }));
            self.acknowledged = Some(request.end().minus(1));
            sink(Event::Completed { request: &request, at: packet.time });
        }
        // No adapter has so many in flight: the capture has lost the responses of the oldest.
        while at > IN_FLIGHT {
            self.open.pop_front();
            at -= 1;
        }
        self.progress = packet.time;
    }

    /// A response of one packet that carries data.
    fn data_response(&mut self, packet: &Seen, sink: &mut impl FnMut(Event<'_>)) {
        self.follow(packet);
        match self.place(packet.psn) {
            Some(at) => self.answer(at, packet, sink),
            None => self.unexplained(packet, sink),
        }
    }

    fn read_response(&mut self, packet: &Seen, sink: &mut impl FnMut(Event<'_>)) {
        if !packet.opcode.ends_message() {
            self.learn_mtu(packet.payload);
        }
        let Some(at) = self.place_of_response(packet) else { return self.unexplained(packet, sink) };
        self.follow(packet);
        let request = &mut self.open[at];
        let offset = packet.psn.since(request.psn).max(0) as u32;
        let expected = request.received;
        if offset > expected {
            self.gap = Some(packet.time);
            sink(Event::ResponseGap { at: packet });
            // The rest of this response is of no use, unless what is missing comes late.
            self.progress = packet.time;
            return;
        }
        if offset < expected && request.sent == 1 {
            let request = *request;
            return sink(Event::AnsweredAgain { at: packet, request: &request });
        }
        if offset < expected && offset > 0 {
            return; // a part of an older response
        }
        if offset == 0 {
            request.responding = packet.time;
        }
        (request.received, request.executed) = (offset + 1, true);
        if packet.opcode.ends_message() {
            if !request.psns_certain {
                (request.psns, request.psns_certain) = (offset + 1, true);
            }
            let end = request.end();
            self.ends_at(end);
            self.answer(at, packet, sink);
        } else {
            self.complete_before(at, packet, sink);
            self.progress = packet.time;
        }
    }

    /// The open READ of a response. While its number of PSNs is a guess, a later PSN may be its own.
    fn place_of_response(&self, packet: &Seen) -> Option<usize> {
        self.place(packet.psn).or_else(|| {
            let after = self.open.partition_point(|open| !packet.psn.before(open.psn));
            let at = after.checked_sub(1)?;
            (!self.open[at].psns_certain && packet.opcode.has_payload()).then_some(at)
        })
    }

    /// The open request at this place has its complete response.
    fn answer(&mut self, at: usize, packet: &Seen, sink: &mut impl FnMut(Event<'_>)) {
        let at = self.complete_before(at, packet, sink);
        let mut request = self.open.remove(at).expect("the caller found it");
        request.set_answered(Some(Transmission { time: packet.time, frame: packet.frame }));
        if request.sent > 1 {
            self.end_replay(&request, packet.time);
        }
        self.progress = packet.time;
        self.keep_done(request, sink);
    }

    /// A READ was answered. Responses leave in the order of the PSNs, so that the replay goes on while one before it is
    /// open: what came is an earlier response.
    fn end_replay(&mut self, request: &Request, now: u64) {
        let Half { open, replay, .. } = self;
        let waits = |(first, end): (Psn, Psn)| {
            let from = open.partition_point(|open| open.psn.before(first));
            open.range(from..).take_while(|open| open.psn.before(end)).any(|open| open.kind == Kind::Read)
        };
        replay.answered(request, now, waits);
    }

    /// A response acknowledges the requests before its own (IBTA 9.7.5.1.2). Returns the new place of the request.
    fn complete_before(&mut self, at: usize, packet: &Seen, sink: &mut impl FnMut(Event<'_>)) -> usize {
        if at == 0 {
            return 0;
        }
        let psn = self.open[at].psn;
        self.complete_until(psn, packet, sink);
        self.place(psn).unwrap_or(0)
    }

    fn unexplained(&mut self, packet: &Seen, sink: &mut impl FnMut(Event<'_>)) {
        if let Some(request) = self.done.iter().find(|done| done.covers(packet.psn)).copied() {
            if !packet.opcode.ends_message() {
                if request.sent == 1 {
                    sink(Event::AnsweredAgain { at: packet, request: &request });
                }
                return;
            }
            // That the responder had it when it was repeated shows only now.
            let replayed = || request.answered().filter(|_| request.sent > 1).map(|_| request.last.time);
            let since = self.replay.answered_again(&request, packet.time).or_else(replayed);
            if let Some(since) = since.filter(|since| packet.time < since + SECOND_RESPONSE) {
                let behind = |open: &&mut Request| open.last.time >= since && request.psn.before(open.psn);
                for open in self.open.iter_mut().filter(behind) {
                    open.first_during_replay |= open.sent == 1;
                    open.during_replay = true;
                }
            }
            sink(Event::AnsweredAgain { at: packet, request: &request });
        } else if self.is_beyond(packet.psn) {
            self.keep_early(packet);
        } else if !self.is_missing(packet.psn) {
            sink(Event::Stray { at: packet });
        }
    }
}
