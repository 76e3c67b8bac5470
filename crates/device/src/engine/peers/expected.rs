//! Which QP a proof is for, by the proof's ID: an answer costs one look-up for each proof in it.

use crate::engine::peers::identity::PeerId;
use std::collections::HashMap;

/// The IDs of the proofs that connected QPs expect.
#[derive(Debug, Default)]
pub struct Expected(HashMap<(PeerId, u64), u16>);

impl Expected {
    /// A QP expects proofs with these IDs of a peer. For control calls: it allocates.
    pub fn enter(&mut self, peer: PeerId, ids: impl Iterator<Item = u64>, index: u16) {
        self.0.extend(ids.map(|id| ((peer, id), index)));
    }

    /// A QP expects these no more.
    pub fn remove(&mut self, peer: PeerId, ids: impl Iterator<Item = u64>, index: u16) {
        for id in ids {
            if self.0.get(&(peer, id)) == Some(&index) {
                self.0.remove(&(peer, id));
            }
        }
    }

    /// All IDs, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn all(&self) -> &HashMap<(PeerId, u64), u16> {
        &self.0
    }

    /// The QP that expects a proof.
    pub fn of(&self, peer: PeerId, id: u64) -> Option<u16> {
        self.0.get(&(peer, id)).copied()
    }
}
