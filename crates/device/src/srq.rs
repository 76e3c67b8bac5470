//! Shared receive queues, and the XRC domains that make them accessible to peers.

use crate::context::{Context, LIMITS, Pd};
use crate::cq::Cq;
use crate::notify::Notify;
use crate::qp::{Qp, QpCreate, Receives};
use crate::room::{Grow, with_room};
use crate::{AsyncEvent, Errno};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use weir_transport::{PostError, QpCaps, RecvWr, Service, Sge};

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

/// A shared receive queue.
pub struct Srq {
    pd: Arc<Pd>,
    xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
    pub(crate) shared: Arc<SrqShared>,
    users: AtomicU32,
    ended: AtomicBool,
}

/// The part of an SRQ that the application's threads and the engine share.
pub(crate) struct SrqShared {
    pub number: u32,
    pub pd: u32,
    /// XRC: the CQ of its completions.
    pub cq: Option<Arc<Cq>>,
    cookie: u64,
    events: Arc<Notify<AsyncEvent>>,
    ring: Mutex<Ring>,
}

struct Ring {
    slots: Box<[Slot]>,
    sges: Box<[Sge]>,
    max_sge: usize,
    /// `head`: receives taken so far, `tail`: receives posted so far; both wrap.
    head: u32,
    tail: u32,
    max_wr: u32,
    limit: u32,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    wr_id: u64,
    sge_count: u32,
}

/// An XRC domain: the peers of its target QPs may name its SRQs.
pub struct Xrcd {
    pub(crate) pd: Arc<Pd>,
    pub(crate) cq: Arc<Cq>,
    pub(crate) domain: Arc<Domain>,
    users: AtomicU32,
}

/// The SRQs and the target QPs of a domain, by number.
#[derive(Default)]
pub(crate) struct Domain {
    srqs: RwLock<HashMap<u32, Arc<SrqShared>>>,
    targets: Mutex<HashMap<u32, Weak<Qp>>>,
}

impl Pd {
    /// Creates a shared receive queue; an XRC SRQ if a domain and a CQ are given.
    pub fn create_srq(
        self: &Arc<Self>,
        create: &SrqCreate,
        xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
    ) -> Result<Arc<Srq>, Errno> {
        self.context.adapter.check()?;
        check_sizes(create.max_wr, create.max_sge)?;
        let shared = Arc::new(SrqShared {
            number: next_number(),
            pd: self.number,
            cq: xrc.as_ref().map(|(_, cq)| cq.clone()),
            cookie: create.cookie,
            events: self.context.events.clone(),
            ring: Mutex::new(Ring::new(create.max_wr, create.max_sge, 0)?),
        });
        if let Some((xrcd, cq)) = &xrc {
            let named = shared.clone();
            let mut domain = with_room(1, || xrcd.domain.write(), |srqs| srqs)?;
            domain.insert(named.number, named);
            drop(domain);
            xrcd.users.fetch_add(1, Ordering::AcqRel);
            cq.attach();
        }
        self.attach();
        let (users, ended) = (AtomicU32::new(0), AtomicBool::new(false));
        Ok(Arc::new(Srq { pd: self.clone(), xrc, shared, users, ended }))
    }
}

impl Srq {
    /// The SRQ number; XRC requests name the SRQ by it.
    pub fn number(&self) -> u32 {
        self.shared.number
    }

    /// Capacity in work requests, SGEs of each, and the limit; the limit is 0 after its event.
    pub fn query(&self) -> (u32, u32, u32) {
        let ring = self.shared.ring();
        (ring.max_wr, ring.max_sge as u32, ring.limit)
    }

    /// Changes its capacity (EINVAL below the number of posted receives), or arms its limit (EINVAL above its
    /// capacity).
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Errno> {
        let (old_size, max_sge, _) = self.query();
        let size = max_wr.unwrap_or(old_size);
        check_sizes(size, max_sge)?;
        // Allocated before the lock is taken, and the old ring is freed after the lock is released: see `room`.
        let mut new = max_wr.map(|max_wr| Ring::new(max_wr, max_sge, 0)).transpose()?;
        let mut ring = self.shared.ring();
        if size < ring.len() || limit.is_some_and(|limit| limit > size) {
            return Err(Errno(libc::EINVAL));
        }
        if let Some(new) = &mut new {
            ring.move_to(new);
            std::mem::swap(&mut *ring, new);
        }
        let mut reached = false;
        if let Some(limit) = limit {
            ring.limit = limit;
            reached = ring.check_limit();
        }
        drop(ring);
        if reached {
            self.shared.raise_limit_event();
        }
        Ok(())
    }

