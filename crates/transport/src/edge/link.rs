//! A link as its sender knows it: what is on the way, how fast it is, and whether it works.

use super::health::{Health, Rank};
use super::queue::{Delay, Queue};
use super::rate::{Progress, Rate};
use crate::Instant;
use std::collections::VecDeque;
use std::time::Duration;
use weir_wire::edge::{Heard, Seq};

/// What is lost is a running mean over about so many packets.
const LOSS_MEMORY: f64 = 32.0;
/// Bytes per second of a link of weight 1, until its rate is measured: 1 Gbit/s.
const UNIT: f64 = 125e6;
/// The most packets on a link while its delay is measured: they do not wait behind others for long.
const MEASURED_BY: usize = 4;
/// A packet does not wait for longer on a link, ns, but at the caller. It must be longer than a sender sleeps.
const LONGEST_WAIT: u64 = 3_000_000;
/// Answers come in turns, which are later than the first by no more than this, ns.
const LATE_ANSWER: u64 = 1_000_000;
/// A caller that waits for a link is told when a packet has to wait for so long, ns, so that it sends several then.
const WAIT_AGAIN: u64 = 2_000_000;
/// While the caller has more than the links take, a link that carries nothing is asked so often whether it has become
/// better.
const ASK_IDLE_EVERY: Duration = Duration::from_millis(20);
/// Questions beyond these are forgotten, oldest first, if none is answered.
const MOST_QUESTIONS: usize = 8;
/// Packets that have arrived, but of which the peer has not said how long they took: as many are kept.
const MOST_LANDED: usize = 1024;

/// A link of a connection.
#[derive(Debug)]
pub(super) struct Link {
    pub weight: u32,
    pub health: Health,
    pub rate: Rate,
    pub queue: Queue,
    /// What was put on it and not heard of, oldest first.
    pub flight: VecDeque<Flying>,
    /// What has arrived, but later than what was heard of last.
    landed: VecDeque<Flying>,
    /// How long it takes until the arrival of a packet is known, ns: the longest time lately.
    back: u64,
    /// When the newest packet left that the peer has answered, and when a packet arrived at the peer last, as far as it is
    /// known.
    pub answered: Instant,
    /// When the first packet after that one was put on the link, if this is later. It may have arrived on another since.
    unanswered: Instant,
    pub heard: Instant,
    /// Bytes that were put on it.
    pub bytes: u64,
    /// The same for a scheduler, which takes a link that is used again to have had its share.
    pub scheduled: u64,
    /// It gets no packets until it has run empty, so that its delay can be measured.
    pub draining: bool,
    /// Packets that were put on it.
    count: u32,
    /// When the latest was.
    latest: Instant,
    /// Bytes of `flight`, and of what was lost or taken back.
    in_flight: u64,
    lost: u64,
    /// Share of its packets that are lost, and of how many the fate is known.
    loss: f64,
    fates: u64,
}

/// A packet on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flying {
    pub count: u32,
    /// `None`: a question.
    pub seq: Option<Seq>,
    pub bytes: u32,
    pub at: Instant,
    /// Bytes that were put on the link up to it.
    through: u64,
    before: Progress,
}

impl Link {
    pub fn new(weight: u32) -> Link {
        let weight = weight.max(1);
        Link {
            weight,
            health: Health::new(),
            rate: Rate::new(f64::from(weight) * UNIT),
            queue: Queue::default(),
            flight: VecDeque::new(),
            landed: VecDeque::new(),
            back: 0,
            answered: Instant(0),
            unanswered: Instant(0),
            heard: Instant(0),
            bytes: 0,
            scheduled: 0,
            draining: false,
            count: 0,
            latest: Instant(0),
            in_flight: 0,
            lost: 0,
            loss: 0.0,
            fates: 0,
        }
    }

    pub fn is_up(&self) -> bool {
        self.health.rank() == Rank::Up
    }

    /// Share of its packets that are lost, and of how many that is known.
    pub fn loss(&self) -> (f64, u64) {
        (self.loss, self.fates)
    }

    /// Puts a packet on the link, or a question; returns its count.
    pub fn put(&mut self, now: Instant, seq: Option<Seq>, bytes: u32) -> u32 {
        let only_questions = || self.flight.iter().all(|flying| flying.seq.is_none());
        if seq.is_none() && self.flight.len() >= MOST_QUESTIONS && only_questions() {
            self.give_up(0);
        }
        let count = self.count;
        self.count = count.wrapping_add(1);
        // What a link that has been idle lost before it was says nothing of now.
        if self.unanswered <= self.answered || now - self.latest > ASK_IDLE_EVERY {
            self.unanswered = now;
        }
        self.latest = now;
        if self.flight.is_empty() {
            self.rate.is_empty(now, self.bytes - self.lost);
        }
        self.bytes += u64::from(bytes);
        let (through, before) = (self.bytes, self.rate.progress());
        self.flight.push_back(Flying { count, seq, bytes, at: now, through, before });
        self.queue.put(now, self.rate.carries(u64::from(bytes)));
        self.in_flight += u64::from(bytes);
        self.scheduled += u64::from(bytes);
        count
    }

    /// Whether a packet with this count was put on the link.
    pub fn has_put(&self, count: u32) -> bool {
        self.count.wrapping_sub(count) as i32 >= 1
    }

