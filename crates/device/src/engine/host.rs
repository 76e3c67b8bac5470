//! A QP's access to the adapter: memory within its protection domain, its CQs, its events.

use crate::engine::completions::PendingCompletions;
use crate::events::AsyncEvent;
use crate::memory::access::{Extent, Memory, extents};
use crate::memory::keys::{Cached, Regions};
use crate::memory::refusal::Refusal;
use crate::memory::window::User;
use crate::memory::window_refusal::{WindowRefusal, WindowWhy};
use crate::paging::invalidate;
use crate::shared::drop_log::DropNote;
use crate::shared::qp::QpShared;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use weir_transport::{
    Access, AtomicOp, Bind, Completion, Denied, Dropped, Host, QpEvent, Queue, Remote, Sge, Side, TaggedReceive,
};
use weir_wire::Opcode;

/// The adapter as the protocol sees it while it works on one QP.
pub struct QpHost<'a> {
    pub shared: &'a Arc<QpShared>,
    pub regions: &'a Regions,
    pub cached: &'a mut Cached,
    /// Collects completions until the end of the turn. `None`: outside of turns they enter their CQs at once.
    pub completions: Option<&'a mut PendingCompletions>,
    /// The side that is worked on.
    pub side: Side,
}

impl<'a> QpHost<'a> {
    /// For one side of a QP, in a turn.
    #[inline]
    pub fn in_turn(
        side: Side,
        shared: &'a Arc<QpShared>,
        regions: &'a Regions,
        cached: &'a mut Cached,
        completions: &'a mut PendingCompletions,
    ) -> QpHost<'a> {
        QpHost { shared, regions, cached, completions: Some(completions), side }
    }
}

impl QpHost<'_> {
    /// The side that a packet is for: responses are for the requester.
    pub fn side_of(opcode: Opcode) -> Side {
        if opcode.is_response() { Side::Requester } else { Side::Responder }
    }

    #[inline]
    fn memory(&mut self) -> Memory<'_> {
        let faults = &self.shared.faults;
        Memory { user: self.user(), side: self.side, regions: self.regions, cached: self.cached, faults }
    }

    fn user(&self) -> User {
        User { pd: self.shared.pd(), qp: self.shared.num }
    }

    /// Keeps the reason for the log, which has it when the QP fails.
    #[cold]
    fn refuse_window(&self, key: u32, bind: Option<Bind>, why: WindowWhy) -> Denied {
        self.shared.faults.note_refusal(Refusal::Window(WindowRefusal { side: self.side, key, bind, why }));
        Denied::Protection
    }
}

impl Host for QpHost<'_> {
    fn check_local(&mut self, sges: &[Sge], access: Access) -> Result<(), Denied> {
        let mut memory = self.memory();
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            memory.check(Extent::of_sge(sge), access)?;
        }
        Ok(())
    }

    fn check_remote(&mut self, rkey: u32, va: u64, len: u64, access: Access) -> Result<(), Denied> {
        self.memory().check(of_request(rkey, va, len), access).map(drop)
    }

    fn scatter(&mut self, sges: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), Denied> {
        self.memory().scatter(sges, offset, bytes)
    }

    fn write_remote(&mut self, rkey: u32, va: u64, bytes: &[u8]) -> Result<(), Denied> {
        self.memory().write(of_request(rkey, va, bytes.len() as u64), Access::REMOTE_WRITE, bytes)
    }

    fn atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, Denied> {
        self.memory().atomic(of_request(rkey, va, 8), op)
    }

    fn flush_remote(&mut self, rkey: u32, range: Option<(u64, u64)>, access: Access) -> Result<(), Denied> {
        match range {
            Some((va, len)) => self.memory().check(of_request(rkey, va, len), access).map(drop)?,
            None => self.memory().check_whole(rkey, access)?,
        }
        // Payload is in memory when a request was executed; stores become visible no later than this.
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn prepare_local(&mut self, sges: &[Sge], offset: u64, len: u64, access: Access) -> Result<(), Denied> {
        if !invalidate::needed() {
            return Ok(());
        }
        let mut memory = self.memory();
        for extent in extents(sges, offset, len as usize) {
            memory.access(extent, access)?;
        }
        Ok(())
    }

    fn expect_remote(&mut self, range: &Remote, access: Access) {
        self.memory().populate_ahead(Extent::of_remote(range), access);
    }

    fn bind_window(&mut self, bind: &Bind) -> Result<(), Denied> {
        let bound = self.regions.bind(self.user(), bind);
        bound.map_err(|why| self.refuse_window(bind.window_rkey, Some(*bind), why))
    }

    fn invalidate_local(&mut self, key: u32) -> Result<(), Denied> {
        self.regions.invalidate(self.user(), key).map_err(|why| self.refuse_window(key, None, why))
    }

    fn invalidate_remote(&mut self, rkey: u32) -> Result<(), Denied> {
        self.regions.invalidate(self.user(), rkey).map_err(|why| self.refuse_window(rkey, None, why))
    }

    fn take_receive(&mut self, sges: &mut [Sge]) -> Option<(u64, usize)> {
        self.shared.take_receive(sges)
    }

    fn take_tagged(&mut self, tag: Option<u64>, sges: &mut [Sge]) -> Option<TaggedReceive> {
        self.shared.take_tagged(tag, sges)
    }

    fn uncount_unexpected(&mut self) {
        self.shared.uncount_unexpected();
    }

    fn select_srq(&mut self, number: u32) -> Option<u32> {
        self.shared.select_srq(number)
    }

    fn complete(&mut self, queue: Queue, completion: Completion, solicited: bool) {
        match &mut self.completions {
            Some(completions) => completions.add(self.shared, queue, completion, solicited),
            None => self.shared.complete(queue, completion, solicited),
        }
    }

    fn event(&mut self, event: QpEvent) {
        // The event may mean that no completion comes after it, so pending ones are published first.
        if let Some(completions) = &mut self.completions {
            completions.publish();
        }
        self.shared.events.push(AsyncEvent::Qp { cookie: self.shared.cookie, event });
    }

    fn dropped(&mut self, message: &Dropped<'_>) {
        if let Some(completions) = &mut self.completions {
            completions.dropped(DropNote::new(self.shared.num, message));
        }
    }
}

/// Memory that a request of the peer names, in the QP's PD.
#[inline]
fn of_request(rkey: u32, va: u64, len: u64) -> Extent {
    Extent::of_remote(&Remote { pd: None, rkey, va, len })
}
