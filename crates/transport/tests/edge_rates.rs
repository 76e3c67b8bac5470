//! How much of its links a connection uses, and what it does when links fail, in virtual time.

use std::time::Duration;
use weir_transport::Instant;
use weir_transport::edge::{Order, Parameters, Scheduler};
use weir_transport::testing::{EdgePair, Line};

fn ms(ms: u64) -> Instant {
    Instant(ms * 1_000_000)
}

/// One link of 10 Gbit/s and four of 1 Gbit/s.
fn mixed() -> Vec<Line> {
    [vec![Line::gigabits(10.0)], vec![Line::gigabits(1.0); 4]].concat()
}

/// What the thesis has for its schedulers, and our default for ours.
fn parameters(scheduler: Scheduler) -> Parameters {
    if scheduler == Scheduler::Auto { Parameters::TUNED } else { Parameters::MULTIEDGE }
}

/// Sends packets of so many bytes for about 0.1 s, which is a part of the links' nominal rate.
fn share(lines: &[Line], weights: &[u32], scheduler: Scheduler, bytes: u32) -> f64 {
    let nominal: f64 = lines.iter().map(|line| line.rate / 8.0).sum();
    let count = (nominal * 0.1 / f64::from(bytes)) as usize;
    let mut pair = EdgePair::new(lines, weights, parameters(scheduler), scheduler, 1);
    pair.sides[0].packets = vec![(bytes, Order::Any); count];
    assert!(pair.run(ms(60_000)));
    assert_eq!(pair.sides[0].again, 0, "nothing was lost");
    let last = pair.sides[1].performed.last().expect("there are packets").1;
    count as f64 * f64::from(bytes) / (last - Instant(0)).as_secs_f64() / nominal
}

#[test]
fn all_links_are_used_whatever_their_weights() {
    for bytes in [1500, 9000] {
        for links in [1, 2, 4, 6, 8, 64] {
            let share = share(&vec![Line::gigabits(1.0); links], &vec![1; links], Scheduler::Auto, bytes);
            assert!(share > 0.99, "{links} links, {bytes} bytes: {share}");
        }
        for weights in [[10, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 10, 3, 5, 1]] {
            let auto = share(&mixed(), &weights, Scheduler::Auto, bytes);
            assert!(auto > 0.99, "{weights:?}, {bytes} bytes: {auto}");
        }
    }
}

/// Thesis, figure 3.5: with weights, one link of 10 Gbit/s and four of 1 Gbit/s are used; SRR is far behind.
#[test]
fn weights_matter_to_the_schedulers_of_the_thesis() {
    let of = |scheduler, weights: [u32; 5]| share(&mixed(), &weights, scheduler, 9000);
    for scheduler in [Scheduler::WeightedRoundRobin, Scheduler::Dynamic] {
        assert!(of(scheduler, [10, 1, 1, 1, 1]) > 0.98, "{scheduler:?}");
        assert!(of(scheduler, [1; 5]) < 0.4, "{scheduler:?}, wrong weights");
    }
    assert!(of(Scheduler::RoundRobin, [10, 1, 1, 1, 1]) < 0.4);
}

/// What is seen of a link that is bad from 100 to 300 ms; all carry as much as they can.
struct Seen {
    /// What it carried of all bytes: from 50 ms after it became bad until it was good again, and in the last 200 ms.
    shares: [f64; 2],
    /// Gbit/s of all links in these times.
    rates: [f64; 2],
    /// The longest time without an arrival.
    stall: Duration,
}

fn one_of_four(bad: Line, scheduler: Scheduler, bytes: u32) -> Seen {
    let good = Line::gigabits(1.0);
    let mut pair = EdgePair::new(&[good; 4], &[1; 4], parameters(scheduler), scheduler, 1);
    pair.sides[0].packets = vec![(bytes, Order::Any); 500_000_000 / bytes as usize];
    let (mut shares, mut rates) = (vec![], vec![]);
    let (mut put, mut performed) = (vec![0; 4], 0);
    for (from, until, line) in [(0, 100, good), (100, 150, bad), (150, 300, bad), (300, 450, good), (450, 650, good)] {
        pair.lines()[1] = line;
        pair.run(ms(until));
        let more: Vec<u64> = pair.sides[0].put.iter().zip(&put).map(|(now, before)| now - before).collect();
        shares.push(more[1] as f64 / more.iter().sum::<u64>() as f64);
        put = pair.sides[0].put.clone();
        let now = pair.sides[1].performed.len();
        rates.push((now - performed) as f64 * f64::from(bytes) * 8.0 / 1e6 / (until - from) as f64);
        performed = now;
    }
    assert!(pair.sides[0].sent < pair.sides[0].packets.len(), "there is always more to send");
    let times: Vec<Instant> = pair.sides[1].performed.iter().map(|(_, at)| *at).collect();
    let stall = times.windows(2).map(|pair| pair[1] - pair[0]).max().expect("there are packets");
    Seen { shares: [shares[2], shares[4]], rates: [rates[2], rates[4]], stall }
}

