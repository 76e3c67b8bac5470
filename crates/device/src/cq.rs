//! Completion queues and completion channels.

use crate::context::Context;
use crate::moderation::{Moderation, Verdict};
use crate::notify::Notify;
use crate::room::Grow;
use crate::{AsyncEvent, Errno, clock};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use weir_transport::{Completion, Queue, Status};

/// A completion channel.
pub struct CompChannel {
    events: Notify<u64>,
}

impl CompChannel {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(CompChannel { events: Notify::new()? })
    }

    /// The descriptor that is readable while an event is pending; applications may make it non-blocking and poll it.
    pub fn fd(&self) -> RawFd {
        self.events.fd()
    }

    /// Takes one event: the cookie of its CQ. Blocks unless the fd is non-blocking (EAGAIN then; EINTR passes through).
    pub fn get_event(&self) -> Result<u64, Errno> {
        self.events.take()
    }

    /// The second half of [`Self::get_event`], after the caller has read eight bytes from the descriptor. `None`: the
    /// event's CQ is gone.
    pub fn pop_event(&self) -> Option<u64> {
        self.events.pop()
    }
}

/// Attributes of a new CQ.
#[derive(Clone, Default)]
pub struct CqCreate {
    /// Entries, at least 1.
    pub cqe: u32,
    /// The channel that receives its events.
    pub channel: Option<Arc<CompChannel>>,
    /// The number that comes back with events.
    pub cookie: u64,
    /// Each completion is stamped with the adapter's clock.
    pub timestamps: bool,
    /// A full CQ drops its oldest entry instead of failing.
    pub ignore_overrun: bool,
}

/// A completion queue.
pub struct Cq {
    context: Arc<Context>,
    channel: Option<Arc<CompChannel>>,
    cookie: u64,
    timestamps: bool,
    ignore_overrun: bool,
    users: AtomicU32,
    overflown: AtomicBool,
    ring: Mutex<Ring>,
    /// Whether the ring has entries, so that an empty poll takes no lock.
    filled: AtomicBool,
    /// For moderation timers, which do not keep the CQ alive.
    me: Weak<Cq>,
}

struct Ring {
    entries: VecDeque<Entry>,
    capacity: u32,
    armed: Armed,
    moderation: Moderation,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

struct Entry {
    completion: Completion,
    queue: Queue,
    retired: Arc<RetiredWqes>,
    /// The adapter's clock when the completion was created; 0 for a CQ without time stamps.
    stamp: u64,
}

/// Counts of retired WQEs of a QP: their slots become free when completions are polled, as on an adapter. A program
/// that does not poll finds its queue full.
#[derive(Default)]
pub(crate) struct RetiredWqes {
    pub send: AtomicU32,
    pub recv: AtomicU32,
}

impl RetiredWqes {
    fn retire(&self, queue: Queue, count: u32) {
        match queue {
            Queue::Send => self.send.store(count, Ordering::Release),
            Queue::Receive => self.recv.store(count, Ordering::Release),
        }
    }
}

impl Cq {
    pub(crate) fn new(context: &Arc<Context>, create: CqCreate) -> Result<Arc<Cq>, Errno> {
        let capacity = checked_size(context, create.cqe)?;
        let ring = Ring {
            entries: VecDeque::for_capacity(capacity as usize)?,
            capacity,
            armed: Armed::No,
            moderation: Moderation::default(),
        };
        Ok(Arc::new_cyclic(|me| Cq {
            context: context.clone(),
            channel: create.channel,
            cookie: create.cookie,
            timestamps: create.timestamps,
            ignore_overrun: create.ignore_overrun,
            users: AtomicU32::new(0),
            overflown: AtomicBool::new(false),
            ring: Mutex::new(ring),
            filled: AtomicBool::new(false),
            me: me.clone(),
        }))
    }

    /// Number of entries, at least what was requested.
    pub fn cqe(&self) -> u32 {
        self.ring().capacity
    }

    /// Takes up to `max` completions and hands each to `each`; drives the engine if there is none. Err: the CQ has
    /// overflowed.
    pub fn poll(&self, max: usize, mut each: impl FnMut(&Completion)) -> Result<usize, Errno> {
        let mut taken = self.take(max, |entry| each(&entry.completion))?;
        if taken == 0 {
            let worked = self.context.adapter.drive_for_poll();
            taken = self.take(max, |entry| each(&entry.completion))?;
            self.context.adapter.pace.polled(taken == 0, worked);
        }
        Ok(taken)
    }

    /// Takes one completion and its time stamp; the `first` call of a series drives the engine if there is none. Err:
    /// the CQ has overflowed.
    pub fn poll_one(&self, first: bool) -> Result<Option<(Completion, u64)>, Errno> {
        let mut found = None;
        self.take(1, |entry| found = Some((entry.completion, entry.stamp)))?;
        if first && found.is_none() {
            let worked = self.context.adapter.drive_for_poll();
            self.take(1, |entry| found = Some((entry.completion, entry.stamp)))?;
            self.context.adapter.pace.polled(found.is_none(), worked);
        }
        Ok(found)
    }

    fn take(&self, max: usize, each: impl FnMut(&Entry)) -> Result<usize, Errno> {
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
        self.filled.store(!ring.entries.is_empty(), Ordering::Release);
        Ok(count)
    }

