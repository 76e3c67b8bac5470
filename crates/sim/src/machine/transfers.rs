//! The cache lines that transfers of a range of memory access.

use super::cache::{BLOCK_LINES, Cache};

/// How payload is divided: into transfers, and memory into lines. Both are powers of two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfers {
    tlp: u64,
    line: u64,
}

/// Lines of the transfers of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    /// All; a line of two transfers counts twice.
    pub moved: u64,
    /// Those that were not in the cache.
    pub missed: u64,
    /// Of these, those of which a transfer wrote a part.
    pub partial: u64,
}

impl Transfers {
    pub fn new(tlp: u32, line: u32) -> Self {
        Transfers { tlp: tlp.into(), line: line.into() }
    }

    /// The lines of a range, which the adapter writes or reads. They are in the cache afterwards.
    pub fn lines(self, cache: &mut Cache, addr: u64, len: u64, write: bool) -> Lines {
        if len == 0 {
            return Lines::default();
        }
        let (first, end) = (addr / self.line, (addr + len).div_ceil(self.line));
        // Two transfers share the line in which they meet.
        let aligned = addr.is_multiple_of(self.line);
        let shared = if aligned { 0 } else { len.div_ceil(self.tlp) - 1 };
        let mut lines = Lines { moved: end - first + shared, ..Lines::default() };
        for block in first / BLOCK_LINES..end.div_ceil(BLOCK_LINES) {
            let from = first.max(block * BLOCK_LINES) % BLOCK_LINES;
            let count = end.min((block + 1) * BLOCK_LINES) - (block * BLOCK_LINES + from);
            let absent = cache.access(block, u64::MAX >> (BLOCK_LINES - count) << from);
            lines.missed += u64::from(absent.count_ones());
            if write && absent != 0 {
                lines.partial += u64::from((absent & self.partial(block, addr, len)).count_ones());
            }
        }
        lines
    }

    /// The lines of a block that a transfer of the range accesses only a part of.
    fn partial(self, block: u64, addr: u64, len: u64) -> u64 {
        let bit = |addr: u64| {
            let line = addr / self.line;
            if line / BLOCK_LINES == block { 1 << (line % BLOCK_LINES) } else { 0 }
        };
        // Where a transfer begins within a line, and where the last one ends.
        let begins = (addr..addr + len).step_by(self.tlp as usize);
        let cuts = begins.chain([addr + len]).filter(|cut| !cut.is_multiple_of(self.line));
        cuts.fold(0, |lines, cut| lines | bit(cut))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_transport::Chance;

    const TRANSFERS: Transfers = Transfers { tlp: 256, line: 64 };

    #[test]
    fn a_packet_that_begins_within_a_line_needs_five_lines_for_four() {
        let mut cache = Cache::new(1 << 16);
        let mut lines = |addr, len| TRANSFERS.lines(&mut cache, addr, len, true);
        assert_eq!(lines(0, 4096), Lines { moved: 64, missed: 64, partial: 0 });
        assert_eq!(lines(0, 4096), Lines { moved: 64, missed: 0, partial: 0 });
        // 16 transfers of 5 lines, of which each has the first from the one before.
        assert_eq!(lines(8192 + 8, 4096), Lines { moved: 80, missed: 65, partial: 17 });
        assert_eq!(lines(8192 + 8, 4096), Lines { moved: 80, missed: 0, partial: 0 });
        assert_eq!(lines(12288 + 8, 4096), Lines { moved: 80, missed: 64, partial: 16 }, "it continues the last");
        assert_eq!(lines(1 << 20, 0), Lines::default());
        assert_eq!(lines(1 << 20, 4), Lines { moved: 1, missed: 1, partial: 1 });
        assert_eq!(lines((1 << 20) + 64, 65), Lines { moved: 2, missed: 2, partial: 1 });
    }

    #[test]
    fn reads_have_no_partial_lines() {
        let mut cache = Cache::new(1 << 16);
        assert_eq!(TRANSFERS.lines(&mut cache, 8, 4096, false), Lines { moved: 80, missed: 65, partial: 0 });
    }

    /// Compares with transfers one by one, and lines one by one, without a limit of the cache.
    #[test]
    fn ranges_are_counted_as_their_transfers_are() {
        let mut chance = Chance::seeded(1);
        let (mut cache, mut present) = (Cache::new(u64::MAX), std::collections::HashSet::new());
        for _ in 0..2000 {
            let (addr, len) = (chance.bits() % (1 << 20), chance.bits() % 5000);
            let mut expected = Lines::default();
            for begin in (addr..addr + len).step_by(256) {
                let end = (begin + 256).min(addr + len);
                for line in begin / 64..end.div_ceil(64) {
                    let absent = present.insert(line);
                    let part = begin > line * 64 || end < (line + 1) * 64;
                    expected.moved += 1;
                    expected.missed += u64::from(absent);
                    expected.partial += u64::from(absent && part);
                }
            }
            assert_eq!(TRANSFERS.lines(&mut cache, addr, len, true), expected, "{addr} {len}");
        }
    }
}
