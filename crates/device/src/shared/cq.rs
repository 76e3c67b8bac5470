//! The ring of a CQ: completions enter it, polls take them, and it raises the events that the program asked for.

use crate::Errno;
use crate::events::AsyncEvent;
use crate::objects::channel::CompChannel;
use crate::os::clock;
use crate::os::grow::Grow;
use crate::os::locks::{RankedGuard, RankedMutex, rank};
use crate::os::notify::Notify;
use crate::shared::moderation::{Moderated, Moderation, Verdict};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use weir_transport::{Completion, Queue, Status};

/// The part of a CQ that the application's threads and the engine share.
pub(crate) struct CqShared {
    options: Options,
    overflown: AtomicBool,
    ring: RankedMutex<Ring, { rank::CQ_RING }>,
    /// Whether the ring has entries, so that an empty poll takes no lock.
    filled: AtomicBool,
    /// The asynchronous events of its context.
    events: Arc<Notify<AsyncEvent>>,
    all: Arc<AllCqs>,
    /// For moderation timers, which do not keep the CQ alive.
    me: Weak<CqShared>,
}

/// What a CQ is created with.
pub(crate) struct Options {
    /// The channel that receives its events, each with the cookie.
    pub channel: Option<Arc<CompChannel>>,
    pub cookie: u64,
    /// Each completion is stamped with the adapter's clock.
    pub timestamps: bool,
    /// A full CQ drops its oldest entry instead of failing.
    pub ignore_overrun: bool,
}

/// What all CQs of an adapter share.
#[derive(Default)]
pub(crate) struct AllCqs {
    /// CQs with events held back by moderation.
    pub moderated: Moderated<CqShared>,
    /// A CQ has overflowed, and its QPs are not yet in the error state.
    pub overflown: AtomicBool,
}

struct Ring {
    entries: VecDeque<Entry>,
    capacity: u32,
    armed: Armed,
    /// The newest entries, of which no event has told, because none was requested when they came.
    untold: usize,
    moderation: Moderation,
}

/// What a completion causes.
#[must_use]
pub(crate) enum FollowUp {
    Nothing,
    /// An event of the CQ.
    Event,
    /// The event is held back until this time.
    Wait(u64),
    Overflow,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// A completion in the ring.
pub(crate) struct Entry {
    pub completion: Completion,
    /// The adapter's clock when the completion was created; 0 for a CQ without time stamps.
    pub stamp: u64,
    queue: Queue,
    /// It raises an event that was requested for solicited completions only.
    solicited: bool,
    retired: Arc<RetiredWqes>,
}

/// Counts of retired WQEs of a QP: their slots become free when completions are polled, as on an adapter. A program
/// that does not poll finds its queue full.
#[derive(Default)]
pub(crate) struct RetiredWqes {
    pub send: AtomicU32,
    pub recv: AtomicU32,
}

impl FollowUp {
    /// The engine has to know: the event's time may be the next deadline, or QPs end.
    pub fn concerns_engine(&self) -> bool {
        matches!(self, FollowUp::Wait(_) | FollowUp::Overflow)
    }
}

impl RetiredWqes {
    fn retire(&self, queue: Queue, count: u32) {
        match queue {
            Queue::Send => self.send.store(count, Ordering::Release),
            Queue::Receive => self.recv.store(count, Ordering::Release),
        }
    }
}

impl CqShared {
    /// An empty CQ. ENOMEM if there is no memory for `capacity` entries.
    pub fn new(
        capacity: u32,
        options: Options,
        events: Arc<Notify<AsyncEvent>>,
        all: Arc<AllCqs>,
    ) -> Result<Arc<CqShared>, Errno> {
        let ring = Ring {
            entries: VecDeque::for_capacity(capacity as usize)?,
            capacity,
            armed: Armed::No,
            untold: 0,
            moderation: Moderation::default(),
        };
        Ok(Arc::new_cyclic(|me| CqShared {
            options,
            overflown: AtomicBool::new(false),
            ring: RankedMutex::new(ring),
            filled: AtomicBool::new(false),
            events,
            all,
            me: me.clone(),
        }))
    }

    /// Number of entries.
    pub fn capacity(&self) -> u32 {
        self.ring().capacity
    }

