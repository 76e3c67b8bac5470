//! The fault notifier of an adapter with flaws, and the wake-up of QPs that wait for READ credits. An ideal adapter has
//! neither.

use crate::engine::Engine;
use crate::shared::state::AdapterState;
use weir_transport::{Instant, Side};

impl Engine {
    /// Leaves in `resolved` the sides that are notified now: requesters may be notified later. Returns the time at
    /// which to look again (nanoseconds).
    pub(super) fn notify_due(
        &mut self,
        adapter: &AdapterState,
        now: Instant,
        resolved: &mut Vec<(u32, Side)>,
    ) -> Option<u64> {
        let mut fault_notifier = self.fault_notifier.take()?;
        adapter.take_faulting_requesters(|num| {
            let entry = self.table.index(num).and_then(|index| self.table.get(index));
            if let Some(reads) = entry.and_then(|entry| entry.shared.lock().unnotified_reads()) {
                fault_notifier.waits(num, reads);
            }
        });
        resolved.retain(|(num, side)| {
            if *side == Side::Requester {
                fault_notifier.resolved(now, *num);
            }
            *side != Side::Requester
        });
        while let Some(num) = fault_notifier.poll(now) {
            resolved.push((num, Side::Requester));
        }
        let next = fault_notifier.next();
        self.fault_notifier = Some(fault_notifier);
        next.map(|next| next.0)
    }

    /// A QP was removed or reconnected.
    pub(super) fn forget_fault_notification(&mut self, num: u32) {
        if let Some(fault_notifier) = &mut self.fault_notifier {
            fault_notifier.forget(num);
        }
    }

    /// All QPs that wait for a window or for a READ credit try again.
    pub(super) fn wake_all(&mut self) {
        for peer in self.peers.ids() {
            self.wake_waiting(Some(peer));
        }
    }
}
