//! Pinned memory of a process, to which READs go that start again.

use std::collections::BTreeMap;
use weir_sim::{Backing, HostId, Paging, Region, Simulation};

/// Bytes of it.
pub const BYTES: u64 = 64 << 20;

/// Blocks of a pinned region. A block is free when nothing holds it.
#[derive(Debug)]
pub struct Bounce {
    pub region: Region,
    /// By offset: the length of a block, and how many hold it.
    used: BTreeMap<u64, (u64, u32)>,
}

impl Bounce {
    /// Registers the region; `contents`: the process has memory with contents.
    pub fn new(sim: &mut Simulation, host: HostId, contents: bool) -> Bounce {
        let backing = if contents { Backing::Bytes(vec![0; BYTES as usize]) } else { Backing::Phantom(BYTES) };
        Bounce { region: sim.register(host, backing, Paging::Pinned), used: BTreeMap::new() }
    }

    /// A new block, which the caller holds; `None`: there is no room.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let bytes = bytes.max(1);
        let mut at = 0;
        for (&start, &(len, _)) in &self.used {
            if start - at >= bytes {
                break;
            }
            at = start + len;
        }
        (BYTES - at >= bytes).then(|| {
            self.used.insert(at, (bytes, 1));
            at
        })
    }

    /// One more holds the block.
    pub fn hold(&mut self, block: u64) {
        if let Some((_, holders)) = self.used.get_mut(&block) {
            *holders += 1;
        }
    }

    /// One less holds the block.
    pub fn release(&mut self, block: u64) {
        if let Some((_, holders)) = self.used.get_mut(&block) {
            *holders -= 1;
            if *holders == 0 {
                self.used.remove(&block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use weir_transport::Profile;

    #[test]
    fn a_block_is_free_when_nothing_holds_it() {
        let mut sim = Simulation::new(1);
        let host = sim.add_host(&Arc::new(Profile::ideal()));
        let mut bounce = Bounce::new(&mut sim, host, false);
        let blocks = [BYTES / 2, BYTES / 4, 0].map(|bytes| bounce.take(bytes).expect("room"));
        assert_eq!(blocks, [0, BYTES / 2, BYTES / 4 * 3]);
        assert_eq!(bounce.take(BYTES / 4), None);
        bounce.hold(blocks[1]);
        bounce.release(blocks[1]);
        assert_eq!(bounce.take(BYTES / 4), None, "it is held once more");
        bounce.release(blocks[1]);
        assert_eq!(bounce.take(BYTES / 4), Some(BYTES / 2));
        assert_eq!(bounce.take(BYTES / 4 - 1), Some(BYTES / 4 * 3 + 1));
    }
}
