//! An adapter's properties. The protocol asks the profile; nothing asks for a profile by name.

use std::time::Duration;

/// A named set of adapter properties.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// What `--profile` calls it.
    pub name: String,
    /// Of all that the adapter leaves to chance. Each QP adds its number.
    pub seed: u64,
    /// Whether it has memory on demand at all.
    pub on_demand: bool,
    pub ack_timeout: AckTimeout,
    pub rnr_wait: RnrWait,
    /// What goes over the wire while a page is missing.
    pub page_faults: PageFaults,
    /// How much longer the answer to a READ takes that was asked for before: it is found the slow way.
    pub repeated_read: Delay,
    /// READs and atomics that all QPs together may have outstanding; `None`: only each QP's own limit holds.
    pub outstanding_reads: Option<u32>,
    /// The flaw called packet damming.
    pub damming: bool,
    /// The flaw called packet flood.
    pub flood: Option<Flood>,
}

/// How long an answer is waited for (IBTA 9.7.6.1.3): T_tr = 4.096 µs · 2^n, and T_o is in T_tr ..= 4 T_tr.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AckTimeout {
    /// A smaller exponent n in the attributes (except 0, which means never) counts as this one.
    pub least_exponent: u8,
    /// No timeout is shorter, whatever the exponent says.
    pub floor: Duration,
    /// T_o / T_tr.
    pub factor: Spread,
    /// Each timeout in a row lasts twice as long as the one before, up to this many times the first: then the peer is
    /// not slow to hear of a loss, but away.
    pub growth: u32,
}

/// How long a requester waits for a receiver that is not ready.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RnrWait {
    /// In terms of what the NAK asks for.
    pub factor: Spread,
    /// Responses that come meanwhile are dropped, be they right.
    pub discards: bool,
}

/// How network page faults are met on each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFaults {
    pub requester: RequesterFaults,
    pub responder: ResponderFaults,
    /// How long it takes until a page is there. Hosts see to it.
    pub resolve: Delay,
    /// One fault after the other, so that who comes late waits for all before him. Hosts see to it.
    pub serial: bool,
}

/// A page is missing where the answer to a READ or an atomic goes. (What is sent waits for its pages in any case.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequesterFaults {
    /// The request waits until its place is there. If that goes again, the answer waits.
    Wait,
    /// The answer is dropped, and the request is repeated after this time, whether the page is there by then or not.
    Discard { retransmit: Delay },
}

/// A page is missing that a peer's request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponderFaults {
    /// The request waits.
    Wait,
    /// The peer gets an RNR NAK; a READ is answered unasked once the page is there. Where there are no NAKs (UC, UD),
    /// the message is dropped.
    RnrNak {
        /// From the fault of a READ to its NAK.
        read_after: Duration,
        /// The same for all others.
        other_after: Duration,
    },
}

/// Packet flood: requesters that drop answers learn late that a page is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flood {
    /// Outstanding READs that the adapter remembers as waiting for pages, the newest of all QPs: their QPs are told as
    /// soon as the page is there.
    pub remembered: u32,
    /// For the others the adapter goes through all that waits; each READ takes so long.
    pub search: Duration,
}

/// A factor between two bounds, one value as likely as another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub low: f64,
    pub high: f64,
}

impl Spread {
    /// Always the same.
    pub const fn exactly(value: f64) -> Spread {
        Spread { low: value, high: value }
    }

    /// The value at `share` (0 ..= 1) of the way from the lower bound to the upper.
    pub fn at(&self, share: f64) -> f64 {
        self.low + (self.high - self.low) * share
    }
}

/// A time between two bounds, one as likely as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    pub low: Duration,
    pub high: Duration,
}

impl Delay {
    /// Always the same.
    pub const fn exactly(time: Duration) -> Delay {
        Delay { low: time, high: time }
    }

    /// The time at `share` (0 ..= 1) of the way from the lower bound to the upper.
    pub fn at(&self, share: f64) -> Duration {
        self.low + self.high.saturating_sub(self.low).mul_f64(share)
    }
}

impl Profile {
    /// A perfect adapter. The floor is a few ms because a software peer may be off its core for that long.
    pub fn ideal() -> Self {
        Profile {
            name: "ideal".into(),
            seed: 1,
            on_demand: true,
            ack_timeout: AckTimeout {
                least_exponent: 0,
                floor: Duration::from_millis(4),
                factor: Spread::exactly(1.0),
                // The most that the clause allows: a process that has lost its core to others is back by then.
                growth: 4,
            },
            rnr_wait: RnrWait { factor: Spread::exactly(1.0), discards: false },
            page_faults: PageFaults {
                requester: RequesterFaults::Wait,
                responder: ResponderFaults::Wait,
                resolve: Delay::exactly(Duration::ZERO),
                serial: false,
            },
            repeated_read: Delay::exactly(Duration::ZERO),
            outstanding_reads: None,
            damming: false,
            flood: None,
        }
    }
}
