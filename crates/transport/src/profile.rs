//! An adapter's properties. The protocol reads the properties only; no code depends on a profile's name.

use crate::DeviceAttributes;
use std::time::Duration;

/// A named set of adapter properties.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its name on the command line (`--profile`).
    pub name: String,
    /// Seed of all random values of the adapter. Each QP combines it with its number.
    pub seed: u64,
    /// Whether the adapter supports on-demand paging.
    pub on_demand: bool,
    /// What programs read of the adapter. Without on-demand paging its `odp` means nothing.
    pub device: DeviceAttributes,
    pub ack_timeout: AckTimeout,
    pub rnr_wait: RnrWait,
    /// The packets on the wire while a page is missing.
    pub page_faults: PageFaults,
    /// Time in which a duplicate READ is replayed: the adapter handles it on a slow path, one READ of a QP after the other.
    pub repeated_read: Delay,
    /// The data of a READ is that of the moment at which its response leaves: requests after it may be executed before
    /// (IBTA 10.8.3.3). Otherwise it is read out before they are executed.
    pub late_reads: bool,
    /// The packet damming flaw.
    pub damming: bool,
    /// The packet flood flaw.
    pub flood: Option<Flood>,
}

/// The time limit of a response (IBTA 9.7.6.1.3): T_tr = 4.096 µs · 2^n, and T_o is in T_tr ..= 4 T_tr.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AckTimeout {
    /// The adapter raises a smaller exponent n (except 0, which means infinite) to this value.
    pub least_exponent: u8,
    /// The shortest timeout, whatever the exponent is.
    pub floor: Duration,
    /// T_o / T_tr.
    pub factor: Spread,
    /// Each timeout in a row lasts twice as long as the previous timeout, up to this many times the first: after
    /// several timeouts the peer is probably away, so fast loss detection no longer helps.
    pub growth: u32,
}

/// How long a requester waits for a receiver that is not ready.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RnrWait {
    /// Relative to the delay in the NAK.
    pub factor: Spread,
    /// Responses that arrive during the wait are dropped, even if they are correct.
    pub discards: bool,
}

/// How each side handles network page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFaults {
    pub requester: RequesterFaults,
    pub responder: ResponderFaults,
    /// How long the resolution of a page fault takes. The host applies it.
    pub resolve: Delay,
    /// Faults are resolved one after the other: a fault waits for all earlier faults. The host applies it.
    pub serial: bool,
}

/// A page of the destination buffer of a READ or an atomic is missing. (Outgoing data always waits for its pages.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequesterFaults {
    /// The request waits for its buffer's pages. If they are missing when the response arrives, the response waits.
    Wait,
    /// The response is dropped. The request is retransmitted after this time, whether the page is present or not.
    Discard { retransmit: Delay },
}

/// A page that a peer's request accesses is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponderFaults {
    /// The request waits.
    Wait,
    /// The peer gets an RNR NAK; the response to a READ is sent without a new request when the page is present.
    /// Services without NAKs (UC, UD) drop the message.
    RnrNak {
        /// Time from the fault of a READ to its NAK. The NAK of any other request leaves when its page is present.
        read_after: Duration,
    },
}

/// Packet flood: page-fault events are served in turn, and requesters wait for theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flood {
    /// Time of an event if its page is present when it is served.
    pub stale: Duration,
    /// The most events of a QP that wait.
    pub waiting: u32,
}

/// A factor between two bounds, uniformly distributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub low: f64,
    pub high: f64,
}

impl Spread {
    /// A fixed value.
    pub const fn exactly(value: f64) -> Spread {
        Spread { low: value, high: value }
    }

    /// The value at `share` (0 ..= 1) of the way from the lower bound to the upper.
    pub fn at(&self, share: f64) -> f64 {
        self.low + (self.high - self.low) * share
    }
}

/// A time between two bounds, uniformly distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    pub low: Duration,
    pub high: Duration,
}

impl Delay {
    /// A fixed time.
    pub const fn exactly(time: Duration) -> Delay {
        Delay { low: time, high: time }
    }

    /// The time at `share` (0 ..= 1) of the way from the lower bound to the upper.
    pub fn at(&self, share: f64) -> Duration {
        self.low + self.high.saturating_sub(self.low).mul_f64(share)
    }
}

impl Profile {
    /// An adapter without flaws. The floor is a few ms because a software peer may be off its core for that long.
    pub fn ideal() -> Self {
        Profile {
            name: "ideal".into(),
            seed: 1,
            on_demand: true,
            device: DeviceAttributes::ideal(),
            ack_timeout: AckTimeout {
                least_exponent: 0,
                floor: Duration::from_millis(4),
                factor: Spread::exactly(1.0),
                // The most that the clause allows: it covers a peer process that has lost its core to others.
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
            late_reads: false,
            damming: false,
            flood: None,
        }
    }
}
