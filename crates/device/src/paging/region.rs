//! An on-demand region: its table, and what finds it.

use crate::paging::counters::{OfRegion, Pair};
use crate::paging::table::{PAGE, Table, pages_of};
use std::ops::Range;
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};

/// Addresses that Linux gives to those who do not ask for more: an implicit region's.
pub const ADDRESS_SPACE: u64 = 1 << 47;

/// A region whose pages are brought in when they are needed.
pub struct OnDemand {
    /// Its key; 0 until it has one.
    pub(crate) key: AtomicU32,
    addr: u64,
    len: u64,
    pub(crate) table: Table,
    pub(crate) counters: Pair,
    pub(crate) owner: Weak<dyn Owner>,
}

/// Whose adapter a region is of.
pub(crate) trait Owner: Send + Sync {
    /// Returns when no access that began before is still under way, or after a while: whoever invalidates may hold what
    /// the access waits for.
    fn quiesce(&self);
}

impl OnDemand {
    /// For `len` bytes at `addr`; `None` if there is no memory for its table.
    pub(crate) fn new(addr: u64, len: u64, counters: Pair, owner: Weak<dyn Owner>) -> Option<OnDemand> {
        let table = Table::new(addr, len.min(ADDRESS_SPACE))?;
        Some(OnDemand { key: AtomicU32::new(0), addr, len, table, counters, owner })
    }

    /// It is the whole address space.
    pub fn is_implicit(&self) -> bool {
        self.len == u64::MAX
    }

    /// The addresses that it covers, whole pages.
    pub fn addresses(&self) -> Range<u64> {
        let pages = self.pages();
        pages.start * PAGE..pages.end.saturating_mul(PAGE)
    }

    /// The page numbers that it covers.
    pub(crate) fn pages(&self) -> Range<u64> {
        self.table.pages()
    }

    /// Those of its pages that `len` bytes at `addr` lie in.
    pub(crate) fn overlap(&self, addr: u64, len: u64) -> Range<u64> {
        let (own, other) = (self.pages(), pages_of(addr, len));
        let start = own.start.max(other.start);
        start..own.end.min(other.end).max(start)
    }

    /// What its counters are now.
    pub(crate) fn describe(&self) -> OfRegion {
        OfRegion {
            device: self.counters.device.name,
            lkey: self.key.load(Ordering::Relaxed),
            addr: self.addr,
            len: self.len,
            present: self.table.present(),
            values: self.counters.own.read(),
        }
    }
}
