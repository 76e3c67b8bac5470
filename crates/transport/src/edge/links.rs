//! The links of a connection together: which one a packet is put on, what has become of what is on them, and which work.

use super::health::{Cause, Rank};
use super::link::{Flying, Link};
use super::parameters::Parameters;
use super::scheduler::{Schedule, Scheduler};
use crate::Instant;
use std::collections::VecDeque;
use std::time::Duration;
use weir_wire::edge::{Heard, Seq};

/// A link that loses this share of its packets is lossy, if another loses less than a quarter of that.
const LOSSY: f64 = 0.1;
/// So many packets show what a link loses.
const LOSSY_AFTER: u64 = 32;
/// A link that has brought an answer is taken to work for so long.
const WORKS_FOR: Duration = Duration::from_millis(50);
/// A link is silent, and a packet on it lost, after so many times of its usual round trip.
const SILENT_AFTER: u32 = 4;

/// All links.
#[derive(Debug)]
pub(super) struct Links {
    all: Vec<Link>,
    schedule: Schedule,
    parameters: Parameters,
    /// The links, as bits, on which the peer is to be asked because it says nothing.
    to_ask: u64,
    /// Packets that are lost, or were on a link that is not used any more.
    lost: VecDeque<Lost>,
}

/// Where a packet was put that is lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub seq: Seq,
    pub put: Put,
}

/// A place on a link, and since when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Put {
    pub link: usize,
    pub count: u32,
    pub at: Instant,
}

/// What the sender knows of its packets.
pub(super) trait Packets {
    /// Whether a packet has arrived.
    fn has_arrived(&self, seq: Seq) -> bool;

    /// Whether a packet was put on one link only, so that its arrival says something of the link.
    fn was_put_once(&self, seq: Seq) -> bool;
}

impl Links {
    pub fn new(parameters: Parameters, scheduler: Scheduler, weights: &[u32]) -> Links {
        Links {
            all: weights.iter().map(|weight| Link::new(*weight)).collect(),
            schedule: Schedule::new(scheduler),
            parameters,
            to_ask: 0,
            lost: VecDeque::new(),
        }
    }

    pub fn all(&self) -> &[Link] {
        &self.all
    }

    /// Whether the scheduler uses what is measured.
    pub fn measures(&self) -> bool {
        self.schedule.measures()
    }

    /// Whether a link takes a packet.
    pub fn take_more(&self, now: Instant) -> bool {
        self.schedule.may_choose(now, &self.all)
    }

    /// When a link takes packets again, if that is a matter of time.
    pub fn take_more_at(&self) -> Option<Instant> {
        self.schedule.may_choose_at(&self.all)
    }

    /// The link for a packet; `None`: none takes one. If possible, it is another than `not`.
    pub fn choose(&mut self, now: Instant, bytes: u32, not: Option<usize>) -> Option<usize> {
        let chosen = self.schedule.choose(now, &self.all, bytes, not)?;
        if !self.measures() || !self.all[chosen].queue.base_is_old(now) {
            return Some(chosen);
        }
        if self.all[chosen].flight.is_empty() {
            self.all[chosen].forget_delays();
            return Some(chosen);
        }
        let used = self.all.iter().filter(|link| link.is_up()).count();
        if used < 2 || self.all.iter().any(|link| link.draining) {
            return Some(chosen);
        }
        self.all[chosen].draining = true;
        let other = self.schedule.choose(now, &self.all, bytes, not);
        // The caller has asked whether a link takes a packet. If this is the only one, it runs empty another time.
        self.all[chosen].draining = other.is_some();
        other.or(Some(chosen))
    }

    /// Puts a packet on a link, or a question; returns its place, and whether the peer is to answer at once.
    pub fn put(&mut self, now: Instant, link: usize, seq: Option<Seq>, bytes: u32) -> (Put, bool) {
        let asks = seq.is_none() || self.measures() && self.all[link].needs_measuring();
        (Put { link, count: self.all[link].put(now, seq, bytes), at: now }, asks)
    }

