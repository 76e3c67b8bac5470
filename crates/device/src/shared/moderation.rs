//! CQ moderation: an armed CQ holds its event back until several completions have gathered, or until some time has
//! passed since the first of them.

use crate::Errno;
use crate::os::grow::with_room;
use crate::os::locks::{RankedGuard, RankedMutex, rank};
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

/// A CQ's moderation setting, and the completions since it was armed.
#[derive(Debug, Default)]
pub struct Moderation {
    count: u32,
    /// Nanoseconds; 0: no moderation.
    period: u64,
    gathered: u32,
    /// The latest time of the event.
    due: Option<u64>,
    /// Whether the adapter's [`Moderated`] lists the CQ, with this deadline or that of an earlier wait.
    listed: bool,
}

/// What to do with the event of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Raise the event now.
    Fire,
    /// Wait: the period has already started.
    Gather,
    /// Wait: the period starts now and lasts this many nanoseconds.
    Start(u64),
}

impl Moderation {
    /// Sets both limits. Zero in either of them switches moderation off, as on adapters.
    pub fn set(&mut self, count: u16, period_us: u16) {
        self.count = count.into();
        self.period = u64::from(period_us) * 1000;
        // A listed deadline may be too late for the new setting: the next wait lists the CQ again.
        self.listed = false;
    }

    /// Counts a completion that the armed CQ must report. Errors are reported at once.
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

    /// Sets the deadline of the event to `due` (nanoseconds). Returns whether the CQ must be listed for it.
    pub fn start(&mut self, due: u64) -> bool {
        self.due = Some(due);
        !std::mem::replace(&mut self.listed, true)
    }

    /// The listed deadline has passed. If it was that of an earlier wait, returns the current deadline, with which
    /// the CQ must be listed again.
    pub fn deadline_passed(&mut self, now: u64) -> Option<u64> {
        let later = self.due.filter(|due| *due > now);
        self.listed = later.is_some();
        later
    }

    /// Stops holding an event back. Returns whether an event was held back.
    pub fn end(&mut self) -> bool {
        self.gathered = 0;
        self.due.take().is_some()
    }
}

/// The CQs of an adapter that hold an event back.
pub struct Moderated<C> {
    /// The earliest deadline, nanoseconds; `u64::MAX` if there is none.
    next: AtomicU64,
    waiting: RankedMutex<Vec<(u64, Weak<C>)>, { rank::MODERATED }>,
}

impl<C> Moderated<C> {
    /// Reserves space for another CQ, outside of the packet path. ENOMEM if there is no memory.
    pub fn reserve(&self) -> Result<(), Errno> {
        let len = self.lock().len();
        // More than twice the listed entries: each CQ is listed once, or twice if its setting was changed.
        with_room(len + 16, || self.lock(), |waiting| waiting).map(drop)
    }

    /// Lists `cq`: its event is due at `due`.
    pub fn wait(&self, due: u64, cq: Weak<C>) {
        let mut waiting = self.lock();
        waiting.push((due, cq));
        self.next.fetch_min(due, Ordering::Release);
    }

    /// The time when [`Self::fire`] is due.
    pub fn next(&self) -> Option<u64> {
        Some(self.next.load(Ordering::Acquire)).filter(|due| *due != u64::MAX)
    }

    /// Calls `due` for each CQ that is still there and has an event that is due by `now`.
    pub fn fire(&self, due: impl Fn(&C), now: u64) {
        if self.next.load(Ordering::Relaxed) > now {
            return;
        }
        while let Some(cq) = self.take(now) {
            if let Some(cq) = cq.upgrade() {
                due(&cq);
            }
        }
    }

    fn lock(&self) -> RankedGuard<'_, Vec<(u64, Weak<C>)>, { rank::MODERATED }> {
        self.waiting.lock()
    }

    fn take(&self, now: u64) -> Option<Weak<C>> {
        let mut waiting = self.lock();
        let found = waiting.iter().position(|(due, _)| *due <= now);
        let taken = found.map(|position| waiting.swap_remove(position).1);
        self.next.store(waiting.iter().map(|(due, _)| *due).min().unwrap_or(u64::MAX), Ordering::Release);
        taken
    }
}

impl<C> Default for Moderated<C> {
    fn default() -> Self {
        Moderated { next: AtomicU64::new(u64::MAX), waiting: RankedMutex::new(Vec::new()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_moderation_every_completion_raises_an_event() {
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
        assert!(!moderation.start(3000), "it is still listed");
        assert_eq!(moderation.deadline_passed(2100), Some(3000));
        assert_eq!(moderation.completion(true), Verdict::Fire);
        assert_eq!(moderation.deadline_passed(3000), None);
        assert!(moderation.end());
        assert!(!moderation.end());
    }

    #[test]
    fn the_earliest_deadline_is_the_next() {
        let moderated = Moderated::<()>::default();
        assert_eq!(moderated.next(), None);
        for due in [30, 10, 20] {
            moderated.wait(due, Weak::new());
        }
        assert_eq!(moderated.next(), Some(10));
        moderated.fire(|()| (), 20);
        assert_eq!(moderated.next(), Some(30));
        moderated.fire(|()| (), 30);
        assert_eq!(moderated.next(), None);
    }
}
