//! Bundles of two processes in virtual time.

use super::world::{CONTROL, MS, Machine, PORT, World, now, number, packet};
use super::*;
use std::time::Duration;
use weir_wire::edge::Front;

#[test]
fn each_qp_gets_its_packets_in_order_over_all_links() {
    let seed = getrandom::u64().unwrap();
    println!("seed {seed}");
    for loss in [0, 20] {
        let mut world = World::new([&[1, 2, 3], &[3, 1, 2]], seed);
        world.line(2, (1e9, 300_000, loss));
        world.machines[0].send(&[vec![CONTROL; 40]]);
        world.run(Duration::from_millis(2));
        let mut sent = 0;
        for _ in 0..100 {
            let packets: Vec<_> = (sent..sent + 40).map(|n| packet(n % 3, n, 1000 + (n as usize / 7) % 2)).collect();
            sent += 40;
            world.machines[0].send(&packets);
            world.machines[1].send(&[packet(9, sent, 20)]);
            world.run(Duration::from_micros(130));
        }
        world.run(Duration::from_millis(200));
        let got = &world.machines[1].got;
        assert_eq!(got[0], [CONTROL; 40]);
        let mut of: [Vec<u32>; 3] = Default::default();
        for got in &got[1..] {
            let (qpn, n) = number(got);
            assert_eq!(*got, packet(qpn, n, 1000 + (n as usize / 7) % 2));
            of[qpn as usize].push(n);
        }
        for (qpn, of) in of.iter().enumerate() {
            assert!(of.iter().copied().eq((0..sent).filter(|n| n % 3 == qpn as u32)), "loss {loss}: {of:?}");
        }
        assert_eq!(world.machines[0].got.len(), 100);
        let [a, b, c] = [1, 2, 3].map(|network| world.put(network));
        assert!(a > 500 && b > 300 && c > 500, "all links carry packets: {a} {b} {c}");
    }
}

#[test]
fn two_sides_that_begin_at_once_lose_nothing() {
    for wait in [0, 5, 15, 25, 35, 45, 60, 100] {
        let mut world = World::new([&[1, 2], &[1, 2]], 1);
        world.machines[0].send(&[vec![CONTROL; 40]]);
        world.run(Duration::from_micros(wait));
        world.machines[1].send(&[vec![CONTROL; 40]]);
        for n in 0..300 {
            world.machines.iter_mut().for_each(|machine| machine.send(&[packet(5, n, 100)]));
            world.run(Duration::from_micros(7));
        }
        world.run(Duration::from_millis(50));
        for machine in &world.machines {
            let of_qps: Vec<_> = machine.got.iter().filter(|got| got[0] == 4).map(|got| number(got).1).collect();
            assert_eq!(of_qps.len(), 300, "{wait} µs apart");
        }
    }
}

#[test]
fn a_control_packet_overtakes_none_and_none_overtakes_it() {
    let mut world = World::new([&[1, 2], &[1, 2]], 1);
    world.line(2, (1e9, 200_000, 0));
    world.machines[0].send(&[vec![CONTROL; 40]]);
    world.run(Duration::from_millis(2));
    for round in 0..20 {
        let mut packets: Vec<_> = (0..10).map(|n| packet(n, round, 1000)).collect();
        packets.push(vec![CONTROL, round as u8]);
        world.machines[0].send(&packets);
    }
    world.run(Duration::from_millis(50));
    let got = &world.machines[1].got[1..];
    assert_eq!(got.len(), 220);
    for (round, got) in got.chunks(11).enumerate() {
        assert_eq!(got[10], [CONTROL, round as u8]);
        assert!(got[..10].iter().all(|packet| number(packet).1 == round as u32));
    }
    assert!(world.put(2) > 10, "the longer link is used, too: {}", world.put(2));
}

#[test]
fn an_ack_comes_with_the_packet_that_it_follows_and_is_handled_first() {
    let mut world = World::new([&[1, 2], &[1, 2]], 1);
    world.machines[0].send(&[vec![CONTROL; 40]]);
    world.run(Duration::from_millis(2));
    let mut alone = 0;
    for n in 0..100 {
        for sender in [0, 1] {
            let (reply, mut ack) = (packet(5, n, 100), packet(5, n, 8));
            ack[0] = 0x11;
            world.net.lock().unwrap().groups.clear();
            world.machines[sender].send(&[reply.clone(), ack.clone()]);
            let groups: Vec<_> = world.net.lock().unwrap().groups.clone();
            alone += usize::from(groups.len() > 1);
            assert!(groups[0].0 - groups[0].1 > ack.len() || n < 2, "{n}: {groups:?}");
            world.sleep(Duration::from_micros(50));
            let receiver = &mut world.machines[1 - sender];
            let before = receiver.got.len();
            receiver.receive();
            assert_eq!(receiver.got[before..], [ack, reply], "{n}");
        }
    }
    assert!(alone < 3, "{alone} ACKs left alone");
}

