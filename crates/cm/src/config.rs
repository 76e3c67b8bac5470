//! What a process chooses, and how it names its connections.

use std::net::{IpAddr, Ipv6Addr};

/// The choices of a process.
#[derive(Clone, Debug)]
pub struct Config {
    /// The upper bits of every communication ID of the process, by which the holder of port 4791 finds the process.
    pub id_prefix: u32,
    /// How many lower bits count connections.
    pub id_bits: u32,
    /// Makes communication IDs and transaction IDs differ from those of the process before.
    pub seed: u64,
    /// How many requests may wait at a time until they are accepted, or forgotten: further ones are dropped, and their
    /// senders repeat them.
    pub max_half_open: usize,
    /// How many of them one remote address may have.
    pub max_half_open_per_peer: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config { id_prefix: 0, id_bits: 32, seed: 0, max_half_open: 4096, max_half_open_per_peer: 1024 }
    }
}

/// The route of a MAD, as the process sees it: `remote` has sent or receives it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    pub local: IpAddr,
    pub remote: IpAddr,
    /// Which device of the process; the number means nothing here.
    pub device: u32,
}

impl Address {
    /// The GID of the process's port.
    pub fn local_gid(&self) -> Ipv6Addr {
        gid(self.local)
    }

    /// The GID of the peer's port.
    pub fn remote_gid(&self) -> Ipv6Addr {
        gid(self.remote)
    }
}

/// RoCEv2 has IP addresses as GIDs (IBTA annex A17).
fn gid(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// A connection, or the resolution of a service: the process's communication ID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u32);

/// Why a call did nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// It is established already.
    #[error("the connection is established already")]
    Connected,
    /// It was forgotten, or never existed.
    #[error("there is no such connection")]
    UnknownId,
    #[error("the connection's state does not allow that")]
    WrongState,
    #[error("private data or additional information is longer than the message has room for")]
    TooLong,
    #[error("the connection's addresses are of two families")]
    Families,
    #[error("all communication IDs are in use")]
    NoIds,
}
