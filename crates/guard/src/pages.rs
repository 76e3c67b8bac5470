//! The guard `prefetch`: which pages of ODP memory have been asked for already.
//!
//! A prefetch costs a system call, so it should be made once for a page. What was asked for may leave memory again, and
//! no call of verbs tells: then a request meets a page fault as without the guard. The caller forgets everything after a
//! request that was late.

use std::ops::Range;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Entries of the table; a page that shares its entry with another is asked for again.
const ENTRIES: usize = 4096;
/// More pages than this are not looked up: the time of their data is long beside that of a prefetch.
const MOST: u64 = 1024;

/// Bytes that are asked for together, at a multiple of their number: a call for each page would cost more than 2 % of the
/// time of short requests.
const AROUND: u64 = 64 << 10;

/// Pages that are taken to be present.
#[derive(Debug)]
pub struct Pages(Box<[u64]>);

impl Default for Pages {
    fn default() -> Self {
        Pages(vec![u64::MAX; ENTRIES].into())
    }
}

impl Pages {
    /// Whether a page of this memory, of the region with this lkey, has to be asked for. From then on it counts as
    /// present.
    pub fn enter(&mut self, lkey: u32, addr: u64, bytes: u64) -> bool {
        if bytes == 0 {
            return false;
        }
        let (first, last) = (addr / PAGE, addr.saturating_add(bytes - 1) / PAGE);
        if last - first >= MOST {
            return true;
        }
        let mut new = false;
        for page in first..=last {
            // 52 bits of the page's number; the key's lowest 8 bits are a tag that the program may have chosen.
            let name = page ^ u64::from(lkey) << 40;
            let at = (name ^ name >> 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
            let entry = &mut self.0[at as usize % ENTRIES];
            new |= *entry != name;
            *entry = name;
        }
        new
    }

    /// As [`Pages::enter`], for memory within `region`. Returns the memory to ask for: with what lies around it there.
    pub fn enter_around(&mut self, lkey: u32, addr: u64, bytes: u64, region: Range<u64>) -> Option<Range<u64>> {
        if !self.enter(lkey, addr, bytes) {
            return None;
        }
        let end = addr.saturating_add(bytes);
        let around = (addr / AROUND * AROUND).max(region.start).min(addr)
            ..end.checked_next_multiple_of(AROUND).unwrap_or(end).min(region.end).max(end);
        self.enter(lkey, around.start, around.end - around.start);
        Some(around)
    }

    /// Every page has to be asked for again.
    pub fn forget(&mut self) {
        self.0.fill(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_is_new_once() {
        let mut pages = Pages::default();
        assert!(pages.enter(0x100, 0x5000, 100) && !pages.enter(0x100, 0x5080, 100));
        assert!(pages.enter(0x100, 0x5fff, 2), "the page behind it");
        assert!(pages.enter(0x200, 0x5000, 100), "the same address in another region");
        assert!(!pages.enter(0x100, 0x5000, 0x2000));
        pages.forget();
        assert!(pages.enter(0x100, 0x5000, 1));
        assert!(!pages.enter(0x100, 0x9000, 0), "no bytes");
    }

    #[test]
    fn what_lies_around_is_asked_for_too() {
        let mut pages = Pages::default();
        let mut enter = |addr, bytes| pages.enter_around(0x100, addr, bytes, 0x1_2000..0x8_0000);
        assert_eq!(enter(0x1_5000, 100), Some(0x1_2000..0x2_0000), "the region begins there");
        assert_eq!((enter(0x1_2000, 0x2000), enter(0x1_f000, 0x1000)), (None, None));
        assert_eq!(enter(0x1_f000, 0x1001), Some(0x1_2000..0x3_0000));
        assert_eq!(enter(0x7_f000, 0x1000), Some(0x7_0000..0x8_0000));
        assert_eq!(enter(0x9_0001, 10), Some(0x9_0000..0x9_000b), "outside, the program is wrong");
        assert_eq!(pages.enter_around(1, u64::MAX - 10, 100, 0..u64::MAX).map(|range| range.end), Some(u64::MAX));
    }

    #[test]
    fn large_memory_is_always_new_and_the_end_of_memory_is_no_trap() {
        let mut pages = Pages::default();
        assert!(pages.enter(1, 0, 1 << 30) && pages.enter(1, 0, 1 << 30));
        assert!(pages.enter(1, u64::MAX - 10, 100) && !pages.enter(1, u64::MAX - 10, 100));
    }
}
