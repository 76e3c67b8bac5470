//! The CQs and QPs of the program that the layer knows, by address and by number.
//!
//! An object lives as long as the process, because another thread may be about to use it; it is used again for later
//! objects of the program. All changes happen under one lock, which a fork takes, so that a child finds it free.

use crate::clock;
use crate::contexts::{CONTROL, Context};
use crate::file;
use crate::guard::{self, cq::GuardedCq};
use crate::map::Map;
use crate::qp::{Qp, Room};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Mutex, PoisonError};
use weir_abi::*;

pub static CQS: Map<Cq> = Map::new();
pub static QPS: Map<Qp> = Map::new();
/// QPs by context and number.
pub static NUMBERS: Map<Qp> = Map::new();
/// Objects that no longer belong to an object of the program.
static SPARE_CQS: Mutex<Vec<&'static Cq>> = Mutex::new(Vec::new());
static SPARE_QPS: Mutex<Vec<&'static Qp>> = Mutex::new(Vec::new());

/// So many polls without a pause do not read the time after one that does. What is said of a CQ is older by so many
/// polls at most: when the program begins to pause, by so many pauses.
const UNTIMED: u32 = 3;

/// A CQ.
#[derive(Default)]
pub struct Cq {
    context: AtomicPtr<Context>,
    /// When the CQ was last seen empty.
    pub dry: AtomicU64,
    /// When a poll last read the time, and how many polls from now on do not.
    polled: AtomicU64,
    untimed: AtomicU32,
    /// When the program requested an event that has not come; 0: it did not.
    pub armed: AtomicU64,
    /// The program waited for an event, and then requested the next one before it polled.
    pub waited: AtomicBool,
    /// In a forked child: it is a CQ of the parent, so the child's polls only pass through.
    inherited: AtomicBool,
    /// The library's `start_poll` and `next_poll`, for an extended CQ.
    pub start_poll: AtomicPtr<c_void>,
    pub next_poll: AtomicPtr<c_void>,
    pub guard: GuardedCq,
}

impl Cq {
    /// Remembers a CQ, with so many entries more than the program asked for. The caller holds CONTROL.
    pub fn enter(cq: *mut ibv_cq, context: &'static Context, more: i64) -> &'static Cq {
        let spare = SPARE_CQS.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let own = spare.unwrap_or_else(|| Box::leak(Box::default()));
        own.context.store(std::ptr::from_ref(context).cast_mut(), Release);
        own.dry.store(0, Relaxed);
        own.untimed.store(0, Relaxed);
        own.armed.store(0, Relaxed);
        own.guard.open(more);
        own.waited.store(false, Relaxed);
        CQS.insert(cq as u64, own);
        own
    }

    /// Forgets a CQ. The caller holds CONTROL.
    pub fn forget(cq: *mut ibv_cq) {
        if let Some(own) = CQS.remove(cq as u64).filter(|own| !own.is_inherited()) {
            SPARE_CQS.lock().unwrap_or_else(PoisonError::into_inner).push(own);
        }
    }

    /// The time before a poll, or `None`: while a program polls without a pause, only some polls read the time.
    #[inline]
    pub fn time_of_poll(&self) -> Option<u64> {
        let untimed = self.untimed.load(Relaxed);
        if untimed > 0 {
            self.untimed.store(untimed - 1, Relaxed);
            return None;
        }
        let now = clock::ticks();
        let since = now.wrapping_sub(self.polled.load(Relaxed));
        self.polled.store(now, Relaxed);
        if since < clock::pause() {
            self.untimed.store(UNTIMED, Relaxed);
        }
        Some(now)
    }

    /// The program has requested an event: the next poll tells whether the CQ was empty since then.
    pub fn arm(&self) {
        self.armed.store(clock::ticks(), Relaxed);
        self.untimed.store(0, Relaxed);
    }

    /// The CQ was empty at some time after this time of a poll.
    #[inline]
    pub fn seen_empty(&self, time: Option<u64>) {
        if let Some(time) = time {
            self.dry.store(time, Relaxed);
            file::note_time_at(time);
        }
    }

    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.inherited.load(Relaxed)
    }

    #[inline]
    pub fn context(&self) -> &'static Context {
        // SAFETY: set before the CQ is in the map; contexts are not freed.
        unsafe { &*self.context.load(Acquire) }
    }
}

/// Remembers a QP, if the file has room for it, or guards are on. The caller holds CONTROL.
pub fn enter_qp(qp: *mut ibv_qp, context: &'static Context, room: &Room) -> Option<&'static Qp> {
    let entry = match file::take_qp() {
        Some(entry) => entry,
        None if guard::list().any() => std::ptr::null_mut(),
        None => return None,
    };
    let capacity = room.requests.clamp(16, 1 << 16);
    let mut spare = SPARE_QPS.lock().unwrap_or_else(PoisonError::into_inner);
    let fits = |own: &&'static Qp| (capacity..=4 * capacity).contains(&(own.queue.capacity() as u32));
    let own = match spare.iter().position(fits) {
        Some(at) => spare.swap_remove(at),
        None => Box::leak(Box::new(Qp::new(capacity))),
    };
    // SAFETY: an existing QP.
    unsafe { own.open(context, entry, qp, room) };
    NUMBERS.insert(own.key(), own);
    QPS.insert(qp as u64, own);
    Some(own)
}

/// Forgets a QP. The caller holds CONTROL.
pub fn forget_qp(qp: *mut ibv_qp) {
    let Some(own) = QPS.remove(qp as u64) else { return };
    if own.is_inherited() {
        return;
    }
    // The adapter may have given the number to another QP meanwhile.
    if NUMBERS.get(own.key()).is_some_and(|now| std::ptr::eq(now, own)) {
        NUMBERS.remove(own.key());
    }
    own.close();
    // After `wr_start` without an end, or in a call of another thread, it stays locked for ever.
    if own.posting.try_lock() {
        own.posting.unlock();
        SPARE_QPS.lock().unwrap_or_else(PoisonError::into_inner).push(own);
    }
}

/// Before a fork: no other thread changes the objects meanwhile.
pub extern "C" fn before_fork() {
    CONTROL.lock();
}

/// After a fork, in the parent.
pub extern "C" fn after_fork() {
    CONTROL.unlock();
}

/// After a fork, in the child: it has no use of its parent's QPs and CQs, and its calls only pass through.
pub extern "C" fn in_child() {
    file::leave();
    guard::watch::forget();
    guard::pinned::forget();
    QPS.each(Qp::inherit);
    CQS.each(|cq| cq.inherited.store(true, Relaxed));
    NUMBERS.clear();
    // Another thread of the parent may have held a lock of theirs.
    SPARE_QPS.lock().unwrap_or_else(PoisonError::into_inner).clear();
    CONTROL.unlock();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_some_polls_without_a_pause_read_the_time() {
        clock::start();
        let cq = Cq::default();
        cq.time_of_poll();
        let timed = (0..4000).filter(|_| cq.time_of_poll().is_some()).count();
        assert!((1000..2000).contains(&timed), "{timed}");
        // A program that pauses: each poll, after those that were not to read the time.
        let pause = || std::thread::sleep(Duration::from_micros(50));
        let poll = |_| {
            pause();
            cq.time_of_poll().is_some()
        };
        (0..=UNTIMED).for_each(|n| _ = poll(n));
        assert!((0..10).all(poll));
        // After a request for an event: the next poll.
        (0..8).for_each(|_| _ = cq.time_of_poll());
        cq.arm();
        assert!(cq.time_of_poll().is_some_and(|time| time >= cq.armed.load(Relaxed)));
    }
}
