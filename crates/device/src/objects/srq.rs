//! Shared receive queues.

use crate::Errno;
use crate::limits::LIMITS;
use crate::objects::context::Context;
use crate::objects::cq::Cq;
use crate::objects::pd::Pd;
use crate::objects::xrcd::Xrcd;
use crate::shared::srq::SrqShared;
use crate::shared::tagging::{TagOp, Tagging};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use weir_transport::{PostError, RecvWr};

/// Attributes of a new SRQ.
#[derive(Clone, Copy, Debug)]
pub struct SrqCreate {
    /// Capacity in work requests. EINVAL beyond the limits, or for 0.
    pub max_wr: u32,
    /// SGEs of each work request.
    pub max_sge: u32,
    /// The number that comes back with events.
    pub cookie: u64,
}

/// Attributes of a TM SRQ beside those of any SRQ.
#[derive(Clone, Copy, Debug)]
pub struct TagCreate {
    /// Tags in the list. EINVAL beyond the limits, or for 0.
    pub max_tags: u32,
    /// Signaled operations before their completions are polled. EINVAL beyond the limits, or for 0.
    pub max_ops: u32,
}

/// A shared receive queue.
pub struct Srq {
    pd: Arc<Pd>,
    xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
    /// TM: the CQ of its completions.
    tag_cq: Option<Arc<Cq>>,
    pub(crate) shared: Arc<SrqShared>,
    users: AtomicU32,
    ended: AtomicBool,
}

impl Pd {
    /// Creates a shared receive queue; an XRC SRQ if a domain and a CQ are given.
    pub fn create_srq(
        self: &Arc<Self>,
        create: &SrqCreate,
        xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
    ) -> Result<Arc<Srq>, Errno> {
        self.context.adapter.check()?;
        check_sizes(&self.context, "create", create.max_wr, create.max_sge)?;
        let (sizes, cq) = ((create.max_wr, create.max_sge), xrc.as_ref().map(|(_, cq)| cq.shared.clone()));
        let shared = SrqShared::new(self.number, sizes, cq, None, create.cookie, self.context.events.clone())?;
        let shared = Arc::new(shared);
        if let Some((xrcd, cq)) = &xrc {
            xrcd.add_srq(shared.clone())?;
            cq.attach();
        }
        self.attach();
        let (users, ended) = (AtomicU32::new(0), AtomicBool::new(false));
        Ok(Arc::new(Srq { pd: self.clone(), xrc, tag_cq: None, shared, users, ended }))
    }

    /// Creates a TM SRQ. All completions of its QPs' messages go to `cq`.
    pub fn create_tm_srq(
        self: &Arc<Self>,
        create: &SrqCreate,
        tags: &TagCreate,
        cq: &Arc<Cq>,
    ) -> Result<Arc<Srq>, Errno> {
        self.context.adapter.check()?;
        check_sizes(&self.context, "create", create.max_wr, create.max_sge)?;
        let sizes =
            [("max_num_tags", tags.max_tags, LIMITS.max_tags.into()), ("max_ops", tags.max_ops, LIMITS.max_tag_ops)];
        if let Some((name, wanted, limit)) = sizes.into_iter().find(|(_, wanted, limit)| !(1..=*limit).contains(wanted))
        {
            let why = format_args!("SRQ: create: {name} is {wanted}, and must be from 1 to {limit}");
            return Err(self.context.refuse(libc::EINVAL, why));
        }
        let tagging = Tagging::new(tags.max_tags as u16, LIMITS.max_tag_sge, tags.max_ops, cq.shared.clone())?;
        let (sizes, events) = ((create.max_wr, create.max_sge), self.context.events.clone());
        let shared = Arc::new(SrqShared::new(self.number, sizes, None, Some(tagging), create.cookie, events)?);
        cq.attach();
        self.attach();
        let (users, ended) = (AtomicU32::new(0), AtomicBool::new(false));
        Ok(Arc::new(Srq { pd: self.clone(), xrc: None, tag_cq: Some(cq.clone()), shared, users, ended }))
    }
}

impl Srq {
    /// The SRQ number; XRC requests name the SRQ by it.
    pub fn number(&self) -> u32 {
        self.shared.number
    }

    /// The device and the SRQ, for the log.
    pub fn name(&self) -> String {
        format!("{}, SRQ {:#08x}", self.pd.context.adapter.device.name, self.shared.number)
    }

    /// Capacity in work requests, SGEs of each, and the limit; the limit is 0 after its event.
    pub fn query(&self) -> (u32, u32, u32) {
        self.shared.query()
    }

