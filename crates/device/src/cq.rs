//! Completion queues and completion channels.

use crate::context::Context;
use crate::notify::Notify;
use crate::{AsyncEvent, Errno};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use weir_transport::{Completion, Queue};

/// A completion channel.
pub struct CompChannel {
    events: Notify<u64>,
}

impl CompChannel {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(CompChannel { events: Notify::new()? })
    }

    /// Readable when an event waits; applications may make it non-blocking and poll it.
    pub fn fd(&self) -> RawFd {
        self.events.fd()
    }

    /// Takes one event: the cookie of its CQ. Blocks unless the fd is non-blocking (EAGAIN then; EINTR passes through).
    pub fn get_event(&self) -> Result<u64, Errno> {
        self.events.take()
    }
}

/// A completion queue.
pub struct Cq {
    context: Arc<Context>,
    channel: Option<Arc<CompChannel>>,
    cookie: u64,
    users: AtomicU32,
    ring: Mutex<Ring>,
}

struct Ring {
    entries: VecDeque<Entry>,
    capacity: u32,
    overflowed: bool,
    armed: Armed,
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
    places: Arc<Places>,
}

/// Places of a QP's work queues, which come back when completions are polled, as they do on an adapter: a program
/// that does not poll sees a full queue.
#[derive(Default)]
pub(crate) struct Places {
    pub send_retired: AtomicU32,
    pub recv_retired: AtomicU32,
}

impl Places {
    fn give_back(&self, queue: Queue, retired: u32) {
        match queue {
            Queue::Send => self.send_retired.store(retired, Ordering::Release),
            Queue::Receive => self.recv_retired.store(retired, Ordering::Release),
        }
    }
}

impl Cq {
    pub(crate) fn new(
        context: &Arc<Context>,
        cqe: u32,
        channel: Option<Arc<CompChannel>>,
        cookie: u64,
    ) -> Result<Arc<Cq>, Errno> {
        let capacity = checked_size(context, cqe)?;
        let ring =
            Ring { entries: VecDeque::with_capacity(capacity as usize), capacity, overflowed: false, armed: Armed::No };
        Ok(Arc::new(Cq { context: context.clone(), channel, cookie, users: AtomicU32::new(0), ring: Mutex::new(ring) }))
    }

    /// Entries that it holds, at least what was asked for.
    pub fn cqe(&self) -> u32 {
        self.ring().capacity
    }

    /// Takes up to `max` completions, handing each to `each`; drives the engine if there is none. Err: it has
    /// overflowed.
    pub fn poll(&self, max: usize, mut each: impl FnMut(&Completion)) -> Result<usize, Errno> {
        let mut taken = self.take(max, &mut each)?;
        if taken == 0 {
            self.context.adapter.drive_for_poll();
            taken = self.take(max, &mut each)?;
        }
        self.context.adapter.pace.polled(taken == 0);
        Ok(taken)
    }

    fn take(&self, max: usize, each: &mut impl FnMut(&Completion)) -> Result<usize, Errno> {
        let mut ring = self.ring();
        if ring.overflowed && ring.entries.is_empty() {
            return Err(Errno(libc::EIO));
        }
        let count = max.min(ring.entries.len());
        for entry in ring.entries.drain(..count) {
            each(&entry.completion);
            entry.places.give_back(entry.queue, entry.completion.retired);
        }
        Ok(count)
    }

    /// One event for the next completion (or the next solicited one).
    pub fn arm(&self, solicited_only: bool) {
        let mut ring = self.ring();
        // A request for any completion is not narrowed by a later one for solicited ones (IBTA 11.4.2.2).
        if !(solicited_only && ring.armed == Armed::Any) {
            ring.armed = if solicited_only { Armed::Solicited } else { Armed::Any };
        }
        drop(ring);
        self.context.adapter.expects_events();
    }

    /// Makes room for `cqe` entries. EINVAL if more are waiting.
    pub fn resize(&self, cqe: u32) -> Result<(), Errno> {
        let capacity = checked_size(&self.context, cqe)?;
        let mut entries = VecDeque::with_capacity(capacity as usize);
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

    /// EBUSY while a QP uses it. Pending channel events of it are dropped.
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

    /// Takes a completion from a QP.
    pub(crate) fn push(&self, queue: Queue, completion: Completion, places: &Arc<Places>, solicited: bool) {
        let mut ring = self.ring();
        if ring.entries.len() >= ring.capacity as usize {
            if !std::mem::replace(&mut ring.overflowed, true) {
                drop(ring);
                self.context.events.push(AsyncEvent::CqError { cookie: self.cookie });
            }
            return;
        }
        ring.entries.push_back(Entry { completion, queue, places: places.clone() });
        let fire = match ring.armed {
            Armed::No => false,
            Armed::Solicited => solicited,
            Armed::Any => true,
        };
        if fire {
            ring.armed = Armed::No;
            drop(ring);
            if let Some(channel) = &self.channel {
                channel.events.push(self.cookie);
            }
        }
    }

    /// Drops the completions of a QP that is gone or reset.
    pub(crate) fn purge(&self, qp_num: u32) {
        self.ring().entries.retain(|entry| entry.completion.qp_num != qp_num);
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().expect("no panic under this lock")
    }
}

fn checked_size(context: &Context, cqe: u32) -> Result<u32, Errno> {
    if cqe == 0 || cqe > context.limits().max_cqe { Err(Errno(libc::EINVAL)) } else { Ok(cqe) }
}
