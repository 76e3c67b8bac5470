//! Datagrams to processes that have not answered a hello yet. They are copied here, so that datagrams to other
//! processes, which are posted later, do not wait for that answer.

use crate::engine::peers::identity::PeerId;
use weir_link::Outbox;

/// Bytes of all parked datagrams together.
const BYTES: usize = 256 << 10;
/// The most parked datagrams, for all peers together and for one peer.
pub const DATAGRAMS: usize = 512;
const DATAGRAMS_OF_ONE: usize = 64;

/// Parked datagrams, in the order of their posting.
pub struct Parked {
    /// Each group is one datagram, without ICRC. Released datagrams have length 0.
    pub outbox: Outbox,
    /// The peer that each group waits for.
    pub peers: Vec<PeerId>,
}

impl Parked {
    /// No datagrams. The lists never grow.
    pub fn new() -> Parked {
        Parked { outbox: Outbox::new(BYTES, DATAGRAMS), peers: Vec::with_capacity(DATAGRAMS) }
    }

    /// Returns whether another datagram may wait for a peer.
    pub fn admits(&self, peer: PeerId) -> bool {
        self.peers.iter().filter(|other| **other == peer).count() < DATAGRAMS_OF_ONE
    }

    /// The last datagram in the outbox waits for this peer.
    pub fn enter(&mut self, peer: PeerId) {
        self.peers.push(peer);
        debug_assert_eq!(self.peers.len(), self.outbox.groups.len());
    }

    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.outbox.groups.iter().filter(|group| group.len > 0).count()
    }
}
