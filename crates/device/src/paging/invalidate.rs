//! Invalidation: the mapping of memory is about to change, and the adapter must no longer access the pages.
//!
//! A thread that is about to unmap, move or protect memory calls [`begin`], makes the change, and drops the guard.
//! When `begin` returns, the pages are out of the adapters' tables and no access to them is under way. While the
//! guard lives, page faults in its range wait; a populate that ran when it began is not entered into a table.
//!
//! Only [`enter`], [`leave`] and [`regions`] allocate or free, and they hold no lock while they do: `begin` is called
//! from within allocators.

use crate::Errno;
use crate::os::per_process::PerProcess;
use crate::paging::exclusion::Exclusion;
pub use crate::paging::exclusion::Guard;
pub(crate) use crate::paging::exclusion::Populate;
use crate::paging::region::OnDemand;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Returns whether there is any on-demand region: one load. `begin` checks it itself.
#[inline]
pub fn needed() -> bool {
    REGIONS.load(Ordering::Acquire) != 0
}

/// Begins to invalidate `len` bytes at `addr`; `None` if no on-demand region overlaps them. A thread must not call it
/// while it holds a guard of an overlapping range.
#[inline]
pub fn begin(addr: u64, len: u64) -> Option<Guard> {
    if needed() { exclusion().begin(addr, len) } else { None }
}

/// A userfaultfd event reports that memory has changed or is about to; the thread that changes it no longer waits.
/// Ignored if an invalidation of the range is under way, or was at the last [`quiesce_all`].
pub(crate) fn report_change(addr: u64, len: u64) {
    if needed() {
        exclusion().report_change(addr, len);
    }
}

/// Returns when no access to any on-demand region that began before is under way.
pub(crate) fn quiesce_all() {
    if needed() {
        exclusion().quiesce_all();
    }
}

/// All on-demand regions of the process.
pub fn regions() -> Vec<Arc<OnDemand>> {
    if !needed() {
        return Vec::new();
    }
    exclusion().regions()
}

/// Is notified of every on-demand region that is entered or removed.
pub trait Watcher: Send + Sync {
    /// A region is registered; the registration has not returned yet.
    fn entered(&self, addresses: Range<u64>);
    /// A region is deregistered. Other regions may still cover some of its addresses.
    fn left(&self, addresses: Range<u64>);
}

/// Sets the watcher; later calls have no effect. The watcher is called under no lock.
pub fn set_watcher(watcher: &'static dyn Watcher) {
    let _ = WATCHER.get().set(watcher);
}

static WATCHER: PerProcess<OnceLock<&'static dyn Watcher>> = PerProcess::new();
static REGIONS: AtomicUsize = AtomicUsize::new(0);
static EXCLUSION: AtomicPtr<Exclusion> = AtomicPtr::new(std::ptr::null_mut());

/// A forked child has no adapter and no regions; locks of its parent may be held for ever. Uses atomics only.
pub(crate) fn forget_in_child() {
    REGIONS.store(0, Ordering::Release);
    EXCLUSION.store(std::ptr::null_mut(), Ordering::Release);
}

/// Enters a region; later invalidations include it. ENOMEM if there is no memory for the entry.
pub(crate) fn enter(region: &Arc<OnDemand>) -> Result<(), Errno> {
    exclusion().enter(region.clone())?;
    REGIONS.fetch_add(1, Ordering::AcqRel);
    if let Some(watcher) = WATCHER.get().get() {
        watcher.entered(region.addresses());
    }
    Ok(())
}

/// Removes a region.
pub(crate) fn leave(region: &Arc<OnDemand>) {
    let found = exclusion().leave(region);
    if found.is_some() {
        REGIONS.fetch_sub(1, Ordering::AcqRel);
        if let Some(watcher) = WATCHER.get().get() {
            watcher.left(region.addresses());
        }
    }
}

/// Removes pages that proved to be absent: an invalidation without a notification. Returns how many were in tables.
pub(crate) fn missed(addr: u64, len: u64) -> u64 {
    if !needed() {
        return 0;
    }
    exclusion().missed(addr, len)
}

/// Begins a populate of pages of a region; waits while any of them are being invalidated.
pub(crate) fn populate(region: &OnDemand, pages: Range<u64>) -> Populate {
    exclusion().populate(region, pages)
}

/// Enters pages that were populated when the region's `changes` had this value; `None` if it has changed since.
/// Returns the number of pages that are new in the table.
pub(crate) fn enter_late(region: &OnDemand, pages: Range<u64>, write: bool, changes: u64) -> Option<u64> {
    exclusion().enter_late(region, pages, write, changes)
}

fn exclusion() -> &'static Exclusion {
    let found = EXCLUSION.load(Ordering::Acquire);
    if found.is_null() {
        return make_exclusion();
    }
    // SAFETY: made by `make_exclusion`, never freed.
    unsafe { &*found }
}

#[cold]
fn make_exclusion() -> &'static Exclusion {
    let new = Box::into_raw(Box::new(Exclusion::new()));
    match EXCLUSION.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: made above, and never freed after its publication.
        Ok(_) => unsafe { &*new },
        // SAFETY: made above, and no other thread has seen it; the other object is never freed.
        Err(found) => unsafe {
            drop(Box::from_raw(new));
            &*found
        },
    }
}
