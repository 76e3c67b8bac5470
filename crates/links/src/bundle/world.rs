//! Two machines in virtual time, and what is between them.

use super::*;
use crate::interfaces::Interface;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weir_wire::burst;

pub const MS: u64 = 1_000_000;
pub const PORT: u16 = 20480;
/// First byte of a packet that no other overtakes.
pub const CONTROL: u8 = b'!';

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(MS) };
}

pub fn now() -> u64 {
    NOW.get()
}

/// A packet on its way: from where, to where, and what.
pub type Flying = (SocketAddr, SocketAddr, Vec<u8>);

/// What is between the machines.
#[derive(Default)]
pub struct Net {
    pub flying: BTreeMap<(u64, u64), Flying>,
    pub sent: u64,
    /// For each network (third byte of an address): bits per second, one way in ns, loss in thousandths.
    pub lines: HashMap<u8, (f64, u64, u64)>,
    pub busy: HashMap<(u8, u8), u64>,
    pub random: u64,
    /// Packets that were put on each network.
    pub put: HashMap<u8, u64>,
    /// Bytes of what was sent at once, and of each datagram.
    pub groups: Vec<(usize, usize)>,
}

impl Net {
    pub fn put(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let IpAddr::V4(ip) = to.ip() else { panic!("these tests are about IPv4") };
        let [.., network, host] = ip.octets();
        // To a host that is not there, or by no network.
        let Some((rate, delay, loss)) = self.lines.get(&network).copied().filter(|_| (1..=2).contains(&host)) else {
            return;
        };
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
pub struct Sockets {
    pub net: Arc<Mutex<Net>>,
    pub host: u8,
    pub port: u16,
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
                Some(last)
                    if (last.from, last.to) == (from, to.ip())
                        && len <= last.segment
                        && last.len.is_multiple_of(last.segment) =>
                {
                    last.len += len;
                }
                _ => inbox.arrivals.push(Arrival { to: to.ip(), ..Arrival::new(from, self.port, used, len) }),
            }
            used += len;
        }
        Ok(inbox.arrivals.len())
    }

    fn wants_socket(&mut self) -> bool {
        true
    }

    fn add_socket(&mut self) -> io::Result<()> {
        Ok(())
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
pub struct Machine {
    pub carrier: Box<dyn Carrier>,
    pub inbox: Inbox,
    pub outbox: Outbox,
    pub host: u8,
    pub has_bundle: bool,
    /// Packets that do not come from the other machine are dropped, as QPs do.
    pub has_strangers: bool,
    pub got: Vec<Vec<u8>>,
}

impl Machine {
    pub fn new(net: &Arc<Mutex<Net>>, host: u8, networks: &[u8]) -> Machine {
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
            has_strangers: false,
            got: vec![],
        }
    }

    /// Sends packets to the other machine, as groups of one size each, of which the last may be shorter.
    pub fn send(&mut self, packets: &[Vec<u8>]) {
        self.outbox.clear();
        let address = |host: u8| IpAddr::from([10, 0, 1, host]);
        for packet in packets {
            let start = self.outbox.len;
            self.outbox.bytes[start..start + packet.len()].copy_from_slice(packet);
            self.outbox.len += packet.len();
            let group = Group::new((address(3 - self.host), PORT).into(), address(self.host), 0);
            match self.outbox.groups.last_mut().filter(|last| last.takes(packet.len(), 64)) {
                Some(last) => last.len += packet.len(),
                None => self.outbox.groups.push(Group { start, len: packet.len(), segment: packet.len(), ..group }),
            }
        }
        self.carrier.send(&self.outbox).unwrap();
    }

    /// Bytes that were ever put on an interface.
    pub fn bytes(&self, interface: u8) -> u64 {
        let mut bytes = self.carrier.bytes_of_ended_links(interface);
        self.carrier.links(&mut |link| bytes += if link.interface == interface { link.bytes } else { 0 });
        bytes
    }

    pub fn receive(&mut self) {
        while self.carrier.receive(&mut self.inbox).unwrap() > 0 {
            for arrival in &self.inbox.arrivals {
                let peer = (IpAddr::from([10, 0, 1, 3 - self.host]), PORT).into();
                if self.has_strangers && arrival.from != peer {
                    continue;
                }
                if self.has_bundle && !self.has_strangers {
                    assert_eq!(arrival.from, peer, "as QPs know it");
                    assert_eq!((arrival.to, arrival.to_port), (IpAddr::from([10, 0, 1, self.host]), PORT));
                }
                // As QPs do.
                let datagrams = burst::ack_first(self.inbox.datagrams(arrival), |datagram| datagram);
                self.got.extend(datagrams.map(<[u8]>::to_vec));
            }
        }
    }
}

/// A packet to a QP, with a number.
pub fn packet(qpn: u32, number: u32, len: usize) -> Vec<u8> {
    let mut packet = vec![4, 0, 0xff, 0xff, 0];
    packet.extend(&qpn.to_be_bytes()[1..]);
    packet.extend(number.to_be_bytes());
    packet.extend((0..len).map(|n| (n as u32 ^ number) as u8));
    packet
}

pub fn number(packet: &[u8]) -> (u32, u32) {
    let word = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap());
    (word(4) & 0xff_ffff, word(8))
}

pub struct World {
    pub net: Arc<Mutex<Net>>,
    pub machines: [Machine; 2],
}

impl World {
    /// `networks`: of each machine.
    pub fn new(networks: [&[u8]; 2], seed: u64) -> World {
        NOW.set(MS);
        let lines = (1..9).map(|network| (network, (1e9, 20_000, 0))).collect();
        let net = Arc::new(Mutex::new(Net { lines, random: seed, ..Net::default() }));
        let machine = |n: u8| Machine::new(&net, n, networks[usize::from(n) - 1]);
        World { machines: [machine(1), machine(2)], net }
    }

    pub fn line(&self, network: u8, line: (f64, u64, u64)) {
        self.net.lock().unwrap().lines.insert(network, line);
    }

    pub fn put(&self, network: u8) -> u64 {
        self.net.lock().unwrap().put.get(&network).copied().unwrap_or(0)
    }

    /// Time passes, in which no machine looks for packets.
    pub fn sleep(&mut self, time: Duration) {
        NOW.set(now() + time.as_nanos() as u64);
    }

    /// Time passes.
    pub fn run(&mut self, time: Duration) {
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
