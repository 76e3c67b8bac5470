//! What a recorder and its writing thread share, and the flush of all recorders at the end of the process.

use crate::history::Handover;
use crate::wake::Waker;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// State that the recorder and its thread share.
pub struct Shared {
    pub written: AtomicU64,
    pub dropped: AtomicU64,
    /// The writing thread is about to sleep without a timeout.
    pub asleep: AtomicBool,
    /// The writing thread has been woken because the ring is half full.
    pub nudged: AtomicBool,
    pub stop: AtomicBool,
    /// How often a flush was asked for, and the last of these that is done.
    pub asked: AtomicU64,
    pub flushed: AtomicU64,
    pub waker: Waker,
    /// The process that the writing thread is in.
    pub process: AtomicU32,
    /// The ring of a recorder with a history goes to and fro.
    pub handover: Handover,
    /// How the thread ended; `None`: it runs.
    ended: Mutex<Option<io::Result<()>>>,
    end: Condvar,
}

/// The recorders of this process: their frames are written before it ends.
static OPEN: Mutex<Vec<Arc<Shared>>> = Mutex::new(Vec::new());
/// Longest wait of `flush_all` for the disk.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// Writes what all recorders of this process hold, because it is about to end. Waits half a second at most. Takes no
/// lock that it would have to wait for, and allocates nothing: a signal handler may call it. `pause` waits some
/// microseconds.
pub fn flush_all(pause: impl Fn()) {
    let Ok(open) = OPEN.try_lock() else { return };
    let began = Instant::now();
    for shared in open.iter().filter(|shared| shared.process.load(Ordering::Relaxed) == std::process::id()) {
        let ticket = shared.asked.fetch_add(1, Ordering::AcqRel) + 1;
        shared.waker.wake();
        while shared.flushed.load(Ordering::Acquire) < ticket && began.elapsed() < LONGEST_WAIT {
            pause();
        }
    }
}

impl Shared {
    pub fn new(waker: Waker) -> Self {
        Shared {
            written: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            nudged: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            waker,
            process: AtomicU32::new(std::process::id()),
            handover: Handover::default(),
            ended: Mutex::new(None),
            end: Condvar::new(),
        }
    }

    /// [`flush_all`] knows the recorder from now on.
    pub fn enlist(self: &Arc<Self>) {
        // In a forked child, a thread of the parent may have held it at the fork: no wait without end.
        for _ in 0..100 {
            if let Ok(mut open) = OPEN.try_lock() {
                open.push(self.clone());
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// [`flush_all`] no longer knows it.
    pub fn strike(self: &Arc<Self>) {
        if let Ok(mut open) = OPEN.try_lock() {
            open.retain(|open| !Arc::ptr_eq(open, self));
        }
    }

    /// The thread ends.
    pub fn note_end(&self, outcome: io::Result<()>) {
        self.flushed.store(u64::MAX, Ordering::Release);
        if let Ok(mut ended) = self.ended.lock() {
            ended.get_or_insert(outcome);
            self.end.notify_all();
        }
    }

    /// Waits until the thread has ended.
    pub fn wait_for_end(&self) -> io::Result<()> {
        let died = || io::Error::other("the thread that writes the capture has panicked");
        let mut ended = self.ended.lock().map_err(|_| died())?;
        loop {
            if let Some(outcome) = ended.take() {
                return outcome;
            }
            ended = self.end.wait(ended).map_err(|_| died())?;
        }
    }
}

/// Notes the end of the thread also if it panics.
pub struct Ending(pub Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.note_end(Err(io::Error::other("the thread that writes the capture has panicked")));
    }
}