/// Within 50 ms a link that is dead or lossy has lost its share, the others carry on, and it is used again later.
#[test]
fn a_link_that_fails_loses_its_share_and_comes_back() {
    let good = Line::gigabits(1.0);
    for bad in [Line { loss: 1.0, ..good }, Line { loss: 0.3, ..good }] {
        for scheduler in Scheduler::ALL {
            for bytes in [1500, 9000] {
                let Seen { shares, rates, stall } = one_of_four(bad, scheduler, bytes);
                let case = format!("{bad:?}, {scheduler:?}, {bytes} bytes: {shares:?} {rates:?} {stall:?}");
                assert!(shares[0] < 0.02 && rates[0] > 2.9, "{case}");
                assert!(shares[1] > 0.24 && rates[1] > 3.8, "{case}");
                assert!(stall < Duration::from_millis(50), "{case}");
            }
        }
    }
}

/// A slow link gets what it carries, which the schedulers of the thesis cannot know.
#[test]
fn a_link_that_becomes_slow_gets_what_it_carries() {
    let good = Line::gigabits(1.0);
    for (rate, least) in [(1e9 / 20.0, 2.7), (1e9 / 3.0, 3.2)] {
        for bytes in [1500, 9000] {
            let bad = Line { rate, ..good };
            let Seen { shares, rates, stall } = one_of_four(bad, Scheduler::Auto, bytes);
            let case = format!("{rate}, {bytes} bytes: {shares:?} {rates:?} {stall:?}");
            assert!((shares[0] - rate / (3e9 + rate)).abs() < 0.01 && rates[0] > least, "{case}");
            assert!(shares[1] > 0.24 && rates[1] > 3.9, "{case}");
            assert!(stall < Duration::from_millis(20), "{case}");
            let weighted = one_of_four(bad, Scheduler::Dynamic, bytes);
            assert!(weighted.rates[0] < 0.6 * rates[0], "{case}: WD carries {}", weighted.rates[0]);
        }
    }
}

/// The delay of a link grows to 20 ms: the others carry most of what they can.
#[test]
fn a_link_that_becomes_long_does_not_hold_up_the_others_for_long() {
    let bad = Line { delay: Duration::from_millis(20), ..Line::gigabits(1.0) };
    let Seen { shares, rates, stall } = one_of_four(bad, Scheduler::Auto, 9000);
    assert!(rates[0] > 2.5 && rates[1] > 3.9, "{rates:?}");
    assert!(shares[1] > 0.24 && stall < Duration::from_millis(20), "{shares:?} {stall:?}");
}

/// What was on dead links does not go to other dead links, and one that is lossy is better than none.
#[test]
fn several_links_fail_at_once() {
    let good = Line::gigabits(1.0);
    let (dead, lossy) = (Line { loss: 1.0, ..good }, Line { loss: 0.3, ..good });
    for (bad, least) in [(vec![dead, dead], 1.9), (vec![dead, lossy], 1.9), (vec![dead, dead, dead, lossy], 0.1)] {
        for scheduler in Scheduler::ALL {
            for bytes in [1500, 9000] {
                let mut pair = EdgePair::new(&[good; 4], &[1; 4], parameters(scheduler), scheduler, 1);
                pair.sides[0].packets = vec![(bytes, Order::Any); 300_000_000 / bytes as usize];
                // The first is the last to fail.
                for (n, line) in bad.iter().enumerate() {
                    pair.run(ms(50 + 3 * n as u64));
                    pair.lines()[(n + 1) % 4] = *line;
                }
                pair.run(ms(150));
                let before = pair.sides[1].performed.len();
                pair.run(ms(350));
                let rate = (pair.sides[1].performed.len() - before) as f64 * f64::from(bytes) * 8.0 / 0.2e9;
                assert!(rate > least, "{bad:?}, {scheduler:?}, {bytes} bytes: {rate}");
                pair.lines().iter_mut().for_each(|line| *line = good);
                assert!(pair.run(ms(20_000)), "{bad:?}, {scheduler:?}, {bytes} bytes");
            }
        }
    }
}

