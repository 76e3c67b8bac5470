//! BTH opcodes and the headers that each carries (IBTA 9.2.1, table 38).

use crate::ext::{Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, Reth, XrcEth};
use std::fmt;

/// A BTH opcode: three bits of [`Service`], five of [`Operation`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

/// Transport service of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram: defined, but no adapter supports it and its packets (with RDETH) are not parsed.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// Congestion notification and all other values.
    Other,
    /// No transport: whole Ethernet frames. No opcode has it.
    Raw,
}

/// The low five bits of an opcode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Operation {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImm = 0x03,
    SendOnly = 0x04,
    SendOnlyImm = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImm = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImm = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInv = 0x16,
    SendOnlyInv = 0x17,
    Flush = 0x1c,
    AtomicWrite = 0x1d,
}

use Operation as O;

/// Properties of an operation, as bits: the headers that follow the BTH, and its part of a message.
mod has {
    /// RDMA extended transport header.
    pub const RETH: u16 = 1 << 0;
    /// Atomic extended transport header.
    pub const ATOMIC: u16 = 1 << 1;
    /// ACK extended transport header.
    pub const AETH: u16 = 1 << 2;
    /// Atomic ACK extended transport header.
    pub const ATOMIC_ACK: u16 = 1 << 3;
    /// Immediate data.
    pub const IMM: u16 = 1 << 4;
    /// Invalidate extended transport header.
    pub const IETH: u16 = 1 << 5;
    /// FLUSH extended transport header (IBTA annex A19).
    pub const FETH: u16 = 1 << 6;
    /// A payload may follow the headers.
    pub const PAYLOAD: u16 = 1 << 7;
    /// FIRST and ONLY packets.
    pub const START: u16 = 1 << 8;
    /// LAST and ONLY packets.
    pub const END: u16 = 1 << 9;
    /// Sent by the responder.
    pub const RESPONSE: u16 = 1 << 10;
}

const TABLE: [Option<(Operation, u16)>; 32] = {
    use has::*;
    let mut t = [None; 32];
    let rows = [
        (O::SendFirst, PAYLOAD | START),
        (O::SendMiddle, PAYLOAD),
        (O::SendLast, PAYLOAD | END),
        (O::SendLastImm, PAYLOAD | END | IMM),
        (O::SendOnly, PAYLOAD | START | END),
        (O::SendOnlyImm, PAYLOAD | START | END | IMM),
        (O::WriteFirst, PAYLOAD | START | RETH),
        (O::WriteMiddle, PAYLOAD),
        (O::WriteLast, PAYLOAD | END),
        (O::WriteLastImm, PAYLOAD | END | IMM),
        (O::WriteOnly, PAYLOAD | START | END | RETH),
        (O::WriteOnlyImm, PAYLOAD | START | END | RETH | IMM),
        (O::ReadRequest, START | END | RETH),
        (O::ReadResponseFirst, PAYLOAD | START | AETH | RESPONSE),
        (O::ReadResponseMiddle, PAYLOAD | RESPONSE),
        (O::ReadResponseLast, PAYLOAD | END | AETH | RESPONSE),
        (O::ReadResponseOnly, PAYLOAD | START | END | AETH | RESPONSE),
        (O::Acknowledge, START | END | AETH | RESPONSE),
        (O::AtomicAcknowledge, START | END | AETH | ATOMIC_ACK | RESPONSE),
        (O::CompareSwap, START | END | ATOMIC),
        (O::FetchAdd, START | END | ATOMIC),
        (O::SendLastInv, PAYLOAD | END | IETH),
        (O::SendOnlyInv, PAYLOAD | START | END | IETH),
        (O::Flush, START | END | FETH | RETH),
        (O::AtomicWrite, PAYLOAD | START | END | RETH),
    ];
    let mut i = 0;
    while i < rows.len() {
        t[rows[i].0 as usize] = Some(rows[i]);
        i += 1;
    }
    t
};

/// The properties alone: none of an unknown operation.
const BITS: [u16; 32] = {
    let mut bits = [0; 32];
    let mut code = 0;
    while code < bits.len() {
        if let Some((_, known)) = TABLE[code] {
            bits[code] = known;
        }
        code += 1;
    }
    bits
};

/// Indexed by opcode.
const EXTENSIONS_LEN: [u8; 256] = {
    const fn len(has: bool, header: usize) -> usize {
        if has { header } else { 0 }
    }
    let mut table = [0; 256];
    let mut code = 0;
    while code < table.len() {
        let opcode = Opcode(code as u8);
        let known = opcode.operation().is_some();
        table[code] = known as u8
            * (len(opcode.has_deth(), Deth::LEN)
                + len(opcode.has_xrceth(), XrcEth::LEN)
                + len(opcode.has_feth(), Feth::LEN)
                + len(opcode.has_reth(), Reth::LEN)
                + len(opcode.has_atomic(), AtomicEth::LEN)
                + len(opcode.has_aeth(), Aeth::LEN)
                + len(opcode.has_atomic_ack(), AtomicAckEth::LEN)
                + len(opcode.has_imm(), ImmDt::LEN)
                + len(opcode.has_ieth(), Ieth::LEN)) as u8;
        code += 1;
    }
    table
};

impl Opcode {
    /// Combines a service and an operation.
    #[inline]
    pub const fn new(service: Service, operation: Operation) -> Self {
        let base = match service {
            Service::Rc => 0x00,
            Service::Uc => 0x20,
            Service::Rd => 0x40,
            Service::Ud => 0x60,
            Service::Xrc => 0xa0,
            Service::Other | Service::Raw => 0x80,
        };
        Opcode(base | operation as u8)
    }

