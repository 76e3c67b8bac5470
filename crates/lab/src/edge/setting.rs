//! What is measured.

use std::fmt::Write;
use weir_transport::edge::Scheduler;

/// A measurement: WRITEs of one size over some links.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    pub links: Links,
    /// Bytes of a packet behind the Ethernet header.
    pub mtu: u32,
    pub scheduler: Scheduler,
    pub test: Test,
    /// Bytes of an operation.
    pub size: u32,
    pub mechanism: Mechanism,
    pub sending: Sending,
    pub receiving: Receiving,
    /// Where the destination begins within its page; the source begins there too.
    pub offset: u32,
    /// Which hosts. Simulated only.
    pub platform: Platform,
}

/// The links between both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct Links {
    /// Gbit/s of each.
    pub rates: Vec<f64>,
    /// What the schedulers of the thesis take for their rates.
    pub weights: Vec<u32>,
}

/// The tests of E 3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Test {
    /// The client WRITEs back to back.
    OneWay,
    /// Both sides do.
    TwoWay,
    /// One WRITE at a time, there and back.
    PingPong,
}

/// How a side notices packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// By interrupts; live, by a thread that sleeps.
    Events,
    /// By looking again and again.
    Polling,
}

/// What happens to payload that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// It is copied to a buffer first.
    Copied,
    /// It is sent from where it is.
    Gathered,
    /// It is sent without being read: the thesis disables copies artificially. Simulated only.
    Skipped,
}

/// What happens to payload that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiving {
    /// It is copied to its place.
    Copied,
    /// Its pages take the place of the destination's pages, where whole pages have come. Simulated only.
    Remapped(Flush),
    /// It stays where it is: the thesis disables copies artificially. Simulated only.
    Skipped,
}

/// What happens to the TLB after pages were remapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Nothing, which is wrong, but shows what it costs.
    None,
    /// All entries are invalidated.
    Full,
    /// The entries of the remapped pages are invalidated.
    Selective,
}

/// The two setups of the thesis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// E 3.2.1: adapters of 1 Gbit/s, and one of 10 Gbit/s.
    Base,
    /// E 3.3.1: two adapters of 10 Gbit/s, one of which has half of its rate.
    ZeroCopy,
}

impl Links {
    /// `count` links of so many Gbit/s.
    pub fn of(count: usize, gbits: f64) -> Links {
        Links::rated(vec![gbits; count])
    }

    /// Links of these rates, Gbit/s, with weights to match.
    pub fn rated(rates: Vec<f64>) -> Links {
        let weights = rates.iter().map(|rate| (rate.round() as u32).max(1)).collect();
        Links { rates, weights }
    }

    /// Gbit/s of all links, of bits on the wire.
    pub fn nominal(&self) -> f64 {
        self.rates.iter().sum()
    }

    /// "4x1", "1x10+4x1", as the thesis names them.
    pub fn name(&self) -> String {
        let mut name = String::new();
        for same in self.rates.chunk_by(|a, b| a == b) {
            let _ = write!(name, "{}{}x{}", if name.is_empty() { "" } else { "+" }, same.len(), same[0]);
        }
        name
    }
}

impl Test {
    pub const ALL: [Test; 3] = [Test::OneWay, Test::TwoWay, Test::PingPong];

    /// Its name in the thesis.
    pub fn name(self) -> &'static str {
        match self {
            Test::OneWay => "one-way",
            Test::TwoWay => "two-way",
            Test::PingPong => "ping-pong",
        }
    }
}

impl Setting {
    /// The thesis' base protocol: interrupts, copies on both sides, MTU 9000, whole pages.
    pub fn base(links: Links, test: Test, size: u32) -> Setting {
        Setting {
            links,
            mtu: 9000,
            scheduler: Scheduler::Dynamic,
            test,
            size,
            mechanism: Mechanism::Events,
            sending: Sending::Copied,
            receiving: Receiving::Copied,
            offset: 0,
            platform: Platform::Base,
        }
    }

    /// The same on the platform of the zero-copy results, with its links of 10 and 5 Gbit/s.
    pub fn zero_copy(test: Test, size: u32) -> Setting {
        Setting { platform: Platform::ZeroCopy, ..Setting::base(Links::rated(vec![10.0, 5.0]), test, size) }
    }

    /// Polling in place of interrupts.
    pub fn polling(self) -> Setting {
        Setting { mechanism: Mechanism::Polling, ..self }
    }

    /// With other handling of payload.
    pub fn moving(self, sending: Sending, receiving: Receiving) -> Setting {
        Setting { sending, receiving, ..self }
    }

    /// What errors call it.
    pub fn name(&self) -> String {
        let Setting { links, test, size, .. } = self;
        format!("{} {} of {size} bytes", links.name(), test.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_the_names_of_the_thesis() {
        assert_eq!(Links::of(4, 1.0).name(), "4x1");
        let mixed = Links::rated(vec![10.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!((mixed.name().as_str(), mixed.nominal(), mixed.weights[0]), ("1x10+4x1", 14.0, 10));
    }
}