    /// Takes up to `max` completions. Err: the CQ has overflowed.
    #[inline]
    pub fn take(&self, max: usize, each: impl FnMut(&Entry)) -> Result<usize, Errno> {
        if self.filled.load(Ordering::Acquire) || self.has_overflown() { self.take_some(max, each) } else { Ok(0) }
    }

    fn take_some(&self, max: usize, mut each: impl FnMut(&Entry)) -> Result<usize, Errno> {
        let mut ring = self.ring();
        if ring.entries.is_empty() && self.has_overflown() {
            return Err(Errno(libc::EIO));
        }
        let count = max.min(ring.entries.len());
        for entry in ring.entries.drain(..count) {
            each(&entry);
            entry.retired.retire(entry.queue, entry.completion.retired);
        }
        ring.untold = ring.untold.min(ring.entries.len());
        self.filled.store(!ring.entries.is_empty(), Ordering::Release);
        Ok(count)
    }

    /// Requests one event for the next completion (or the next solicited one). A completion that came after the last event
    /// and was not polled yet counts as the next one: adapters compare the number of completions with the number that the
    /// program has polled, and UCX, which does not poll again after its request, relies on that. The caller does what it
    /// causes.
    pub fn arm(&self, solicited_only: bool) -> FollowUp {
        let mut ring = self.ring();
        // A later request for solicited completions does not narrow a request for any completion (IBTA 11.4.2.2).
        if !(solicited_only && ring.armed == Armed::Any) {
            ring.armed = if solicited_only { Armed::Solicited } else { Armed::Any };
        }
        ring.tell_untold()
    }

    /// Moves the completions to a ring of `capacity` entries. EINVAL if more are pending; ENOMEM without memory.
    /// `before` is called after the allocation.
    pub fn resize(&self, capacity: u32, before: impl FnOnce()) -> Result<(), Errno> {
        let mut entries = VecDeque::for_capacity(capacity as usize)?;
        before();
        let mut ring = self.ring();
        if ring.entries.len() > capacity as usize {
            return Err(Errno(libc::EINVAL));
        }
        entries.extend(ring.entries.drain(..));
        ring.capacity = capacity;
        let old = std::mem::replace(&mut ring.entries, entries);
        drop(ring);
        drop(old);
        Ok(())
    }

    /// Sets moderation; an event that is held back is raised. ENOMEM without memory.
    pub fn moderate(&self, count: u16, period_us: u16) -> Result<(), Errno> {
        self.all.moderated.reserve()?;
        let mut ring = self.ring();
        ring.moderation.set(count, period_us);
        let waited = ring.armed != Armed::No && ring.moderation.end();
        if waited {
            self.fire(ring);
        }
        Ok(())
    }

    /// The deadline of a moderated event has passed.
    pub fn moderation_due(&self, now: u64) {
        let mut ring = self.ring();
        match ring.moderation.deadline_passed(now) {
            Some(due) => {
                drop(ring);
                self.all.moderated.wait(due, self.me.clone());
            }
            None if ring.moderation.end() && ring.armed != Armed::No => self.fire(ring),
            None => {}
        }
    }

    /// A completion did not fit into the CQ: no QP of this CQ can go on.
    pub fn has_overflown(&self) -> bool {
        self.overflown.load(Ordering::Acquire)
    }

    /// Adds a completion of a QP.
    pub fn push(&self, queue: Queue, completion: Completion, retired: &Arc<RetiredWqes>, solicited: bool) {
        let follow_up = self.enter(queue, completion, retired, solicited);
        self.follow_up(follow_up);
    }

    /// Adds a completion under locks of the caller. What it causes is done by `follow_up`, after the caller has released
    /// them: an event may allocate.
    #[inline]
    pub fn enter(&self, queue: Queue, completion: Completion, retired: &Arc<RetiredWqes>, solicited: bool) -> FollowUp {
        let stamp = if self.options.timestamps { clock::now().0 } else { 0 };
        let mut ring = self.ring();
        if ring.entries.len() >= ring.capacity as usize {
            if !self.options.ignore_overrun {
                return FollowUp::Overflow;
            }
            // The WQE slot of the dropped entry comes back with a later completion of its queue.
            ring.entries.pop_front();
        }
        let failed = completion.status != Status::Success;
        ring.entries.push_back(Entry { completion, stamp, queue, solicited, retired: retired.clone() });
        self.filled.store(true, Ordering::Release);
        if !ring.armed.wants(solicited) {
            ring.untold = ring.entries.len().min(ring.untold + 1);
            return FollowUp::Nothing;
        }
        // The event tells of all that came before it, too.
        ring.untold = 0;
        ring.wanted(failed)
    }

