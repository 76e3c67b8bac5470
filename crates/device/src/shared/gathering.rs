//! Requests that wait to leave together while no program polls. Model-checked in `tests/gathering.rs`.
//!
//! A program that posts many requests in a row would otherwise need a system call for each: the peer acknowledges every
//! request by itself, the completions are there whenever the program polls, and so it never counts as a poller.
//!
//! What has waited leaves in the next turn of a poll or of a post that does not wait. Requests wait only while another
//! turn is certain: that of the last ACK of their QP, or one of the engine's thread, which looks for them before it
//! sleeps.

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Posts without a poll in between after which requests may wait. A program that posts a request, or data and a flag,
/// and then waits for the answer without polling, stays below.
const POSTS_IN_A_ROW: u32 = 8;
/// How long requests wait after a burst has left (nanoseconds): about as long as the system call of a burst takes, so
/// that half of the time goes into system calls.
const GATHER: u64 = 5_000;

/// Shared between the threads of the program and the engine's thread.
pub struct Gathering {
    /// Posts since the last poll. Approximate: threads may overwrite each other's counts.
    posts: AtomicU32,
    /// When the last burst of requests left (nanoseconds).
    last_burst: AtomicU64,
    /// The engine's thread will look for doorbells before it sleeps.
    thread_awake: AtomicBool,
}

impl Gathering {
    /// The thread sleeps.
    pub fn new() -> Gathering {
        Gathering { posts: AtomicU32::new(0), last_burst: AtomicU64::new(0), thread_awake: AtomicBool::new(false) }
    }

    /// A program polled.
    #[inline]
    pub fn polled(&self) {
        self.posts.store(0, Ordering::Relaxed);
    }

    /// A request was posted and its doorbell rung. Returns whether it may wait. `busy`: requests of its QP are in
    /// flight; the turn that clears this must look for doorbells behind a fence (SeqCst). `now`: nanoseconds.
    #[inline]
    pub fn may_wait(&self, busy: &AtomicBool, now: impl FnOnce() -> u64) -> bool {
        let posts = self.posts.load(Ordering::Relaxed).saturating_add(1);
        self.posts.store(posts, Ordering::Relaxed);
        if posts < POSTS_IN_A_ROW || !self.gathers(now()) {
            return false;
        }
        // With the fence of the other thread: either this thread sees that the other one sleeps or that the QP is idle,
        // or the other thread sees the doorbell.
        fence(Ordering::SeqCst);
        busy.load(Ordering::Relaxed) || self.thread_awake.load(Ordering::Relaxed)
    }

    /// Returns whether a burst left so recently that requests may wait.
    #[inline]
    pub fn gathers(&self, now: u64) -> bool {
        now.saturating_sub(self.last_burst.load(Ordering::Relaxed)) < GATHER
    }

    /// A burst of requests left.
    #[inline]
    pub fn burst_left(&self, now: u64) {
        self.last_burst.store(now, Ordering::Relaxed);
    }

    /// The engine's thread begins to take turns.
    pub fn thread_wakes(&self) {
        self.thread_awake.store(true, Ordering::Relaxed);
    }

    /// The engine's thread stops taking turns. It must look for doorbells afterwards.
    pub fn thread_sleeps(&self) {
        self.thread_awake.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}
