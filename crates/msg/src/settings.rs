//! What can be set of the protocol.

use crate::atomic::{AtomicKind, Datatype};
use crate::message::{LONGEST_HEADER, PAYLOAD_HEADER};
use crate::scheme::Scheme;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Settings of an endpoint. The peer's may differ, except that each says in its hello what it has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How buffers of the program are registered.
    pub scheme: Scheme,
    /// How the payload of a large message travels.
    pub rendezvous: Rendezvous,
    /// Largest message that travels through bounce buffers, bytes of payload.
    pub eager_limit: u64,
    /// Size of a bounce buffer, bytes: a header and payload.
    pub slot: u32,
    /// Bounce buffers that are posted as receives, for each peer that sends much.
    pub receive_slots: u16,
    /// The same for a new peer.
    pub first_receives: u16,
    /// Bounce buffers for what this side sends, for all peers.
    pub send_slots: u32,
    /// Bytes of messages that one peer may have sent although no receive matches them. Further messages of the peer
    /// stay with it until they match.
    pub unexpected: u32,
    /// Announcements of one peer that match no receive. A peer that sends more is disconnected.
    pub announced: u32,
    /// Peers that the program has not named and that have a connection, or messages here. Further ones are refused.
    pub strangers: usize,
    /// Bytes that the program has injected and that wait for a connection or for room, for all peers.
    pub injected: usize,
    /// Largest READ or WRITE of the program that goes through a bounce buffer, bytes.
    pub rma_bounce: u32,
    /// The cache of registrations keeps at most so many bytes that no operation uses.
    pub cache_bytes: u64,
    /// The cache of registrations keeps at most so many regions.
    pub cache_regions: usize,
    /// A program that does not call for so long has computed meanwhile, so that prefetched pages may be gone.
    pub computes: Duration,
    /// Most bytes of windows that are prefetched at a time.
    pub window_prefetch: u64,
    /// A connection must be established within this time. A peer answers only when its program calls.
    pub connect_within: Duration,
}

/// How the payload of a large message travels (Li et al., V.B).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// The receiver READs it: two control messages.
    Read,
    /// The sender WRITEs it: three control messages.
    Write,
}

impl Settings {
    /// Longest message that can be injected, bytes.
    pub fn longest_injected(&self) -> usize {
        (self.slot as usize - PAYLOAD_HEADER).min(self.eager_limit as usize)
    }

    /// Most elements of an atomic.
    pub fn most_elements(&self, kind: AtomicKind, datatype: Datatype) -> usize {
        let each = if kind == AtomicKind::Compare { 2 * datatype.size() } else { datatype.size() };
        (self.slot as usize - LONGEST_HEADER) / each
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            scheme: Scheme::default(),
            rendezvous: Rendezvous::Write,
            eager_limit: 16 << 10,
            slot: 8 << 10,
            receive_slots: 32,
            first_receives: 4,
            send_slots: 64,
            unexpected: 1 << 20,
            announced: 1 << 16,
            strangers: 1024,
            injected: 1 << 20,
            rma_bounce: 4 << 10,
            cache_bytes: 1 << 30,
            cache_regions: 1024,
            computes: Duration::from_micros(100),
            window_prefetch: 64 << 20,
            connect_within: Duration::from_secs(120),
        }
    }
}

impl FromStr for Rendezvous {
    type Err = String;

    fn from_str(name: &str) -> Result<Rendezvous, String> {
        match name {
            "read" => Ok(Rendezvous::Read),
            "write" => Ok(Rendezvous::Write),
            _ => Err(format!("unknown rendezvous {name:?}: it is read or write")),
        }
    }
}

impl fmt::Display for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Rendezvous::Read => "read",
            Rendezvous::Write => "write",
        })
    }
}
