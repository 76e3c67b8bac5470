//! Two processes and the network between them.

use crate::{Address, Cm, Config, Event};
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

impl Pair {
    pub fn new(seed: u64, faults: Faults, config: Config) -> Pair {
        let mut rng = Rng(seed);
        let cms = [1, 2].map(|prefix: u32| {
            Cm::new(Config { id_prefix: prefix << 20, id_bits: 20, seed: rng.draw(), ..config.clone() })
        });
        let now = Instant(1_000_000_000);
        let (sent, network) = (Vec::new(), BTreeMap::new());
        Pair { cms, events: Default::default(), now, faults, sent, rng, network, count: 0 }
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
            self.cms[process].check();
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

    /// The messages that a process sent since the last call of `clear_sent`.
    pub fn messages(&self, process: usize) -> Vec<Message> {
        let own = self.sent.iter().filter(|(sender, _)| *sender == process);
        own.map(|(_, mad)| Message::parse(mad).expect("processes send messages").1).collect()
    }

    pub fn clear_sent(&mut self) {
        self.sent.clear();
    }
}