    /// Takes a packet off `flight` of which the fate is known.
    pub fn take_off(&mut self, place: usize) -> Option<Flying> {
        let flying = self.flight.remove(place)?;
        self.in_flight -= u64::from(flying.bytes);
        if self.flight.is_empty() && std::mem::take(&mut self.draining) {
            self.forget_delays();
        }
        Some(flying)
    }

    /// Takes a packet off `flight` that is lost, or goes again elsewhere.
    pub fn give_up(&mut self, place: usize) -> Option<Flying> {
        let flying = self.take_off(place)?;
        self.lost += u64::from(flying.bytes);
        Some(flying)
    }

    /// Takes the oldest packet off `flight`: it has arrived, but how long it took is not known yet.
    pub fn land(&mut self) -> Option<Flying> {
        let flying = self.take_off(0)?;
        if self.landed.len() == MOST_LANDED {
            self.landed.pop_front();
        }
        self.landed.push_back(flying);
        Some(flying)
    }

    /// It has run empty: its delays are measured anew.
    pub fn forget_delays(&mut self) {
        self.landed.clear();
        self.queue.forget_base();
        self.rate.forget_shortest();
    }

    /// The packet with this count, if it has landed. Those before it are forgotten.
    pub fn landed(&mut self, count: u32) -> Option<Flying> {
        while let Some(flying) = self.landed.front().copied() {
            let ahead = count.wrapping_sub(flying.count) as i32;
            if ahead < 0 {
                break;
            }
            self.landed.pop_front();
            if ahead == 0 {
                return Some(flying);
            }
        }
        None
    }

    /// The peer says when a packet has come. `all`: the caller has no more for the links than it sent.
    pub fn came(&mut self, now: Instant, heard: &Heard, flying: &Flying, all: bool) {
        self.note_answer(Instant(now.0.saturating_sub(heard.held)), flying.at);
        self.rate.took((now - flying.at).saturating_sub(Duration::from_nanos(heard.held)));
        let behind = self.rate.carries(self.bytes - flying.through);
        let carried = self.queue.came(now, flying.at, Delay(heard.delay), behind);
        self.back = (now.0 - carried.0).max(self.back - self.back / 16);
        let bytes = flying.through.saturating_sub(self.lost);
        let progress = Progress { bytes, carried, left: flying.at, known: now };
        self.rate.arrived(progress, flying.before, all);
    }

    /// The peer has answered a packet that left at `at`, and arrived about at `heard`.
    pub fn note_answer(&mut self, heard: Instant, at: Instant) {
        self.answered = self.answered.max(at);
        self.heard = self.heard.max(heard);
    }

    /// Since when nothing is answered that was put on the link, if its oldest packet left at `oldest` and is not answered.
    pub fn unanswered_since(&self, oldest: Instant) -> Instant {
        if self.unanswered > self.answered { self.unanswered.min(oldest) } else { oldest }
    }

    /// The fate of a packet is known.
    pub fn note_fate(&mut self, lost: bool) {
        self.fates += 1;
        // At first, the mean of all.
        let memory = LOSS_MEMORY.min(self.fates as f64);
        self.loss += (f64::from(u8::from(lost)) - self.loss) / memory;
    }

    /// It is used again: what it lost before does not count.
    pub fn forget_losses(&mut self) {
        (self.loss, self.fates) = (0.0, 0);
    }

    /// When a question is due: whether it works again, or, `if_idle`, whether it has become better while it carried nothing.
    pub fn ask_at(&self, if_idle: bool) -> Option<Instant> {
        let idle = if_idle && self.is_up() && self.flight.is_empty();
        self.health.ask_at().or(idle.then(|| self.latest + ASK_IDLE_EVERY))
    }

    /// The delay of the empty link is unknown.
    pub fn needs_measuring(&self) -> bool {
        self.queue.base().is_none()
    }

    /// Whether another packet would not wait for long behind others.
    pub fn takes_more(&self, now: Instant) -> bool {
        match self.needs_measuring() {
            true => self.flight.len() < MEASURED_BY,
            false => self.queue.wait(now) < LONGEST_WAIT && self.is_heard_of(),
        }
    }

    /// When the link takes several packets again; `None`: when something is heard of it.
    pub fn takes_more_at(&self) -> Option<Instant> {
        (!self.needs_measuring() && self.is_heard_of()).then(|| self.queue.waits_for(WAIT_AGAIN))
    }

    /// When a packet of so many bytes that is put on it now would arrive, ns from now, plus what the clocks differ by: how
    /// links compare. `than`: the delay of another empty link.
    pub fn expected_arrival(&self, now: Instant, bytes: u32, than: Delay) -> i64 {
        let longer = self.queue.base().map_or(0, |base| i64::from(base.longer_than(than)) * 1000);
        (self.queue.wait(now) + self.rate.carries(u64::from(bytes))) as i64 + longer
    }

    /// Whether what is on the way is what a link that works may have: no more than waits for it, and than it carries until
    /// that is known.
    fn is_heard_of(&self) -> bool {
        self.rate.carries(self.in_flight) < LONGEST_WAIT + self.back + LATE_ANSWER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_without_answers_take_no_memory() {
        let mut link = Link::new(1);
        (0..1000).for_each(|n| _ = link.put(Instant(n), None, 0));
        assert_eq!(link.flight.len(), MOST_QUESTIONS);
        assert!(link.has_put(999) && !link.has_put(1000));
    }
}
