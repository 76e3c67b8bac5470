//! The ring of an SRQ, and the SRQs of an XRC domain.

use crate::Errno;
use crate::events::AsyncEvent;
use crate::os::grow::{Grow, with_room};
use crate::os::locks::{RankedGuard, RankedMutex, RankedRwLock, rank};
use crate::os::notify::Notify;
use crate::shared::cq::CqShared;
use crate::shared::tagging::Tagging;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use weir_transport::{PostError, RecvWr, Sge, TaggedReceive};

/// The part of an SRQ that the application's threads and the engine share.
pub(crate) struct SrqShared {
    pub number: u32,
    pub pd: u32,
    /// XRC: the CQ of its completions.
    pub cq: Option<Arc<CqShared>>,
    /// It is a TM SRQ.
    pub tagging: Option<Tagging>,
    cookie: u64,
    events: Arc<Notify<AsyncEvent>>,
    ring: RankedMutex<Ring, { rank::SRQ_RING }>,
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

/// The SRQs of an XRC domain, by number.
#[derive(Default)]
pub(crate) struct Domain(RankedRwLock<HashMap<u32, Arc<SrqShared>>, { rank::LEAF }>);

impl SrqShared {
    /// An empty SRQ. ENOMEM without memory.
    pub fn new(
        pd: u32,
        (max_wr, max_sge): (u32, u32),
        cq: Option<Arc<CqShared>>,
        tagging: Option<Tagging>,
        cookie: u64,
        events: Arc<Notify<AsyncEvent>>,
    ) -> Result<SrqShared, Errno> {
        let ring = RankedMutex::new(Ring::new(max_wr, max_sge, 0)?);
        Ok(SrqShared { number: next_number(), pd, cq, tagging, cookie, events, ring })
    }

    /// Capacity in work requests, SGEs of each, and the limit; the limit is 0 after its event.
    pub fn query(&self) -> (u32, u32, u32) {
        let ring = self.ring();
        (ring.max_wr, ring.max_sge as u32, ring.limit)
    }

    /// Receives that are posted and not yet taken.
    pub fn posted(&self) -> u32 {
        self.ring().len()
    }

    /// Changes its capacity to `max_wr` (EINVAL below the number of posted receives), or arms its limit (EINVAL above
    /// its capacity).
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Errno> {
        let (old_size, max_sge, _) = self.query();
        let size = max_wr.unwrap_or(old_size);
        // Allocated before the lock is taken, and the old ring is freed after the lock is released: see `room`.
        let mut new = max_wr.map(|max_wr| Ring::new(max_wr, max_sge, 0)).transpose()?;
        let mut ring = self.ring();
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
            self.raise_limit_event();
        }
        Ok(())
    }

    /// Posts one receive, unless the adapter has failed, which `works` checks under the lock.
    #[inline]
    pub fn post(&self, wr: &RecvWr<'_>, works: impl FnOnce() -> bool) -> Result<(), PostError> {
        let mut ring = self.ring();
        if !works() {
            return Err(PostError::Failed);
        }
        ring.post(wr)
    }

    /// Drops its pending events.
    pub fn drop_events(&self) {
        let cookie = self.cookie;
        self.events.remove(|event| *event == AsyncEvent::SrqLimit { cookie });
    }

    /// Takes the oldest receive: its `wr_id` and the number of SGEs, which are copied to the front of `sges`.
    pub fn take(&self, sges: &mut [Sge]) -> Option<(u64, usize)> {
        let (taken, reached) = self.ring().take_and_check(sges)?;
        if reached {
            self.raise_limit_event();
        }
        Some(taken)
    }

    /// TM: takes the receive for a message with this tag, or without one, as `take` does.
    pub fn take_tagged(&self, tag: Option<u64>, sges: &mut [Sge]) -> Option<TaggedReceive> {
        let mut limit_reached = false;
        let taken = self.tagging.as_ref()?.take(tag, sges, |sges| {
            let (taken, reached) = self.ring().take_and_check(sges)?;
            limit_reached = reached;
            Some(taken)
        });
        // After the lock of the tags is released: an event may allocate.
        if limit_reached {
            self.raise_limit_event();
        }
        taken
    }

    /// TM: a message with a tag, which took an ordinary receive, has failed.
    pub fn uncount_unexpected(&self) {
        if let Some(tagging) = &self.tagging {
            tagging.uncount_unexpected();
        }
    }

    fn raise_limit_event(&self) {
        self.events.push(AsyncEvent::SrqLimit { cookie: self.cookie });
    }

    fn ring(&self) -> RankedGuard<'_, Ring, { rank::SRQ_RING }> {
        self.ring.lock()
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

    /// As `take`, and whether the limit is reached.
    fn take_and_check(&mut self, sges: &mut [Sge]) -> Option<((u64, usize), bool)> {
        let taken = self.take(sges)?;
        Some((taken, self.check_limit()))
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

impl Domain {
    /// The SRQ of this number.
    pub fn find(&self, number: u32) -> Option<Arc<SrqShared>> {
        self.0.read().get(&number).cloned()
    }

    /// Adds an SRQ. ENOMEM without memory.
    pub fn insert(&self, srq: Arc<SrqShared>) -> Result<(), Errno> {
        let mut srqs = with_room(1, || self.0.write(), |srqs| srqs)?;
        srqs.insert(srq.number, srq);
        Ok(())
    }

    /// Removes an SRQ. It is dropped after the lock is released.
    pub fn remove(&self, number: u32) {
        let named = self.0.write().remove(&number);
        drop(named);
    }
}

/// 24-bit numbers from 1 up, wrapping; 0 is not used.
fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed) % 0xff_ffff + 1
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
