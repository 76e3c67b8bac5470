//! RoCEv2 packet formats and ICRC.
//!
//! A UDP datagram to port 4791 carries BTH, the extension headers of its opcode, payload, pad, ICRC. [`Packet::parse`]
//! checks all lengths once and returns a view; [`Headers`] is the owned form, with [`Headers::emit`]. [`frame`] is the
//! second encoding of packets, between Weir peers only. [`ip`] covers the parts of IPv4, IPv6, UDP and Ethernet that
//! the ICRC and capture files need. [`mad`] and [`cm`] are the management datagrams that set up connections. [`tag`]: the headers of tag matching.
//! [`edge`]: what is in front of packets over several links.
#![forbid(unsafe_code)]

pub mod burst;
pub mod cm;
pub mod edge;
#[macro_use]
mod ext;
mod extension;
pub mod frame;
pub mod icrc;
pub mod ip;
pub mod mad;
mod opcode;
mod packet;
mod placement;
mod psn;
mod syndrome;
pub mod tag;

pub use ext::{Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, Reth, XrcEth};
pub use extension::Extension;
pub use opcode::{Opcode, Operation, Service};
pub use packet::{Bth, Headers, MAX_HEADERS, Packet, ParseError};
pub use placement::{Destination, Placement};
pub use psn::Psn;
pub use syndrome::{NakCode, RnrTimer, Syndrome};

/// UDP destination port of RoCEv2 (IBTA annex A17).
pub const ROCE_PORT: u16 = 4791;
/// UDP ports of slots: between two Weir processes, both ports are such.
pub const SLOT_PORTS: std::ops::RangeInclusive<u16> = 20480..=21503;
/// Bytes of the invariant CRC at the end of each packet.
pub const ICRC_LEN: usize = 4;
/// The default partition key, full member (IBTA 10.9.2).
pub const DEFAULT_PKEY: u16 = 0xffff;
