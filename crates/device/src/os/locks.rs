//! The order in which a thread takes the locks of this crate, checked in debug builds.
//!
//! A thread that holds a lock may take only locks of a higher [`rank`]. Otherwise two threads could wait for each
//! other. Debug builds panic at a wrong order even if no other thread is there; release builds check nothing.

use crate::os::cancel::Uncancelled;
use std::fmt::{self, Debug, Formatter};
use std::ops::{Deref, DerefMut};
use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, WaitTimeoutResult,
};
use std::time::{Duration, Instant};

/// The ranks, in the order in which a thread takes the locks.
///
/// A memory hook of the program may run at each allocation and deallocation of this crate, under any lock that is held
/// there, and deregister a region: it waits for the engine. So memory is allocated and freed under locks below
/// [`ENGINE`] only, which no holder of the engine takes, and in control calls in the engine, where deregistering does
/// not wait for it. The debug builds check this, too: see [`RankedMutex::lock_in_hook`].
///
/// [`ENGINE`]: rank::ENGINE
pub mod rank {
    /// The adapters of the process. Held while one is opened.
    pub const ADAPTERS: u8 = 0;
    /// The statistics that this process publishes.
    pub const STATISTICS: u8 = 1;
    /// The capture files of this process.
    pub const CAPTURES: u8 = 2;
    /// The socket for queries of an interface.
    pub const INTERFACE: u8 = 3;
    /// The target QPs of an XRC domain.
    pub const XRC_TARGETS: u8 = 4;
    /// A memory region. Held while it is reregistered, which waits for the engine.
    pub const REGION: u8 = 5;
    /// The devices that have counters of paging.
    pub const PAGING_DEVICES: u8 = 6;
    /// The engine: a thread that waits for it, or takes a turn, holds none of the locks below.
    pub const ENGINE: u8 = 7;
    /// The routes of address handles. Held while datagrams are staged.
    pub const ADDRESSES: u8 = 8;
    /// The protocol of a QP. A thread locks one QP at a time.
    pub const PROTOCOL: u8 = 9;
    /// XRC: which SRQ the last message of a QP named.
    pub const NAMED_SRQ: u8 = 10;
    /// The tags of a TM SRQ.
    pub const TAGS: u8 = 11;
    /// The ring of an SRQ.
    pub const SRQ_RING: u8 = 12;
    /// The ring of a CQ. Completions of the protocol enter it under the lock of the QP.
    pub const CQ_RING: u8 = 13;
    /// The CQs that hold an event back.
    pub const MODERATED: u8 = 15;
    /// A queue of events.
    pub const EVENTS: u8 = 16;
    /// The queue of page faults.
    pub const PAGE_FAULTS: u8 = 17;
    /// Every lock that is held for a few instructions, and under which no other of these locks is taken.
    pub const LEAF: u8 = 18;
    // The interposed functions of the C library take the locks below, and a signal handler of the program may call
    // these functions while this thread holds any of the locks above.
    /// The threads that sleep until an engine is free.
    pub const SLEEPERS: u8 = 19;
    /// The invalidations and populates under way.
    pub const EXCLUSION: u8 = 20;
    /// The memory that the program's own userfaultfds cover.
    pub const PROGRAM_RANGES: u8 = 21;
}

/// A mutex with a place in the lock order. It ignores poisoning: state that a panic left belongs to an adapter that
/// has failed.
#[derive(Debug, Default)]
pub struct RankedMutex<T, const RANK: u8>(Mutex<T>);

/// A mutex under which no other lock is taken.
pub type LeafMutex<T> = RankedMutex<T, { rank::LEAF }>;

/// As [`RankedMutex`], for a lock that readers share. A thread does not read twice at a time: a writer that waits in
/// between would stop it.
#[derive(Debug, Default)]
pub struct RankedRwLock<T, const RANK: u8>(RwLock<T>);

/// A condition variable for the guards of a [`RankedMutex`].
#[derive(Debug, Default)]
pub struct RankedCondvar(Condvar);

/// Access to the value of a lock. The lock is released before its rank.
pub struct Ranked<G, const RANK: u8> {
    guard: G,
    held: Held<RANK>,
}

/// Access to the value of a [`RankedMutex`].
pub type RankedGuard<'a, T, const RANK: u8> = Ranked<MutexGuard<'a, T>, RANK>;
/// Access to the value of a [`LeafMutex`].
pub type LeafGuard<'a, T> = RankedGuard<'a, T, { rank::LEAF }>;
/// Shared access to the value of a [`RankedRwLock`].
pub type RankedReadGuard<'a, T, const RANK: u8> = Ranked<RwLockReadGuard<'a, T>, RANK>;
/// Exclusive access to the value of a [`RankedRwLock`].
pub type RankedWriteGuard<'a, T, const RANK: u8> = Ranked<RwLockWriteGuard<'a, T>, RANK>;

