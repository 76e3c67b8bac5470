//! A packet under way: headers, and bytes only where memory has some.

use crate::qp::{HostId, QpId};
use weir_wire::{Headers, ICRC_LEN, Packet};

/// Zeros that stand for payload without contents: as many as a packet may carry.
static ZEROS: [u8; 4096] = [0; 4096];

#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// So many bytes that nobody looks at.
    Phantom(u32),
    Bytes(Box<[u8]>),
}

#[derive(Clone, Debug)]
pub(crate) struct SimPacket {
    /// Counts all packets of the simulation.
    pub id: u64,
    pub from: QpId,
    pub to: HostId,
    /// It was sent before, or one after it.
    pub repeated: bool,
    pub headers: Headers,
    pub payload: Payload,
}

impl Payload {
    pub fn bytes(&self) -> &[u8] {
        match self {
            // Inline data of any length has bytes; payload of memory is no longer than the largest MTU.
            Payload::Phantom(len) => &ZEROS[..*len as usize],
            Payload::Bytes(bytes) => bytes,
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Payload::Phantom(len) => *len as usize,
            Payload::Bytes(bytes) => bytes.len(),
        }
    }
}

impl SimPacket {
    /// As the protocol takes it. Nobody asks for its ICRC.
    pub fn view(&self) -> Packet<'_> {
        Packet { headers: self.headers, payload: self.payload.bytes(), icrc: 0 }
    }

    /// Bytes from the BTH to the ICRC.
    pub fn len(&self) -> usize {
        self.headers.len() + self.payload.len() + usize::from(self.headers.bth.pad) + ICRC_LEN
    }
}
