//! Two processes and the network between them.

use crate::{Address, Cm, Config, ConnectionId, Event, PortSpace, Reply, Request, ServiceId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use weir_transport::Instant;
use weir_transport::testing::Rng;
use weir_wire::cm::Message;
use weir_wire::mad::Mad;

/// What the network does to MADs.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Probability that a MAD is lost.
    pub loss: f64,
    /// Probability that it comes twice.
    pub duplication: f64,
    /// How long it takes at least and at most: two MADs come in another order if the times differ.
    pub latency: (Duration, Duration),
}

/// No faults, 10 µs.
impl Default for Faults {
    fn default() -> Self {
        Faults { loss: 0.0, duplication: 0.0, latency: (Duration::from_micros(10), Duration::from_micros(10)) }
    }
}

/// Processes 0 and 1.
pub struct Pair {
    pub cms: [Cm; 2],
    /// Events that the test has not taken.
    pub events: [VecDeque<Event>; 2],
    pub now: Instant,
    pub faults: Faults,
    /// Every MAD that a process sent, with its number, also lost ones.
    pub sent: Vec<(usize, Mad)>,
    /// How many of the next MADs of each process are lost.
    pub lose: [usize; 2],
    rng: Rng,
    /// By time of arrival and number: the receiver and the MAD.
    network: BTreeMap<(Instant, u64), (usize, Mad)>,
    count: u64,
}

/// The route from a process to the other one.
pub fn address(process: usize) -> Address {
    let [own, other] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().expect("an address"));
    match process {
        0 => Address { local: own, remote: other, device: 0 },
        _ => Address { local: other, remote: own, device: 0 },
    }
}

/// A request for a connection with that QP of process 0.
pub fn request(qpn: u32) -> Request {
    let service_id = ServiceId::ip(PortSpace::TCP, 18515);
    Request { service_id, qpn, ca_guid: 0xa, starting_psn: 7, private: b"hello".to_vec(), ..Request::default() }
}

/// An answer with that QP of process 1.
pub fn reply(qpn: u32) -> Reply {
    Reply { qpn, ca_guid: 0xb, starting_psn: 9, private: b"welcome".to_vec(), ..Reply::default() }
}

impl Pair {
    pub fn new(seed: u64, faults: Faults, config: Config) -> Pair {
        let mut rng = Rng(seed);
        let cms = [1, 2].map(|prefix: u32| {
            Cm::new(Config { id_prefix: prefix << 20, id_bits: 20, seed: rng.draw(), ..config.clone() })
        });
        let now = Instant(1_000_000_000);
        let (sent, network) = (Vec::new(), BTreeMap::new());
        Pair { cms, events: Default::default(), now, faults, sent, lose: [0, 0], rng, network, count: 0 }
    }

    /// Without faults.
    pub fn quiet() -> Pair {
        Pair::new(1, Faults::default(), Config::default())
    }

    /// Takes what the processes made since then: MADs enter the network, events wait for the test.
    pub fn collect(&mut self) {
        for process in 0..2 {
            while let Some((to, mad)) = self.cms[process].poll_transmit() {
                assert_eq!(to, address(process), "a MAD goes to the peer");
                self.sent.push((process, mad));
                if self.lose[process] > 0 {
                    self.lose[process] -= 1;
                    continue;
                }
                if self.rng.chance(self.faults.loss) {
                    continue;
                }
                self.put(1 - process, mad);
                if self.rng.chance(self.faults.duplication) {
                    self.put(1 - process, mad);
                }
            }
            while let Some(event) = self.cms[process].poll_event() {
                self.events[process].push_back(event);
            }
            // All of many would take long.
            if self.cms[process].len() < 100 {
                self.cms[process].check();
            }
        }
    }

    fn put(&mut self, receiver: usize, mad: Mad) {
        let (least, most) = self.faults.latency;
        let more = Duration::from_nanos(self.rng.below((most - least).as_nanos() as u64 + 1));
        self.count += 1;
        self.network.insert((self.now + least + more, self.count), (receiver, mad));
    }

    /// Advances to the next arrival or deadline until `until`. False if there is none.
    pub fn step(&mut self, until: Instant) -> bool {
        self.collect();
        let arrival = self.network.keys().next().map(|(at, _)| *at);
        let deadlines = self.cms.iter().filter_map(Cm::poll_timeout).min();
        let next = [arrival, deadlines].into_iter().flatten().min();
        let Some(next) = next.filter(|next| *next <= until) else { return false };
        self.now = self.now.max(next);
        while let Some(entry) = self.network.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (receiver, mad) = entry.remove();
            self.cms[receiver].handle(self.now, &address(receiver), &mad);
        }
        for cm in &mut self.cms {
            cm.handle_timeout(self.now);
            assert!(cm.poll_timeout().is_none_or(|deadline| deadline > self.now));
        }
        self.collect();
        true
    }

    /// Lets that time pass.
    pub fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
        self.now = until;
        self.cms.iter().for_each(Cm::check);
    }

    /// Delivers everything that is on its way, in a second at most.
    pub fn settle(&mut self) {
        self.run(Duration::from_secs(1));
    }

    /// The next event of a process.
    ///
    /// # Panics
    /// If there is none.
    pub fn event(&mut self, process: usize) -> Event {
        self.collect();
        self.events[process].pop_front().expect("an event")
    }

    /// Process 0 asks for a connection of its QP; process 1 has the request.
    pub fn requested(&mut self, qpn: u32) -> (ConnectionId, ConnectionId) {
        let active = self.cms[0].connect(self.now, &address(0), &request(qpn)).expect("there are IDs");
        self.settle();
        let Event::Request { id: passive, .. } = self.event(1) else { panic!("not a request") };
        (active, passive)
    }

    /// Process 1 accepts with its QP; process 0 has the reply.
    pub fn replied(&mut self, qpns: (u32, u32)) -> (ConnectionId, ConnectionId) {
        let (active, passive) = self.requested(qpns.0);
        self.cms[1].accept(self.now, passive, &reply(qpns.1)).expect("the request waits");
        self.settle();
        let Event::Reply { .. } = self.event(0) else { panic!("not a reply") };
        (active, passive)
    }

    /// An established connection of two QPs.
    pub fn connected(&mut self, qpns: (u32, u32)) -> (ConnectionId, ConnectionId) {
        let (active, passive) = self.replied(qpns);
        self.cms[0].ready(active, b"").expect("the reply waits");
        self.settle();
        let Event::Established { .. } = self.event(1) else { panic!("not established") };
        self.clear_sent();
        (active, passive)
    }

    /// Gives a process a message as from its peer.
    pub fn inject(&mut self, process: usize, message: impl Into<Message>) {
        let mad = message.into().emit(0x77, 0);
        self.cms[process].handle(self.now, &address(process), &mad);
        self.collect();
    }

    /// Whether neither process has an event.
    pub fn is_silent(&mut self) -> bool {
        self.collect();
        self.events.iter().all(VecDeque::is_empty)
    }

    /// The messages that a process sent since the last call of `clear_sent`.
    pub fn messages(&self, process: usize) -> Vec<Message> {
        let own = self.sent.iter().filter(|(sender, _)| *sender == process);
        own.map(|(_, mad)| Message::parse(mad).expect("processes send messages").1).collect()
    }

    pub fn clear_sent(&mut self) {
        self.sent.clear();
    }
}
