//! Bundles of two processes in virtual time.

use super::*;
use crate::interfaces::Interface;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MS: u64 = 1_000_000;
const PORT: u16 = 20480;
/// First byte of a packet that no other overtakes.
const CONTROL: u8 = b'!';

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(MS) };
}

fn now() -> u64 {
    NOW.get()
}

/// A packet on its way: from where, to where, and what.
type Flying = (SocketAddr, SocketAddr, Vec<u8>);

/// What is between the machines.
#[derive(Default)]
struct Net {
    flying: BTreeMap<(u64, u64), Flying>,
    sent: u64,
    /// For each network (third byte of an address): bits per second, one way in ns, loss in thousandths.
    lines: HashMap<u8, (f64, u64, u64)>,
    busy: HashMap<(u8, u8), u64>,
    random: u64,
    /// Packets that were put on each network.
    put: HashMap<u8, u64>,
    /// Bytes of what was sent at once, and of each datagram.
    groups: Vec<(usize, usize)>,
}

impl Net {
    fn put(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let IpAddr::V4(ip) = to.ip() else { panic!("these tests are about IPv4") };
        let [.., network, host] = ip.octets();
        let (rate, delay, loss) = self.lines[&network];
        *self.put.entry(network).or_default() += 1;
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let busy = self.busy.entry((network, host)).or_default();
        *busy = (*busy).max(now()) + ((bytes.len() + 66) as f64 * 8e9 / rate) as u64;
        if (self.random >> 33) % 1000 >= loss {
            self.sent += 1;
            self.flying.insert((*busy + delay, self.sent), (from, to, bytes.to_vec()));
        }
    }
}

/// The sockets of a machine.
struct Sockets {
    net: Arc<Mutex<Net>>,
    host: u8,
    port: u16,
}

impl Carrier for Sockets {
    fn send(&mut self, outbox: &Outbox) -> io::Result<()> {
        for group in &outbox.groups {
            self.net.lock().unwrap().groups.push((group.len, group.segment));
            for datagram in outbox.datagrams(group) {
                self.net.lock().unwrap().put((group.from, self.port).into(), group.to, datagram);
            }
        }
        Ok(())
    }

    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        let mut net = self.net.lock().unwrap();
        inbox.arrivals.clear();
        let mut used = 0;
        while inbox.arrivals.len() < 16 {
            let is_here = |(at, (_, to, _)): (&(u64, u64), &Flying)| {
                let IpAddr::V4(ip) = to.ip() else { return None };
                ((at.0, ip.octets()[3], to.port()) <= (now(), self.host, self.port)
                    && (ip.octets()[3], to.port()) == (self.host, self.port))
                    .then_some(*at)
            };
            let Some(at) = net.flying.iter().find_map(is_here) else { break };
            let (from, to, bytes) = net.flying.remove(&at).unwrap();
            inbox.bytes[used..used + bytes.len()].copy_from_slice(&bytes);
            let len = bytes.len();
            // As UDP_GRO joins them.
            match inbox.arrivals.last_mut() {
                Some(last) if (last.from, last.to, last.segment) == (from, to.ip(), len) => last.len += len,
                _ => inbox.arrivals.push(Arrival { to: to.ip(), ..Arrival::new(from, self.port, used, len) }),
            }
            used += len;
        }
        Ok(inbox.arrivals.len())
    }

    fn max_segments(&self) -> usize {
        64
    }

    fn listen(&mut self, _port: u16) -> io::Result<()> {
        Ok(())
    }

    fn fds(&self) -> Vec<RawFd> {
        vec![]
    }
}

/// A machine with several interfaces, or with one and no bundle.
struct Machine {
    carrier: Box<dyn Carrier>,
    inbox: Inbox,
    outbox: Outbox,
    host: u8,
    has_bundle: bool,
    got: Vec<Vec<u8>>,
}

impl Machine {
    fn new(net: &Arc<Mutex<Net>>, host: u8, networks: &[u8]) -> Machine {
        let sockets = Sockets { net: net.clone(), host, port: PORT };
        let interface = |network: &u8| Interface {
            name: format!("eth{network}"),
            index: 0,
            mac: None,
            is_up: true,
            mtu: 1500,
            speed: 0,
            addresses: vec![(IpAddr::from([10, 0, *network, host]), 24)],
        };
        let interfaces = Interfaces { all: networks.iter().map(interface).collect(), lists_all: false };
        let settings = Settings {
            interfaces,
            parameters: Parameters::TUNED,
            scheduler: Scheduler::Auto,
            port: PORT,
            largest: 2000,
            is_peer: |port| port == PORT,
            is_control: |packet| packet[0] == CONTROL,
            clock: now,
        };
        let carrier: Box<dyn Carrier> = match networks {
            [] => Box::new(sockets),
            _ => Box::new(Bundle::new(sockets, settings).unwrap()),
        };
        // Little room for what came earlier.
        let inbox = Inbox::with_spare(1, 8000);
        Machine {
            carrier,
            inbox,
            outbox: Outbox::new(1 << 16, 64),
            host,
            has_bundle: !networks.is_empty(),
            got: vec![],
        }
    }

