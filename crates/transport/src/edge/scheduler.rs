//! Which link a packet is put on.

use super::health::Rank;
use super::link::Link;
use std::cmp::Ordering;

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
}

impl Schedule {
    pub fn new(scheduler: Scheduler) -> Schedule {
        Schedule { scheduler, turn: (0, 0) }
    }

    /// Whether the scheduler uses what is measured.
    pub fn measures(&self) -> bool {
        self.scheduler == Scheduler::Auto
    }

    /// Whether a link takes a packet.
    pub fn may_choose(&self, links: &[Link]) -> bool {
        let is_candidate = candidates(links, None);
        links.iter().enumerate().any(|(n, link)| is_candidate(n, link) && (!self.measures() || link.takes_more()))
    }

    /// The link for a packet of so many bytes; `None`: no link takes one. If possible, it is another than `not`.
    pub fn choose(&mut self, links: &[Link], bytes: u32, not: Option<usize>) -> Option<usize> {
        let is_candidate = candidates(links, not);
        let mut candidates = links.iter().enumerate().filter(|(n, link)| is_candidate(*n, link));
        match self.scheduler {
            Scheduler::RoundRobin => self.next_in_turn(links, candidates.map(|(n, _)| n), |_| 1),
            Scheduler::WeightedRoundRobin => self.next_in_turn(links, candidates.map(|(n, _)| n), |link| link.weight),
            Scheduler::Dynamic => {
                let share = |link: &Link| link.scheduled as f64 / f64::from(link.weight);
                least(&mut candidates, share)
            }
            Scheduler::Auto => {
                let mut candidates = candidates.filter(|(_, link)| link.takes_more());
                least(&mut candidates, |link| link.expected_arrival(bytes))
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

fn least(candidates: &mut dyn Iterator<Item = (usize, &Link)>, cost: impl Fn(&Link) -> f64) -> Option<usize> {
    let costs = candidates.map(|(n, link)| (n, cost(link)));
    costs.min_by(|a, b| a.1.partial_cmp(&b.1).unwrap_or(Ordering::Equal)).map(|(n, _)| n)
}

#[cfg(test)]
mod tests {
    use super::super::health::Cause;
    use super::*;
    use crate::Instant;
    use std::time::Duration;

    fn chosen(scheduler: Scheduler, links: &mut [Link], packets: usize) -> Vec<usize> {
        let mut schedule = Schedule::new(scheduler);
        let mut all = vec![];
        for _ in 0..packets {
            let n = schedule.choose(links, 1000, None).unwrap();
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
        assert_eq!(Schedule::new(Scheduler::RoundRobin).choose(&three, 1, None), None);
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
            five.iter_mut().for_each(|link| link.rate.took(Instant(0), Duration::ZERO));
            let all = chosen(scheduler, &mut five, 1400);
            let share = |n: usize| all.iter().filter(|chosen| **chosen == n).count();
            assert!((990..=1010).contains(&share(0)), "{scheduler:?}: {}", share(0));
            assert!((1..5).all(|n| (95..=105).contains(&share(n))));
        }
    }

    #[test]
    fn a_link_can_be_avoided() {
        let two = links(&[10, 1]);
        for scheduler in Scheduler::ALL {
            let mut schedule = Schedule::new(scheduler);
            assert_eq!(schedule.choose(&two, 1, Some(0)), Some(1), "{scheduler:?}");
            assert_eq!(schedule.choose(&two[..1], 1, Some(0)), Some(0), "but not if it is the only one");
        }
    }
}
