//! Which link a packet is put on.

use super::health::Rank;
use super::link::Link;
use super::queue::Delay;
use crate::Instant;
use std::cmp::Ordering;

/// Packets that leave together leave on one link, if no other brings them earlier by this, in nanoseconds: for each link
/// that a burst uses, the sender makes a system call, and so does the receiver.
const TOGETHER: i64 = 2000;

/// How links are chosen (thesis 2.5.2, but the last).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scheduler {
    /// One packet on each link in turn (SRR).
    RoundRobin,
    /// As many packets as its weight on each link in turn (WSRR).
    WeightedRoundRobin,
    /// The link with the fewest bytes for its weight (WD).
    Dynamic,
    /// The link on which the packet is expected to arrive first, by measured rates and delays.
    #[default]
    Auto,
}

impl Scheduler {
    /// All of them.
    pub const ALL: [Scheduler; 4] =
        [Scheduler::RoundRobin, Scheduler::WeightedRoundRobin, Scheduler::Dynamic, Scheduler::Auto];
}

/// A scheduler and what it remembers.
#[derive(Debug)]
pub(super) struct Schedule {
    scheduler: Scheduler,
    /// The link that has its turn, and the packets that it has had in this turn.
    turn: (usize, u32),
    /// The link that was chosen last, and when.
    latest: Option<(Instant, usize)>,
}

impl Schedule {
    pub fn new(scheduler: Scheduler) -> Schedule {
        Schedule { scheduler, turn: (0, 0), latest: None }
    }

    /// Whether the scheduler uses what is measured.
    pub fn measures(&self) -> bool {
        self.scheduler == Scheduler::Auto
    }

    /// Whether a link takes a packet.
    pub fn may_choose(&self, now: Instant, links: &[Link]) -> bool {
        match self.scheduler {
            // One that works and takes a packet is as good as any.
            Scheduler::Auto if links.iter().any(|link| link.is_up() && !link.draining && link.takes_more(now)) => true,
            Scheduler::Auto => earliest(now, links, 0, [None; 2]).is_some(),
            _ => links.iter().any(|link| link.health.rank() > Rank::Down),
        }
    }

    /// When a link takes several packets again, if that is a matter of time.
    pub fn may_choose_at(&self, links: &[Link]) -> Option<Instant> {
        let is_candidate = candidates(links, None);
        let candidates = links.iter().enumerate().filter(|(n, link)| self.measures() && is_candidate(*n, link));
        candidates.filter_map(|(_, link)| link.takes_more_at()).min()
    }

    /// The link for a packet of so many bytes; `None`: no link takes one. If possible, it is another than `not`.
    pub fn choose(&mut self, now: Instant, links: &[Link], bytes: u32, not: Option<usize>) -> Option<usize> {
        if self.measures() {
            let with = self.latest.and_then(|(at, n)| (at == now).then_some(n));
            let chosen = earliest(now, links, bytes, [not, with]);
            self.latest = chosen.map(|n| (now, n));
            return chosen;
        }
        let is_candidate = candidates(links, not);
        let mut candidates = links.iter().enumerate().filter(|(n, link)| is_candidate(*n, link));
        match self.scheduler {
            Scheduler::RoundRobin => self.next_in_turn(links, candidates.map(|(n, _)| n), |_| 1),
            Scheduler::WeightedRoundRobin => self.next_in_turn(links, candidates.map(|(n, _)| n), |link| link.weight),
            Scheduler::Dynamic | Scheduler::Auto => {
                let share = |link: &Link| link.scheduled as f64 / f64::from(link.weight);
                least(&mut candidates, share)
            }
        }
    }

    fn next_in_turn(
        &mut self,
        links: &[Link],
        candidates: impl Iterator<Item = usize>,
        packets: impl Fn(&Link) -> u32,
    ) -> Option<usize> {
        let (turn, had) = self.turn;
        let (mut first, mut next) = (None, None);
        for n in candidates {
            first = first.or(Some(n));
            // The link that has its turn, or the first one after it.
            if next.is_none() && (n > turn || n == turn && had < packets(&links[n])) {
                next = Some(n);
            }
        }
        let chosen = next.or(first)?;
        // The turn of a single link goes round.
        self.turn = if chosen == turn && had < packets(&links[chosen]) { (turn, had + 1) } else { (chosen, 1) };
        Some(chosen)
    }
}

/// Which links may be chosen: the best, and of these, if possible, not `not`, and none that runs empty.
fn candidates(links: &[Link], not: Option<usize>) -> impl Fn(usize, &Link) -> bool {
    let best = links.iter().map(|link| link.health.rank()).max().unwrap_or(Rank::Down);
    let is_usable = move |link: &Link| best > Rank::Down && link.health.rank() == best;
    let is_preferred = move |n: usize, link: &Link| is_usable(link) && Some(n) != not && !link.draining;
    let some = links.iter().enumerate().any(|(n, link)| is_preferred(n, link));
    move |n, link| if some { is_preferred(n, link) } else { is_usable(link) }
}