    /// The packets on a link that have been on it for so long, and their places.
    pub fn put_by(&self, link: usize, now: Instant, time: Duration) -> impl Iterator<Item = (Seq, Put)> + '_ {
        let old = self.all[link].flight.iter().take_while(move |flying| flying.at + time <= now);
        old.filter_map(move |flying| Some((flying.seq?, Put { link, count: flying.count, at: flying.at })))
    }

    /// A packet that was put on this link only has arrived.
    pub fn arrived(&mut self, put: Put) {
        self.all[put.link].note_answer(Instant(0), put.at);
    }

    /// The peer has heard a packet on a link, and what was put on it before. `all`: the caller has no more for the links
    /// than it sent.
    pub fn hear(&mut self, now: Instant, heard: &Heard, packets: &impl Packets, all: bool) {
        let n = usize::from(heard.link);
        if n >= self.all.len() || !self.all[n].has_put(heard.newest) {
            return;
        }
        if let Some(flying) = self.all[n].landed(heard.newest) {
            self.all[n].came(now, heard, &flying, all);
        }
        let mut place = 0;
        while let Some(flying) = self.all[n].flight.get(place).copied() {
            let ahead = heard.newest.wrapping_sub(flying.count) as i32;
            if ahead < 0 {
                break;
            }
            let arrived = ahead == 0 || flying.seq.is_some_and(|seq| packets.has_arrived(seq));
            if !arrived && flying.seq.is_some() && ahead <= self.parameters.reordering as i32 {
                place += 1; // It may come yet.
                continue;
            }
            let link = &mut self.all[n];
            if ahead == 0 {
                // Before it is taken off: if it was the last, its delay is forgotten as the others are.
                link.came(now, heard, &flying, all);
            }
            if arrived {
                link.take_off(place)
            } else {
                link.give_up(place)
            };
            match (flying.seq, arrived) {
                (None, true) => self.question_answered(now, n),
                (None, false) => self.all[n].health.not_answered(),
                (Some(seq), false) => self.note_lost(n, &flying, seq),
                (Some(seq), true) if ahead == 0 || packets.was_put_once(seq) => self.all[n].note_fate(false),
                (Some(_), true) => {}
            }
        }
    }

    /// Takes what has arrived off the front of each link.
    pub fn land(&mut self, packets: &impl Packets) {
        for n in 0..self.all.len() {
            while let Some(flying) = self.all[n].flight.front().copied() {
                let Some(seq) = flying.seq.filter(|seq| packets.has_arrived(*seq)) else { break };
                self.all[n].land();
                if packets.was_put_once(seq) {
                    self.all[n].note_fate(false);
                }
            }
        }
    }

    /// Makes a link suspect that loses much more than another.
    pub fn judge_losses(&mut self, now: Instant) {
        let works = |link: &&Link| link.is_up() && now - link.heard < WORKS_FOR;
        let least = self.all.iter().filter(works).map(|link| link.loss().0).fold(f64::INFINITY, f64::min);
        for n in 0..self.all.len() {
            let (loss, of) = self.all[n].loss();
            if self.all[n].is_up() && of >= LOSSY_AFTER && loss > LOSSY && loss > 4.0 * least {
                self.suspect(now, n, Cause::Lossy);
            }
        }
    }

    /// When `handle_timeout` is to be called, or a question is due. `if_busy`: the connection has packets on the way;
    /// `if_idle`: links that carry nothing are to be asked.
    pub fn poll_timeout(&self, if_busy: bool, if_idle: bool) -> Option<Instant> {
        let overdue = (0..self.all.len()).filter_map(|n| self.overdue_at(n)).map(|(at, _)| at);
        let asks = self.all.iter().filter_map(|link| link.ask_at(if_idle)).filter(|_| if_busy);
        overdue.chain(asks).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        for n in 0..self.all.len() {
            while let Some((_, silent)) = self.overdue_at(n).filter(|(at, _)| *at <= now) {
                if silent {
                    self.suspect(now, n, Cause::Silent);
                } else if let Some(flying) = self.all[n].give_up(0)
                    && let Some(seq) = flying.seq
                {
                    self.note_lost(n, &flying, seq);
                }
            }
        }
    }

    /// The peer says nothing: it is to be asked on all links.
    pub fn ask_all(&mut self) {
        self.to_ask = (0..self.all.len()).fold(0, |to_ask, n| to_ask | 1 << n);
    }

    /// The next link on which the peer is to be asked.
    pub fn question(&mut self, now: Instant, if_busy: bool, if_idle: bool) -> Option<usize> {
        let is_due = |link: &Link| link.ask_at(if_idle).is_some_and(|at| at <= now);
        let due = self.all.iter().position(is_due).filter(|_| if_busy);
        let mut asked = || {
            while self.to_ask != 0 {
                let n = self.to_ask.trailing_zeros() as usize;
                self.to_ask &= self.to_ask - 1;
                if self.all[n].health.rank() > Rank::Down {
                    return Some(n);
                }
            }
            None
        };
        let n = due.or_else(&mut asked)?;
        self.all[n].health.asked(now);
        Some(n)
    }

    /// The interface of a link is up, or down.
    pub fn set_link(&mut self, now: Instant, n: usize, up: bool) {
        let is_down = self.all[n].health.rank() == Rank::Down;
        if up && is_down {
            self.all[n].health.suspect(now, Cause::WasDown);
        } else if !up && !is_down {
            self.all[n].health.set_down();
            self.recall(n);
        }
    }

    /// The shortest usual round trip of other links that are used.
    pub fn round_trip_of_others(&self, n: usize) -> Option<Duration> {
        self.others(n).filter(|link| link.is_up()).filter_map(|link| link.rate.round_trip()).min()
    }

    /// The next packet that is lost.
    pub fn poll_lost(&mut self) -> Option<Lost> {
        self.lost.pop_front()
    }

    /// When something of a used link is overdue, and what that means. `true`: the link is silent, because nothing has been
    /// answered that was put on it since, but something on another link. `false`: its oldest packet is lost.
    fn overdue_at(&self, n: usize) -> Option<(Instant, bool)> {
        let link = &self.all[n];
        let oldest = link.flight.front().filter(|_| link.is_up())?.at;
        let usual = link.rate.round_trip().unwrap_or_default() * SILENT_AFTER + 2 * self.parameters.ack_delay;
        let patience = usual.max(self.parameters.silence);
        if link.answered > oldest {
            return Some((oldest + patience, false));
        }
        // The oldest packet may be young, because those before it went again on other links.
        let since = link.unanswered_since(oldest);
        self.others(n).any(|other| other.answered > since).then_some((since + patience, true))
    }

    fn suspect(&mut self, now: Instant, n: usize, cause: Cause) {
        self.all[n].health.suspect(now, cause);
        self.recall(n);
    }

    /// What is on a link goes again.
    fn recall(&mut self, n: usize) {
        while let Some(flying) = self.all[n].give_up(0) {
            if let Some(seq) = flying.seq {
                self.goes_again(n, &flying, seq);
            }
        }
    }

    fn question_answered(&mut self, now: Instant, n: usize) {
        if self.all[n].is_up() {
            if self.all[n].flight.is_empty() {
                self.all[n].rate.try_more();
            }
            return;
        }
        self.all[n].health.answered(now);
        if self.all[n].is_up() {
            // It has no share to make up for.
            let used = self.others(n).filter(|link| link.is_up());
            let share = used.map(|link| link.scheduled / u64::from(link.weight)).max().unwrap_or(0);
            let link = &mut self.all[n];
            link.scheduled = link.scheduled.max(share.saturating_mul(link.weight.into()));
            link.forget_losses();
        }
        // While no link works, packets are put on those that do not: now there is a better one.
        let best = self.all[n].health.rank();
        for other in 0..self.all.len() {
            if self.all[other].health.rank() < best && self.all[other].flight.iter().any(|flying| flying.seq.is_some())
            {
                self.recall(other);
            }
        }
    }

    fn note_lost(&mut self, n: usize, flying: &Flying, seq: Seq) {
        self.all[n].note_fate(true);
        self.goes_again(n, flying, seq);
    }

    fn goes_again(&mut self, n: usize, flying: &Flying, seq: Seq) {
        self.lost.push_back(Lost { seq, put: Put { link: n, count: flying.count, at: flying.at } });
    }

    fn others(&self, n: usize) -> impl Iterator<Item = &Link> {
        self.all.iter().enumerate().filter(move |(other, _)| *other != n).map(|(_, link)| link)
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::Delay;
    use super::*;

    #[test]
    fn a_link_that_takes_a_packet_is_chosen_although_it_is_to_run_empty() {
        let mut links = Links::new(Parameters::TUNED, Scheduler::Auto, &[1, 1]);
        for n in 0..2 {
            links.all[n].queue.came(Instant(1), Instant(0), Delay(40), 0);
        }
        let now = Instant(0) + Duration::from_secs(6);
        let mut seq = Seq(0);
        let mut put = |links: &mut Links, link| {
            links.put(now, link, Some(seq), 1500);
            seq = seq.next();
        };
        put(&mut links, 0);
        while links.all[1].takes_more(now) {
            put(&mut links, 1);
        }
        assert!(links.take_more(now) && links.all[0].queue.base_is_old(now));
        assert_eq!(links.choose(now, 1500, None), Some(0));
        assert!(!links.all[0].draining, "it runs empty another time");
    }

    #[test]
    fn a_link_is_not_silent_for_what_it_lost_before_it_was_idle() {
        struct All;
        impl Packets for All {
            fn has_arrived(&self, _: Seq) -> bool {
                true
            }
            fn was_put_once(&self, _: Seq) -> bool {
                false
            }
        }
        let at = |ms: u64| Instant(ms * 1_000_000);
        let mut links = Links::new(Parameters::TUNED, Scheduler::Auto, &[1, 1]);
        links.put(at(1), 1, Some(Seq(0)), 1500);
        // It has gone again on the other link, which the peer answers.
        let (put, _) = links.put(at(2), 0, Some(Seq(0)), 1500);
        links.land(&All);
        links.arrived(put);
        links.put(at(1000), 1, Some(Seq(1)), 1500);
        links.handle_timeout(at(1000));
        assert!(links.all[1].is_up());
        let (put, _) = links.put(at(1001), 0, Some(Seq(2)), 1500);
        links.arrived(put);
        links.handle_timeout(at(1009));
        assert!(links.all[1].is_up(), "it may still answer");
        links.handle_timeout(at(1012));
        assert!(!links.all[1].is_up());
    }
}