#[test]
fn a_process_without_a_bundle_gets_packets_as_they_are() {
    for networks in [[&[1, 2][..], &[]], [&[], &[1, 2]]] {
        let mut world = World::new(networks, 1);
        for n in 0..200 {
            world.machines[0].send(&[packet(5, n, 100)]);
            world.machines[1].send(&[packet(6, n, 100)]);
            world.run(Duration::from_millis(50));
        }
        for (machine, qpn) in world.machines.iter().zip([6, 5]) {
            let got: Vec<_> = machine.got.iter().filter(|got| !Hello::is_hello(got)).map(|got| number(got)).collect();
            assert_eq!(got, (0..200).map(|n| (qpn, n)).collect::<Vec<_>>());
        }
        let asked = world.machines.iter().map(|machine| machine.got.len() - 200).max();
        assert_eq!((asked, world.put(2)), (Some(11), 0), "it is asked some times");
    }
}

#[test]
fn a_link_that_fails_costs_nothing() {
    let mut world = World::new([&[1, 2, 3, 4], &[1, 2, 3, 4]], 1);
    world.machines[0].send(&[vec![CONTROL; 40]]);
    world.run(Duration::from_millis(2));
    for n in 0..400 {
        match n {
            // Even that of the addresses that QPs know.
            100 => world.line(1, (1e9, 20_000, 1000)),
            300 => world.line(1, (1e9, 20_000, 0)),
            _ => {}
        }
        world.machines[0].send(&(0..20).map(|k| packet(5, n * 20 + k, 1000)).collect::<Vec<_>>());
        world.run(Duration::from_micros(200));
    }
    world.run(Duration::from_millis(100));
    let got: Vec<_> = world.machines[1].got[1..].iter().map(|got| number(got).1).collect();
    assert!(got.into_iter().eq(0..8000));
}

#[test]
fn a_process_that_takes_the_place_of_another_gets_packets_soon() {
    let mut world = World::new([&[1, 2], &[1, 2]], 1);
    world.machines[0].send(&[vec![CONTROL; 40]]);
    world.run(Duration::from_millis(2));
    for n in 0..100 {
        world.machines[0].send(&[packet(5, n, 100)]);
    }
    world.run(Duration::from_millis(5));
    assert_eq!(world.machines[1].got.len(), 101);
    world.machines[1] = Machine::new(&world.net, 2, &[1, 2]);
    let mut got_at = None;
    for n in 0..200 {
        world.machines[0].send(&[packet(5, 1000 + n, 100)]);
        world.run(Duration::from_micros(500));
        if !world.machines[1].got.is_empty() {
            got_at = got_at.or(Some(n));
        }
    }
    let got_at = got_at.expect("packets come at last");
    assert!(got_at < 20, "after {got_at} tries");
    // And if it has nothing to do with links, after the patience.
    world.machines[1] = Machine::new(&world.net, 2, &[]);
    for _ in 0..60 {
        world.machines[0].send(&[packet(5, 7, 100)]);
        world.run(Duration::from_millis(50));
    }
    assert!(world.machines[1].got.iter().any(|got| got[0] == 4));
}

#[test]
fn links_that_are_full_for_long_lose_nothing() {
    let mut world = World::new([&[1, 2], &[1, 2]], 1);
    for network in [1, 2] {
        world.line(network, (1e8, 20_000, 0));
    }
    world.machines[0].send(&[vec![CONTROL; 40]]);
    world.run(Duration::from_millis(2));
    let mut sent = 0;
    // More than the links take, so that some always wait; their delay is measured anew every 5 s.
    while now() < 12_000 * MS {
        if sent < world.machines[1].got.len() as u32 + 500 {
            world.machines[0].send(&(sent..sent + 20).map(|n| packet(5, n, 1000)).collect::<Vec<_>>());
            sent += 20;
        }
        world.run(Duration::from_millis(1));
    }
    world.run(Duration::from_millis(500));
    let got = &world.machines[1].got[1..];
    assert!(got.iter().map(|got| number(got).1).eq(0..sent), "{} of {sent}", got.len());
    assert!(sent > 200_000, "{sent}");
}

#[test]
fn a_burst_that_passes_is_as_it_was() {
    let mut world = World::new([&[1, 2], &[]], 1);
    let burst: Vec<_> = (0..8).map(|n| packet(5, n, 100)).collect();
    for n in 0..100 {
        world.machines[0].send(&burst);
        let groups: Vec<_> = std::mem::take(&mut world.net.lock().unwrap().groups);
        let passed = groups.iter().filter(|(_, segment)| *segment == burst[0].len()).collect::<Vec<_>>();
        assert!(passed == [&(8 * burst[0].len(), burst[0].len())], "{n}: {groups:?}");
        world.run(Duration::from_millis(2));
    }
}

#[test]
fn the_most_frequent_link_may_have_a_socket() {
    let mut world = World::new([&[1, 2], &[]], 1);
    let carrier = &mut world.machines[0].carrier;
    assert!(carrier.wants_socket() && carrier.add_socket().is_ok());
}

