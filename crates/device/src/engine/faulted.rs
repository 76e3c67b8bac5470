//! Network page faults in the engine: packets that wait for pages, and their handling when the pages are there.

use crate::engine::Engine;
use crate::engine::host::QpHost;
use crate::engine::receive::handle;
use crate::engine::table::INDICES;
use crate::memory::copy;
use crate::paging::held::{HeldPackets, Kept, Waiting};
use crate::paging::invalidate;
use crate::shared::qp::QpShared;
use crate::shared::state::AdapterState;
use std::sync::Arc;
use weir_link::Iovec;
use weir_transport::{Handled, Instant, Qp, Side};
use weir_wire::frame;

const PAGE: usize = 4096;

/// An index in the timers, beside those of QPs: the deadline for late pages and page-fault events.
pub(super) const PAGES: u16 = INDICES as u16;

impl Engine {
    /// Gives the engine buffers for packets that wait; returns them if it has some already.
    pub fn provide_held_buffers(&mut self, buffers: Box<HeldPackets>) -> Option<Box<HeldPackets>> {
        if self.held.is_some() {
            return Some(buffers);
        }
        self.held = Some(buffers);
        None
    }

    /// Whether it has buffers for packets that wait.
    pub fn has_held_buffers(&self) -> bool {
        self.held.is_some()
    }

    /// Sides of QPs with resolved pages, while these are worked on.
    pub fn resolved(&mut self) -> &mut Vec<(u32, Side)> {
        &mut self.resolved
    }

    /// A packet met a page fault: it is kept until the page is there.
    #[cold]
    #[inline(never)]
    pub(super) fn hold(&mut self, index: u16, side: Side, packet: Waiting<'_>) {
        self.keep(index, side, packet);
    }

    pub(super) fn keep(&mut self, index: u16, side: Side, packet: Waiting<'_>) -> Kept {
        match (&mut self.held, self.table.get_mut(index)) {
            (Some(buffers), Some(entry)) => buffers.keep(&mut entry.held, side, packet),
            _ => Kept::NoRoom,
        }
    }

    /// Drops the packets that a QP holds.
    pub(super) fn drop_held(&mut self, index: u16) {
        if let Some(buffers) = &mut self.held
            && let Some(entry) = self.table.get_mut(index)
        {
            entry.holds_after_reads = false;
            buffers.clear(&mut entry.held);
        }
    }

    /// Continues the QPs with resolved pages, and those with pages that will never be there.
    #[cold]
    #[inline(never)]
    pub(super) fn continue_resolved(&mut self, adapter: &AdapterState, now: Instant) {
        if adapter.resolves_late() {
            self.handle_earlier(adapter, now);
        }
        let mut resolved = std::mem::take(&mut self.resolved);
        let next_deferred = adapter.take_resolved(&mut resolved, now.0);
        let next_event = self.resume_requesters(adapter, now, &mut resolved);
        if let Some(next) = next_deferred.into_iter().chain(next_event).min() {
            self.timers.set(next, PAGES);
        }
        for (num, side) in resolved.drain(..) {
            if let Some(index) = self.table.index(num) {
                self.page_resolved(adapter, index, side, now);
            }
        }
        self.resolved = resolved;
    }

    fn page_resolved(&mut self, adapter: &AdapterState, index: u16, side: Side, now: Instant) {
        let Some(shared) = self.table.get(index).map(|entry| entry.shared.clone()) else { return };
        let mut protocol = shared.lock();
        shared.faults.resume(side);
        protocol.page_resolved(now, side);
        self.pass_in_held(adapter, (index, &shared, &mut protocol), side, now);
        self.after(index, &mut protocol);
        drop(protocol);
        self.ready(index);
    }

    /// Passes in the packets that a side of a QP holds, until one has to wait again.
    pub(super) fn pass_in_held(
        &mut self,
        adapter: &AdapterState,
        (index, shared, protocol): (u16, &Arc<QpShared>, &mut Qp),
        side: Side,
        now: Instant,
    ) {
        let mut host = QpHost::in_turn(side, shared, &adapter.regions, &mut self.cached, &mut self.completions);
        let (Some(buffers), Some(entry)) = (&mut self.held, self.table.get_mut(index)) else { return };
        if side == Side::Responder {
            entry.holds_after_reads = false;
        }
        while let Some(kept) = buffers.take(&mut entry.held, side) {
            let Waiting { datagram, header, over_links, .. } = buffers.get(&kept);
            let handled = match (frame::parse_any(datagram), header) {
                (Ok(packet), Some(header)) => protocol.handle_datagram(now, &packet, header, &mut host),
                (Ok(packet), None) => handle(protocol, now, (&packet, over_links), &mut host),
                (Err(_), _) => Handled::Done,
            };
            if handled == Handled::Dammed {
                self.shown.traffic.packets_dammed();
            } else if handled != Handled::Done {
                entry.holds_after_reads |= handled == Handled::AfterReads;
                buffers.put_back(&mut entry.held, side, kept);
                break;
            }
            buffers.release(kept);
        }
    }

    /// Payload sent in place was missing. On-demand pages leave their table, and are brought in when the packets are
    /// sent again. Returns whether other memory is missing too.
    #[cold]
    #[inline(never)]
    pub(super) fn missing_in_place(&self) -> bool {
        let own = self.outbox.bytes.as_ptr_range();
        let applications = |iovec: &&Iovec| !own.contains(&(iovec.addr as *const u8));
        let mut others = false;
        for iovec in self.outbox.iovecs.iter().filter(applications) {
            let end = iovec.addr + iovec.len;
            for page in (iovec.addr / PAGE..end.div_ceil(PAGE)).map(|number| number * PAGE) {
                if !is_present(page.max(iovec.addr)) {
                    others |= invalidate::missed(page as u64, PAGE as u64) == 0;
                }
            }
        }
        others
    }
}

fn is_present(addr: usize) -> bool {
    let mut byte = 0u8;
    // SAFETY: `byte` is a local variable; the other side may be in any state.
    unsafe { copy::copy(&mut byte, addr as *const u8, 1) }.is_ok()
}
