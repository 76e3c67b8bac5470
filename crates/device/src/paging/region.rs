//! An on-demand region: its table, and what finds it.

use crate::paging::counters::{OfRegion, Pair};
use crate::paging::resolver::{Resolver, Who};
use crate::paging::table::{PAGE, Table, pages_of};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use weir_transport::Denied;

/// Addresses that Linux gives to those who do not ask for more: an implicit region's.
pub const ADDRESS_SPACE: u64 = 1 << 47;

/// A region whose pages are brought in when they are needed.
pub struct OnDemand {
    /// Its key; 0 until it has one.
    pub(crate) key: AtomicU32,
    addr: u64,
    len: u64,
    /// The adapter may write there at all.
    pub(crate) writable: bool,
    pub(crate) table: Table,
    /// How often something in it was invalidated. Changed under the lock of invalidations.
    pub(crate) changes: AtomicU64,
    pub(crate) counters: Pair,
    pub(crate) resolver: Arc<Resolver>,
}

impl OnDemand {
    /// For `len` bytes at `addr`; `None` if there is no memory for its table.
    pub(crate) fn new(
        addr: u64,
        len: u64,
        writable: bool,
        counters: Pair,
        resolver: Arc<Resolver>,
    ) -> Option<OnDemand> {
        let table = Table::new(addr, len.min(ADDRESS_SPACE))?;
        let (key, changes) = (AtomicU32::new(0), AtomicU64::new(0));
        Some(OnDemand { key, addr, len, writable, table, changes, counters, resolver })
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

/// A region's pages as its keys know them; keys of regions that are pinned have none.
///
/// It is copied with what a key stands for, and does not own. The region outlives it: a key is taken out, and accesses
/// that began before are waited for, before the region is let go.
#[derive(Clone, Copy, Debug)]
pub struct Paged(NonNull<OnDemand>);

// SAFETY: it is a shared reference to what is `Sync`.
unsafe impl Send for Paged {}
// SAFETY: as above.
unsafe impl Sync for Paged {}

impl Paged {
    /// For keys of a region; `region` is kept for as long as one of them can be found, and used.
    pub fn of(region: &Arc<OnDemand>) -> Paged {
        Paged(NonNull::from(&**region))
    }

    /// Whether an access may go on: `len` bytes at `addr`, of a message of which `left` bytes are left there. A page
    /// that is missing is a network page fault; one that cannot be brought in was told by an earlier one.
    #[inline]
    pub(crate) fn admit(self, addr: u64, len: u64, left: u64, write: bool, who: Who<'_>) -> Result<(), Denied> {
        // SAFETY: the region lives as long as its keys are used.
        let region = unsafe { self.0.as_ref() };
        if region.table.has(addr, len, write) { Ok(()) } else { Err(self.fault(addr, len, left, write, who)) }
    }

    /// Whether `len` bytes at `addr` can be read without a page fault.
    #[cold]
    pub(crate) fn is_there(self, addr: u64, len: u64) -> bool {
        self.region().table.has(addr, len, false)
    }

    /// An access that was admitted found the memory missing: something has changed it that did not tell.
    #[cold]
    pub(crate) fn missed(self, addr: u64, len: u64, write: bool, who: Who<'_>) -> Denied {
        let region = self.region();
        let pages = region.overlap(addr, len);
        region.table.clear(pages.clone());
        if who.faults.missed(who.side, pages.start) {
            return Denied::Unmapped;
        }
        self.fault(addr, len, len, write, who)
    }

    /// The message that met a fault goes on for `len` bytes from `addr`.
    #[cold]
    pub(crate) fn expect(self, addr: u64, len: u64, write: bool) {
        let region = self.region();
        let pages = pages_of(addr, len);
        region.resolver.expect(&region, pages.start, pages.end - pages.start, write);
    }

    /// The region itself.
    pub(crate) fn region(self) -> Arc<OnDemand> {
        // SAFETY: it is in an `Arc` and lives as long as its keys are used; one more owner of it.
        unsafe {
            Arc::increment_strong_count(self.0.as_ptr());
            Arc::from_raw(self.0.as_ptr())
        }
    }

    #[cold]
    #[inline(never)]
    fn fault(self, addr: u64, len: u64, left: u64, write: bool, who: Who<'_>) -> Denied {
        let region = self.region();
        let needed = pages_of(addr, len);
        if who.faults.take_failed(who.side, &needed, write) || region.overlap(addr, len) != needed {
            return Denied::Unmapped;
        }
        let ahead = pages_of(addr, left.max(len));
        region.resolver.raise(&region, needed, ahead.end - ahead.start, write, who);
        Denied::PageFault
    }
}
