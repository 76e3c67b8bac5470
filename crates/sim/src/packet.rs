//! A packet in flight: headers, and payload bytes only if the memory has contents.

use crate::ids::{HostId, QpId};
use std::ops::{Index, IndexMut};
use weir_transport::Instant;
use weir_wire::{Aeth, Headers, ICRC_LEN, Packet, Syndrome};

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
    /// A bit changed on the way.
    pub damaged: bool,
    /// A switch marked it: congestion experienced.
    pub marked: bool,
    pub headers: Headers,
    pub payload: Payload,
    /// Bytes from the BTH to the ICRC.
    pub bytes: u32,
    /// When it arrives at the end of the pipe that it is in.
    pub arrival: Instant,
    /// The packet behind it in that pipe.
    pub next: Option<PacketKey>,
}

/// The key of a packet in [`Packets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketKey(u32);

impl PacketKey {
    /// The key as a number.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The key of [`PacketKey::number`].
    pub fn from_number(number: u32) -> PacketKey {
        PacketKey(number)
    }
}

/// All packets on their way. Each stays in one place, and links and QPs pass its key on.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    packets: Vec<SimPacket>,
    unused: Vec<u32>,
    /// Number of packets ever added.
    added: u64,
}

impl Packets {
    /// Adds a packet, which gets the next sequence number.
    // Inlined: a call would copy the headers once more.
    #[inline(always)]
    pub fn add(&mut self, from: QpId, to: HostId, repeated: bool, headers: &Headers, payload: Payload) -> PacketKey {
        let (id, arrival, next) = (self.added, Instant(0), None);
        let bytes = (headers.len() + payload.len() + usize::from(headers.bth.pad) + ICRC_LEN) as u32;
        self.added += 1;
        let Some(index) = self.unused.pop() else {
            let (headers, [damaged, marked]) = (*headers, [false; 2]);
            let packet = SimPacket { id, from, to, repeated, damaged, marked, headers, payload, bytes, arrival, next };
            return self.grow(packet);
        };
        // Field by field: a whole packet would be built on the stack first.
        let packet = &mut self.packets[index as usize];
        (packet.id, packet.from, packet.to, packet.repeated) = (id, from, to, repeated);
        (packet.damaged, packet.marked) = (false, false);
        packet.headers = *headers;
        packet.payload = payload;
        packet.bytes = bytes;
        (packet.arrival, packet.next) = (arrival, next);
        PacketKey(index)
    }

    /// Adds a copy of a packet, with the same sequence number.
    #[cold]
    pub fn copy(&mut self, key: PacketKey) -> PacketKey {
        let copy = self[key].clone();
        self.grow(SimPacket { next: None, ..copy })
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, packet: SimPacket) -> PacketKey {
        self.packets.push(packet);
        PacketKey(self.packets.len() as u32 - 1)
    }

    /// Removes a packet, which has arrived or is lost. Its key must not be used again.
    #[inline]
    pub fn remove(&mut self, key: PacketKey) {
        self[key].payload = Payload::Phantom(0);
        self.unused.push(key.0);
    }
}

impl Index<PacketKey> for Packets {
    type Output = SimPacket;

    #[inline]
    fn index(&self, key: PacketKey) -> &SimPacket {
        &self.packets[key.0 as usize]
    }
}

impl IndexMut<PacketKey> for Packets {
    #[inline]
    fn index_mut(&mut self, key: PacketKey) -> &mut SimPacket {
        &mut self.packets[key.0 as usize]
    }
}

impl Payload {
    /// The payload; zeros if it has no contents.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            // Inline data always has bytes, so that phantom payload is at most the largest MTU.
            Payload::Phantom(len) => &ZEROS[..*len as usize],
            Payload::Bytes(bytes) => bytes,
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Payload::Phantom(len) => *len as usize,
            Payload::Bytes(bytes) => bytes.len(),
        }
    }
}

impl SimPacket {
    /// Whether it is a NAK of any kind.
    pub fn is_nak(&self) -> bool {
        matches!(self.syndrome(), Some(Syndrome::RnrNak(_) | Syndrome::Nak(_)))
    }

    /// Whether it is an RNR NAK.
    pub fn is_rnr_nak(&self) -> bool {
        matches!(self.syndrome(), Some(Syndrome::RnrNak(_)))
    }

    fn syndrome(&self) -> Option<Syndrome> {
        self.headers.get::<Aeth>().map(|aeth| Syndrome::from_byte(aeth.syndrome()))
    }

    /// The packet as the protocol takes it. The ICRC is not checked.
    #[inline]
    pub fn view(&self) -> Packet<'_> {
        Packet { headers: self.headers, payload: self.payload.bytes(), icrc: 0, placement: None }
    }
}