/// The link on which a packet of so many bytes is expected to arrive first, of those that may be chosen and take a packet:
/// another than `not` if possible, and `with`, which others leave on at this moment, if that is not later by [`TOGETHER`].
fn earliest(now: Instant, links: &[Link], bytes: u32, [not, with]: [Option<usize>; 2]) -> Option<usize> {
    let than = links.iter().find_map(|link| link.queue.base()).unwrap_or(Delay(0));
    // One turn for all: this is done for each packet. The best kind of links so far, and the best link of that kind.
    let mut kind = (Rank::Down, false);
    let mut best: Option<(i64, usize)> = None;
    for (n, link) in links.iter().enumerate() {
        let its = (link.health.rank(), Some(n) != not && !link.draining);
        if its.0 == Rank::Down || its < kind {
            continue;
        }
        if its > kind {
            (kind, best) = (its, None);
        }
        if link.takes_more(now) {
            let together = if Some(n) == with { TOGETHER } else { 0 };
            let arrival = link.expected_arrival(now, bytes, than) - together;
            if best.is_none_or(|(earliest, _)| arrival < earliest) {
                best = Some((arrival, n));
            }
        }
    }
    best.map(|(_, n)| n)
}

fn least(candidates: &mut dyn Iterator<Item = (usize, &Link)>, cost: impl Fn(&Link) -> f64) -> Option<usize> {
    let costs = candidates.map(|(n, link)| (n, cost(link)));
    costs.min_by(|a, b| a.1.partial_cmp(&b.1).unwrap_or(Ordering::Equal)).map(|(n, _)| n)
}

#[cfg(test)]
mod tests {
    use super::super::health::Cause;
    use super::*;
    use crate::Instant;

    fn chosen(scheduler: Scheduler, links: &mut [Link], packets: usize) -> Vec<usize> {
        let mut schedule = Schedule::new(scheduler);
        let mut all = vec![];
        for _ in 0..packets {
            let n = schedule.choose(Instant(0), links, 1000, None).unwrap();
            links[n].put(Instant(0), None, 1000);
            all.push(n);
        }
        all
    }

    fn links(weights: &[u32]) -> Vec<Link> {
        weights.iter().map(|weight| Link::new(*weight)).collect()
    }

    #[test]
    fn round_robin_ignores_weights_and_links_that_do_not_work() {
        let mut three = links(&[1, 5, 2]);
        assert_eq!(chosen(Scheduler::RoundRobin, &mut three, 7), [0, 1, 2, 0, 1, 2, 0]);
        three[1].health.suspect(Instant(0), Cause::Silent);
        assert_eq!(chosen(Scheduler::RoundRobin, &mut three, 5), [0, 2, 0, 2, 0]);
        three[0].health.set_down();
        assert_eq!(chosen(Scheduler::RoundRobin, &mut three, 2), [2, 2]);
        three[2].health.suspect(Instant(0), Cause::Silent);
        assert_eq!(chosen(Scheduler::RoundRobin, &mut three, 3), [1, 2, 1], "suspect ones are better than none");
        (1..3).for_each(|n| three[n].health.set_down());
        assert_eq!(Schedule::new(Scheduler::RoundRobin).choose(Instant(0), &three, 1, None), None);
    }

    #[test]
    fn weighted_round_robin_gives_each_link_its_packets() {
        let mut three = links(&[3, 1, 2]);
        assert_eq!(chosen(Scheduler::WeightedRoundRobin, &mut three, 9), [0, 0, 0, 1, 2, 2, 0, 0, 0]);
        assert_eq!(chosen(Scheduler::WeightedRoundRobin, &mut links(&[2]), 5), [0; 5]);
    }

    #[test]
    fn by_bytes_and_by_arrival_the_links_share_by_their_rates() {
        for scheduler in [Scheduler::Dynamic, Scheduler::Auto] {
            let mut five = links(&[10, 1, 1, 1, 1]);
            let carried = |link: &mut Link| link.queue.came(Instant(0), Instant(0), Delay(0), 0);
            five.iter_mut().for_each(|link| _ = carried(link));
            let all = chosen(scheduler, &mut five, 1400);
            let share = |n: usize| all.iter().filter(|chosen| **chosen == n).count();
            assert!((990..=1010).contains(&share(0)), "{scheduler:?}: {}", share(0));
            assert!((1..5).all(|n| (95..=105).contains(&share(n))));
        }
    }

    #[test]
    fn small_packets_that_leave_together_share_a_link() {
        let mut two = links(&[1, 1]);
        two.iter_mut().for_each(|link| _ = link.queue.came(Instant(0), Instant(0), Delay(0), 0));
        let mut schedule = Schedule::new(Scheduler::Auto);
        let mut next = |now: u64, bytes: u32| {
            let n = schedule.choose(Instant(now), &two, bytes, None).unwrap();
            two[n].put(Instant(now), None, bytes);
            n
        };
        let first = next(0, 100);
        assert_eq!(next(0, 50), first, "in one system call");
        assert_ne!(next(1, 50), first, "later, the other one is earlier");
        assert_eq!([next(90_000, 9000), next(90_000, 9000)], [first, 1 - first], "each needs its time");
    }

    #[test]
    fn a_link_can_be_avoided() {
        let two = links(&[10, 1]);
        for scheduler in Scheduler::ALL {
            let mut schedule = Schedule::new(scheduler);
            assert_eq!(schedule.choose(Instant(0), &two, 1, Some(0)), Some(1), "{scheduler:?}");
            assert_eq!(schedule.choose(Instant(0), &two[..1], 1, Some(0)), Some(0), "but not if it is the only one");
        }
    }
}
