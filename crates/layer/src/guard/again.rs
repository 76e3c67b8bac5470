//! Starting a QP again: its open requests end without a trace, and go out once more with the same PSNs, its READs into
//! pinned memory (`weir_guard`).

use super::attributes::{self, modify};
use super::cq::GuardedCq;
use super::pinned::{self, Slab};
use super::poll::{deliver, keep_all, poll_one};
use super::qp::State;
use super::work;
use crate::clock::steady_ns;
use crate::contexts::Context;
use crate::qp::Qp;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_abi::*;
use weir_guard::Flushed;

/// The adapter ends the requests of a QP in ERROR without a longer pause.
const FLUSH: Duration = Duration::from_millis(20);

/// Starts a QP again, if that is possible. The caller holds `acting`.
pub fn start(own: &Qp) {
    let Some((qp, cq, number)) = own.guard.with(|state| {
        // SAFETY: the program destroys the QP only after the caller's lock is free.
        (state.qp, state.cq, unsafe { (*state.qp).qp_num })
    }) else {
        return;
    };
    let Some(cq_own) = own.guard.with(|state| state.cq()).flatten() else { return };
    let mut stash = cq_own.guard.stash();
    // A thread of the program that builds requests holds it: another time.
    if !own.posting.try_lock() {
        return;
    }
    let context = own.context();
    // What has completed by now is no longer open.
    // SAFETY: the CQ of a QP that exists.
    unsafe { keep_all(context, cq, &mut stash) };
    let ready = own.guard.with(|state| prepare(own, state, &cq_own.guard)).flatten();
    if let Some((slab, entries)) = ready {
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() };
        // SAFETY: as above.
        if unsafe { modify(qp, &mut attr, IBV_QP_STATE) } {
            let flushed = flush(own, (cq, number), &mut stash);
            own.guard.with(|state| resume(state, context, flushed, &slab, &mut stash));
        }
        cq_own.guard.give(entries);
    }
    own.posting.unlock();
}

/// Whether the QP can start again: memory for its READs, and the entries of the CQ that were taken for it.
fn prepare(own: &Qp, state: &mut State, cq: &GuardedCq) -> Option<(Arc<Slab>, i64)> {
    if !state.connection.may_start_again(steady_ns()) {
        return None;
    }
    // SAFETY: the QP exists.
    let quiet = || unsafe { attributes::expected_psn(state.qp) } == Some(state.attributes.attr.rq_psn);
    let alone = !own.guard.has_receives() && !state.shared && !cq.is_polled_one_by_one();
    let entries = state.connection.unsignaled() as i64;
    if alone && state.attributes.can_connect_again() && quiet() && cq.take(entries) {
        let bytes = state.connection.into_pinned().map(|request| request.bytes as usize).sum();
        // SAFETY: the QP exists.
        if let Some(slab) = pinned::slab(unsafe { (*state.qp).pd }, bytes) {
            return Some((slab, entries));
        }
        cq.give(entries);
    }
    state.connection.cannot_start_again();
    None
}

/// What polling after ERROR has brought.
struct Flush {
    /// Completions with IBV_WC_WR_FLUSH_ERR of tracked requests.
    hidden: Vec<ibv_wc>,
    /// A request has failed before ERROR.
    failed: bool,
}

/// Polls until all requests of a QP in ERROR have ended.
fn flush(own: &Qp, (cq, number): (*mut ibv_cq, u32), stash: &mut VecDeque<ibv_wc>) -> Flush {
    let mut flush = Flush { hidden: vec![], failed: false };
    let mut end = Instant::now() + FLUSH;
    while own.guard.with(|state| !state.connection.is_quiet()) == Some(true) && Instant::now() < end {
        // SAFETY: the CQ of a QP that exists.
        let Some(wc) = (unsafe { poll_one(own.context(), cq) }) else {
            std::thread::yield_now();
            continue;
        };
        end = Instant::now() + FLUSH;
        let received = wc.status == IBV_WC_SUCCESS && wc.opcode & IBV_WC_RECV != 0;
        if wc.qp_num == number && wc.status == IBV_WC_WR_FLUSH_ERR && !received && !flush.failed {
            match own.guard.with(|state| state.connection.flushed(wc.wr_id)) {
                Some(Flushed::Kept) => flush.hidden.push(wc),
                _ => stash.push_back(wc),
            }
            continue;
        }
        flush.failed |= wc.qp_num == number && wc.status != IBV_WC_SUCCESS;
        super::poll::keep(own.context(), wc, stash);
    }
    flush
}

/// Connects the QP again and posts its requests; without success the program gets them as failed.
fn resume(state: &mut State, context: &Context, flush: Flush, slab: &Arc<Slab>, stash: &mut VecDeque<ibv_wc>) {
    if flush.failed {
        return fail(state, flush.hidden, stash);
    }
    let psn = state.connection.resume(|work| _ = deliver(&work));
    state.settle();
    let mut reset = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..ibv_qp_attr::default() };
    // SAFETY: the QP exists; `fail` runs only if the library has refused.
    let connected =
        unsafe { modify(state.qp, &mut reset, IBV_QP_STATE) && state.attributes.connect_again(state.qp, psn) };
    let (mut offset, mut posted) = (0, 0);
    let qp = state.qp;
    let all = connected
        && state.connection.again(steady_ns()).all(|request| {
            if request.on_demand && request.work.pinned.is_none() {
                request.work.pinned = slab.piece(offset, request.bytes as usize);
                offset += request.bytes as usize;
                if request.work.pinned.is_none() {
                    return false;
                }
            }
            // SAFETY: the QP exists, and the caller holds `posting`.
            let accepted = unsafe { work::post(request, qp, context) == 0 };
            posted += usize::from(accepted);
            accepted
        });
    if !all {
        let mut hidden = flush.hidden;
        if let Some(first) = hidden.first_mut() {
            first.status = IBV_WC_FATAL_ERR;
        }
        fail(state, hidden, stash);
        discard(state, context, posted, stash);
    }
}

/// The QP stays in ERROR, and the program gets the completions that were hidden from it.
fn fail(state: &mut State, hidden: Vec<ibv_wc>, stash: &mut VecDeque<ibv_wc>) {
    let mut attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() };
    // SAFETY: the QP exists.
    unsafe { modify(state.qp, &mut attr, IBV_QP_STATE) };
    state.connection.end(|_| ());
    state.depth.completed(false);
    state.settle();
    stash.extend(hidden.into_iter().filter(|wc| wc.wr_id != work::DUMMY));
}

/// Polls the completions of requests that were posted again in vain: the program has those of the first time.
fn discard(state: &State, context: &Context, mut posted: usize, stash: &mut VecDeque<ibv_wc>) {
    let end = Instant::now() + FLUSH;
    // SAFETY: the QP exists, and so does its CQ.
    let number = unsafe { (*state.qp).qp_num };
    while posted > 0 && Instant::now() < end {
        // SAFETY: as above.
        match unsafe { poll_one(context, state.cq) } {
            Some(wc) if wc.qp_num == number => posted -= 1,
            Some(wc) => super::poll::keep(context, wc, stash),
            None => std::thread::yield_now(),
        }
    }
}
