//! What a packet means in its connection: the detectors decide by these events.

use super::request::Request;
use crate::packet::{FrameId, Kind, Seen};
use weir_wire::{NakCode, Psn, RnrTimer};

/// A fact about a half: the requests of one end of a connection, and the responses of the other.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A request packet was seen for the first time.
    New(&'a Request),
    /// A packet came after a packet with a later PSN, and is no repetition.
    Late { at: &'a Seen },
    /// A request packet was repeated; the request is as it was before.
    Repeat(&'a Repeat),
    /// A request was completed and is not repeated.
    Completed { request: &'a Request, at: u64 },
    /// An RNR NAK.
    RnrNak { nak: Nak, timer: RnrTimer, request: Option<&'a Request> },
    /// A sequence NAK: the responder misses `nak.psn`.
    SequenceNak { nak: Nak, request: Option<&'a Request> },
    /// A NAK that ends the connection.
    Fatal { nak: Nak, code: NakCode, request: Option<&'a Request> },
    /// Packets of a READ's response were lost before the point of capture.
    ResponseGap { at: &'a Seen },
    /// A response that no open request explains.
    Stray { at: &'a Seen },
    /// A second response to a READ or an atomic that was answered.
    AnsweredAgain { at: &'a Seen, request: &'a Request },
    /// A packet that another capture has, too, which has it as it was at another place: marked, or with a wrong ICRC.
    Elsewhere { at: &'a Seen },
    /// Any packet of the half, after all other events of it, and the number of open request packets then.
    Packet { at: &'a Seen, from_requester: bool, open: u32 },
}

/// A repetition of a request packet.
#[derive(Clone, Copy, Debug)]
pub struct Repeat {
    pub psn: Psn,
    pub kind: Kind,
    pub cause: Cause,
    /// From the last sign of the cause to the repetition, ns: from the RNR NAK, from the discarded response, from the
    /// start of the ACK timer.
    pub waited: u64,
    /// The repetition follows that of an earlier packet at once: go-back-N.
    pub follows: bool,
    /// Bytes of payload that go again.
    pub payload: u32,
    pub frame: FrameId,
    /// The frame of the transmission before.
    pub previous: FrameId,
    pub time: u64,
    /// The request, as it was before the repetition; `None` if it had been acknowledged long before.
    pub request: Option<Request>,
}

impl Repeat {
    /// The PSN after what is repeated.
    pub fn end(&self) -> Psn {
        self.request.map_or(self.psn.next(), |request| request.end())
    }
}

/// Why a requester repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The responder was not ready, and asked for this timer's delay.
    Rnr { code: u8 },
    /// The responder missed a packet and said so.
    SequenceNak,
    /// A part of a READ's response was missing, or a later request was acknowledged before it.
    ResponseGap,
    /// A complete response had arrived; the requester dropped it.
    Discarded,
    /// It had been acknowledged; the requester dropped the ACK, or did not get it.
    Acknowledged,
    /// Nothing arrived: the ACK timer ran out.
    Timeout,
    /// The capture has no response of this connection, so that the cause cannot be seen.
    Unseen,
}

/// A negative acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct Nak {
    pub psn: Psn,
    pub time: u64,
    pub frame: FrameId,
    /// From the last transmission of the request to the NAK, ns; `None` if the request was not seen.
    pub latency: Option<u64>,
    /// A sequence NAK that came while the responder replayed a READ: it saw a request that was new to it.
    pub during_replay: bool,
}