    /// Changes its capacity (EINVAL below the number of posted receives), or arms its limit (EINVAL above its
    /// capacity).
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Errno> {
        let (old_size, max_sge, _) = self.query();
        let size = max_wr.unwrap_or(old_size);
        check_sizes(&self.pd.context, "modify", size, max_sge)?;
        self.shared.modify(max_wr, limit).map_err(|errno| match (self.shared.posted(), limit) {
            _ if errno != Errno(libc::EINVAL) => errno,
            (posted, _) if size < posted => {
                self.pd.refuse(errno.0, format_args!("SRQ: modify: max_wr is {size}, and {posted} receives are posted"))
            }
            (_, limit) => {
                let limit = limit.unwrap_or(0);
                let why = format_args!("SRQ: modify: srq_limit is {limit}, and the SRQ holds {size} receives");
                self.pd.refuse(errno.0, why)
            }
        })
    }

    /// Posts one receive.
    pub fn post(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.shared.post(wr, || self.pd.context.adapter.condition.works())
    }

    /// Whether this is a TM SRQ.
    pub fn has_tags(&self) -> bool {
        self.shared.tagging.is_some()
    }

    /// TM: does an operation on the list of tags. Returns the handle of a new tag, otherwise 0. EINVAL for another SRQ.
    pub fn post_op(&self, op: &TagOp<'_>) -> Result<u32, PostError> {
        let tagging = self.shared.tagging.as_ref().ok_or(PostError::Operation)?;
        let adapter = &self.pd.context.adapter;
        let (handle, follow_up) = tagging.post(op, || adapter.condition.works())?;
        let concerns_engine = follow_up.concerns_engine();
        tagging.cq.follow_up(follow_up);
        if concerns_engine {
            // Otherwise its thread may sleep longer than until the event.
            adapter.follow_cqs();
        }
        Ok(handle)
    }

    /// Destroys the SRQ: EBUSY while a QP uses it. No event of it comes after the return.
    pub fn destroy(&self) -> Result<(), Errno> {
        if !self.pd.context.adapter.is_ours() {
            return Ok(());
        }
        let users = self.users.load(Ordering::Acquire);
        if users > 0 {
            return Err(self
                .pd
                .refuse(libc::EBUSY, format_args!("SRQ: destroy: {users} QPs use it: destroy them first")));
        }
        if !self.ended.swap(true, Ordering::AcqRel) {
            if let Some((xrcd, cq)) = &self.xrc {
                xrcd.domain.remove(self.shared.number);
                // An engine turn may have looked the SRQ up before its removal: wait for it.
                self.pd.context.adapter.quiesce();
                cq.detach();
                xrcd.forget_srq(&self.shared);
            }
            if let Some(cq) = &self.tag_cq {
                cq.detach();
            }
            self.shared.drop_events();
            self.pd.detach();
        }
        Ok(())
    }

    /// A QP uses the SRQ: destroying it fails with EBUSY until [`detach`](Self::detach).
    pub(crate) fn attach(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// The object of an [`attach`](Self::attach) no longer uses the SRQ.
    pub(crate) fn detach(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        let _ = self.destroy();
    }
}

fn check_sizes(context: &Context, call: &str, max_wr: u32, max_sge: u32) -> Result<(), Errno> {
    if max_wr == 0 {
        return Err(context.refuse(libc::EINVAL, format_args!("SRQ: {call}: max_wr is 0")));
    }
    let limits = [("max_wr", max_wr, LIMITS.max_qp_wr), ("max_sge", max_sge, LIMITS.max_sge)];
    match limits.into_iter().find(|(_, wanted, limit)| wanted > limit) {
        None => Ok(()),
        Some((name, wanted, limit)) => {
            Err(context.refuse(libc::EINVAL, format_args!("SRQ: {call}: {name} is {wanted}, and the limit is {limit}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::context::Context;

    /// The memory of an SRQ is not freed in a turn of the engine, under the lock of a QP: a memory hook of the program
    /// that deregisters a region there would wait for locks that this thread holds.
    #[test]
    fn a_target_qp_does_not_keep_a_destroyed_srq() {
        let context = Context::open("weir_lo").unwrap();
        let (pd, xrcd) = (context.alloc_pd().unwrap(), Xrcd::open(&context).unwrap());
        let cq = context.create_cq(4, None, 0).unwrap();
        let create = SrqCreate { max_wr: 4, max_sge: 1, cookie: 0 };
        let [first, second] =
            [(); 2].map(|()| pd.create_srq(&create, Some((xrcd.clone(), cq.clone()))).expect("an SRQ"));
        let target = xrcd.create_target(0).unwrap();
        assert!(target.shared.select_srq(first.number()).is_some());
        second.destroy().unwrap();
        assert_eq!(Arc::strong_count(&first.shared), 3, "the SRQ, the domain and the last message");
        first.destroy().unwrap();
        assert_eq!((Arc::strong_count(&first.shared), Arc::strong_count(&second.shared)), (1, 1));
        assert_eq!(target.shared.select_srq(first.number()), None);
    }
}
