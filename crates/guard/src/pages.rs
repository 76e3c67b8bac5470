//! The guard `prefetch`: which pages of ODP memory have been asked for already.
//!
//! A prefetch costs a system call, so it should be made once for a page. What was asked for may leave memory again, and
//! no call of verbs tells: then a request meets a page fault as without the guard. The caller forgets everything after a
//! request that was late.

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Entries of the table; a page that shares its entry with another is asked for again.
const ENTRIES: usize = 4096;
/// More pages than this are not looked up: the time of their data is long beside that of a prefetch.
const MOST: u64 = 1024;

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
    fn large_memory_is_always_new_and_the_end_of_memory_is_no_trap() {
        let mut pages = Pages::default();
        assert!(pages.enter(1, 0, 1 << 30) && pages.enter(1, 0, 1 << 30));
        assert!(pages.enter(1, u64::MAX - 10, 100) && !pages.enter(1, u64::MAX - 10, 100));
    }
}
