//! Page-fault events of an adapter with packet flood: requesters resume by their events. An ideal adapter has none.

use crate::engine::Engine;
use crate::engine::faulted::PAGES;
use crate::os::clock;
use crate::shared::state::AdapterState;
use weir_transport::{Instant, Side};

impl Engine {
    /// Notes the page-fault event of a QP's requester, if there is one. The next turn queues it.
    #[cold]
    #[inline(never)]
    pub(super) fn note_fault_event(&mut self, num: u32, protocol: &mut weir_transport::Qp) {
        if let Some(resumes) = protocol.take_fault_event() {
            self.fault_events.push((num, resumes));
            self.timers.set(clock::now().0, PAGES);
        }
    }

    /// Leaves in `resolved` the sides that continue now: requesters resume when an event of theirs has been served.
    /// Returns the time at which to look again (nanoseconds).
    pub(super) fn resume_requesters(
        &mut self,
        adapter: &AdapterState,
        now: Instant,
        resolved: &mut Vec<(u32, Side)>,
    ) -> Option<u64> {
        if !self.floods {
            return None;
        }
        for (num, resumes) in self.fault_events.drain(..) {
            adapter.met_fault(now, num, resumes);
        }
        for (num, _) in resolved.extract_if(.., |(_, side)| *side == Side::Requester) {
            // A requester that waits for no event continues without `page_resolved`.
            if !adapter.waits_for_fault_event(num)
                && let Some(entry) = self.table.index(num).and_then(|index| self.table.get(index))
            {
                entry.shared.faults.resume(Side::Requester);
            }
        }
        adapter.resume_requesters(now, |num| resolved.push((num, Side::Requester)))
    }

    /// A QP is removed.
    pub(super) fn forget_fault_events(&mut self, adapter: &AdapterState, num: u32) {
        if self.floods {
            self.fault_events.retain(|(qp, _)| *qp != num);
            adapter.forget_fault_events(num);
        }
    }
}