/// A link that comes back is not given up again, and those that were always good are never.
#[test]
fn links_do_not_flap() {
    let good = Line::gigabits(1.0);
    let mut pair = EdgePair::new(&[good; 4], &[1; 4], Parameters::TUNED, Scheduler::Auto, 1);
    pair.sides[0].packets = vec![(9000, Order::Any); 100_000];
    let (mut was, mut changes) = ([true; 4], [0; 4]);
    for t in 0..1000 {
        pair.lines()[1].loss = if (100..300).contains(&t) { 1.0 } else { 0.0 };
        pair.run(ms(t + 1));
        for (n, link) in pair.sides[0].connection.links().enumerate() {
            changes[n] += u32::from(link.is_up != was[n]);
            was[n] = link.is_up;
        }
    }
    assert_eq!(changes, [0, 2, 0, 0]);
}

/// Now and then a link runs empty, so that its delay is measured anew: one at a time.
#[test]
fn links_stay_full_for_long() {
    let mut pair = EdgePair::new(&[Line::gigabits(0.2); 4], &[1; 4], Parameters::TUNED, Scheduler::Auto, 1);
    pair.sides[0].packets = vec![(9000, Order::Any); 140_000];
    assert!(pair.run(ms(60_000)));
    let last = pair.sides[1].performed.last().expect("there are packets").1;
    let share = 140_000.0 * 9000.0 * 8.0 / 0.8e9 / (last - Instant(0)).as_secs_f64();
    assert!(last > ms(12_000) && share > 0.99, "{last:?}: {share}");
}

/// Nothing comes back on a link: acknowledgements of sparse packets go on another, too.
#[test]
fn a_link_may_work_in_one_direction() {
    let one_way = Line { deaf: Some(0), ..Line::gigabits(1.0) };
    let lines = [one_way, Line::gigabits(1.0)];
    let mut pair = EdgePair::new(&lines, &[1; 2], Parameters::TUNED, Scheduler::Auto, 1);
    for n in 0..100 {
        pair.sides[0].packets.push((100, Order::Any));
        pair.run(ms(3 * n));
    }
    assert!(pair.run(ms(10_000)));
    assert!(pair.sides[0].again < 5, "{} went again", pair.sides[0].again);
}

/// A packet every 10 ms: it is late when its link has failed, but by no more than the coarse timeout and some delay.
#[test]
fn sparse_packets_arrive_although_links_fail() {
    for dead in [vec![0], vec![1, 2], vec![0, 1, 3]] {
        let good = Line::gigabits(1.0);
        let mut pair = EdgePair::new(&[good; 4], &[1; 4], Parameters::TUNED, Scheduler::Auto, 1);
        for n in 0..100 {
            if n == 20 {
                dead.iter().for_each(|link| pair.lines()[*link].loss = 1.0);
            }
            pair.sides[0].packets.push((100, Order::Any));
            pair.run(ms(10 * n));
        }
        assert!(pair.run(ms(10_000)));
        let late = pair.sides[1].performed.iter().map(|(packet, at)| *at - ms(10 * u64::from(*packet))).max();
        assert!(late.is_some_and(|late| late < Duration::from_millis(50)), "{dead:?}: {late:?}");
    }
}

/// While no link works, nothing is lost; when one works again, everything arrives.
#[test]
fn nothing_is_lost_while_no_link_works() {
    for scheduler in Scheduler::ALL {
        let good = Line::gigabits(1.0);
        let mut pair = EdgePair::new(&[good; 3], &[1; 3], parameters(scheduler), scheduler, 1);
        pair.sides[0].packets = vec![(1500, Order::Any); 50_000];
        pair.run(ms(20));
        pair.lines().iter_mut().for_each(|line| line.loss = 1.0);
        pair.run(ms(520));
        let before = pair.sides[1].performed.len();
        assert!(before < 25_000);
        pair.lines()[2].loss = 0.0;
        assert!(pair.run(ms(20_000)), "{scheduler:?}");
        assert_eq!(pair.sides[1].performed.len(), 50_000);
        let next = pair.sides[1].performed[before].1;
        assert!(next < ms(520 + 200), "{scheduler:?}: {next:?}");
    }
}