    /// Does what a completion has caused.
    #[inline]
    pub fn follow_up(&self, follow_up: FollowUp) {
        match follow_up {
            FollowUp::Nothing => {}
            FollowUp::Event => self.raise_event(),
            FollowUp::Wait(due) => self.all.moderated.wait(due, self.me.clone()),
            FollowUp::Overflow => self.overflow(),
        }
    }

    fn fire(&self, mut ring: RankedGuard<'_, Ring, { rank::CQ_RING }>) {
        ring.disarm();
        drop(ring);
        self.raise_event();
    }

    fn raise_event(&self) {
        if let Some(channel) = &self.options.channel {
            channel.events.push(self.options.cookie);
        }
    }

    /// Raises IBV_EVENT_CQ_ERR, and lets the engine move the QPs to the error state (IBTA 11.6.3.1, 11.6.3.2).
    fn overflow(&self) {
        if !self.overflown.swap(true, Ordering::AcqRel) {
            self.events.push(AsyncEvent::CqError { cookie: self.options.cookie });
        }
        self.all.overflown.store(true, Ordering::Release);
    }

    /// Drops the completions of a QP that was destroyed or reset. Those of a TM SRQ stay: the program learns from them
    /// what became of its tags.
    pub fn purge(&self, qp_num: u32) {
        let stays = |completion: &Completion| completion.qp_num != qp_num || completion.opcode.is_of_tags();
        let mut ring = self.ring();
        let (mut at, mut untold, told) = (0, 0, ring.entries.len() - ring.untold);
        ring.entries.retain(|entry| {
            let stays = stays(&entry.completion);
            untold += usize::from(stays && at >= told);
            at += 1;
            stays
        });
        ring.untold = untold;
    }

    /// Drops its pending channel events.
    pub fn drop_events(&self) {
        if let Some(channel) = &self.options.channel {
            channel.events.remove(|cookie| *cookie == self.options.cookie);
        }
    }

    fn ring(&self) -> RankedGuard<'_, Ring, { rank::CQ_RING }> {
        self.ring.lock()
    }
}

impl Armed {
    fn wants(self, solicited: bool) -> bool {
        match self {
            Armed::No => false,
            Armed::Solicited => solicited,
            Armed::Any => true,
        }
    }
}

impl Ring {
    /// What the entries cause of which no event has told, now that an event is requested.
    fn tell_untold(&mut self) -> FollowUp {
        let mut follow_up = FollowUp::Nothing;
        for at in self.entries.len() - self.untold..self.entries.len() {
            let entry = &self.entries[at];
            let failed = entry.completion.status != Status::Success;
            if self.armed.wants(entry.solicited) {
                self.untold = 0;
                match self.wanted(failed) {
                    FollowUp::Nothing => {}
                    FollowUp::Event => return FollowUp::Event,
                    wait => follow_up = wait,
                }
            }
        }
        follow_up
    }

    /// A completion has come for which an event is requested.
    fn wanted(&mut self, failed: bool) -> FollowUp {
        match self.moderation.completion(failed) {
            Verdict::Fire => {
                self.disarm();
                FollowUp::Event
            }
            Verdict::Gather => FollowUp::Nothing,
            Verdict::Start(period) => {
                let due = clock::now().0 + period;
                if self.moderation.start(due) { FollowUp::Wait(due) } else { FollowUp::Nothing }
            }
        }
    }

    /// The event that was requested is raised.
    fn disarm(&mut self) {
        self.armed = Armed::No;
        self.moderation.end();
    }
}

#[cfg(test)]
impl CqShared {
    /// Runs `work` under the lock of the CQ.
    pub fn hold_for_tests(&self, work: impl FnOnce()) {
        let _ring = self.ring();
        work();
    }
}
