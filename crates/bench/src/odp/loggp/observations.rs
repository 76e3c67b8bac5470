//! What the paper says of the model, beside the figures: which equations fit this adapter, and what they miss.

use super::super::observation::{Observation, cell};
use super::lines::Costs;
use super::model::{Parameters, Scenario};
use super::results::{Comparison, Results};
use crate::table::Spread;

/// An equation fits if the measured times are this much of what it predicts, by the median over the sizes.
const FITS: std::ops::RangeInclusive<f64> = 0.8..=1.25;

impl Results {
    /// All observations, each from the figures.
    pub fn observations(&self) -> Vec<Observation> {
        let mut all = vec![
            self.posts(),
            self.pinned(),
            self.completion(),
            self.faults_add_up(),
            self.receivers_faults(),
            self.overlapped_prefetch(),
            self.invalidated(),
            self.prefetched_again(),
            self.put(),
            self.synchronised_put(),
        ];
        all.extend([self.asynchronous(), self.again(), self.registration(), self.eager(), self.losses()]);
        all
    }

    fn posts(&self) -> Observation {
        let post = median(self.overall(|c| c.post));
        let half = median(self.overall(|c| c.half));
        let share = post.zip(half).map(|(post, half)| 2.0 * post / half);
        Observation {
            paper: "A control message costs o_post at its sender and at its receiver, and l between them.",
            here: format!(
                "two o_post are {} µs, half a round trip of a control message takes {} µs: {}",
                cell(post.map(|post| 2.0 * post)),
                cell(half),
                match share {
                    Some(share) if share > 1.0 =>
                        "no time would be left for l. So l is what follows one o_post, and has the receive; 2 of the \
                         6 o_post of (1) to (4) are counted twice",
                    Some(_) => "l has the receive too, so 2 of the 6 o_post of (1) to (4) are counted twice",
                    None => "unknown",
                }
            ),
            holds: share.map(|share| share <= 1.0),
        }
    }

    fn pinned(&self) -> Observation {
        self.equation(Scenario::Pinned, "Equation (1) is the time of the rendezvous with pinned memory.", None)
    }

    fn completion(&self) -> Observation {
        let smallest = self.sizes.keys().next().copied();
        let rest = smallest.and_then(|bytes| {
            let comparison = self.comparison(Scenario::Pinned, bytes)?;
            let half = self.sizes[&bytes].spread(|c| c.half)?.median;
            Some((comparison.measured.median - comparison.predicted, half))
        });
        Observation {
            paper: "(1) ends when the finish message has left; the sender does not wait for its completion.",
            here: format!(
                "measured is until the completion, which needs an ACK. At {} it takes {} µs {} than (1): {} round trips \
                 of a control message",
                smallest.map_or("–".into(), size),
                cell(rest.map(|(rest, _)| rest.abs())),
                if rest.is_some_and(|(rest, _)| rest < 0.0) { "less" } else { "more" },
                cell(rest.map(|(rest, half)| rest.abs() / (2.0 * half)))
            ),
            // An ACK takes a round trip at most.
            holds: rest.map(|(rest, half)| rest.abs() <= 2.0 * half),
        }
    }

    /// Whether an equation fits, and further text.
    fn equation(&self, scenario: Scenario, paper: &'static str, more: Option<String>) -> Observation {
        let comparisons = self.comparisons(scenario);
        let ratio = Spread::of(&comparisons.values().map(|c| c.ratio).collect::<Vec<_>>());
        let ends = comparisons.first_key_value().zip(comparisons.last_key_value());
        let end =
            |(bytes, comparison): (&u64, &Comparison)| format!("{} at {}", cell(Some(comparison.ratio)), size(*bytes));
        let here = ends.map_or("no figures".into(), |(first, last)| {
            format!(
                "measured is {} of predicted (median over the sizes): {}, {}",
                cell(median(ratio)),
                end(first),
                end(last)
            )
        });
        let here = more.map_or(here.clone(), |more| format!("{here}; {more}"));
        Observation { paper, here, holds: ratio.map(|ratio| FITS.contains(&ratio.median)) }
    }