    /// Requests one event for the next completion (or the next solicited one). EIO if the adapter has failed, because
    /// no more completions come then.
    pub fn arm(&self, solicited_only: bool) -> Result<(), Errno> {
        if !self.context.adapter.condition.works() {
            return Err(Errno(libc::EIO));
        }
        let mut ring = self.ring();
        // A later request for solicited completions does not narrow a request for any completion (IBTA 11.4.2.2).
        if !(solicited_only && ring.armed == Armed::Any) {
            ring.armed = if solicited_only { Armed::Solicited } else { Armed::Any };
        }
        drop(ring);
        self.context.adapter.expects_events();
        Ok(())
    }

    /// Changes the capacity to `cqe` entries. EINVAL if more completions are pending.
    pub fn resize(&self, cqe: u32) -> Result<(), Errno> {
        let capacity = checked_size(&self.context, cqe)?;
        let mut entries = VecDeque::for_capacity(capacity as usize)?;
        // Before a CQ shrinks, deliver the completions that an adapter would have delivered by now.
        if capacity < self.cqe() {
            self.context.adapter.drive_until_idle();
        }
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

    /// Sets moderation: an armed CQ raises its event after `count` completions or `period_us` microseconds after the
    /// first, whichever is earlier. A `count` of 0 or 1 or a period of 0 switches it off. ENOMEM without memory.
    pub fn moderate(&self, count: u16, period_us: u16) -> Result<(), Errno> {
        self.context.adapter.moderated.reserve()?;
        let mut ring = self.ring();
        ring.moderation.set(count, period_us);
        let waited = ring.armed != Armed::No && ring.moderation.end();
        if waited {
            self.fire(ring);
        }
        Ok(())
    }

    /// The deadline of a moderated event has passed.
    pub(crate) fn moderation_due(&self, now: u64) {
        let mut ring = self.ring();
        match ring.moderation.deadline_passed(now) {
            Some(due) => {
                drop(ring);
                self.context.adapter.moderated.wait(due, self.me.clone());
            }
            None if ring.moderation.end() && ring.armed != Armed::No => self.fire(ring),
            None => {}
        }
    }

    /// A completion did not fit into the CQ: no QP of this CQ can go on.
    pub(crate) fn has_overflown(&self) -> bool {
        self.overflown.load(Ordering::Acquire)
    }

    /// Destroys the CQ: EBUSY while a QP uses it. Its pending channel events are dropped.
    pub fn destroy(&self) -> Result<(), Errno> {
        if self.users.load(Ordering::Acquire) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        if let Some(channel) = &self.channel {
            channel.events.remove(|cookie| *cookie == self.cookie);
        }
        Ok(())
    }

    pub(crate) fn attach(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn detach(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Adds a completion of a QP.
    pub(crate) fn push(&self, queue: Queue, completion: Completion, retired: &Arc<RetiredWqes>, solicited: bool) {
        let stamp = if self.timestamps { clock::now().0 } else { 0 };
        let mut ring = self.ring();
        if ring.entries.len() >= ring.capacity as usize {
            if !self.ignore_overrun {
                drop(ring);
                self.overflow();
                return;
            }
            // The WQE slot of the dropped entry comes back with a later completion of its queue.
            ring.entries.pop_front();
        }
        let failed = completion.status != Status::Success;
        ring.entries.push_back(Entry { completion, queue, retired: retired.clone(), stamp });
        self.filled.store(true, Ordering::Release);
        let wanted = match ring.armed {
            Armed::No => false,
            Armed::Solicited => solicited,
            Armed::Any => true,
        };
        if !wanted {
            return;
        }
        match ring.moderation.completion(failed) {
            Verdict::Fire => self.fire(ring),
            Verdict::Gather => {}
            Verdict::Start(period) => {
                let due = clock::now().0 + period;
                if ring.moderation.start(due) {
                    drop(ring);
                    self.context.adapter.moderated.wait(due, self.me.clone());
                }
            }
        }
    }

    fn fire(&self, mut ring: MutexGuard<'_, Ring>) {
        ring.armed = Armed::No;
        ring.moderation.end();
        drop(ring);
        if let Some(channel) = &self.channel {
            channel.events.push(self.cookie);
        }
    }

    /// Raises IBV_EVENT_CQ_ERR, and lets the engine move the QPs to the error state (IBTA 11.6.3.1, 11.6.3.2).
    fn overflow(&self) {
        if !self.overflown.swap(true, Ordering::AcqRel) {
            self.context.events.push(AsyncEvent::CqError { cookie: self.cookie });
        }
        self.context.adapter.overflown.store(true, Ordering::Release);
    }

    /// Drops the completions of a QP that was destroyed or reset.
    pub(crate) fn purge(&self, qp_num: u32) {
        self.ring().entries.retain(|entry| entry.completion.qp_num != qp_num);
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Cq {
    /// Runs `work` under the lock of the CQ.
    pub(crate) fn hold_for_tests(&self, work: impl FnOnce()) {
        let _ring = self.ring();
        work();
    }
}

fn checked_size(context: &Context, cqe: u32) -> Result<u32, Errno> {
    if cqe == 0 || cqe > context.limits().max_cqe { Err(Errno(libc::EINVAL)) } else { Ok(cqe) }
}
