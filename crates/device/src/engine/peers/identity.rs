//! The identity of peers: the key by which datagrams find them, and the indices of their entries.

use std::net::IpAddr;

/// The local address, the remote address and the remote slot's port.
pub type PeerKey = (IpAddr, IpAddr, u16);

/// Index of a peer.
pub type PeerId = usize;

/// The entry of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryId {
    Peer(PeerId),
    /// Index of an unbound peer.
    Unbound(usize),
}
