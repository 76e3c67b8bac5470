//! A forked child has its parent's memory but not its adapter: the child closes the descriptors, and every call on an
//! object of the parent fails before it touches a lock of the parent. [`crate::per_process`] handles state that
//! belongs to no object.

use crate::Errno;
use crate::memory::handlers;
use crate::paging::invalidate;
use crate::per_process::OnceInherited;
use crate::userfault;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Descriptors of open adapters; -1 marks a free entry. Fixed size, because the child of a fork may not allocate.
static DESCRIPTORS: [AtomicI32; 1024] = [const { AtomicI32::new(-1) }; 1024];

/// Counts the forks between the first process and this process.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// The process that an object belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerProcess(u32);

impl OwnerProcess {
    /// This process.
    #[inline]
    pub fn current() -> OwnerProcess {
        OwnerProcess(generation())
    }

    /// Whether this process is a forked child of that process. Locks of the parent's objects may stay held for ever
    /// in the child.
    #[inline]
    pub fn is_inherited(self) -> bool {
        self.0 != generation()
    }

    /// EIO in a forked child of that process.
    #[inline]
    pub fn check(self) -> Result<(), Errno> {
        if self.is_inherited() { Err(Errno(libc::EIO)) } else { Ok(()) }
    }
}

/// A value with descriptors that a child closes, or with state that a child does not have: dropped only by the
/// process that created it. In a child, the descriptor numbers may already belong to files of the program.
pub struct Owned<T> {
    owner_process: OwnerProcess,
    inner: ManuallyDrop<T>,
}

impl<T> Owned<T> {
    /// A value of this process.
    pub fn new(inner: T) -> Self {
        Owned { owner_process: OwnerProcess::current(), inner: ManuallyDrop::new(inner) }
    }
}

impl<T> Deref for Owned<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Owned<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.owner_process.is_inherited() {
            // SAFETY: dropped once, and nothing accesses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

/// Installs the fork handlers, which increment the generation in a child. Runs once per process.
pub fn install_handlers() {
    static ONCE: OnceInherited = OnceInherited::new();
    // SAFETY: the handlers use only atomics, yield and close.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}

/// Installs the handlers when the code is loaded. No thread is inside a call of the library yet, so that no fork can
/// interrupt a call before the handlers exist.
#[used]
#[unsafe(link_section = ".init_array")]
static INSTALL: extern "C" fn() = install_at_load;

extern "C" fn install_at_load() {
    install_handlers();
}

/// While a thread holds it, a fork waits up to 50 ms: some open descriptors are not registered yet, or some
/// registered descriptors are already closed. A child would keep the former, and close files that reuse the numbers
/// of the latter.
pub struct DescriptorGuard(());

/// How long a fork waits for a [`DescriptorGuard`] to end, and a [`DescriptorGuard`] for a fork. Bounded, because the
/// forking thread may hold what the other thread waits for.
const PATIENCE: Duration = Duration::from_millis(50);

/// Threads that hold a [`DescriptorGuard`].
static CHANGING: AtomicU32 = AtomicU32::new(0);
/// Threads inside fork().
static FORKING: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Number of nested [`DescriptorGuard`]s of this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

impl DescriptorGuard {
    /// Begins a section that opens or closes descriptors.
    pub fn begin() -> DescriptorGuard {
        if DEPTH.replace(DEPTH.get() + 1) == 0 {
            let end = Instant::now() + PATIENCE;
            loop {
                CHANGING.fetch_add(1, Ordering::SeqCst);
                if FORKING.load(Ordering::SeqCst) == 0 || Instant::now() > end {
                    break;
                }
                CHANGING.fetch_sub(1, Ordering::SeqCst);
                std::thread::yield_now();
            }
        }
        DescriptorGuard(())
    }
}

impl Drop for DescriptorGuard {
    fn drop(&mut self) {
        let depth = DEPTH.get().saturating_sub(1);
        DEPTH.set(depth);
        if depth == 0 {
            CHANGING.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

extern "C" fn before() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    // A memory hook of the program may fork while this thread holds a [`DescriptorGuard`], which the fork must not wait
    // for.
    let own = u32::from(DEPTH.get() > 0);
    let end = Instant::now() + PATIENCE;
    while CHANGING.load(Ordering::SeqCst) > own && Instant::now() < end {
        std::thread::yield_now();
    }
}

extern "C" fn in_parent() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// Registers descriptors that a child must close, so that slot and ports are free when this process ends.
pub fn register(descriptors: &[RawFd]) {
    for descriptor in descriptors {
        let free = DESCRIPTORS
            .iter()
            .find(|entry| entry.compare_exchange(-1, *descriptor, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        debug_assert!(free.is_some(), "the table of descriptors is full");
    }
}

/// Unregisters descriptors that this process has closed.
pub fn forget(descriptors: &[RawFd]) {
    for descriptor in descriptors {
        for entry in &DESCRIPTORS {
            if entry.compare_exchange(*descriptor, -1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                break;
            }
        }
    }
}

extern "C" fn in_child() {
    FORKING.store(0, Ordering::SeqCst);
    CHANGING.store(u32::from(DEPTH.get() > 0), Ordering::SeqCst);
    GENERATION.fetch_add(1, Ordering::Relaxed);
    invalidate::forget_in_child();
    userfault::forget_in_child();
    handlers::inherited();
    for entry in &DESCRIPTORS {
        let descriptor = entry.swap(-1, Ordering::AcqRel);
        if descriptor >= 0 {
            // SAFETY: a descriptor of the library; every later use of it in this process is refused.
            unsafe { libc::close(descriptor) };
        }
    }
}
