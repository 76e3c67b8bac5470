//! What the analysis found: kind, evidence, cost, confidence and advice.

use crate::advice::Advice;
use crate::flow::FlowId;
use crate::packet::FrameId;

/// The kinds of findings. A file in `detect/` decides on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FindingKind {
    Damming,
    Flood,
    WriteFlood,
    ResponderPageFault,
    RequesterPageFault,
    RetryExhausted,
    PeerStopped,
    Timeout,
    Loss,
    Reordering,
    RnrStorm,
    RnrTimerZero,
    SlowReceiver,
    RemoteError,
    OutOfWindow,
    BadIcrc,
    Congestion,
    SmallMessages,
}

/// Something that went wrong, or that costs time.
#[derive(Clone, Debug)]
pub struct Finding {
    pub kind: FindingKind,
    /// The flows of the requests that it is about, at least one; several if it involves many connections of a host.
    pub flows: Vec<FlowId>,
    /// Evidence, a part of it if there is much.
    pub frames: Vec<FrameId>,
    /// Time of the first and of the last evidence, ns since 1970.
    pub from: u64,
    pub to: u64,
    /// How often it happened.
    pub count: u64,
    pub cost: Cost,
    /// 0 to 1.
    pub confidence: f64,
    /// What happened, in a sentence or two.
    pub text: String,
    pub advice: Vec<Advice>,
}

/// What a finding cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Time in which requests waited, summed over requests that waited one after the other, ns.
    pub time: u64,
    /// Packets that would not have been needed, and their payload.
    pub packets: u64,
    pub bytes: u64,
}

impl FindingKind {
    /// All kinds, the gravest first.
    pub const ALL: [FindingKind; 18] = [
        FindingKind::Damming,
        FindingKind::Flood,
        FindingKind::WriteFlood,
        FindingKind::RetryExhausted,
        FindingKind::PeerStopped,
        FindingKind::RemoteError,
        FindingKind::RnrTimerZero,
        FindingKind::RnrStorm,
        FindingKind::Timeout,
        FindingKind::Loss,
        FindingKind::BadIcrc,
        FindingKind::ResponderPageFault,
        FindingKind::RequesterPageFault,
        FindingKind::SlowReceiver,
        FindingKind::Congestion,
        FindingKind::Reordering,
        FindingKind::OutOfWindow,
        FindingKind::SmallMessages,
    ];

    /// Its name in JSON and on the command line.
    pub fn id(self) -> &'static str {
        use FindingKind::*;
        match self {
            Damming => "damming",
            Flood => "flood",
            WriteFlood => "write-flood",
            ResponderPageFault => "responder-page-fault",
            RequesterPageFault => "requester-page-fault",
            RetryExhausted => "retry-exhausted",
            PeerStopped => "peer-stopped",
            Timeout => "timeout",
            Loss => "loss",
            Reordering => "reordering",
            RnrStorm => "rnr-storm",
            RnrTimerZero => "rnr-timer-zero",
            SlowReceiver => "slow-receiver",
            RemoteError => "remote-error",
            OutOfWindow => "out-of-window",
            BadIcrc => "bad-icrc",
            Congestion => "congestion",
            SmallMessages => "small-messages",
        }
    }

    /// Its name for people.
    pub fn title(self) -> &'static str {
        use FindingKind::*;
        match self {
            Damming => "packet damming",
            Flood => "packet flood",
            WriteFlood => "packet flood by WRITEs",
            ResponderPageFault => "page faults at the responder",
            RequesterPageFault => "page faults at the requester",
            RetryExhausted => "retries exhausted",
            PeerStopped => "peer stopped",
            Timeout => "ACK timeouts",
            Loss => "packet loss",
            Reordering => "reordering",
            RnrStorm => "RNR storm",
            RnrTimerZero => "RNR timer 0 (655 ms)",
            SlowReceiver => "slow receiver",
            RemoteError => "remote error",
            OutOfWindow => "packets out of window",
            BadIcrc => "wrong ICRC",
            Congestion => "congestion",
            SmallMessages => "an ACK for each small message",
        }
    }
}

impl Cost {
    /// Adds the time that a repetition waited, ns. Times that a damaged file has may have no sum.
    pub fn add_time(&mut self, waited: u64) {
        self.time = self.time.saturating_add(waited);
    }

    /// Adds what a repetition cost.
    pub fn add_packet(&mut self, bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
    }
}
