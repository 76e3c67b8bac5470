//! A link as its sender knows it: what is on the way, how fast it is, and whether it works.

use super::health::{Health, Rank};
use super::rate::{Progress, Rate};
use crate::Instant;
use std::collections::VecDeque;
use std::time::Duration;
use weir_wire::edge::Seq;

/// What is lost is a running mean over about so many packets.
const LOSS_MEMORY: f64 = 32.0;
/// Bytes per second of a link of weight 1, until its rate is measured: 1 Gbit/s.
const UNIT: f64 = 125e6;
/// The most packets on a link while its shortest round trip is measured: they do not wait behind others for long.
const MEASURED_BY: usize = 4;
/// A packet does not wait for longer on a link, s, but at the caller. It must be longer than a sender sleeps.
const LONGEST_QUEUE: f64 = 0.003;
/// While the caller has more than the links take, a link that carries nothing is asked so often whether it has become
/// better.
const ASK_IDLE_EVERY: Duration = Duration::from_millis(20);
/// Questions beyond these are forgotten, oldest first, if none is answered.
const MOST_QUESTIONS: usize = 8;

/// A link of a connection.
#[derive(Debug)]
pub(super) struct Link {
    pub weight: u32,
    pub health: Health,
    pub rate: Rate,
    /// What was put on it and not heard of, oldest first.
    pub flight: VecDeque<Flying>,
    /// When the newest packet left that the peer has answered, and when a packet arrived at the peer last, as far as it is
    /// known.
    pub answered: Instant,
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
    /// Bytes of `flight`.
    in_flight: u64,
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
    pub before: Progress,
}

impl Link {
    pub fn new(weight: u32) -> Link {
        let weight = weight.max(1);
        Link {
            weight,
            health: Health::new(),
            rate: Rate::new(f64::from(weight) * UNIT),
            flight: VecDeque::new(),
            answered: Instant(0),
            heard: Instant(0),
            bytes: 0,
            scheduled: 0,
            draining: false,
            count: 0,
            latest: Instant(0),
            in_flight: 0,
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
            self.flight.pop_front();
        }
        let count = self.count;
        self.count = count.wrapping_add(1);
        self.latest = now;
        let before = self.rate.leaves(now, self.flight.is_empty());
        self.flight.push_back(Flying { count, seq, bytes, at: now, before });
        self.in_flight += u64::from(bytes);
        self.bytes += u64::from(bytes);
        self.scheduled += u64::from(bytes);
        count
    }

    /// Whether a packet with this count was put on the link.
    pub fn has_put(&self, count: u32) -> bool {
        self.count.wrapping_sub(count) as i32 >= 1
    }

    /// When a packet that is on its way was put on the link.
    pub fn put_at(&self, count: u32) -> Option<Instant> {
        let first = self.flight.front()?.count;
        let place = self.flight.partition_point(|flying| flying.count.wrapping_sub(first) < count.wrapping_sub(first));
        self.flight.get(place).filter(|flying| flying.count == count).map(|flying| flying.at)
    }

    /// Takes a packet off `flight`.
    pub fn take_off(&mut self, place: usize) -> Option<Flying> {
        let flying = self.flight.remove(place)?;
        self.in_flight -= u64::from(flying.bytes);
        if self.flight.is_empty() && std::mem::take(&mut self.draining) {
            self.rate.forget_base();
        }
        Some(flying)
    }

    /// The peer has answered a packet that left at `at`, and arrived about at `heard`.
    pub fn note_answer(&mut self, heard: Instant, at: Instant) {
        self.answered = self.answered.max(at);
        self.heard = self.heard.max(heard);
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

    /// Its shortest round trip is unknown.
    pub fn needs_measuring(&self) -> bool {
        self.rate.base().is_none()
    }

    /// Whether another packet would not wait for long behind others.
    pub fn takes_more(&self) -> bool {
        let few = self.flight.len() < MEASURED_BY;
        few || !self.needs_measuring() && self.queue() < LONGEST_QUEUE
    }

    /// When a packet of so many bytes that is put on it now would arrive, s from now: how links compare, not a promise.
    pub fn expected_arrival(&self, bytes: u32) -> f64 {
        let base = self.rate.base().unwrap_or_default().as_secs_f64();
        self.queue() + f64::from(bytes) / self.rate.bytes_per_second() + base / 2.0
    }

    /// How long a packet waits behind others, s.
    fn queue(&self) -> f64 {
        let base = self.rate.base().unwrap_or_default().as_secs_f64();
        // What is on the way for no longer than the shortest round trip does not wait.
        (self.in_flight as f64 / self.rate.bytes_per_second() - base).max(0.0)
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

    #[test]
    fn a_packet_is_found_although_others_have_left() {
        let mut link = Link::new(1);
        link.count = u32::MAX - 2;
        let counts: Vec<u32> = (0..6).map(|n| link.put(Instant(n), Some(Seq(0)), 10)).collect();
        link.take_off(1);
        link.take_off(2);
        let found: Vec<_> = counts.iter().map(|count| link.put_at(*count).map(|at| at.0)).collect();
        assert_eq!(found, [Some(0), None, Some(2), None, Some(4), Some(5)]);
        assert_eq!(link.in_flight, 40);
    }
}
