//! CQ overflow: the QPs that complete to the CQ go to the error state.

use crate::engine::Engine;
use crate::engine::host::QpHost;
use crate::shared::state::AdapterState;
use std::sync::atomic::Ordering;
use weir_transport::{AttrMask, Host, Instant, QpAttr, QpEvent, QpState, Side};

impl Engine {
    /// Moves the QPs of overflowed CQs to the error state, each with an event (IBTA 11.6.3.2).
    pub(super) fn fail_overflown(&mut self, adapter: &AdapterState, now: Instant) {
        if !adapter.cqs.overflown.load(Ordering::Relaxed) || !adapter.cqs.overflown.swap(false, Ordering::AcqRel) {
            return;
        }
        for index in self.table.indices() {
            let Some(entry) = self.table.get(index) else { continue };
            let shared = entry.shared.clone();
            if !shared.has_overflown() || entry.retired.is_some() {
                continue;
            }
            let mut protocol = shared.lock();
            if matches!(protocol.state(), QpState::Reset | QpState::Error) {
                continue;
            }
            let mut host =
                QpHost::in_turn(Side::Requester, &shared, &adapter.regions, &mut self.cached, &mut self.completions);
            let error = QpAttr { qp_state: QpState::Error, ..QpAttr::default() };
            if protocol.modify(now, &error, AttrMask::STATE, &mut host).is_ok() {
                host.event(QpEvent::Fatal);
                self.carrier.mark(&format_args!("QP {:#08x} is in the error state: its CQ is full", shared.num));
            }
            self.after(index, &mut protocol);
            drop(protocol);
            tracing::warn!(
                "{}, QP {:#08x} is in the error state: its CQ is full, and a completion is lost. Create the CQ with as \
                 many entries as work requests may be open (cqe of ibv_create_cq), or poll it more often",
                adapter.device.name,
                shared.num
            );
        }
    }
}