    /// Sends packets to the other machine, as groups of one size each.
    fn send(&mut self, packets: &[Vec<u8>]) {
        self.outbox.clear();
        let address = |host: u8| IpAddr::from([10, 0, 1, host]);
        for packet in packets {
            let start = self.outbox.len;
            self.outbox.bytes[start..start + packet.len()].copy_from_slice(packet);
            self.outbox.len += packet.len();
            let group = Group::new((address(3 - self.host), PORT).into(), address(self.host), 0);
            match self.outbox.groups.last_mut().filter(|last| last.segment == packet.len()) {
                Some(last) => last.len += packet.len(),
                None => self.outbox.groups.push(Group { start, len: packet.len(), segment: packet.len(), ..group }),
            }
        }
        self.carrier.send(&self.outbox).unwrap();
    }

    /// Bytes that were ever put on an interface.
    fn bytes(&self, interface: u8) -> u64 {
        let mut bytes = self.carrier.bytes_of_ended_links(interface);
        self.carrier.links(&mut |link| bytes += if link.interface == interface { link.bytes } else { 0 });
        bytes
    }

    fn receive(&mut self) {
        while self.carrier.receive(&mut self.inbox).unwrap() > 0 {
            for arrival in &self.inbox.arrivals {
                if self.has_bundle {
                    assert_eq!(arrival.from, (IpAddr::from([10, 0, 1, 3 - self.host]), PORT).into(), "as QPs know it");
                    assert_eq!((arrival.to, arrival.to_port), (IpAddr::from([10, 0, 1, self.host]), PORT));
                }
                self.got.extend(self.inbox.datagrams(arrival).map(<[u8]>::to_vec));
            }
        }
    }
}

/// A packet to a QP, with a number.
fn packet(qpn: u32, number: u32, len: usize) -> Vec<u8> {
    let mut packet = vec![4, 0, 0xff, 0xff, 0];
    packet.extend(&qpn.to_be_bytes()[1..]);
    packet.extend(number.to_be_bytes());
    packet.extend((0..len).map(|n| (n as u32 ^ number) as u8));
    packet
}

fn number(packet: &[u8]) -> (u32, u32) {
    let word = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap());
    (word(4) & 0xff_ffff, word(8))
}

struct World {
    net: Arc<Mutex<Net>>,
    machines: [Machine; 2],
}

impl World {
    /// `networks`: of each machine.
    fn new(networks: [&[u8]; 2], seed: u64) -> World {
        NOW.set(MS);
        let lines = (1..9).map(|network| (network, (1e9, 20_000, 0))).collect();
        let net = Arc::new(Mutex::new(Net { lines, random: seed, ..Net::default() }));
        let machine = |n: u8| Machine::new(&net, n, networks[usize::from(n) - 1]);
        World { machines: [machine(1), machine(2)], net }
    }

    fn line(&self, network: u8, line: (f64, u64, u64)) {
        self.net.lock().unwrap().lines.insert(network, line);
    }

    fn put(&self, network: u8) -> u64 {
        self.net.lock().unwrap().put.get(&network).copied().unwrap_or(0)
    }

    /// Time passes.
    fn run(&mut self, time: Duration) {
        let end = now() + time.as_nanos() as u64;
        loop {
            for machine in &mut self.machines {
                machine.receive();
                if machine.carrier.due().is_some_and(|due| due <= now()) {
                    machine.carrier.flush_due(now()).unwrap();
                }
            }
            let arrival = self.net.lock().unwrap().flying.first_key_value().map(|((at, _), _)| *at);
            let due = self.machines.iter().filter_map(|machine| machine.carrier.due());
            match due.chain(arrival).min().filter(|next| *next <= end) {
                Some(next) => NOW.set(next.max(now() + 1)),
                None => break,
            }
        }
        NOW.set(end.max(now()));
    }
}

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
fn many_peers_have_room_again_when_others_are_quiet() {
    let interfaces = Interfaces::default();
    let parameters = (Parameters::TUNED, Scheduler::Auto);
    let mut peers = Peers::new(interfaces, parameters, PORT, |_| false).unwrap();
    let key = |n: u32| (IpAddr::from([10, 0, 0, 1]), SocketAddr::from((n.to_be_bytes(), PORT)));
    let second = |n: u64| Instant(n * 1000 * MS);
    let made = (0..5000).filter(|n| peers.entry(key(*n), second(0)).is_some()).count();
    assert_eq!(made, 1024);
    let ask = Hello { ask: 5, answer: 0, ..Hello::unknown(9) };
    let ask = Hello { unknown: false, ..ask };
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
    for at in 0..28 {
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
