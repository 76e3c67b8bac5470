//! CQ moderation: events of an armed CQ that are held back until several completions have gathered, or some time has
//! passed since the first of them.

use crate::Errno;
use crate::cq::Cq;
use crate::room::with_room;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// A CQ's setting, and what has gathered since it was armed.
#[derive(Debug, Default)]
pub struct Moderation {
    count: u32,
    /// Nanoseconds.
    period: u64,
    gathered: u32,
    /// When the event comes at the latest.
    due: Option<u64>,
    /// It stands among the adapter's [`Moderated`], with this deadline or that of an earlier wait.
    listed: bool,
}

/// What becomes of the event of one completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Now.
    Fire,
    /// The time runs already.
    Gather,
    /// The time, so many nanoseconds, starts now.
    Start(u64),
}

impl Moderation {
    /// Zero of either switches it off, as adapters have it.
    pub fn set(&mut self, count: u16, period_us: u16) {
        self.count = count.into();
        self.period = u64::from(period_us) * 1000;
        // Where it stands may be too late by the new setting.
        self.listed = false;
    }

    /// A completion came that the armed CQ is to tell of. Errors are told at once.
    pub fn completion(&mut self, failed: bool) -> Verdict {
        self.gathered += 1;
        if failed || self.period == 0 || self.gathered >= self.count {
            Verdict::Fire
        } else if self.due.is_none() {
            Verdict::Start(self.period)
        } else {
            Verdict::Gather
        }
    }

    /// The event comes at `due` (nanoseconds). Whether the CQ must be listed for that.
    pub fn start(&mut self, due: u64) -> bool {
        self.due = Some(due);
        !std::mem::replace(&mut self.listed, true)
    }

    /// The deadline with which it was listed is over. A later one, with which it must be listed again, if that one was
    /// of an earlier wait.
    pub fn time_is_over(&mut self, now: u64) -> Option<u64> {
        let later = self.due.filter(|due| *due > now);
        self.listed = later.is_some();
        later
    }

    /// Nothing is held back any more. Whether something was.
    pub fn end(&mut self) -> bool {
        self.gathered = 0;
        self.due.take().is_some()
    }
}

/// The CQs of an adapter that hold an event back.
pub struct Moderated {
    /// The earliest deadline, nanoseconds; `u64::MAX` if there is none.
    next: AtomicU64,
    waiting: Mutex<Vec<(u64, Weak<Cq>)>>,
}

impl Moderated {
    /// Makes room for one more, outside of the packet path. ENOMEM if there is none.
    pub fn reserve(&self) -> Result<(), Errno> {
        let len = self.lock().len();
        // One more than twice those that are: each stands here once, or twice if its setting was changed.
        with_room(len + 16, || self.lock(), |waiting| waiting).map(drop)
    }

    /// An event of `cq` comes at `due`.
    pub fn wait(&self, due: u64, cq: Weak<Cq>) {
        let mut waiting = self.lock();
        waiting.push((due, cq));
        self.next.fetch_min(due, Ordering::Release);
    }

    /// When `fire` is due.
    pub fn next(&self) -> Option<u64> {
        Some(self.next.load(Ordering::Acquire)).filter(|due| *due != u64::MAX)
    }

    /// Raises the events that are due.
    pub fn fire(&self, now: u64) {
        if self.next.load(Ordering::Relaxed) > now {
            return;
        }
        while let Some(cq) = self.take(now) {
            if let Some(cq) = cq.upgrade() {
                cq.moderation_due(now);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Weak<Cq>)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, now: u64) -> Option<Weak<Cq>> {
        let mut waiting = self.lock();
        let found = waiting.iter().position(|(due, _)| *due <= now);
        let taken = found.map(|position| waiting.swap_remove(position).1);
        self.next.store(waiting.iter().map(|(due, _)| *due).min().unwrap_or(u64::MAX), Ordering::Release);
        taken
    }
}

impl Default for Moderated {
    fn default() -> Self {
        Moderated { next: AtomicU64::new(u64::MAX), waiting: Mutex::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_setting_every_completion_is_told() {
        let mut moderation = Moderation::default();
        assert_eq!(moderation.completion(false), Verdict::Fire);
        for (count, period) in [(0, 5), (8, 0), (1, 5)] {
            moderation.set(count, period);
            assert_eq!(moderation.completion(false), Verdict::Fire);
            assert!(!moderation.end());
        }
    }

    #[test]
    fn the_count_or_the_time_or_an_error_ends_the_wait() {
        let mut moderation = Moderation::default();
        moderation.set(3, 2);
        assert_eq!(moderation.completion(false), Verdict::Start(2000));
        assert!(moderation.start(2100));
        assert_eq!(moderation.completion(false), Verdict::Gather);
        assert_eq!(moderation.completion(false), Verdict::Fire);
        assert!(moderation.end());
        assert_eq!(moderation.completion(false), Verdict::Start(2000));
        assert!(!moderation.start(3000), "it is listed still");
        assert_eq!(moderation.time_is_over(2100), Some(3000));
        assert_eq!(moderation.completion(true), Verdict::Fire);
        assert_eq!(moderation.time_is_over(3000), None);
        assert!(moderation.end());
        assert!(!moderation.end());
    }

    #[test]
    fn the_earliest_deadline_is_the_next() {
        let moderated = Moderated::default();
        assert_eq!(moderated.next(), None);
        for due in [30, 10, 20] {
            moderated.wait(due, Weak::new());
        }
        assert_eq!(moderated.next(), Some(10));
        moderated.fire(20);
        assert_eq!(moderated.next(), Some(30));
        moderated.fire(30);
        assert_eq!(moderated.next(), None);
    }
}