    fn faults_add_up(&self) -> Observation {
        // What a message takes beside a message without faults, of what the faults of single WRITEs take.
        let share = self.over_sizes(|bytes| {
            let costs = self.parameters(Scenario::NoPrefetch, bytes)?;
            let extra = self.measured(Scenario::NoPrefetch, bytes)? - self.without_faults(bytes)?;
            Some(extra / (costs.fault_sender + costs.fault_receiver))
        });
        let more = format!(
            "beside a message with pinned memory, registrations aside, it takes {} of o_page_fault_s + o_page_fault_r: {}",
            cell(share),
            match share {
                Some(share) if share < 0.8 => "the faults of both sides overlap",
                Some(share) if share > 1.25 => "it has costs beside those of the faults of single WRITEs",
                Some(_) => "they add up",
                None => "unknown",
            }
        );
        let paper = "Equation (2): without prefetch, the faults of both sides add to the time.";
        self.equation(Scenario::NoPrefetch, paper, Some(more))
    }

    fn receivers_faults(&self) -> Observation {
        let ratio = self.over_sizes(|bytes| {
            let costs = self.parameters(Scenario::NoPrefetch, bytes)?;
            Some(costs.fault_receiver / costs.fault_sender).filter(|_| costs.fault_sender > 0.0)
        });
        Observation {
            paper: "o_page_fault_r is not o_page_fault_s: a fault at the receiver costs more.",
            here: format!(
                "o_page_fault_r is {} of o_page_fault_s (median over the sizes); the receiver's pages are absent, the \
                 sender's are filled",
                cell(ratio)
            ),
            holds: ratio.map(|ratio| ratio > 1.0),
        }
    }

    fn overlapped_prefetch(&self) -> Observation {
        let removed = self.over_sizes(|bytes| {
            let slow = self.measured(Scenario::NoPrefetch, bytes)?;
            let extra = slow - self.without_faults(bytes)?;
            Some((slow - self.measured(Scenario::Prefetch, bytes)?) / extra).filter(|_| extra > 0.0)
        });
        let time = self.ratio(Scenario::Prefetch, Scenario::NoPrefetch);
        let available = self.sizes.keys().next().and_then(|&bytes| self.parameters(Scenario::Prefetch, bytes));
        let longest = self.sizes.values().next_back().and_then(|size| median(size.spread(|c| c.flush_absent)));
        Observation {
            paper: "Prefetches behind the control messages can remove all the cost of ODP.",
            here: format!(
                "a message takes {} of the time without prefetch, which is {} of the cost of the faults (medians over \
                 the sizes), and has {} page faults instead of {}; two control messages and reg take {} µs, a \
                 prefetch of the largest message {} µs",
                cell(time),
                cell(removed),
                count(self.faults_of(Scenario::Prefetch)),
                count(self.faults_of(Scenario::NoPrefetch)),
                cell(available.map(|p| p.within_computation())),
                cell(longest)
            ),
            holds: removed.map(|removed| removed >= 0.8),
        }
    }

    fn invalidated(&self) -> Observation {
        let hidden = self.over_sizes(|bytes| {
            let costs = self.parameters(Scenario::Invalidated, bytes)?;
            Some(costs.within_computation())
        });
        let rest = self.ratio_with(Scenario::Invalidated, |costs, predicted, _| predicted - costs.within_computation());
        let more = format!(
            "the computation hides 3 o_post, 2 l and a reg of it, {} µs; of the rest, measured is {}",
            cell(hidden),
            cell(rest)
        );
        let paper = "Equation (3): if computation invalidates the prefetched pages, o_prefetch and both faults add up.";
        self.equation(Scenario::Invalidated, paper, Some(more))
    }

