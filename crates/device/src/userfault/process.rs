//! The userfaultfd of the process, opened with the first on-demand region.

use crate::paging::{ADDRESS_SPACE, invalidate};
use crate::userfault::{Listener, Net};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

/// Covers on-demand regions that are registered later, as far as that is wanted and allowed.
pub(crate) fn install(wanted: bool) {
    static WANTED: Process = Process { wanted: true };
    static NOT_WANTED: Process = Process { wanted: false };
    invalidate::set_watcher(if wanted { &WANTED } else { &NOT_WANTED });
}

/// Whether the current on-demand regions were registered by this process, and not by the parent that forked it.
pub fn regions_are_ours() -> bool {
    // SAFETY: getpid has no preconditions.
    OWNER.load(Ordering::Relaxed) == unsafe { libc::getpid() }
}

/// These addresses are about to be unmapped, and an invalidation is under way: no event is needed.
pub fn release(addresses: Range<u64>) {
    if let Some(net) = net() {
        net.tear();
        net.uncover(whole_pages(addresses));
    }
}

/// The program is about to register these addresses with a userfaultfd of its own.
pub fn yield_to_program(addresses: Range<u64>) {
    if let Some(net) = net()
        && !addresses.is_empty()
    {
        net.yield_to_program(whole_pages(addresses));
    }
}

/// Memory of an on-demand region is about to be populated; it may have been mapped after it was last covered.
pub(crate) fn renew(addresses: Range<u64>) {
    if let Some(net) = net()
        && coverable(&addresses)
    {
        net.renew(addresses);
    }
}

/// A forked child has no userfaultfd: its memory is not covered, and it inherits neither the thread nor the
/// descriptor.
pub(crate) fn forget_in_child() {
    NET.store(std::ptr::null_mut(), Ordering::Release);
    TRIED.store(false, Ordering::Release);
    OWNER.store(0, Ordering::Release);
}

static NET: AtomicPtr<Net> = AtomicPtr::new(std::ptr::null_mut());
static TRIED: AtomicBool = AtomicBool::new(false);
static OWNER: AtomicI32 = AtomicI32::new(0);

fn net() -> Option<&'static Net> {
    // SAFETY: leaked when it was started.
    unsafe { NET.load(Ordering::Acquire).as_ref() }
}

struct Process {
    wanted: bool,
}

impl invalidate::Watcher for Process {
    fn entered(&self, addresses: Range<u64>) {
        // SAFETY: getpid has no preconditions.
        OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
        match net() {
            Some(net) => cover(net, addresses),
            None if self.wanted => start(),
            None => {}
        }
    }

    fn left(&self, addresses: Range<u64>) {
        let Some(net) = net() else { return };
        let shared =
            |other: Range<u64>| coverable(&other) && other.start < addresses.end && addresses.start < other.end;
        if coverable(&addresses) && !invalidate::regions().iter().any(|region| shared(region.addresses())) {
            net.uncover(addresses);
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
    static EVENTS: Events = Events;
    if TRIED.swap(true, Ordering::AcqRel) {
        return;
    }
    match Net::start(&EVENTS) {
        Ok(net) => {
            tracing::debug!("userfaultfd reports unmapped memory, opened by {}", net.opened().name());
            let net: &'static Net = Box::leak(Box::new(net));
            NET.store(std::ptr::from_ref(net).cast_mut(), Ordering::Release);
            invalidate::regions().iter().for_each(|region| cover(net, region.addresses()));
        }
        Err(error) => tracing::debug!("userfaultfd is not available: errno {}", error.0),
    }
}

fn cover(net: &Net, addresses: Range<u64>) {
    if !coverable(&addresses) {
        return;
    }
    if let Err(error) = net.cover(addresses.clone()) {
        tracing::debug!("userfaultfd does not cover on-demand memory at {:#x}: errno {}", addresses.start, error.0);
        // The memory may be mapped, or of another kind, when it is used.
        net.tear();
    }
}

/// Passes events on to the invalidation.
struct Events;

impl Listener for Events {
    fn settle(&self) {
        // Before the event is read: memory that is mapped at these addresses later must be covered before its use.
        if let Some(net) = net() {
            net.tear();
        }
        invalidate::settle();
    }

    fn changed(&self, addresses: Range<u64>) {
        invalidate::heard(addresses.start, addresses.end - addresses.start);
    }
}

fn whole_pages(addresses: Range<u64>) -> Range<u64> {
    const PAGE: u64 = 4096;
    addresses.start / PAGE * PAGE..addresses.end.div_ceil(PAGE) * PAGE
}
