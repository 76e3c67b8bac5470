//! What a process has once: the manager, its files, and what wakes the agent.

use crate::kick::Kick;
use crate::manager::Manager;
use std::collections::HashMap;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_device::epoll;
use weir_transport::Instant;

/// What a process has once.
#[derive(Default)]
pub struct Process {
    live: Mutex<Option<Live>>,
    /// 1: the process ends, and peers must be told. 2: they are told.
    ending: AtomicU32,
    /// When the end began; 0: not yet.
    began: AtomicU64,
    /// The descriptor that wakes the agent, for the end of the process.
    pub kick: AtomicI32,
}

/// The manager and its files.
pub struct Live {
    pub manager: Manager,
    /// By inode.
    pub files: HashMap<u64, File>,
    pub epoll: Arc<OwnedFd>,
    pub kick: Kick,
    /// The agent sleeps until then at most.
    pub sleeps_until: Option<Instant>,
}

/// An open file.
pub struct File {
    pub number: u64,
    /// The end that shows its events.
    pub own: RawFd,
}

impl Process {
    /// A panic under the lock has made all adapters fail.
    pub fn lock(&self) -> MutexGuard<'_, Option<Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process ends, and peers must be told. Returns when that began, at the first call; `None` if they have been
    /// told.
    pub fn begin_end(&self, now: Instant) -> Option<Instant> {
        let first = self.began.compare_exchange(0, now.0, Ordering::AcqRel, Ordering::Acquire);
        let began = Instant(first.err().unwrap_or(now.0));
        let told = self.ending.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire) == Err(2);
        (!told).then_some(began)
    }

    /// Returns whether peers have been told that the process ends.
    pub fn is_told(&self) -> bool {
        self.ending.load(Ordering::Acquire) == 2
    }

    /// Returns whether peers must be told that the process ends.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire) == 1
    }

    /// The peers have been told that the process ends.
    pub fn has_told(&self) {
        self.ending.store(2, Ordering::Release);
    }
}

impl Live {
    /// Ends a file.
    pub fn close(&mut self, inode: u64) {
        if let Some(file) = self.files.remove(&inode) {
            epoll::remove(&self.epoll, file.own);
            self.manager.close(weir_device::now(), file.number);
        }
    }

    /// The agent must not sleep longer than the manager allows.
    pub fn wake_agent(&mut self) {
        let Some(next) = self.manager.next() else { return };
        if self.sleeps_until.is_none_or(|until| next < until) {
            self.sleeps_until = Some(next);
            self.kick.kick();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `exit` and `_exit` both end the process, one after the other.
    #[test]
    fn the_end_begins_once() {
        let process = Process::default();
        assert_eq!(process.begin_end(Instant(5)), Some(Instant(5)));
        assert!(process.is_ending());
        assert_eq!(process.begin_end(Instant(9)), Some(Instant(5)));
        process.has_told();
        assert_eq!(process.begin_end(Instant(11)), None);
    }
}