    /// Posts one receive.
    pub fn post(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let mut ring = self.shared.ring();
        if !self.pd.context.adapter.condition.works() {
            return Err(PostError::Failed);
        }
        ring.post(wr)
    }

    /// Destroys the SRQ: EBUSY while a QP uses it. No event of it comes after the return.
    pub fn destroy(&self) -> Result<(), Errno> {
        if !self.pd.context.adapter.is_ours() {
            return Ok(());
        }
        if self.users.load(Ordering::Acquire) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        if !self.ended.swap(true, Ordering::AcqRel) {
            if let Some((xrcd, cq)) = &self.xrc {
                let named = xrcd.domain.write().remove(&self.shared.number);
                drop(named);
                // An engine turn may have looked the SRQ up before its removal: wait for it.
                self.pd.context.adapter.quiesce();
                cq.detach();
                xrcd.users.fetch_sub(1, Ordering::AcqRel);
            }
            let cookie = self.shared.cookie;
            self.shared.events.remove(|event| *event == AsyncEvent::SrqLimit { cookie });
            self.pd.detach();
        }
        Ok(())
    }

    pub(crate) fn attach(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn detach(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        let _ = self.destroy();
    }
}

impl SrqShared {
    /// Takes the oldest receive: its `wr_id` and the number of SGEs, which are copied to the front of `sges`.
    pub fn take(&self, sges: &mut [Sge]) -> Option<(u64, usize)> {
        let mut ring = self.ring();
        let taken = ring.take(sges)?;
        let reached = ring.check_limit();
        drop(ring);
        if reached {
            self.raise_limit_event();
        }
        Some(taken)
    }

    fn raise_limit_event(&self) {
        self.events.push(AsyncEvent::SrqLimit { cookie: self.cookie });
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    /// An empty ring. ENOMEM if there is no memory for it.
    fn new(max_wr: u32, max_sge: u32, limit: u32) -> Result<Ring, Errno> {
        let slot_count = max_wr.next_power_of_two() as usize;
        let (mut slots, mut sges) = (Vec::for_capacity(slot_count)?, Vec::for_capacity(slot_count * max_sge as usize)?);
        slots.resize(slot_count, Slot::default());
        sges.resize(slot_count * max_sge as usize, Sge::default());
        Ok(Ring { slots: slots.into(), sges: sges.into(), max_sge: max_sge as usize, head: 0, tail: 0, max_wr, limit })
    }

    fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.len() >= self.max_wr {
            return Err(PostError::QueueFull);
        }
        if wr.sges.len() > self.max_sge {
            return Err(PostError::TooManySges);
        }
        let slot = self.tail as usize & (self.slots.len() - 1);
        self.slots[slot] = Slot { wr_id: wr.wr_id, sge_count: wr.sges.len() as u32 };
        self.sges[slot * self.max_sge..][..wr.sges.len()].copy_from_slice(wr.sges);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    fn take(&mut self, sges: &mut [Sge]) -> Option<(u64, usize)> {
        if self.len() == 0 {
            return None;
        }
        let slot = self.head as usize & (self.slots.len() - 1);
        let Slot { wr_id, sge_count } = self.slots[slot];
        let sge_count = sge_count as usize;
        sges[..sge_count].copy_from_slice(&self.sges[slot * self.max_sge..][..sge_count]);
        self.head = self.head.wrapping_add(1);
        Some((wr_id, sge_count))
    }

    /// True if fewer receives are left than the armed limit; the limit is disarmed then (IBTA 11.2.3.3).
    fn check_limit(&mut self) -> bool {
        let reached = self.len() < self.limit;
        if reached {
            self.limit = 0;
        }
        reached
    }

    /// Moves all posted receives, in order, to a ring that is large enough.
    fn move_to(&mut self, new: &mut Ring) {
        new.limit = self.limit;
        while self.len() > 0 {
            let slot = self.head as usize & (self.slots.len() - 1);
            let Slot { wr_id, sge_count } = self.slots[slot];
            let sges = &self.sges[slot * self.max_sge..][..sge_count as usize];
            // It fits: the caller has compared the sizes.
            let _ = new.post(&RecvWr { wr_id, sges });
            self.head = self.head.wrapping_add(1);
        }
    }
}

impl Xrcd {
    /// Opens a new domain.
    pub fn open(context: &Arc<Context>) -> Result<Arc<Xrcd>, Errno> {
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(1, None, 0)?);
        Ok(Arc::new(Xrcd { pd, cq, domain: Arc::default(), users: AtomicU32::new(0) }))
    }

