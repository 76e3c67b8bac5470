//! A forked child has its parent's memory but not its adapter: the child closes the descriptors, and every call on
//! objects of the parent fails before it touches a lock of theirs. See [`crate::per_process`] for what is not an
//! object's.

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

/// Descriptors of open adapters, free places -1. Fixed, for the child of a fork may not allocate.
static DESCRIPTORS: [AtomicI32; 1024] = [const { AtomicI32::new(-1) }; 1024];

/// Counts the forks between the first process and this one.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// The process that something belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home(u32);

impl Home {
    /// This process.
    #[inline]
    pub fn here() -> Home {
        Home(generation())
    }

    /// Whether this is a forked child of that process. Locks of what belongs to the parent may be held there for ever.
    #[inline]
    pub fn is_left(self) -> bool {
        self.0 != generation()
    }

    /// EIO in a forked child.
    #[inline]
    pub fn check(self) -> Result<(), Errno> {
        if self.is_left() { Err(Errno(libc::EIO)) } else { Ok(()) }
    }
}

/// What holds descriptors that a child closes, or state that a child has none of: dropped by the process that made it
/// only. In a child the numbers of the descriptors may be those of the program's own files by then.
pub struct Owned<T> {
    home: Home,
    inner: ManuallyDrop<T>,
}

impl<T> Owned<T> {
    /// Of this process.
    pub fn new(inner: T) -> Self {
        Owned { home: Home::here(), inner: ManuallyDrop::new(inner) }
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
        if !self.home.is_left() {
            // SAFETY: once, and nothing looks at it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

/// Makes forked children count themselves. Once per process.
pub fn install_handlers() {
    static ONCE: OnceInherited = OnceInherited::new();
    // SAFETY: the handlers do nothing but atomics, yield and close.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}

/// Installs the handlers when the code is loaded: no thread is in the middle of a call then that another one's fork
/// would cut off.
#[used]
#[unsafe(link_section = ".init_array")]
static INSTALL: extern "C" fn() = install_at_load;

extern "C" fn install_at_load() {
    install_handlers();
}

/// While it lives, a fork waits for a moment: descriptors are open that are not registered yet, or registered that are
/// closed already. A child would keep the former and close what has the number of the latter.
pub struct Steady(());

/// How long a fork waits for descriptors to be steady, and the other way round. Not for ever: the thread that forks may
/// hold what the other one waits for.
const PATIENCE: Duration = Duration::from_millis(50);

/// Threads between the two ends of a [`Steady`].
static CHANGING: AtomicU32 = AtomicU32::new(0);
/// Threads in the middle of a fork.
static FORKING: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// How many [`Steady`]s of this thread there are.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

impl Steady {
    /// Begins to open or close descriptors.
    pub fn begin() -> Steady {
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
        Steady(())
    }
}

impl Drop for Steady {
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
    // A memory hook of the program may fork in the middle of a call of ours.
    let own = u32::from(DEPTH.get() > 0);
    let end = Instant::now() + PATIENCE;
    while CHANGING.load(Ordering::SeqCst) > own && Instant::now() < end {
        std::thread::yield_now();
    }
}

extern "C" fn in_parent() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// Descriptors that a child must close, so that slot and ports go with this process.
pub fn register(descriptors: &[RawFd]) {
    for descriptor in descriptors {
        let free = DESCRIPTORS
            .iter()
            .find(|place| place.compare_exchange(-1, *descriptor, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        debug_assert!(free.is_some(), "more adapters than a process has use for");
    }
}

/// They are closed here now.
pub fn forget(descriptors: &[RawFd]) {
    for descriptor in descriptors {
        for place in &DESCRIPTORS {
            if place.compare_exchange(*descriptor, -1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
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
    for place in &DESCRIPTORS {
        let descriptor = place.swap(-1, Ordering::AcqRel);
        if descriptor >= 0 {
            // SAFETY: ours; every use of it in this process is refused from now on.
            unsafe { libc::close(descriptor) };
        }
    }
}