    /// The transport service.
    #[inline]
    pub const fn service(self) -> Service {
        match self.0 >> 5 {
            0 => Service::Rc,
            1 => Service::Uc,
            2 => Service::Rd,
            3 => Service::Ud,
            5 => Service::Xrc,
            _ => Service::Other,
        }
    }

    /// The operation, if the low five bits name one and the service supports it.
    #[inline]
    pub const fn operation(self) -> Option<Operation> {
        let Some((operation, bits)) = TABLE[(self.0 & 0x1f) as usize] else { return None };
        let allowed = match self.service() {
            Service::Rc | Service::Xrc => true,
            Service::Uc => {
                bits & (has::RESPONSE | has::ATOMIC | has::FETH | has::IETH) == 0
                    && !matches!(operation, O::ReadRequest | O::AtomicWrite)
            }
            Service::Ud => matches!(operation, O::SendOnly | O::SendOnlyImm),
            Service::Rd | Service::Other | Service::Raw => false,
        };
        if allowed { Some(operation) } else { None }
    }

    /// A reserved operation of RC or XRC.
    pub const fn is_reserved_request(self) -> bool {
        matches!(self.service(), Service::Rc | Service::Xrc) && self.operation().is_none()
    }

    #[inline]
    const fn has(self, bit: u16) -> bool {
        BITS[(self.0 & 0x1f) as usize] & bit != 0
    }

    /// Length in bytes of all its extension headers.
    #[inline]
    pub const fn extensions_len(self) -> usize {
        EXTENSIONS_LEN[self.0 as usize] as usize
    }

    /// Starts a message: FIRST or ONLY.
    #[inline]
    pub const fn starts_message(self) -> bool {
        self.has(has::START)
    }
    /// Ends a message: LAST or ONLY.
    #[inline]
    pub const fn ends_message(self) -> bool {
        self.has(has::END)
    }
    /// Goes from responder to requester.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.has(has::RESPONSE)
    }
    /// May carry payload.
    #[inline]
    pub const fn has_payload(self) -> bool {
        self.has(has::PAYLOAD)
    }
    /// Carries a [`crate::Reth`].
    #[inline]
    pub const fn has_reth(self) -> bool {
        self.has(has::RETH)
    }
    /// Carries a [`crate::AtomicEth`].
    #[inline]
    pub const fn has_atomic(self) -> bool {
        self.has(has::ATOMIC)
    }
    /// Carries a [`crate::Aeth`].
    #[inline]
    pub const fn has_aeth(self) -> bool {
        self.has(has::AETH)
    }
    /// Carries a [`crate::AtomicAckEth`].
    #[inline]
    pub const fn has_atomic_ack(self) -> bool {
        self.has(has::ATOMIC_ACK)
    }
    /// Carries a [`crate::ImmDt`].
    #[inline]
    pub const fn has_imm(self) -> bool {
        self.has(has::IMM)
    }
    /// Carries a [`crate::Ieth`].
    #[inline]
    pub const fn has_ieth(self) -> bool {
        self.has(has::IETH)
    }
    /// Carries a [`crate::Feth`].
    #[inline]
    pub const fn has_feth(self) -> bool {
        self.has(has::FETH)
    }
    /// Carries a [`crate::Deth`].
    #[inline]
    pub const fn has_deth(self) -> bool {
        matches!(self.service(), Service::Ud)
    }
    /// Carries a [`crate::XrcEth`]: XRC requests do, responses do not.
    #[inline]
    pub const fn has_xrceth(self) -> bool {
        matches!(self.service(), Service::Xrc) && !self.is_response()
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation() {
            Some(operation) => write!(f, "{:?}/{operation:?}", self.service()),
            None => write!(f, "Opcode({:#04x})", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_known_opcodes() {
        assert_eq!(Opcode::new(Service::Rc, O::WriteOnlyImm).0, 0x0b);
        assert_eq!(Opcode::new(Service::Ud, O::SendOnly).0, 0x64);
        assert_eq!(Opcode::new(Service::Xrc, O::SendFirst).0, 0xa0);
        let middle = Opcode::new(Service::Rc, O::ReadResponseMiddle);
        assert!(middle.is_response() && !middle.has_aeth() && !middle.starts_message() && !middle.ends_message());
    }

    #[test]
    fn operations_are_limited_by_service() {
        assert_eq!(Opcode(0x15).operation(), None);
        let reserved: Vec<u8> = (0..=255).filter(|code| Opcode(*code).is_reserved_request()).collect();
        let low = [0x15, 0x18, 0x19, 0x1a, 0x1b, 0x1e, 0x1f];
        assert_eq!(reserved, [low, low.map(|code| 0xa0 | code)].concat());
        assert!(reserved.iter().all(|code| Opcode(*code).extensions_len() == 0 && !Opcode(*code).is_response()));
        assert_eq!(Opcode::new(Service::Ud, O::WriteOnly).operation(), None);
        assert_eq!(Opcode::new(Service::Uc, O::ReadRequest).operation(), None);
        assert_eq!(Opcode::new(Service::Uc, O::WriteOnly).operation(), Some(O::WriteOnly));
        assert_eq!(Opcode(0x81).operation(), None, "a congestion notification packet");
        assert_eq!(Opcode::new(Service::Rd, O::SendOnly).operation(), None);
    }
}
