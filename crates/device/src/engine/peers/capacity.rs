//! Room for peers. The first datagram to a new peer makes an entry in a turn, where nothing may be allocated: there is
//! always room for some new peers, and the engine's thread makes more outside of the engine when that room shrinks.
//! Datagrams to further new peers wait until it has done so.

use crate::Errno;
use crate::engine::peers::identity::{EntryId, PeerId, PeerKey as Key};
use crate::engine::peers::peer::Peer;
use crate::engine::peers::unbound_peers::MAX_UNBOUND_PEERS;
use crate::os::grow::Grow;
use std::collections::HashMap;

/// New peers for which there is room after the lists have grown.
pub const SPARE: usize = 256;
/// With room for fewer new peers than this, the lists grow.
const LOW: usize = SPARE / 2;

/// The lists of peers.
pub struct Lists {
    pub(super) peers: Vec<Peer>,
    /// Free entries of `peers`.
    pub(super) vacant: Vec<PeerId>,
    pub(super) by_key: HashMap<Key, EntryId>,
    /// The number of peers that the lists hold without growing.
    limit: usize,
}

impl Lists {
    /// Empty lists for `limit` peers. ENOMEM if there is no memory.
    pub fn new(limit: usize) -> Result<Lists, Errno> {
        // Removed keys take room until the map is rehashed. It does that in place as long as it is at most half full.
        let keys = 2 * (limit + MAX_UNBOUND_PEERS);
        let (peers, vacant, by_key) =
            (Grow::for_capacity(limit)?, Grow::for_capacity(limit)?, Grow::for_capacity(keys)?);
        Ok(Lists { peers, vacant, by_key, limit })
    }

    /// The number of peers.
    pub(super) fn count(&self) -> usize {
        self.peers.len() - self.vacant.len()
    }

    /// Returns whether there is room for a new peer.
    pub(super) fn has_room(&self) -> bool {
        self.count() < self.limit
    }

    /// The limit of larger lists, if there is little room.
    pub(super) fn needed(&self) -> Option<usize> {
        (self.limit - self.count() < LOW).then(|| (2 * self.count()).max(self.count() + SPARE))
    }

    /// Exchanges these lists for larger ones.
    pub(super) fn move_to(&mut self, larger: &mut Lists) {
        if self.limit < larger.limit {
            self.peers.move_to(&mut larger.peers);
            self.vacant.move_to(&mut larger.vacant);
            self.by_key.move_to(&mut larger.by_key);
            std::mem::swap(self, larger);
        }
    }
}
