//! A packet in flight: headers, and payload bytes only if the memory has contents.

use crate::ids::{HostId, QpId};
use weir_wire::{Headers, ICRC_LEN, Packet};

/// Zeros as payload without contents, of the maximum length of a packet.
static ZEROS: [u8; 4096] = [0; 4096];

#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// This many bytes without contents.
    Phantom(u32),
    Bytes(Box<[u8]>),
}

#[derive(Clone, Debug)]
pub(crate) struct SimPacket {
    /// Sequence number among all packets of the simulation.
    pub id: u64,
    pub from: QpId,
    pub to: HostId,
    /// This PSN or a later one was sent before.
    pub repeated: bool,
    pub headers: Headers,
    pub payload: Payload,
}

impl Payload {
    /// The payload; zeros if it has no contents.
    pub fn bytes(&self) -> &[u8] {
        match self {
            // Inline data always has bytes, so that phantom payload is at most the largest MTU.
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
    /// The packet as the protocol takes it. The ICRC is not checked.
    pub fn view(&self) -> Packet<'_> {
        Packet { headers: self.headers, payload: self.payload.bytes(), icrc: 0 }
    }

    /// Bytes from the BTH to the ICRC.
    pub fn len(&self) -> usize {
        self.headers.len() + self.payload.len() + usize::from(self.headers.bth.pad) + ICRC_LEN
    }
}
