//! The guard `rnr`, and what `ibv_query_qp` shows of it.

use super::attributes::modify;
use super::list;
use super::qp::State;
use crate::contexts;
use crate::objects::QPS;
use crate::qp::Qp;
use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;
use weir_abi::*;
use weir_guard::rnr_timer;

/// The `min_rnr_timer` to set when the QP becomes ready to send, if a guard sets another than the program.
pub fn quick_timer(own: &Qp, new: &ibv_qp_attr, mask: c_int) -> Option<u8> {
    let ready = mask & IBV_QP_STATE != 0 && new.qp_state == IBV_QPS_RTS && mask & IBV_QP_RNR_RETRY != 0;
    if !ready || !list().rnr || mask & IBV_QP_MIN_RNR_TIMER != 0 || !contexts::any_odp() {
        return None;
    }
    own.guard.with(|state| rnr_timer(state.attributes.attr.min_rnr_timer, new.rnr_retry)).flatten()
}

/// This process has registered ODP memory: QPs that are ready ask for the smallest RNR delay from now on.
pub fn quicken(context: &contexts::Context) {
    if !list().rnr {
        return;
    }
    QPS.each(|own| {
        let same = std::ptr::eq(own.context(), context);
        if same && !own.is_inherited() {
            own.guard.with(quicken_qp);
        }
    });
}

fn quicken_qp(state: &mut State) {
    let set = &state.attributes;
    let ready = set.attr.qp_state == IBV_QPS_RTS && !set.quick;
    let Some(timer) = rnr_timer(set.attr.min_rnr_timer, set.attr.rnr_retry).filter(|_| ready) else { return };
    let mut attr = ibv_qp_attr { min_rnr_timer: timer, ..ibv_qp_attr::default() };
    // SAFETY: the program destroys a QP only after `Guarded::close`, which waits for the lock that is held here.
    state.attributes.quick = unsafe { modify(state.qp, &mut attr, IBV_QP_MIN_RNR_TIMER) };
}

/// What `ibv_query_qp` has returned becomes what the program has set.
pub fn show_own(own: &Qp, attr: &mut ibv_qp_attr, init: &mut ibv_qp_cap) {
    let places = own.guard.places.load(Relaxed);
    attr.cap.max_send_wr = attr.cap.max_send_wr.saturating_sub(places);
    init.max_send_wr = init.max_send_wr.saturating_sub(places);
    own.guard.with(|state| {
        if state.attributes.quick {
            attr.min_rnr_timer = state.attributes.attr.min_rnr_timer;
        }
    });
}