impl<T, const RANK: u8> RankedMutex<T, RANK> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        RankedMutex(Mutex::new(value))
    }

    /// Waits for the lock. Panics in a debug build if this thread holds a lock of this rank or of a higher one.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> RankedGuard<'_, T, RANK> {
        let held = Held::begin();
        Ranked { guard: self.0.lock().unwrap_or_else(PoisonError::into_inner), held }
    }

    /// As [`lock`](Self::lock), for a call that a memory hook of the program makes: this thread may hold any lock under
    /// which memory is allocated, up to the engine. Panics in a debug build if it holds a lock of a higher rank.
    #[inline]
    #[track_caller]
    pub fn lock_in_hook(&self) -> RankedGuard<'_, T, RANK> {
        let held = Held::begin_in_hook();
        Ranked { guard: self.0.lock().unwrap_or_else(PoisonError::into_inner), held }
    }

    /// The lock unless it is held. The thread may hold any locks, because it does not wait.
    pub fn try_lock(&self) -> Option<RankedGuard<'_, T, RANK>> {
        let guard = match self.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Ranked { guard, held: Held::begin_unchecked() })
    }

    /// As [`try_lock`](Self::try_lock), again and again for `at_most`. For a thread that may hold any locks, this one
    /// too, at the end of a process or after a panic.
    #[cold]
    pub fn try_lock_within(&self, at_most: Duration) -> Option<RankedGuard<'_, T, RANK>> {
        const INTERVAL: Duration = Duration::from_millis(1);
        // A sleep is a point at which a thread is cancelled; the caller may be a call of the program that is none.
        let _uncancelled = Uncancelled::new();
        let end = Instant::now() + at_most;
        loop {
            let guard = self.try_lock();
            if guard.is_some() || Instant::now() > end {
                return guard;
            }
            std::thread::sleep(INTERVAL);
        }
    }
}

impl<T, const RANK: u8> RankedRwLock<T, RANK> {
    /// Waits until no thread writes. Panics as [`RankedMutex::lock`].
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RankedReadGuard<'_, T, RANK> {
        let held = Held::begin();
        Ranked { guard: self.0.read().unwrap_or_else(PoisonError::into_inner), held }
    }

    /// Waits until no thread reads or writes. Panics as [`RankedMutex::lock`].
    #[inline]
    #[track_caller]
    pub fn write(&self) -> RankedWriteGuard<'_, T, RANK> {
        let held = Held::begin();
        Ranked { guard: self.0.write().unwrap_or_else(PoisonError::into_inner), held }
    }
}

impl RankedCondvar {
    pub const fn new() -> Self {
        RankedCondvar(Condvar::new())
    }

    /// Waits for a notification, without the lock meanwhile.
    pub fn wait<'a, T, const RANK: u8>(&self, guard: RankedGuard<'a, T, RANK>) -> RankedGuard<'a, T, RANK> {
        let Ranked { guard, held } = guard;
        // A signal handler may run on this thread while it waits.
        drop(held);
        let guard = self.0.wait(guard).unwrap_or_else(PoisonError::into_inner);
        Ranked { guard, held: Held::begin_unchecked() }
    }

    /// As [`wait`](Self::wait), for `at_most` at the longest.
    pub fn wait_timeout<'a, T, const RANK: u8>(
        &self,
        guard: RankedGuard<'a, T, RANK>,
        at_most: Duration,
    ) -> RankedGuard<'a, T, RANK> {
        let Ranked { guard, held } = guard;
        drop(held);
        let waited: (_, WaitTimeoutResult) =
            self.0.wait_timeout(guard, at_most).unwrap_or_else(PoisonError::into_inner);
        Ranked { guard: waited.0, held: Held::begin_unchecked() }
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

impl<G: Deref, const RANK: u8> Deref for Ranked<G, RANK> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut, const RANK: u8> DerefMut for Ranked<G, RANK> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<G: Debug, const RANK: u8> Debug for Ranked<G, RANK> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

/// This thread holds a lock of a rank, until this is dropped.
pub struct Held<const RANK: u8> {
    /// Another of them, which this thread got before, has the rank in the account.
    #[cfg(debug_assertions)]
    again: bool,
}

#[cfg(debug_assertions)]
mod account {
    use super::{Held, rank};
    use std::cell::Cell;

    thread_local! {
        /// A bit for each rank of which this thread holds a lock.
        static HELD: Cell<u32> = const { Cell::new(0) };
    }

    impl<const RANK: u8> Held<RANK> {
        /// Panics if this thread holds a lock of this rank or of a higher one.
        #[track_caller]
        pub fn begin() -> Self {
            Self::check();
            Self::begin_unchecked()
        }

        /// Panics if this thread holds a lock of a higher rank than the engine's.
        #[track_caller]
        pub fn begin_in_hook() -> Self {
            refuse::<RANK>(rank::ENGINE.max(RANK) + 1);
            Self::begin_unchecked()
        }

        /// The thread did not wait for the lock.
        pub fn begin_unchecked() -> Self {
            let held = HELD.get();
            HELD.set(held | 1 << RANK);
            Held { again: held & 1 << RANK != 0 }
        }

        /// Panics as [`begin`](Self::begin) does. For a thread that will wait, and get the rank afterwards.
        #[track_caller]
        pub fn check() {
            refuse::<RANK>(RANK);
        }
    }

    /// Panics if this thread, which needs a lock of a rank, holds one of the rank `from` or of a higher one.
    #[track_caller]
    fn refuse<const RANK: u8>(from: u8) {
        let held = HELD.get();
        if held >> from != 0 {
            let ranks: Vec<u8> = (0..32).filter(|rank| held & 1 << rank != 0).collect();
            panic!("lock order: rank {RANK} is wanted by a thread that holds ranks {ranks:?}");
        }
    }

    impl<const RANK: u8> Drop for Held<RANK> {
        fn drop(&mut self) {
            if !self.again {
                HELD.set(HELD.get() & !(1 << RANK));
            }
        }
    }
}

#[cfg(not(debug_assertions))]
impl<const RANK: u8> Held<RANK> {
    /// Release builds do not check the order.
    #[inline]
    pub fn begin() -> Self {
        Held {}
    }

    #[inline]
    pub fn begin_in_hook() -> Self {
        Held {}
    }

    #[inline]
    pub fn begin_unchecked() -> Self {
        Held {}
    }

    #[inline]
    pub fn check() {}
}

#[cfg(test)]
mod tests;
