//! Which lines of memory are in the cache.

use std::collections::HashMap;

/// Lines of a block, each a bit.
pub(super) const BLOCK_LINES: u64 = u64::BITS as u64;

/// The cache: lines in blocks of 64. The blocks that were accessed last stay.
#[derive(Debug)]
pub(super) struct Cache {
    /// In lines.
    capacity: u64,
    held: u64,
    /// Index in `blocks` by number of the block.
    index: HashMap<u64, usize>,
    /// A ring in the order of access. The first entry is no block: the newest is behind it, the oldest before it.
    blocks: Vec<Block>,
    unused: Vec<usize>,
}

#[derive(Debug, Default)]
struct Block {
    number: u64,
    /// Those of its lines that are in the cache.
    lines: u64,
    newer: usize,
    older: usize,
}

/// The entry that is no block.
const RING: usize = 0;

impl Cache {
    /// An empty cache of so many lines.
    pub fn new(capacity: u64) -> Self {
        let blocks = vec![Block::default()];
        Cache { capacity, held: 0, index: HashMap::new(), blocks, unused: Vec::new() }
    }

    /// Accesses lines of a block, and returns those that were not in the cache. They are now, and the oldest blocks are
    /// not any more if the cache is full.
    pub fn access(&mut self, number: u64, lines: u64) -> u64 {
        let at = match self.index.get(&number) {
            Some(&at) => {
                self.unlink(at);
                at
            }
            None => self.insert(number),
        };
        self.link_as_newest(at);
        let block = &mut self.blocks[at];
        let absent = lines & !block.lines;
        block.lines |= lines;
        self.held += u64::from(absent.count_ones());
        while self.held > self.capacity {
            self.evict();
        }
        absent
    }

    fn insert(&mut self, number: u64) -> usize {
        let at = self.unused.pop().unwrap_or_else(|| {
            self.blocks.push(Block::default());
            self.blocks.len() - 1
        });
        self.blocks[at] = Block { number, ..Block::default() };
        self.index.insert(number, at);
        at
    }

    /// Removes the oldest block.
    fn evict(&mut self) {
        let oldest = self.blocks[RING].newer;
        self.unlink(oldest);
        let Block { number, lines, .. } = self.blocks[oldest];
        self.held -= u64::from(lines.count_ones());
        self.index.remove(&number);
        self.unused.push(oldest);
    }

    fn unlink(&mut self, at: usize) {
        let Block { newer, older, .. } = self.blocks[at];
        self.blocks[newer].older = older;
        self.blocks[older].newer = newer;
    }

    fn link_as_newest(&mut self, at: usize) {
        let before = self.blocks[RING].older;
        (self.blocks[at].newer, self.blocks[at].older) = (RING, before);
        self.blocks[before].newer = at;
        self.blocks[RING].older = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocks_that_were_accessed_last_stay() {
        let mut cache = Cache::new(3);
        assert_eq!([1, 2, 3].map(|block| cache.access(block, 1)), [1; 3]);
        assert_eq!([1, 2, 3].map(|block| cache.access(block, 1)), [0; 3]);
        assert_eq!(cache.access(1, 1), 0, "now 2 is the oldest");
        assert_eq!(cache.access(4, 1), 1);
        assert_eq!([1, 3, 4].map(|block| cache.access(block, 1)), [0; 3]);
        assert_eq!(cache.access(2, 1), 1);
        assert_eq!((cache.held, cache.index.len(), cache.blocks.len()), (3, 3, 5));
    }

    #[test]
    fn what_is_a_line_too_large_is_never_there_in_turns() {
        let mut cache = Cache::new(8 * BLOCK_LINES);
        for (blocks, absent) in [(8, 0), (9, u64::MAX), (8, 0)] {
            for _ in 0..3 {
                for block in 0..blocks {
                    cache.access(block, u64::MAX);
                }
            }
            assert!((0..blocks).all(|block| cache.access(block, u64::MAX) == absent), "{blocks}");
        }
    }

    #[test]
    fn lines_count_and_not_blocks() {
        let mut cache = Cache::new(4);
        assert_eq!([0, 1, 2, 3].map(|block| cache.access(block, 1 << block)), [1, 2, 4, 8]);
        assert_eq!(cache.access(3, 0b1000), 0);
        assert_eq!(cache.access(3, 0b1011), 0b0011, "0 and 1 leave");
        assert_eq!([2, 0].map(|block| cache.access(block, 1 << block)), [0, 1]);
    }

    #[test]
    fn a_cache_without_lines_has_none() {
        let mut cache = Cache::new(0);
        assert_eq!([0, 0, 1].map(|block| cache.access(block, 7)), [7; 3]);
        assert_eq!((cache.held, cache.blocks.len()), (0, 2));
    }
}
