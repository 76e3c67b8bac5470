//! The CQs of the program that the layer knows, by address. As for QPs (`objects`), a `Cq` lives as long as the process,
//! and is used again for a later CQ.

use crate::clock;
use crate::contexts::{Context, PollCq};
use crate::file;
use crate::guard::cq::GuardedCq;
use crate::map::Map;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Mutex, PoisonError};
use weir_abi::ibv_cq;

pub static CQS: Map<Cq> = Map::new();
/// Those that no longer belong to a CQ of the program.
static SPARE_CQS: Mutex<Vec<&'static Cq>> = Mutex::new(Vec::new());

/// So many polls without a pause do not read the time after one that does. What is said of an empty CQ is older by so
/// many polls at most: when the program begins to pause, by so many pauses.
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
    /// The library's `poll_cq`, if polls are observed and nothing else; else NULL.
    observed: AtomicPtr<c_void>,
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
        let poll = context.real.poll_cq.filter(|_| file::exists());
        own.observed.store(poll.map_or(std::ptr::null_mut(), |poll| poll as *mut c_void), Release);
        own.waited.store(false, Relaxed);
        CQS.insert(cq as u64, own);
        own
    }

    /// Forgets a CQ. The caller holds CONTROL.
    pub fn forget(cq: *mut ibv_cq) {
        if let Some(own) = CQS.remove(cq as u64).filter(|own| !own.is_inherited()) {
            own.guard.close();
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

    /// The library's `poll_cq`, if polls are observed and nothing else.
    #[inline]
    pub fn observed_only(&self) -> Option<PollCq> {
        let poll = self.observed.load(Acquire);
        // SAFETY: `enter` stored a function of this type.
        (!poll.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, PollCq>(poll) })
    }

    /// A guarded QP reports on it.
    pub fn turn_guard_on(&self) {
        self.observed.store(std::ptr::null_mut(), Release);
        self.guard.turn_on();
    }

    /// In a forked child: it is a CQ of the parent.
    pub fn inherit(&self) {
        self.observed.store(std::ptr::null_mut(), Release);
        self.inherited.store(true, Relaxed);
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
