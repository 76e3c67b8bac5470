//! An adapter's properties. The protocol asks the profile; nothing asks for a profile by name.

use std::time::Duration;

/// A named set of adapter properties.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// What `--profile` calls it.
    pub name: String,
    /// No ACK timeout is shorter, whatever the attributes say.
    pub ack_timeout_floor: Duration,
    /// The timeout is this times T_tr = 4.096 µs · 2^n; IBTA 9.7.6.1.3 allows 1 to 4.
    pub ack_timeout_factor: f64,
    /// Each timeout in a row lasts twice as long as the one before, up to this many times the first: then the peer is
    /// not slow to hear of a loss, but away.
    pub ack_timeout_growth: u32,
    /// The RNR wait is this times what the NAK says.
    pub rnr_wait_factor: f64,
    /// Responses that come during an RNR wait are dropped, be they right.
    pub rnr_wait_discards: bool,
    /// What goes over the wire while a page is missing.
    pub page_faults: PageFaults,
}

/// How network page faults are met on each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFaults {
    pub requester: RequesterFaults,
    pub responder: ResponderFaults,
}

/// A page is missing where the answer to a READ or an atomic goes. (What is sent waits for its pages in any case.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequesterFaults {
    /// The request waits until its place is there. If that goes again, the answer waits.
    Wait,
    /// The answer is dropped, and the request is repeated after this time, whether the page is there by then or not.
    Discard { retransmit: Duration },
}

/// A page is missing that a peer's request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponderFaults {
    /// The request waits.
    Wait,
    /// The peer gets an RNR NAK; a READ is answered unasked once the page is there. Where there are no NAKs (UC, UD),
    /// the message is dropped.
    RnrNak,
}

impl Profile {
    /// A perfect adapter. The floor is a few ms because a software peer may be off its core for that long.
    pub fn ideal() -> Self {
        Profile {
            name: "ideal".into(),
            ack_timeout_floor: Duration::from_millis(4),
            ack_timeout_factor: 1.0,
            // The most that the clause allows: a process that has lost its core to others is back by then.
            ack_timeout_growth: 4,
            rnr_wait_factor: 1.0,
            rnr_wait_discards: false,
            page_faults: PageFaults { requester: RequesterFaults::Wait, responder: ResponderFaults::Wait },
        }
    }
}
