//! Completion queues.

use crate::Errno;
use crate::objects::channel::CompChannel;
use crate::objects::context::Context;
use crate::shared::cq::{CqShared, Options};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use weir_transport::Completion;

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
    users: AtomicU32,
    pub(crate) shared: Arc<CqShared>,
}

impl Context {
    /// Creates a completion queue of `cqe` ≥ 1 entries; `cookie` comes back with completion events.
    pub fn create_cq(
        self: &Arc<Self>,
        cqe: u32,
        channel: Option<Arc<CompChannel>>,
        cookie: u64,
    ) -> Result<Arc<Cq>, Errno> {
        self.create_cq_with(CqCreate { cqe, channel, cookie, ..CqCreate::default() })
    }

    /// Creates a completion queue with all options.
    pub fn create_cq_with(self: &Arc<Self>, create: CqCreate) -> Result<Arc<Cq>, Errno> {
        self.adapter.check()?;
        Cq::new(self, create)
    }
}

impl Cq {
    /// A CQ for `create.cqe` completions at least. EINVAL for a size of 0 or above the limit, ENOMEM without memory.
    pub(crate) fn new(context: &Arc<Context>, create: CqCreate) -> Result<Arc<Cq>, Errno> {
        let capacity = checked_size(context, create.cqe)?;
        let CqCreate { channel, cookie, timestamps, ignore_overrun, .. } = create;
        let options = Options { channel, cookie, timestamps, ignore_overrun };
        let shared = CqShared::new(capacity, options, context.events.clone(), context.adapter.cqs.clone())?;
        Ok(Arc::new(Cq { context: context.clone(), users: AtomicU32::new(0), shared }))
    }

    /// Number of entries, at least what was requested.
    pub fn cqe(&self) -> u32 {
        self.shared.capacity()
    }

    /// Takes up to `max` completions and hands each to `each`; drives the engine if there is none. Err: the CQ has
    /// overflowed.
    pub fn poll(&self, max: usize, mut each: impl FnMut(&Completion)) -> Result<usize, Errno> {
        self.context.adapter.gathering.polled();
        let mut taken = self.shared.take(max, |entry| each(&entry.completion))?;
        if taken == 0 {
            let worked = self.context.adapter.drive_for_poll();
            taken = self.shared.take(max, |entry| each(&entry.completion))?;
            self.context.adapter.polled(taken == 0, worked);
        }
        if taken > 0 {
            self.context.adapter.may_stop_polling();
        }
        Ok(taken)
    }

    /// Takes one completion and its time stamp; the `first` call of a series drives the engine if there is none. Err:
    /// the CQ has overflowed.
    pub fn poll_one(&self, first: bool) -> Result<Option<(Completion, u64)>, Errno> {
        self.context.adapter.gathering.polled();
        let mut found = None;
        self.shared.take(1, |entry| found = Some((entry.completion, entry.stamp)))?;
        if first && found.is_none() {
            let worked = self.context.adapter.drive_for_poll();
            self.shared.take(1, |entry| found = Some((entry.completion, entry.stamp)))?;
            self.context.adapter.polled(found.is_none(), worked);
        }
        if found.is_some() {
            self.context.adapter.may_stop_polling();
        }
        Ok(found)
    }

    /// Requests one event for the next completion (or the next solicited one), or for one that has come after the last event
    /// and was not polled. EIO if the adapter has failed, because no more completions come then.
    pub fn arm(&self, solicited_only: bool) -> Result<(), Errno> {
        if !self.context.adapter.condition.works() {
            return Err(Errno(libc::EIO));
        }
        let follow_up = self.shared.arm(solicited_only);
        let concerns_engine = follow_up.concerns_engine();
        self.shared.follow_up(follow_up);
        if concerns_engine {
            // Otherwise its thread may sleep longer than until the event.
            self.context.adapter.follow_cqs();
        }
        self.context.adapter.expects_events();
        Ok(())
    }

    /// Changes the capacity to `cqe` entries. EINVAL if more completions are pending.
    pub fn resize(&self, cqe: u32) -> Result<(), Errno> {
        let capacity = checked_size(&self.context, cqe)?;
        self.shared.resize(capacity, || {
            // Before a CQ shrinks, deliver the completions that an adapter would have delivered by now.
            if capacity < self.cqe() {
                self.context.adapter.drive_until_idle();
            }
        })
    }

    /// Sets moderation: an armed CQ raises its event after `count` completions or `period_us` microseconds after the
    /// first, whichever is earlier. A `count` of 0 or 1 or a period of 0 switches it off. ENOMEM without memory.
    pub fn moderate(&self, count: u16, period_us: u16) -> Result<(), Errno> {
        self.shared.moderate(count, period_us)
    }

    /// Destroys the CQ: EBUSY while a QP uses it. Its pending channel events are dropped.
    pub fn destroy(&self) -> Result<(), Errno> {
        let users = self.users.load(Ordering::Acquire);
        if users > 0 {
            let why = format_args!("CQ: destroy: it is in use {users} times, by QPs and SRQs: destroy them first");
            return Err(self.context.refuse(libc::EBUSY, why));
        }
        self.shared.drop_events();
        Ok(())
    }

    /// A QP or an XRC SRQ uses the CQ: destroying it fails with EBUSY until [`detach`](Self::detach).
    pub(crate) fn attach(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// The object of an [`attach`](Self::attach) no longer uses the CQ.
    pub(crate) fn detach(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

fn checked_size(context: &Context, cqe: u32) -> Result<u32, Errno> {
    let limit = context.limits().max_cqe;
    if (1..=limit).contains(&cqe) {
        return Ok(cqe);
    }
    Err(context.refuse(libc::EINVAL, format_args!("CQ: a size of {cqe} entries is not from 1 to {limit}")))
}
