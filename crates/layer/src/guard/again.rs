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
use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_abi::*;
use weir_guard::Flushed;

/// If completions are ambiguous, they are taken to be all after such a pause.
const PAUSE: Duration = Duration::from_millis(20);
/// An adapter that ends no request of a QP in ERROR for so long has failed.
const LIMIT: Duration = Duration::from_secs(1);

/// Starts a QP again, if that is possible. The caller holds `acting`.
pub fn start(own: &Qp) {
    let Some((qp, cq, number)) = own.guard.with(|state| {
        // SAFETY: the program destroys the QP only after the caller's lock is free.
        (state.qp, state.cq, unsafe { (*state.qp).qp_num })
    }) else {
        return;
    };
    let Some(cq_own) = own.guard.with(|state| state.cq()).flatten() else { return };
    let possible = |state: &mut State| {
        let alone = !own.guard.has_receives() && !state.shared && !cq_own.guard.is_polled_one_by_one();
        let possible = alone && state.attributes.can_connect_again();
        if !possible {
            state.connection.bar_starts();
        }
        possible
    };
    if own.guard.with(possible) != Some(true) {
        return;
    }
    let mut stash = cq_own.guard.stash();
    // A thread of the program that builds requests holds it: another time.
    let Some(_posting) = own.posting.try_hold() else { return };
    let context = own.context();
    // What has completed by now is no longer open.
    // SAFETY: the CQ of a QP that exists.
    unsafe { keep_all(context, cq, &mut stash) };
    let Some((slab, entries)) = own.guard.with(|state| prepare(state, &cq_own.guard)).flatten() else { return };
    let mut attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() };
    // SAFETY: as above.
    if unsafe { modify(qp, &mut attr, IBV_QP_STATE) } {
        own.guard.note_start();
        let ended = flush(own, (cq, number), &mut stash);
        own.guard.with(|state| resume(state, context, ended, &slab, &mut stash));
    }
    cq_own.guard.give(entries);
}

/// Whether the QP can start again: memory for its READs, and the entries of the CQ that were taken for it.
fn prepare(state: &mut State, cq: &GuardedCq) -> Option<(Arc<Slab>, i64)> {
    if !state.connection.may_start_again(steady_ns()) {
        return None;
    }
    let entries = state.connection.unsignaled() as i64;
    let bytes = state.connection.into_pinned().map(|request| request.bytes as usize).sum();
    if cq.take(entries) {
        // SAFETY: the QP exists.
        let slab = pinned::slab(unsafe { (*state.qp).pd }, bytes);
        // Last, because a request of the peer may arrive at any time.
        // SAFETY: as above.
        let quiet = || unsafe { attributes::expected_psn(state.qp) } == Some(state.attributes.attr.rq_psn & 0xff_ffff);
        if let Some(slab) = slab.filter(|_| quiet()) {
            return Some((slab, entries));
        }
        cq.give(entries);
    }
    state.connection.cannot_start_again();
    None
}

/// What polling after ERROR has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// All requests are flushed, or have succeeded before.
    Flushed,
    /// A request has failed before ERROR.
    Failed,
    /// The adapter does not end the requests.
    Stuck,
}

/// Polls until all requests of a QP in ERROR have ended.
fn flush(own: &Qp, (cq, number): (*mut ibv_cq, u32), stash: &mut VecDeque<ibv_wc>) -> Ended {
    let mut last = Instant::now();
    loop {
        let quiet = own.guard.with(|state| (state.connection.is_quiet(), state.connection.may_be_quiet()));
        let (is, may_be) = quiet.unwrap_or((true, true));
        if is || may_be && last.elapsed() > PAUSE {
            return Ended::Flushed;
        }
        if last.elapsed() > LIMIT {
            return Ended::Stuck;
        }
        // SAFETY: the CQ of a QP that exists.
        let Some(wc) = (unsafe { poll_one(own.context(), cq) }) else {
            std::thread::yield_now();
            continue;
        };
        last = Instant::now();
        let failed = wc.qp_num == number && wc.status != IBV_WC_SUCCESS;
        let kept = failed && wc.status == IBV_WC_WR_FLUSH_ERR;
        if kept && own.guard.with(|state| state.connection.flushed(wc.wr_id)) == Some(Flushed::Kept) {
            continue;
        }
        super::poll::keep(own.context(), wc, stash);
        if failed && !kept {
            return Ended::Failed;
        }
    }
}

/// Connects the QP again and posts its requests; without success the program gets them as failed.
fn resume(state: &mut State, context: &Context, ended: Ended, slab: &Arc<Slab>, stash: &mut VecDeque<ibv_wc>) {
    if ended != Ended::Flushed {
        let rest = state.connection.open().saturating_sub(state.connection.flushes());
        let first = if ended == Ended::Failed { IBV_WC_WR_FLUSH_ERR } else { IBV_WC_FATAL_ERR };
        return fail(state, first, rest, stash);
    }
    let psn = state.connection.resume(|work| _ = deliver(work));
    state.settle();
    let mut reset = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..ibv_qp_attr::default() };
    // SAFETY: the QP exists.
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
        fail(state, IBV_WC_FATAL_ERR, posted, stash);
    }
}

/// The QP stays in ERROR, and the program gets a completion for each of its requests, the `first` with this status. Those
/// that the adapter gives for `rest` of them are not shown any more.
fn fail(state: &mut State, first: c_int, rest: usize, stash: &mut VecDeque<ibv_wc>) {
    let mut attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() };
    // SAFETY: the QP exists.
    let number = unsafe {
        modify(state.qp, &mut attr, IBV_QP_STATE);
        (*state.qp).qp_num
    };
    let mut status = first;
    state.connection.end(|request| {
        // SAFETY: a structure of numbers, for which zeros are a value.
        let mut wc: ibv_wc = unsafe { std::mem::zeroed() };
        (wc.wr_id, wc.qp_num) = (request.wr_id, number);
        wc.status = std::mem::replace(&mut status, IBV_WC_WR_FLUSH_ERR);
        stash.push_back(wc);
    });
    state.given = rest;
    state.depth.completed(false);
    state.settle();
}