/// What the kernel says of an interface counts at once.
#[test]
fn an_interface_that_is_down_is_not_used() {
    let good = Line::gigabits(1.0);
    let mut pair = EdgePair::new(&[good; 2], &[1; 2], Parameters::TUNED, Scheduler::Auto, 1);
    pair.sides[0].packets = vec![(1500, Order::Any); 50_000];
    pair.run(ms(50));
    pair.lines()[0].loss = 1.0;
    let now = pair.now;
    pair.sides[0].connection.set_link(now, 0, false);
    let put = pair.sides[0].put[0];
    pair.run(ms(150));
    assert_eq!(pair.sides[0].put[0], put, "not even a question");
    pair.lines()[0].loss = 0.0;
    let now = pair.now;
    pair.sides[0].connection.set_link(now, 0, true);
    pair.run(ms(250));
    assert!(pair.sides[0].put[0] - put > 5_000_000, "it carries its share again");
    let stall = pair.sides[1].performed.windows(2).map(|pair| pair[1].1 - pair[0].1).max();
    assert!(stall < Some(Duration::from_millis(5)), "{stall:?}");
}

/// Both sides have more to send than the links carry, one of them later: its acknowledgements wait behind packets of the
/// other direction, which says nothing of the links in its own.
#[test]
fn both_directions_are_full() {
    for bytes in [1500, 9000] {
        for lines in [vec![Line::gigabits(1.0)], vec![Line::gigabits(1.0); 4], mixed()] {
            let weights = vec![1; lines.len()];
            let mut pair = EdgePair::new(&lines, &weights, Parameters::TUNED, Scheduler::Auto, 1);
            let nominal: f64 = lines.iter().map(|line| line.rate / 8.0).sum();
            let count = (nominal * 0.3 / f64::from(bytes)) as usize;
            pair.sides[0].packets = vec![(bytes, Order::Any); count];
            pair.run(ms(20));
            pair.sides[1].packets = vec![(bytes, Order::Any); count];
            pair.run(ms(100));
            let before = [0, 1].map(|n| pair.sides[n].performed.len());
            pair.run(ms(200));
            for (n, before) in before.into_iter().enumerate() {
                let packets = pair.sides[n].performed.len() - before;
                let share = packets as f64 * f64::from(bytes) / nominal / 0.1;
                assert!(share > 0.98, "{} links, {bytes} bytes, side {n}: {share}", lines.len());
            }
        }
    }
}

/// A window that is full of packets of a silent link goes on by sending them again elsewhere. That is no answer of the link.
#[test]
fn a_silent_link_loses_its_share_although_the_window_is_full() {
    for window in [64, 128, 256, 512, 1024, 2048] {
        for seed in 0..20 {
            let good = Line::gigabits(1.0);
            let parameters = Parameters { window, ..Parameters::TUNED };
            let mut pair = EdgePair::new(&[good; 2], &[1; 2], parameters, Scheduler::Auto, seed);
            pair.sides[0].packets = vec![(1500, Order::Any); 60_000];
            // At another place of each window.
            let fails = Instant(100_000_000 + seed * 317_000);
            pair.run(fails);
            pair.lines()[1] = Line { loss: 1.0, ..good };
            pair.run(fails + Duration::from_millis(50));
            let (put, arrived) = (pair.sides[0].put.clone(), pair.sides[1].performed.len());
            pair.run(fails + Duration::from_millis(150));
            let share = (pair.sides[0].put[1] - put[1]) as f64 / (pair.sides[0].put[0] - put[0]) as f64;
            let rate = (pair.sides[1].performed.len() - arrived) as f64 * 1500.0 * 8.0 / 1e8;
            assert!(share < 0.02 && rate > 0.9, "window {window} seed {seed}: {share} of the packets, rate {rate}");
        }
    }
}