    fn prefetched_again(&self) -> Observation {
        let without = self.ratio_with(Scenario::PrefetchedAgain, |costs, predicted, _| predicted - costs.prefetch);
        let more = format!(
            "without the second o_prefetch, which the wait for the reply hides, measured is {} of it; {} page faults",
            cell(without),
            count(self.faults_of(Scenario::PrefetchedAgain))
        );
        let paper = "Equation (4): a second prefetch, while the reply is awaited, removes the faults.";
        self.equation(Scenario::PrefetchedAgain, paper, Some(more))
    }

    fn put(&self) -> Observation {
        let other = self.ratio_with(Scenario::Put, |costs, _, bytes| {
            costs.put_present(bytes) + costs.prefetch + costs.fault_receiver
        });
        let more = format!(
            "with the target's fault in place of the origin's, which the prefetch prevents, and with l, measured is {} \
             of predicted",
            cell(other)
        );
        let paper = "Equation (5): Put takes o_post + m_data·G + o_prefetch + o_page_fault_s.";
        self.equation(Scenario::Put, paper, Some(more))
    }

    fn synchronised_put(&self) -> Observation {
        let more = format!(
            "it takes {} of the time of Put with (5), with {} page faults instead of {}",
            cell(self.ratio(Scenario::PutSynchronised, Scenario::Put)),
            count(self.faults_of(Scenario::PutSynchronised)),
            count(self.faults_of(Scenario::Put))
        );
        let paper = "With prefetches in the synchronisation, Put takes o_post + m_data·G + l, as with pinned memory.";
        self.equation(Scenario::PutSynchronised, paper, Some(more))
    }

    fn asynchronous(&self) -> Observation {
        let share = self.over_costs(|c| c.prefetch_absent / c.flush_absent);
        Observation {
            paper: "A prefetch is asynchronous: the call takes less time than the pages.",
            here: format!(
                "the call takes {} of the time of a call that waits for absent pages (median over the sizes){}",
                cell(share),
                match share {
                    Some(share) if share > 0.5 => "; the thread that brings them in has the core of the program",
                    _ => "",
                }
            ),
            holds: share.map(|share| share <= 0.5),
        }
    }

    fn again(&self) -> Observation {
        let share = self.over_costs(|c| c.prefetch_again / c.prefetch_present);
        let cost = median(self.overall(|c| c.prefetch_again));
        Observation {
            paper: "A prefetch of pages that are already present is light.",
            here: format!(
                "it takes {} µs, {} of a prefetch of filled pages (median over the sizes)",
                cell(cost),
                cell(share)
            ),
            holds: share.map(|share| share <= 0.5),
        }
    }

    fn registration(&self) -> Observation {
        let at = |size: Option<(&u64, &super::results::Size)>, of: fn(&Costs) -> f64| {
            size.and_then(|(_, size)| median(size.spread(of)))
        };
        let (first, last) = (self.sizes.first_key_value(), self.sizes.last_key_value());
        let cheaper = self
            .sizes
            .values()
            .filter_map(|size| Some(size.spread(|c| c.reg_odp)?.median < size.spread(|c| c.reg_present)?.median));
        let cheaper: Vec<bool> = cheaper.collect();
        let fewer = cheaper.iter().filter(|&&cheaper| cheaper).count();
        Observation {
            paper: "On-demand registration removes the cost of pinning.",
            here: format!(
                "reg is {} to {} µs on demand and {} to {} µs pinned with present pages, from the smallest size to the \
                 largest; on demand is less at {fewer} of {} sizes",
                cell(at(first, |c| c.reg_odp)),
                cell(at(last, |c| c.reg_odp)),
                cell(at(first, |c| c.reg_present)),
                cell(at(last, |c| c.reg_present)),
                cheaper.len()
            ),
            holds: (!cheaper.is_empty()).then_some(fewer == cheaper.len()),
        }
    }

