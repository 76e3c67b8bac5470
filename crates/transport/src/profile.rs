//! An adapter's properties. The protocol reads the properties only; no code depends on a profile's name.

mod host_model;

pub use host_model::HostModel;

use crate::DeviceAttributes;
use crate::edge::{Parameters, Scheduler};
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
    /// Several links as one.
    pub links: Links,
    /// The machine that the adapter is in. The protocol ignores it; `None`: memory and programs take no time.
    pub host: Option<HostModel>,
}

/// How several links are used as one (MultiEdge thesis 2.1.2, 2.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Links {
    pub parameters: Parameters,
    pub scheduler: Scheduler,
}

/// The time limit of a response (IBTA 9.7.6.1.3): T_tr = 4.096 µs · 2^n, and T_o is in T_tr ..= 4 T_tr.
#[derive(Clone, Debug, PartialEq)]
pub struct AckTimeout {
    /// The adapter raises a smaller exponent n (except 0, which means infinite) to this value.
    pub least_exponent: u8,
    /// The shortest T_o, whatever the exponent is.
    pub floor: Duration,
    /// T_o / T_tr.
    pub factor: Spread,
    /// Each timeout in a row lasts twice as long as the previous timeout, up to this many times the first: after
    /// several timeouts the peer is probably away, so fast loss detection no longer helps.
    pub growth: u32,
    pub adaptive: Adaptive,
}

/// Adaptive retransmission of RoCE adapters: the first timeouts in a row are shorter than T_o.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adaptive {
    /// The timeouts in a row, each at most T_o. Empty: no adaptive retransmission.
    pub steps: Vec<Duration>,
    /// Of the steps up to T_tr, the last ones that count as retries. The steps before them do not count.
    pub retries: u32,
}

/// How long a requester waits for a receiver that is not ready.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RnrWait {
    /// Relative to the delay in the NAK.
    pub factor: Spread,
    /// The delay in the NAK first becomes the next power of two, times 10 µs: the delays that a NAK can ask for are powers
    /// of two and one and a half times these.
    pub powers_of_two: bool,
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

impl AckTimeout {
    /// T_tr of a QP's timeout attribute, except 0 (IBTA 9.7.6.1.3).
    pub fn t_tr(&self, exponent: u8) -> Duration {
        Duration::from_nanos(4096 << exponent.max(self.least_exponent))
    }

    /// The timeout after `timeouts` others in a row, from a T_o.
    pub fn in_row(&self, timeouts: u32, t_o: Duration) -> Duration {
        let steps = &self.adaptive.steps;
        if let Some(step) = steps.get(timeouts as usize) {
            return t_o.min(*step);
        }
        let ordinary = timeouts - steps.len() as u32;
        t_o * 1u32.checked_shl(ordinary).unwrap_or(u32::MAX).min(self.growth)
    }

    /// Whether the timeout after `timeouts` others in a row counts as a retry (IBTA 9.9.2.1.1).
    pub fn is_retry(&self, timeouts: u32, exponent: u8) -> bool {
        let t_tr = self.t_tr(exponent);
        let short = self.adaptive.steps.iter().take_while(|step| **step <= t_tr).count() as u32;
        timeouts >= short.saturating_sub(self.adaptive.retries)
    }
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

impl RnrWait {
    /// The wait after a NAK that asks for `delay`, at `share` (0 ..= 1) of the way from the shortest to the longest.
    pub(crate) fn after(&self, delay: Duration, share: f64) -> Duration {
        let micros = delay.as_micros() as u64;
        let counted = if self.powers_of_two { (micros / 10).next_power_of_two() * 10 } else { micros };
        Duration::from_micros(counted).mul_f64(self.factor.at(share))
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
                adaptive: Adaptive::default(),
            },
            rnr_wait: RnrWait { factor: Spread::exactly(1.0), powers_of_two: false, discards: false },
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
            links: Links { parameters: Parameters::TUNED, scheduler: Scheduler::Auto },
            host: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_wire::RnrTimer;

    #[test]
    fn delays_become_powers_of_two() {
        let wait = RnrWait { factor: Spread { low: 2.0, high: 4.0 }, powers_of_two: true, discards: true };
        let micros = |code: u8, share| wait.after(RnrTimer::new(code).delay(), share).as_micros();
        // 0.96 ms waits as long as 1.28 ms does.
        assert_eq!([13, 14, 15, 1].map(|code| micros(code, 0.0)), [2560, 2560, 5120, 20]);
        assert_eq!([0, 31].map(|code| micros(code, 1.0)), [2_621_440, 2_621_440]);
        let exact = RnrWait { powers_of_two: false, ..wait };
        assert_eq!(exact.after(RnrTimer::new(13).delay(), 0.5).as_micros(), 2880);
    }
}
