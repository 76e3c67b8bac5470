//! A QP's access to the adapter: memory within its protection domain, its CQs, its events.

use crate::AsyncEvent;
use crate::engine::done::Done;
use crate::memory::copy;
use crate::memory::region::{AccessTarget, Cached, Regions};
use crate::memory::window::User;
use crate::paging::{FaultOrigin, Paged, invalidate};
use crate::shared::qp::QpShared;
use std::sync::Arc;
use weir_transport::{Access, AtomicOp, Bind, Completion, Denied, Host, QpEvent, Queue, Remote, Sge, Side};
use weir_wire::Opcode;

/// The adapter as the protocol sees it while it works on one QP.
pub struct QpHost<'a> {
    pub shared: &'a Arc<QpShared>,
    pub regions: &'a Regions,
    pub cached: &'a mut Cached,
    /// Collects completions until the end of the turn. `None`: outside of turns they enter their CQs at once.
    pub done: Option<&'a mut Done>,
    /// The side that is worked on.
    pub side: Side,
}

/// The address of an access, and its region's on-demand pages.
#[derive(Clone, Copy)]
struct Spot {
    addr: u64,
    len: u64,
    paged: Option<Paged>,
}

impl QpHost<'_> {
    /// The side that a packet is for: responses are for the requester.
    pub fn side_of(opcode: Opcode) -> Side {
        if opcode.is_response() { Side::Requester } else { Side::Responder }
    }

    fn local(&mut self, lkey: u32, va: u64, len: u64, access: Access) -> Result<Option<Spot>, Denied> {
        let region = self.regions.find(lkey, self.cached)?;
        match region.local(self.shared.pd(), va, len, access)? {
            AccessTarget::Memory(addr) => Ok(Some(Spot { addr, len, paged: region.paged })),
            AccessTarget::Null => Ok(None),
        }
    }

    fn remote(&mut self, rkey: u32, va: u64, len: u64, access: Access) -> Result<Spot, Denied> {
        self.remote_within(self.shared.pd(), rkey, va, len, access)
    }

    fn remote_within(&mut self, pd: u32, rkey: u32, va: u64, len: u64, access: Access) -> Result<Spot, Denied> {
        let region = self.regions.find(rkey, self.cached)?;
        let addr = region.remote(pd, self.shared.num, va, len, access)?;
        Ok(Spot { addr, len, paged: region.paged })
    }

    fn faulting(&self) -> FaultOrigin<'_> {
        FaultOrigin { faults: &self.shared.faults, side: self.side }
    }

    /// Checks whether a spot can be written now; `left` bytes of the message begin at its address.
    #[inline]
    fn admit(&self, spot: Spot, left: u64) -> Result<(), Denied> {
        match spot.paged {
            None => Ok(()),
            Some(paged) => paged.admit(spot.addr, spot.len, left, true, self.faulting()),
        }
    }

    /// Writing a spot failed although it was admitted.
    #[cold]
    fn missed(&self, spot: Spot) -> Denied {
        match spot.paged {
            None => Denied::Unmapped,
            Some(paged) => paged.missed(spot.addr, spot.len, true, self.faulting()),
        }
    }

    fn user(&self) -> User {
        User { pd: self.shared.pd(), qp: self.shared.num }
    }
}

