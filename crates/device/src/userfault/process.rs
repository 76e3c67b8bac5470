//! The userfaultfd of the process, opened with the first on-demand region.

use crate::paging::{ADDRESS_SPACE, invalidate};
use crate::userfault::{Listener, UnmapEvents};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

/// Covers on-demand regions that are registered later, as far as that is wanted and allowed.
pub(crate) fn install(wanted: bool) {
    static WANTED: Process = Process { wanted: true };
    static NOT_WANTED: Process = Process { wanted: false };
    invalidate::set_watcher(if wanted { &WANTED } else { &NOT_WANTED });
}

/// Returns whether the current on-demand regions were registered by this process, and not by the parent that forked it.
pub fn regions_are_ours() -> bool {
    // SAFETY: getpid has no preconditions.
    OWNER.load(Ordering::Relaxed) == unsafe { libc::getpid() }
}

/// These addresses are about to be unmapped, and an invalidation is under way: no event is needed.
pub fn release(addresses: Range<u64>) {
    if let Some(events) = unmap_events() {
        events.mark_stale();
        events.uncover(whole_pages(addresses));
    }
}

/// The program is about to register these addresses with a userfaultfd of its own.
pub fn yield_to_program(addresses: Range<u64>) {
    if let Some(events) = unmap_events()
        && !addresses.is_empty()
    {
        events.yield_to_program(whole_pages(addresses));
    }
}

/// Memory of an on-demand region is about to be populated; it may have been mapped after it was last covered.
pub(crate) fn cover_again(addresses: Range<u64>) {
    if let Some(events) = unmap_events()
        && coverable(&addresses)
    {
        events.cover_again(addresses);
    }
}

/// A forked child has no userfaultfd: its memory is not covered, and it inherits neither the thread nor the
/// descriptor.
pub(crate) fn forget_in_child() {
    UNMAP_EVENTS.store(std::ptr::null_mut(), Ordering::Release);
    TRIED.store(false, Ordering::Release);
    OWNER.store(0, Ordering::Release);
}

static UNMAP_EVENTS: AtomicPtr<UnmapEvents> = AtomicPtr::new(std::ptr::null_mut());
static TRIED: AtomicBool = AtomicBool::new(false);
static OWNER: AtomicI32 = AtomicI32::new(0);

fn unmap_events() -> Option<&'static UnmapEvents> {
    // SAFETY: leaked when it was started.
    unsafe { UNMAP_EVENTS.load(Ordering::Acquire).as_ref() }
}

struct Process {
    wanted: bool,
}

impl invalidate::Watcher for Process {
    fn entered(&self, addresses: Range<u64>) {
        // SAFETY: getpid has no preconditions.
        OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
        match unmap_events() {
            Some(events) => cover(events, addresses),
            None if self.wanted => start(),
            None => {}
        }
    }

    fn left(&self, addresses: Range<u64>) {
        let Some(events) = unmap_events() else { return };
        let shared =
            |other: Range<u64>| coverable(&other) && other.start < addresses.end && addresses.start < other.end;
        if coverable(&addresses) && !invalidate::regions().iter().any(|region| shared(region.addresses())) {
            events.uncover(addresses);
        }
    }
}

/// An implicit region is the whole address space: every free() of the program would wait for an event.
fn coverable(addresses: &Range<u64>) -> bool {
    addresses.end - addresses.start < ADDRESS_SPACE && !addresses.is_empty()
}

/// Tried once. It also covers the regions that other threads enter meanwhile, because they are in the list already.
#[cold]
fn start() {
    static INVALIDATOR: Invalidator = Invalidator;
    if TRIED.swap(true, Ordering::AcqRel) {
        return;
    }
    match UnmapEvents::start(&INVALIDATOR) {
        Ok(events) => {
            tracing::debug!("userfaultfd reports unmapped memory, opened by {}", events.opened().name());
            let events: &'static UnmapEvents = Box::leak(Box::new(events));
            UNMAP_EVENTS.store(std::ptr::from_ref(events).cast_mut(), Ordering::Release);
            invalidate::regions().iter().for_each(|region| cover(events, region.addresses()));
        }
        Err(error) => tracing::debug!("userfaultfd is not available: errno {}", error.0),
    }
}

fn cover(events: &UnmapEvents, addresses: Range<u64>) {
    if !coverable(&addresses) {
        return;
    }
    if let Err(error) = events.cover(addresses.clone()) {
        tracing::debug!("userfaultfd does not cover ODP memory at {:#x}: errno {}", addresses.start, error.0);
        // The memory may be mapped, or of another kind, when it is used.
        events.mark_stale();
    }
}

/// Passes events on to the invalidation.
struct Invalidator;

impl Listener for Invalidator {
    fn quiesce_all(&self) {
        // Before the event is read: memory that is mapped at these addresses later must be covered before its use.
        if let Some(events) = unmap_events() {
            events.mark_stale();
        }
        invalidate::quiesce_all();
    }

    fn changed(&self, addresses: Range<u64>) {
        invalidate::report_change(addresses.start, addresses.end - addresses.start);
    }
}

fn whole_pages(addresses: Range<u64>) -> Range<u64> {
    const PAGE: u64 = 4096;
    addresses.start / PAGE * PAGE..addresses.end.div_ceil(PAGE) * PAGE
}
