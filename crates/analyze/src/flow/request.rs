//! A request packet on the wire, from its first transmission to its response.

use crate::packet::{FrameId, Kind, Seen};
use weir_wire::Psn;

/// A request packet that was seen: of a READ or an atomic the whole request, otherwise a packet of a message.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub psn: Psn,
    /// PSNs that it takes: more than one for a READ with several response packets.
    pub psns: u32,
    /// Whether `psns` is certain: a READ's number follows from the path MTU, which the capture may not tell yet.
    pub psns_certain: bool,
    pub kind: Kind,
    pub takes_receive: bool,
    /// It ends a message.
    pub ends: bool,
    /// Bytes: of a READ those asked for, otherwise those carried.
    pub bytes: u32,
    pub rkey: u32,
    pub va: u64,
    /// Start of its message: the first transmission of the message's first packet.
    pub began: u64,
    pub first: Transmission,
    pub last: Transmission,
    /// Number of transmissions.
    pub sent: u32,
    /// RNR NAKs for it.
    pub rnr_naks: u32,
    /// Repetitions although a complete response had been seen.
    pub discards: u32,
    /// The last of these repetitions, ns since 1970.
    pub discarded: u64,
    /// The last timeouts, without a response in between.
    pub timeouts_in_row: u32,
    /// When the first of these timeouts made the requester repeat, ns since 1970.
    pub row_began: u64,
    /// The last complete response to the last transmission.
    answered: Transmission,
    /// When the first response to a later request came after its own; 0: none.
    pub followed: u64,
    /// Of a READ: when the last response to it began.
    pub responding: u64,
    /// Of a READ: PSNs of the response that were seen in a row since its last transmission.
    pub received: u32,
    /// The responder has it: it has answered it, in part at least, or a later request.
    pub executed: bool,
    /// The last transmission was a request that the responder did not know, while it replayed a READ.
    pub during_replay: bool,
    /// The first transmission was that.
    pub first_during_replay: bool,
}

/// When and where a packet was seen. Frames count from 1, so that the default is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Transmission {
    /// Nanoseconds since 1970.
    pub time: u64,
    pub frame: FrameId,
}

impl Request {
    /// A request at its first transmission. `mtu` is the path MTU as far as it is known, bytes.
    pub fn new(packet: &Seen, mtu: Option<u32>, began: u64) -> Request {
        let at = Transmission { time: packet.time, frame: packet.frame };
        let kind = packet.kind();
        let (psns, psns_certain) = match (kind, mtu) {
            (Kind::Read, Some(mtu)) => (psns_of(packet.message, mtu), true),
            // The largest MTU gives the smallest number: the next request corrects it.
            (Kind::Read, None) => (psns_of(packet.message, LARGEST_MTU), packet.message <= SMALLEST_MTU),
            _ => (1, true),
        };
        Request {
            psn: packet.psn,
            psns,
            psns_certain,
            kind,
            takes_receive: packet.takes_receive(),
            ends: packet.opcode.ends_message(),
            bytes: if kind == Kind::Read { packet.message } else { packet.payload },
            rkey: packet.rkey,
            va: packet.va,
            began,
            first: at,
            last: at,
            sent: 1,
            rnr_naks: 0,
            discards: 0,
            discarded: 0,
            timeouts_in_row: 0,
            row_began: 0,
            answered: Transmission::default(),
            followed: 0,
            responding: 0,
            received: 0,
            executed: false,
            during_replay: false,
            first_during_replay: false,
        }
    }

    /// The last complete response to the last transmission; `None`: there is none yet.
    pub fn answered(&self) -> Option<Transmission> {
        (self.answered != Transmission::default()).then_some(self.answered)
    }

    /// Enters a complete response, or that there is none to a new transmission.
    pub fn set_answered(&mut self, answered: Option<Transmission>) {
        self.executed |= answered.is_some();
        self.answered = answered.unwrap_or_default();
    }

    /// The PSN after its own.
    pub fn end(&self) -> Psn {
        self.psn.plus(self.psns)
    }

    /// Whether it has this PSN.
    pub fn covers(&self, psn: Psn) -> bool {
        let offset = psn.since(self.psn);
        offset >= 0 && (offset as u32) < self.psns
    }
}

/// Path MTUs (IBTA 9.4.3), bytes.
pub const SMALLEST_MTU: u32 = 256;
pub const LARGEST_MTU: u32 = 4096;

/// A quarter of all PSNs: more would have no order. The longest message is 2 GiB (IBTA 9.7.8), which is 2^23 packets of
/// the smallest MTU.
const MOST: u32 = 1 << 22;

/// The PSNs that a READ of so many bytes takes, at least one.
pub fn psns_of(bytes: u32, mtu: u32) -> u32 {
    bytes.div_ceil(mtu).clamp(1, MOST)
}