#[test]
fn many_peers_have_room_again_when_others_are_quiet() {
    let interfaces = Interfaces::default();
    let parameters = (Parameters::TUNED, Scheduler::Auto);
    let mut peers = Peers::new(interfaces, parameters, PORT, |_| false).unwrap();
    let key = |n: u32| (IpAddr::from([10, 0, 0, 1]), SocketAddr::from((n.to_be_bytes(), PORT)));
    let second = |n: u64| Instant(n * 1000 * MS);
    let made = (0..5000).filter(|n| peers.entry(key(*n), second(0)).is_some()).count();
    assert_eq!(made, 1024);
    let ask = Hello { ask: 5, connection: 9, ..Hello::default() };
    let stranger = key(1 << 20);
    // None of them has a connection, or is asked: all go.
    assert!(peers.handle(stranger, &ask, second(0)).is_none(), "without room there is no answer");
    assert!(peers.handle(stranger, &ask, second(3)).is_some());
    assert!(peers.entry(key(7000), second(4)).is_some());
}

#[test]
fn packets_of_others_are_not_taken() {
    let mut world = World::new([&[1, 2], &[1, 2]], 1);
    world.machines[0].send(&[vec![CONTROL; 40]]);
    world.run(Duration::from_millis(2));
    world.machines[0].send(&[packet(5, 1, 100)]);
    let flying: Vec<_> = world.net.lock().unwrap().flying.values().cloned().collect();
    let (from, to, bytes) = flying.into_iter().find(|(.., bytes)| bytes.len() > 100).unwrap();
    let own = |network: u8, host: u8, port: u16| SocketAddr::from(([10, 0, network, host], port));
    let network = if from == own(1, 1, PORT) { 2 } else { 1 };
    world.net.lock().unwrap().flying.clear();
    let mut number = 1 << 40;
    let mut forge = |from: SocketAddr, to: SocketAddr, bytes: Vec<u8>| {
        number += 1;
        world.net.lock().unwrap().flying.insert((now(), number), (from, to, bytes));
    };
    // From an address or port that is not the link's, to another address, damaged, and for another connection.
    forge(own(network, 1, PORT), to, bytes.clone());
    forge(SocketAddr::new(from.ip(), 20481), to, bytes.clone());
    forge(from, own(network, 2, PORT), bytes.clone());
    for at in 0..Front::of(&bytes).unwrap().len {
        let mut bad = bytes.clone();
        bad[at] ^= 0x40;
        forge(from, to, bad);
    }
    world.machines[1].inbox = Inbox::with_spare(1, 8000);
    let before = world.machines[1].got.len();
    let Machine { carrier, inbox, .. } = &mut world.machines[1];
    while carrier.receive(inbox).unwrap() > 0 {
        // What is no packet of a connection any more, passes: QPs drop it.
        assert!(
            inbox
                .arrivals
                .iter()
                .all(|arrival| arrival.skip == 0 && arrival.from != own(1, 1, PORT) || arrival.len < 300)
        );
    }
    world.run(Duration::from_millis(50));
    let got = &world.machines[1].got[before..];
    assert_eq!(got.iter().filter(|got| **got == packet(5, 1, 100)).count(), 1, "the packet went again");
}

#[test]
fn the_bytes_of_an_interface_never_become_fewer() {
    let mut world = World::new([&[1, 2], &[1, 2]], 1);
    let mut seen = [0; 2];
    let mut send = |world: &mut World, times: u32| {
        for n in 0..times {
            world.machines[0].send(&(0..20).map(|k| packet(5, n * 20 + k, 1000)).collect::<Vec<_>>());
            world.run(Duration::from_millis(10));
            let now = [0, 1].map(|interface| world.machines[0].bytes(interface));
            assert!(now[0] >= seen[0] && now[1] >= seen[1], "{seen:?}, then {now:?}");
            seen = now;
        }
        seen
    };
    world.machines[0].send(&[vec![CONTROL; 40]]);
    world.run(Duration::from_millis(2));
    let first = send(&mut world, 20);
    assert!(first[0] + first[1] > 400 * 1000 && first[1] > 0, "{first:?}");
    // Another process agrees on a connection of its own; then the connection ends because nothing answers.
    world.machines[1] = Machine::new(&world.net, 2, &[1, 2]);
    let second = send(&mut world, 50);
    assert!(second[0] + second[1] > first[0] + first[1] + 500 * 1000, "{second:?}");
    world.machines[1] = Machine::new(&world.net, 2, &[]);
    let last = send(&mut world, 300);
    let mut links = 0;
    world.machines[0].carrier.links(&mut |_| links += 1);
    assert_eq!(links, 0, "the connection has ended");
    assert!(last[0] + last[1] >= second[0] + second[1] && world.machines[0].carrier.bytes_of_ended_links(1) == last[1]);
    assert_eq!(world.machines[0].carrier.bytes_of_ended_links(u8::MAX), 0);
}