    /// Creates a target QP in the domain: the QP has no protection domain and no CQ of its own.
    pub fn create_target(self: &Arc<Self>, cookie: u64) -> Result<Arc<Qp>, Errno> {
        let caps = QpCaps { max_send_sge: 1, ..QpCaps::default() };
        let create = QpCreate { service: Service::Xrc, caps, sq_sig_all: false, cookie };
        self.pd.create_qp_with(&create, &self.cq, &self.cq, Receives::Domain(self.clone()))
    }

    /// Whether SRQs or QPs use the domain.
    pub fn is_used(&self) -> bool {
        self.users.load(Ordering::Acquire) > 0
    }

    /// The target QP of this number. EINVAL if there is none.
    pub fn target(&self, qp_num: u32) -> Result<Arc<Qp>, Errno> {
        let targets = self.domain.targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.get(&qp_num).and_then(Weak::upgrade).ok_or(Errno(libc::EINVAL))
    }

    pub(crate) fn enter(&self, qp: &Arc<Qp>) {
        self.users.fetch_add(1, Ordering::AcqRel);
        let mut targets = self.domain.targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.insert(qp.num(), Arc::downgrade(qp));
    }

    pub(crate) fn leave(&self, qp_num: u32) {
        self.users.fetch_sub(1, Ordering::AcqRel);
        self.domain.targets.lock().unwrap_or_else(PoisonError::into_inner).remove(&qp_num);
    }
}

impl Domain {
    pub fn find(&self, number: u32) -> Option<Arc<SrqShared>> {
        self.srqs.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<u32, Arc<SrqShared>>> {
        self.srqs.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// 24-bit numbers from 1 up, wrapping; 0 is not used.
fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed) % 0xff_ffff + 1
}

fn check_sizes(max_wr: u32, max_sge: u32) -> Result<(), Errno> {
    let fits = (1..=LIMITS.max_qp_wr).contains(&max_wr) && max_sge <= LIMITS.max_sge;
    if fits { Ok(()) } else { Err(Errno(libc::EINVAL)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(ring: &mut Ring, wr_id: u64) -> Result<(), PostError> {
        ring.post(&RecvWr { wr_id, sges: &[Sge { addr: wr_id, length: 1, lkey: 2 }] })
    }

    #[test]
    fn receives_are_taken_in_order_across_a_resize() {
        let mut ring = Ring::new(3, 2, 0).unwrap();
        let mut sges = [Sge::default(); 2];
        for round in 0..10 {
            assert_eq!((post(&mut ring, round), ring.take(&mut sges)), (Ok(()), Some((round, 1))));
            assert_eq!(sges[0].addr, round);
        }
        assert_eq!([1, 2, 3, 4].map(|id| post(&mut ring, id).is_ok()), [true, true, true, false]);
        let mut larger = Ring::new(5, 2, 0).unwrap();
        ring.move_to(&mut larger);
        ring = larger;
        assert_eq!(post(&mut ring, 4), Ok(()));
        assert_eq!(
            [(); 5].map(|()| ring.take(&mut sges).map(|(id, _)| id)),
            [Some(1), Some(2), Some(3), Some(4), None]
        );
    }

    #[test]
    fn the_limit_is_reported_once() {
        let mut ring = Ring::new(4, 1, 2).unwrap();
        let mut sges = [Sge::default(); 1];
        for id in 0..4 {
            assert_eq!(post(&mut ring, id), Ok(()));
        }
        let reached = [(); 4].map(|()| {
            ring.take(&mut sges);
            ring.check_limit()
        });
        assert_eq!((reached, ring.limit), ([false, false, true, false], 0));
    }
}
