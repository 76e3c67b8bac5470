//! Connections over several links in virtual time: each packet is performed once, in the order that it asks for, over 1
//! to 64 links of different rates, delays and losses.

use std::time::Duration;
use weir_transport::Instant;
use weir_transport::edge::{Order, Parameters, Scheduler, Seq};
use weir_transport::testing::{EdgePair, Line, Rng};

fn seconds(seconds: f64) -> Instant {
    Instant(0) + Duration::from_secs_f64(seconds)
}

/// Random packets; each may wait for an earlier one, or for all before an earlier one.
fn packets(rng: &mut Rng, first: Seq, count: u32) -> Vec<(u32, Order)> {
    let order = |rng: &mut Rng, n: u32| {
        let earlier = first.plus(n - 1 - rng.below(u64::from(n.min(600))) as u32);
        match rng.below(4) {
            0 => Order::AfterOne(earlier),
            1 if rng.chance(0.2) => Order::AfterAll(earlier),
            _ => Order::Any,
        }
    };
    (0..count).map(|n| (64 + rng.below(9000) as u32, if n == 0 { Order::Any } else { order(rng, n) })).collect()
}

/// Each packet was performed once, and after those that it waits for.
fn check_orders(pair: &EdgePair, n: usize, seed: u64) {
    let packets = &pair.sides[n].packets;
    let performed = &pair.sides[1 - n].performed;
    let mut place = vec![usize::MAX; packets.len()];
    for (at, (packet, _)) in performed.iter().enumerate() {
        assert_eq!(place[*packet as usize], usize::MAX, "seed {seed}: packet {packet} was performed twice");
        place[*packet as usize] = at;
    }
    assert_eq!(performed.len(), packets.len(), "seed {seed}");
    let mut arrived = pair.sides[n].arrived.clone();
    arrived.sort_unstable();
    assert!(arrived.iter().copied().eq(0..packets.len() as u32), "seed {seed}: each content comes back once");
    // The last place of all packets up to each one.
    let latest: Vec<usize> = place
        .iter()
        .scan(0, |latest, place| {
            *latest = *place.max(latest);
            Some(*latest)
        })
        .collect();
    for (packet, (_, order)) in packets.iter().enumerate() {
        let index = |seq: Seq| seq.since(EdgePair::FIRST[n]) as usize;
        match *order {
            Order::Any => {}
            Order::AfterOne(other) => assert!(place[index(other)] < place[packet], "seed {seed}: packet {packet}"),
            Order::AfterAll(other) => assert!(latest[index(other)] < place[packet], "seed {seed}: packet {packet}"),
        }
    }
}

/// The thesis' numbers (2.1.2): 48 packets are acknowledged together, and a loss is reported after 256 packets or 5 ms.
#[test]
fn acknowledgements_are_delayed_as_the_parameters_say() {
    let count = 100_000;
    let mut pair = EdgePair::new(&[Line::gigabits(1.0)], &[1], Parameters::MULTIEDGE, Scheduler::RoundRobin, 1);
    pair.sides[0].packets = vec![(1500, Order::Any); count];
    assert!(pair.run(seconds(10.0)));
    // The last may wait for its time.
    assert_eq!(pair.sides[1].acks, count.div_ceil(48));
    assert_eq!(pair.sides[0].again, 0);
    // The first packet is lost, and others follow every 15 µs: its loss is told after 256 of them; if they are few, after
    // 5 ms.
    for (after, told) in [(1000, 256 * 15), (100, 15 + 5000)] {
        let mut pair = EdgePair::new(&[Line::gigabits(1.0)], &[1], Parameters::MULTIEDGE, Scheduler::RoundRobin, 1);
        pair.lines()[0].loss = 1.0;
        for n in 0..=after {
            pair.sides[0].packets.push((1500, Order::Any));
            pair.run(Instant(15_000 * (n + 1)));
            pair.lines()[0].loss = 0.0;
        }
        assert!(pair.run(seconds(10.0)));
        assert_eq!(pair.sides[0].again, 1);
        let at = pair.sides[1].performed.iter().find(|(packet, _)| *packet == 0).expect("it went again").1;
        let expected = Duration::from_micros(told)..Duration::from_micros(told + 150);
        assert!(expected.contains(&(at - Instant(0))), "{after}: {at:?}");
    }
}

/// Traffic in both directions acknowledges itself.
#[test]
fn acknowledgements_go_with_packets_that_have_room() {
    let mut pair = EdgePair::new(&[Line::gigabits(1.0)], &[1], Parameters::MULTIEDGE, Scheduler::RoundRobin, 1);
    for n in 0..1000 {
        (0..2).for_each(|side| pair.sides[side].packets.push((1500, Order::Any)));
        pair.run(seconds(n as f64 * 50e-6));
    }
    assert!(pair.run(seconds(10.0)));
    let alone = pair.sides[0].acks + pair.sides[1].acks;
    assert!(alone <= 4, "{alone} acknowledgements left alone");
}

/// Without others on its way, a packet takes as long on several links as on one.
#[test]
fn latency_does_not_depend_on_the_number_of_links() {
    let arrival = |links: usize| {
        let mut pair =
            EdgePair::new(&vec![Line::gigabits(1.0); links], &vec![1; links], Parameters::TUNED, Scheduler::Auto, 1);
        for n in 0..100 {
            pair.sides[0].packets.push((72, Order::Any));
            pair.run(Instant((n + 1) * 50_000));
        }
        pair.sides[1].performed.iter().map(|(packet, at)| at.0 - u64::from(*packet) * 50_000).max()
    };
    assert_eq!(arrival(2), arrival(1));
    assert_eq!(arrival(8), arrival(1));
}

#[test]
fn each_packet_is_performed_once_and_in_its_order() {
    for seed in 0..400 {
        let mut rng = Rng(seed);
        let lines = Line::random(&mut rng, (7.0, 300), (3.0, 450), 200);
        let weights: Vec<u32> = lines.iter().map(|_| 1 + rng.below(10) as u32).collect();
        let parameters = [Parameters::MULTIEDGE, Parameters::TUNED][rng.below(2) as usize];
        let parameters = Parameters { window: [16, 512, 1000][rng.below(3) as usize], ..parameters };
        let mut pair = EdgePair::new(&lines, &weights, parameters, Scheduler::ALL[rng.below(4) as usize], seed);
        for n in 0..2 {
            let count = rng.below(1500) as u32;
            pair.sides[n].packets = packets(&mut rng, EdgePair::FIRST[n], count);
        }
        assert!(pair.run(seconds(300.0)), "seed {seed}: not done, {lines:?}");
        (0..2).for_each(|n| check_orders(&pair, n, seed));
    }
}