    fn eager(&self) -> Observation {
        let smallest = self.eager.first_key_value();
        let prefetch = smallest.and_then(|(_, eager)| median(Spread::of(&eager.prefetch)));
        let half = median(self.overall(|c| c.half));
        Observation {
            paper: "A bounce buffer on demand is not worth its prefetch: 5 µs where 64 bytes take 2 µs.",
            here: format!(
                "o_prefetch of {} is {} µs, a control message takes {} µs",
                smallest.map_or("–".into(), |(bytes, _)| size(*bytes)),
                cell(prefetch),
                cell(half)
            ),
            holds: prefetch.zip(half).map(|(prefetch, half)| prefetch > half),
        }
    }

    fn losses(&self) -> Observation {
        let (lost, messages) = (self.lost(), self.messages());
        let sizes: Vec<String> = lost.keys().map(|&bytes| size(bytes)).collect();
        Observation {
            paper: "The model has no losses: no message waits for an ACK timeout.",
            here: format!(
                "{} of {messages} messages took the ACK timeout of {} s or longer{}",
                lost.values().sum::<usize>(),
                cell(Some(self.timeout / 1e6)),
                if sizes.is_empty() {
                    String::new()
                } else {
                    format!(", those of {}: they lost a packet, for which no equation has a term", sizes.join(", "))
                }
            ),
            holds: (messages > 0).then_some(lost.is_empty()),
        }
    }

    fn measured(&self, scenario: Scenario, bytes: u64) -> Option<f64> {
        median(self.sizes.get(&bytes)?.measured(scenario))
    }

    /// A message with pinned memory, with the registrations of ODP in place of its own.
    fn without_faults(&self, bytes: u64) -> Option<f64> {
        let (pinned, odp) = (self.parameters(Scenario::Pinned, bytes)?, self.parameters(Scenario::NoPrefetch, bytes)?);
        Some(self.measured(Scenario::Pinned, bytes)? - 2.0 * pinned.reg + 2.0 * odp.reg)
    }

    /// The measured times of a scenario by those of another, median over the sizes.
    fn ratio(&self, scenario: Scenario, other: Scenario) -> Option<f64> {
        self.over_sizes(|bytes| Some(self.measured(scenario, bytes)? / self.measured(other, bytes)?))
    }

    /// The measured times by another prediction, which takes parameters, the equation's prediction and bytes.
    fn ratio_with(&self, scenario: Scenario, other: impl Fn(&Parameters, f64, f64) -> f64) -> Option<f64> {
        self.over_sizes(|bytes| {
            let comparison = self.comparison(scenario, bytes)?;
            let predicted = other(&self.parameters(scenario, bytes)?, comparison.predicted, bytes as f64);
            Some(comparison.measured.median / predicted).filter(|_| predicted > 0.0)
        })
    }

    fn over_sizes(&self, of: impl Fn(u64) -> Option<f64>) -> Option<f64> {
        median(Spread::of(&self.sizes.keys().filter_map(|&bytes| of(bytes)).collect::<Vec<_>>()))
    }

    fn over_costs(&self, of: impl Fn(&Costs) -> f64) -> Option<f64> {
        self.over_sizes(|bytes| median(self.sizes[&bytes].spread(&of)))
    }

    /// Page faults of both sides.
    fn faults_of(&self, scenario: Scenario) -> Option<u64> {
        let [sender, receiver] = *self.faults.get(&scenario)?;
        Some(sender? + receiver?)
    }
}

fn median(spread: Option<Spread>) -> Option<f64> {
    spread.map(|spread| spread.median)
}

fn count(faults: Option<u64>) -> String {
    faults.map_or("–".into(), |faults| faults.to_string())
}

