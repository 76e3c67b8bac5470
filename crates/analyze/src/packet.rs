//! A packet as the analysis keeps it: the few fields of its headers that the analysis uses, in 56 bytes.

use weir_wire::{Aeth, AtomicEth, Headers, Opcode, Operation, Psn, Reth, Syndrome};

/// A packet of a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Where it is in the captures.
    pub frame: FrameId,
    pub psn: Psn,
    pub opcode: Opcode,
    pub marks: Marks,
    /// Syndrome byte of its AETH; 0 if it has none.
    pub syndrome: u8,
    /// Bytes of payload on the wire.
    pub payload: u32,
    /// Length of the whole message, if the packet says so (RETH), bytes.
    pub message: u32,
    /// Key and address at the responder, if the packet says so (RETH, AtomicETH).
    pub rkey: u32,
    pub va: u64,
}

/// The number of a frame, and the file that it is in; eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FrameId(u64);

/// Properties of a packet that are true or false.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Its ICRC is wrong.
    pub bad_icrc: bool,
    /// A switch marked it: congestion experienced (ECN 3), or the FECN bit of the BTH.
    pub congested: bool,
    /// It may come after later packets: an adapter has reported it that takes them over several links.
    pub over_links: bool,
}

impl Marks {
    /// Whether it tells something about the network.
    pub fn is_remarkable(self) -> bool {
        self.bad_icrc || self.congested
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Read,
    Write,
    Send,
    Atomic,
    /// A reserved operation, or FLUSH.
    Other,
}

impl FrameId {
    const NUMBER: u32 = 48;

    /// Frame `number`, from 1 as Wireshark counts, of the file with this index on the command line.
    pub fn new(file: u16, number: u64) -> FrameId {
        FrameId(u64::from(file) << Self::NUMBER | number & ((1 << Self::NUMBER) - 1))
    }

    /// Index of the file.
    pub fn file(self) -> u16 {
        (self.0 >> Self::NUMBER) as u16
    }

    /// Number in the file.
    pub fn number(self) -> u64 {
        self.0 & ((1 << Self::NUMBER) - 1)
    }
}

impl Seen {
    /// The fields of a packet's headers.
    pub fn new(time: u64, frame: FrameId, headers: &Headers, payload: u32, marks: Marks) -> Seen {
        let aeth = headers.get::<Aeth>();
        let reth = headers.get::<Reth>();
        let place = match (reth, headers.get::<AtomicEth>()) {
            (Some(reth), _) => (reth.va.get(), reth.rkey.get()),
            (None, Some(atomic)) => (atomic.va.get(), atomic.rkey.get()),
            (None, None) => (0, 0),
        };
        Seen {
            time,
            frame,
            psn: headers.bth.psn,
            opcode: headers.bth.opcode,
            marks,
            syndrome: aeth.map_or(0, |aeth| aeth.syndrome()),
            payload,
            message: reth.map_or(0, |reth| reth.dma_len.get()),
            rkey: place.1,
            va: place.0,
        }
    }

    /// Whether the responder sent it.
    pub fn is_response(&self) -> bool {
        self.opcode.is_response()
    }

    /// The meaning of its AETH; `None` if it has none.
    pub fn acknowledgement(&self) -> Option<Syndrome> {
        self.opcode.has_aeth().then(|| Syndrome::from_byte(self.syndrome))
    }

    /// What a request asks for.
    pub fn kind(&self) -> Kind {
        use Operation::*;
        match self.opcode.operation() {
            Some(ReadRequest) => Kind::Read,
            Some(CompareSwap | FetchAdd) => Kind::Atomic,
            Some(WriteFirst | WriteMiddle | WriteLast | WriteLastImm | WriteOnly | WriteOnlyImm | AtomicWrite) => {
                Kind::Write
            }
            Some(operation) if (operation as u8) < WriteFirst as u8 => Kind::Send,
            Some(SendLastInv | SendOnlyInv) => Kind::Send,
            _ => Kind::Other,
        }
    }

    /// Whether the responder needs a posted receive for it.
    pub fn takes_receive(&self) -> bool {
        use Operation::*;
        self.kind() == Kind::Send || matches!(self.opcode.operation(), Some(WriteLastImm | WriteOnlyImm))
    }

    /// Its name, as Wireshark and the papers have it.
    pub fn name(&self) -> &'static str {
        use Operation::*;
        match self.opcode.operation() {
            Some(Acknowledge) => match self.acknowledgement() {
                Some(Syndrome::RnrNak(_)) => "RNR NAK",
                Some(Syndrome::Nak(weir_wire::NakCode::PsnSequence)) => "NAK (PSN sequence error)",
                Some(Syndrome::Nak(weir_wire::NakCode::InvalidRequest)) => "NAK (invalid request)",
                Some(Syndrome::Nak(weir_wire::NakCode::RemoteAccess)) => "NAK (remote access error)",
                Some(Syndrome::Nak(weir_wire::NakCode::RemoteOperational)) => "NAK (remote operational error)",
                _ => "ACK",
            },
            Some(ReadRequest) => "READ request",
            Some(ReadResponseFirst | ReadResponseMiddle | ReadResponseLast | ReadResponseOnly) => "READ response",
            Some(AtomicAcknowledge) => "atomic response",
            Some(CompareSwap) => "compare and swap",
            Some(FetchAdd) => "fetch and add",
            Some(Flush) => "FLUSH",
            _ => match self.kind() {
                Kind::Write => "WRITE",
                Kind::Send => "SEND",
                _ => "reserved operation",
            },
        }
    }
}

impl Kind {
    /// Whether the response carries data of the responder, so that no other acknowledgement completes the request.
    pub fn returns_data(self) -> bool {
        matches!(self, Kind::Read | Kind::Atomic)
    }

    /// The operation's name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "READ",
            Kind::Write => "WRITE",
            Kind::Send => "SEND",
            Kind::Atomic => "atomic",
            Kind::Other => "request",
        }
    }
}
