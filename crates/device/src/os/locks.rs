//! The order in which a thread takes the locks of the packet path, checked in debug builds.
//!
//! A thread that holds a lock may take only locks of a higher [`rank`]. Otherwise two threads could wait for each other.
//! Debug builds panic at a wrong order even if no other thread is there; release builds keep no account.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The ranks, in the order in which a thread takes the locks.
pub mod rank {
    /// The engine: a thread that waits for it, or takes a turn, holds none of the locks below.
    pub const ENGINE: u8 = 0;
    /// The protocol of a QP. A thread locks one QP at a time.
    pub const PROTOCOL: u8 = 1;
    /// XRC: which SRQ the last message of a QP named.
    pub const NAMED_SRQ: u8 = 2;
    /// The ring of an SRQ.
    pub const SRQ_RING: u8 = 3;
    /// The ring of a CQ. Completions of the protocol enter it under the lock of the QP.
    pub const CQ_RING: u8 = 4;
    /// The READ credits of all QPs together.
    pub const READS: u8 = 5;
    /// The CQs that hold an event back.
    pub const MODERATED: u8 = 6;
    /// A queue of events.
    pub const EVENTS: u8 = 7;
}

/// A mutex with a place in the lock order. It ignores poisoning: state that a panic left belongs to an adapter that
/// has failed.
#[derive(Debug, Default)]
pub struct RankedMutex<T, const RANK: u8>(Mutex<T>);

/// Access to the value of a [`RankedMutex`]. The lock is released before its rank.
pub struct RankedGuard<'a, T, const RANK: u8> {
    guard: MutexGuard<'a, T>,
    _held: Held<RANK>,
}

impl<T, const RANK: u8> RankedMutex<T, RANK> {
    pub const fn new(value: T) -> Self {
        RankedMutex(Mutex::new(value))
    }

    /// Waits for the lock. Panics in a debug build if this thread holds a lock of this rank or of a higher one.
    #[inline]
    pub fn lock(&self) -> RankedGuard<'_, T, RANK> {
        let _held = Held::begin();
        RankedGuard { guard: self.0.lock().unwrap_or_else(PoisonError::into_inner), _held }
    }
}

impl<T, const RANK: u8> Deref for RankedGuard<'_, T, RANK> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, const RANK: u8> DerefMut for RankedGuard<'_, T, RANK> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// This thread holds a lock of a rank, until this is dropped.
pub struct Held<const RANK: u8>(());

#[cfg(debug_assertions)]
mod account {
    use super::Held;
    use std::cell::Cell;

    thread_local! {
        /// A bit for each rank of which this thread holds a lock.
        static HELD: Cell<u8> = const { Cell::new(0) };
    }

    impl<const RANK: u8> Held<RANK> {
        /// Panics if this thread holds a lock of this rank or of a higher one.
        #[track_caller]
        pub fn begin() -> Self {
            let held = HELD.get();
            assert!(held >> RANK == 0, "lock order: rank {RANK} is wanted by a thread that holds {held:#010b}");
            HELD.set(held | 1 << RANK);
            Held(())
        }
    }

    impl<const RANK: u8> Drop for Held<RANK> {
        fn drop(&mut self) {
            HELD.set(HELD.get() & !(1 << RANK));
        }
    }
}

#[cfg(not(debug_assertions))]
impl<const RANK: u8> Held<RANK> {
    #[inline]
    pub fn begin() -> Self {
        Held(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_the_order_of_their_ranks_and_released_in_any_order() {
        let (qp, cq) = (RankedMutex::<_, { rank::PROTOCOL }>::new(1), RankedMutex::<_, { rank::CQ_RING }>::new(2));
        for _ in 0..2 {
            let mut protocol = qp.lock();
            let ring = cq.lock();
            *protocol += *ring;
            drop(protocol);
            drop(ring);
        }
        drop(cq.lock());
        assert_eq!(*qp.lock(), 5);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock order")]
    fn a_wrong_order_panics_in_debug_builds() {
        let (qp, cq) = (RankedMutex::<_, { rank::PROTOCOL }>::new(()), RankedMutex::<_, { rank::CQ_RING }>::new(()));
        let _ring = cq.lock();
        let _protocol = qp.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock order")]
    fn two_locks_of_one_rank_panic_in_debug_builds() {
        let qps = [(); 2].map(RankedMutex::<_, { rank::PROTOCOL }>::new);
        let _first = qps[0].lock();
        let _second = qps[1].lock();
    }

    #[test]
    #[cfg(not(debug_assertions))]
    fn release_builds_keep_no_account() {
        assert_eq!(size_of::<RankedGuard<'_, u8, 1>>(), size_of::<MutexGuard<'_, u8>>());
        assert!(!std::mem::needs_drop::<Held<1>>());
    }
}