/// A size as programs print it.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::testing::{COSTS, results};
    use super::*;

    #[test]
    fn equations_that_fit_hold_and_no_other() {
        let fits = results(COSTS, |_| 1.1);
        let doubled = results(COSTS, |_| 2.2);
        for observe in [Results::pinned, Results::faults_add_up, Results::invalidated, Results::put] {
            assert_eq!(observe(&fits).holds, Some(true), "{:?}", observe(&fits));
            assert_eq!(observe(&doubled).holds, Some(false), "{:?}", observe(&doubled));
        }
        assert!(fits.pinned().here.contains("1.10 at 64 KiB, 1.10 at 1 MiB"), "{:?}", fits.pinned());
    }

    #[test]
    fn faults_that_take_less_than_their_sum_overlap() {
        let here =
            |factor| results(COSTS, |s| if s == Scenario::NoPrefetch { factor } else { 1.0 }).faults_add_up().here;
        assert!(here(1.0).contains("1.00 of o_page_fault_s + o_page_fault_r: they add up"), "{}", here(1.0));
        assert!(here(0.7).contains("overlap"), "{}", here(0.7));
        assert!(here(2.0).contains("costs beside"), "{}", here(2.0));
    }

    #[test]
    fn a_prefetch_that_takes_as_long_as_no_prefetch_removes_nothing() {
        let fits = results(COSTS, |_| 1.0);
        assert_eq!(fits.overlapped_prefetch().holds, Some(true));
        assert!(
            fits.overlapped_prefetch().here.contains("0 page faults instead of 200"),
            "{:?}",
            fits.overlapped_prefetch()
        );
        let slow = results(COSTS, |scenario| if scenario == Scenario::Prefetch { 9.0 } else { 1.0 });
        assert_eq!(slow.overlapped_prefetch().holds, Some(false));
    }

    #[test]
    fn posts_that_exceed_half_a_round_trip_leave_nothing_for_l() {
        assert_eq!(results(COSTS, |_| 1.0).posts().holds, Some(true));
        let posts = results(Costs { post: 3.0, ..COSTS }, |_| 1.0).posts();
        assert!(posts.holds == Some(false) && posts.here.contains("no time would be left"), "{posts:?}");
    }

    #[test]
    fn single_costs_decide_their_observations() {
        let fits = results(COSTS, |_| 1.0);
        let all =
            [Results::receivers_faults, Results::asynchronous, Results::again, Results::registration, Results::eager];
        assert!(all.iter().all(|observe| observe(&fits).holds == Some(true)));
        let costs = Costs {
            write_receiver: 120.0,
            prefetch_absent: 30.0,
            prefetch_again: 4.0,
            reg_odp: 500.0,
            half: 9.0,
            ..COSTS
        };
        let other = results(costs, |_| 1.0);
        assert!(
            all.iter().all(|observe| observe(&other).holds == Some(false)),
            "{:?}",
            all.map(|observe| observe(&other))
        );
    }

    #[test]
    fn the_completion_may_take_a_round_trip_more() {
        // Half a round trip takes 4 µs; 1 % more than 160 µs are within it, 10 % are not.
        assert_eq!(results(COSTS, |_| 1.01).completion().holds, Some(true));
        assert_eq!(results(COSTS, |_| 1.1).completion().holds, Some(false));
        let less = results(COSTS, |_| 0.5).completion();
        assert!(less.here.contains("µs less than (1)"), "{less:?}");
    }

    #[test]
    fn messages_that_take_an_ack_timeout_have_lost_a_packet() {
        assert_eq!(results(COSTS, |_| 1.0).losses().holds, Some(true));
        let losses = results(COSTS, |scenario| if scenario == Scenario::Put { 1e4 } else { 1.0 }).losses();
        assert!(
            losses
                .here
                .starts_with("2 of 14 messages took the ACK timeout of 1.00 s or longer, those of 64 KiB, 1 MiB"),
            "{losses:?}"
        );
        assert_eq!(losses.holds, Some(false));
    }

    #[test]
    fn missing_figures_decide_nothing() {
        assert!(Results::default().observations().iter().all(|observation| observation.holds.is_none()));
    }

    #[test]
    fn sizes_have_their_unit() {
        assert_eq!([64, 65536, 4 << 20].map(size), ["64 B", "64 KiB", "4 MiB"]);
    }
}
