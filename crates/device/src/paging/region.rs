//! An on-demand region: its page table, and the handle by which its keys find it.

use crate::paging::counters::{OfRegion, Pair};
use crate::paging::faults::FaultOrigin;
use crate::paging::owner::Owner;
use crate::paging::table::{PAGE, Table, pages_of};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use weir_transport::Denied;

/// Size of the address range that Linux uses for mappings without a higher hint; the extent of an implicit region.
pub const ADDRESS_SPACE: u64 = 1 << 47;

/// An on-demand region: its pages are populated when they are needed.
pub struct OnDemand {
    /// Its key; 0 until it has one.
    pub(crate) key: AtomicU32,
    addr: u64,
    len: u64,
    /// Whether the adapter may write to the region.
    pub(crate) writable: bool,
    pub(crate) table: Table,
    /// Number of invalidations that overlapped the region. Changed under the lock of the invalidations.
    pub(crate) changes: AtomicU64,
    /// Faults that have ended keep them until their QP continues.
    pub(crate) counters: Arc<Pair>,
    /// Populates its pages.
    pub(crate) resolver: Arc<dyn Populator>,
}

/// The part of an adapter that populates pages: its resolver. A trait, because the resolver's jobs name regions. It is
/// called at page faults, prefetches and invalidations only, so that packets with present pages make no dynamic
/// call.
pub(crate) trait Populator: Send + Sync {
    /// Its adapter; `None` if that is gone.
    fn owner(&self) -> Option<Arc<dyn Owner>>;
    /// A QP side needs `needed`. Populates up to `ahead` pages from there; [`Owner::resolved`] is called when the QP
    /// can continue.
    fn raise(&self, region: &Arc<OnDemand>, needed: Range<u64>, ahead: u64, write: bool, origin: FaultOrigin<'_>);
    /// The message that met a fault at `page` continues for `ahead` pages: its job may populate them, too.
    fn populate_ahead(&self, region: &Arc<OnDemand>, page: u64, ahead: u64, write: bool);
    /// Populates pages in the background. Must not be called from within the engine.
    fn prefetch(&self, region: &Arc<OnDemand>, pages: Range<u64>, write: bool);
    /// Cancels the jobs of a region that is deregistered, and wakes their waiters.
    fn cancel(&self, region: &Arc<OnDemand>);
}

impl OnDemand {
    /// A region of `len` bytes at `addr`; `None` if there is no memory for its table.
    pub(crate) fn new(
        addr: u64,
        len: u64,
        writable: bool,
        counters: Pair,
        resolver: Arc<dyn Populator>,
    ) -> Option<OnDemand> {
        let table = Table::new(addr, len.min(ADDRESS_SPACE))?;
        let counters = Arc::new(counters);
        let (key, changes) = (AtomicU32::new(0), AtomicU64::new(0));
        Some(OnDemand { key, addr, len, writable, table, changes, counters, resolver })
    }

    /// The addresses that it covers, as whole pages.
    pub fn addresses(&self) -> Range<u64> {
        let pages = self.pages();
        pages.start * PAGE..pages.end.saturating_mul(PAGE)
    }

    /// The page numbers that it covers.
    pub(crate) fn pages(&self) -> Range<u64> {
        self.table.pages()
    }

    /// Those of its pages that contain the `len` bytes at `addr`.
    pub(crate) fn overlap(&self, addr: u64, len: u64) -> Range<u64> {
        let (own, other) = (self.pages(), pages_of(addr, len));
        let start = own.start.max(other.start);
        start..own.end.min(other.end).max(start)
    }

    /// The first of these pages that is not in the table.
    pub(crate) fn first_missing(&self, pages: Range<u64>, write: bool) -> Option<u64> {
        self.table.first_missing(pages, write)
    }

    /// A snapshot of its counters.
    pub fn describe(&self) -> OfRegion {
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

/// The pages of a region as stored with its keys; keys of pinned regions have none.
///
/// It is copied with the key's `Region` and holds no reference count. The region outlives it: before a region is
/// dropped, its key is removed and the accesses that began before have ended.
#[derive(Clone, Copy, Debug)]
pub struct Paged(NonNull<OnDemand>);

// SAFETY: it is a shared reference to an object that is `Sync`.
unsafe impl Send for Paged {}
// SAFETY: as above.
unsafe impl Sync for Paged {}

impl Paged {
    /// A handle for the keys of `region`, which must be kept as long as any of them can be found or is in use.
    pub fn of(region: &Arc<OnDemand>) -> Paged {
        Paged(NonNull::from(&**region))
    }

    /// Checks an access of `len` bytes at `addr`; `left` bytes of the message are left from there. A missing page
    /// raises a network page fault. `Denied::Unmapped` if an earlier fault could not populate the page.
    #[inline]
    pub(crate) fn admit(
        self,
        addr: u64,
        len: u64,
        left: u64,
        write: bool,
        origin: FaultOrigin<'_>,
    ) -> Result<(), Denied> {
        // SAFETY: the region lives as long as its keys are used.
        let region = unsafe { self.0.as_ref() };
        if region.table.has(addr, len, write) { Ok(()) } else { Err(self.fault(addr, len, left, write, origin)) }
    }

    /// An admitted access faulted: the memory was changed without a notification.
    #[cold]
    pub(crate) fn missed(self, addr: u64, len: u64, write: bool, origin: FaultOrigin<'_>) -> Denied {
        let region = self.region();
        let pages = region.overlap(addr, len);
        region.table.clear(pages.clone());
        if origin.faults.missed(origin.side, pages.start) {
            return Denied::Unmapped;
        }
        self.fault(addr, len, len, write, origin)
    }

    /// The message that met a fault continues for `len` bytes from `addr`: populates them ahead.
    #[cold]
    pub(crate) fn populate_ahead(self, addr: u64, len: u64, write: bool) {
        let region = self.region();
        let pages = pages_of(addr, len);
        region.resolver.populate_ahead(&region, pages.start, pages.end - pages.start, write);
    }

    /// The region itself.
    pub(crate) fn region(self) -> Arc<OnDemand> {
        // SAFETY: it is in an `Arc` and lives as long as its keys are used; this adds an owner.
        unsafe {
            Arc::increment_strong_count(self.0.as_ptr());
            Arc::from_raw(self.0.as_ptr())
        }
    }

    #[cold]
    #[inline(never)]
    fn fault(self, addr: u64, len: u64, left: u64, write: bool, origin: FaultOrigin<'_>) -> Denied {
        let region = self.region();
        let needed = pages_of(addr, len);
        if origin.faults.take_failed(origin.side, &needed, write) || region.overlap(addr, len) != needed {
            return Denied::Unmapped;
        }
        let ahead = pages_of(addr, left.max(len));
        region.resolver.raise(&region, needed, ahead.end - ahead.start, write, origin);
        Denied::PageFault
    }
}