impl Host for QpHost<'_> {
    fn check_local(&mut self, sges: &[Sge], access: Access) -> Result<(), Denied> {
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            self.local(sge.lkey, sge.addr, sge.length.into(), access)?;
        }
        Ok(())
    }

    fn check_remote(&mut self, rkey: u32, va: u64, len: u64, access: Access) -> Result<(), Denied> {
        self.remote(rkey, va, len, access).map(drop)
    }

    fn scatter(&mut self, sges: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), Denied> {
        let mut rest = bytes;
        for (sge, at, len) in sge_ranges(sges, offset, bytes.len()) {
            let (now, later) = rest.split_at(len);
            let spot = self.local(sge.lkey, sge.addr.wrapping_add(at), len as u64, Access::LOCAL_WRITE)?;
            if let Some(spot) = spot {
                self.admit(spot, u64::from(sge.length) - at)?;
                // SAFETY: `now` is a slice of the caller; the application's side may be in any state.
                unsafe { copy::copy(spot.addr as *mut u8, now.as_ptr(), len) }.map_err(|_| self.missed(spot))?;
            }
            rest = later;
        }
        if rest.is_empty() { Ok(()) } else { Err(Denied::Protection) }
    }

    fn write_remote(&mut self, rkey: u32, va: u64, bytes: &[u8]) -> Result<(), Denied> {
        let spot = self.remote(rkey, va, bytes.len() as u64, Access::REMOTE_WRITE)?;
        self.admit(spot, spot.len)?;
        // SAFETY: `bytes` is a slice of the caller; the application's side may be in any state.
        unsafe { copy::copy(spot.addr as *mut u8, bytes.as_ptr(), bytes.len()) }.map_err(|_| self.missed(spot))
    }

    fn atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, Denied> {
        let spot = self.remote(rkey, va, 8, Access::REMOTE_ATOMIC)?;
        let addr = spot.addr as *mut u64;
        if !addr.is_aligned() {
            return Err(Denied::Protection);
        }
        self.admit(spot, spot.len)?;
        // SAFETY: aligned, as just checked; the memory may be in any state.
        let before = unsafe {
            match op {
                AtomicOp::CompareSwap { compare, swap } => copy::compare_swap(addr, compare, swap),
                AtomicOp::FetchAdd { add } => copy::fetch_add(addr, add),
            }
        };
        before.map_err(|_| self.missed(spot))
    }

    fn prepare_local(&mut self, sges: &[Sge], offset: u64, len: u64, access: Access) -> Result<(), Denied> {
        if !invalidate::needed() {
            return Ok(());
        }
        for (sge, at, len) in sge_ranges(sges, offset, len as usize) {
            if let Some(spot) = self.local(sge.lkey, sge.addr.wrapping_add(at), len as u64, access)? {
                self.admit(spot, u64::from(sge.length) - at)?;
            }
        }
        Ok(())
    }

    fn expect_remote(&mut self, range: &Remote, access: Access) {
        let pd = range.pd.unwrap_or(self.shared.pd());
        if let Ok(Spot { addr, len, paged: Some(paged) }) =
            self.remote_within(pd, range.rkey, range.va, range.len, access)
        {
            paged.expect(addr, len, access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC));
        }
    }

    fn bind_window(&mut self, bind: &Bind) -> Result<(), Denied> {
        self.regions.bind(self.user(), bind)
    }

    fn invalidate_local(&mut self, key: u32) -> Result<(), Denied> {
        self.regions.invalidate(self.user(), key)
    }

    fn invalidate_remote(&mut self, rkey: u32) -> Result<(), Denied> {
        self.regions.invalidate(self.user(), rkey)
    }

    fn take_receive(&mut self, sges: &mut [Sge]) -> Option<(u64, usize)> {
        self.shared.take_receive(sges)
    }

    fn select_srq(&mut self, number: u32) -> Option<u32> {
        self.shared.select_srq(number)
    }

    fn take_read(&mut self) -> bool {
        self.shared.reads.as_ref().is_none_or(|reads| reads.take())
    }

    fn give_back_reads(&mut self, count: u32) {
        if let Some(reads) = &self.shared.reads {
            reads.give_back(count);
        }
    }

    fn complete(&mut self, queue: Queue, completion: Completion, solicited: bool) {
        match &mut self.done {
            Some(done) => done.add(self.shared, queue, completion, solicited),
            None => self.shared.complete(queue, completion, solicited),
        }
    }

    fn event(&mut self, event: QpEvent) {
        // The event may mean that no completion comes after it, so pending ones are published first.
        if let Some(done) = &mut self.done {
            done.publish();
        }
        self.shared.events.push(AsyncEvent::Qp { cookie: self.shared.cookie, event });
    }
}

/// The SGEs that hold bytes `offset .. offset + len` of the whole list: element, offset in it, length.
pub fn sge_ranges(sges: &[Sge], offset: u64, len: usize) -> impl Iterator<Item = (&Sge, u64, usize)> {
    let mut skip = offset;
    let mut left = len as u64;
    sges.iter().filter_map(move |sge| {
        let length = u64::from(sge.length);
        if skip >= length {
            skip -= length;
            return None;
        }
        let at = std::mem::take(&mut skip);
        let take = left.min(length - at);
        left -= take;
        (take > 0).then_some((sge, at, take as usize))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_an_sge_list() {
        let sge = |length| Sge { addr: 0, length, lkey: 0 };
        let list = [sge(5), sge(0), sge(3), sge(10)];
        let got = |offset, len| sge_ranges(&list, offset, len).map(|(s, at, n)| (s.length, at, n)).collect::<Vec<_>>();
        assert_eq!(got(0, 18), [(5, 0, 5), (3, 0, 3), (10, 0, 10)]);
        assert_eq!(got(4, 5), [(5, 4, 1), (3, 0, 3), (10, 0, 1)]);
        assert_eq!(got(8, 1), [(10, 0, 1)]);
        assert_eq!(got(18, 0), []);
    }
}
