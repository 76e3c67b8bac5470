//! Requests that the program posts, as the guards enter them.

use super::prefetch::prefetch;
use super::qp::State;
use super::work::{self, Work};
use super::{list, poll, watch};
use crate::clock::{Now, steady_ns};
use crate::contexts::{self, CONTEXTS};
use crate::objects::QPS;
use crate::qp::Qp;
use std::ffi::c_int;
use std::ptr;
use weir_abi::*;
use weir_guard::{Kind, Remote, Request};

/// Enters the requests of a list that is about to be posted, as far as the program's send queue has room. Returns the
/// first for which it has none, or NULL. The caller holds `posting`.
///
/// # Safety
/// A list of work requests, as `ibv_post_send` takes it.
pub unsafe fn before(own: &Qp, first: *mut ibv_send_wr) -> *mut ibv_send_wr {
    if list().prefetch && contexts::any_odp() {
        // SAFETY: guaranteed by the caller.
        unsafe { each(first) }.for_each(|wr| prefetch(own, wr.opcode, sges(own, wr)));
    }
    if !own.guard.is_on() {
        return ptr::null_mut();
    }
    let entered = own.guard.with(|state| {
        let (mut wr, mut tracked, mut now) = (first, false, Now::default());
        // SAFETY: guaranteed by the caller.
        while let Some(request) = unsafe { wr.as_ref() } {
            if state.depth.is_full(1) {
                break;
            }
            let signaled = own.signals(request.send_flags);
            if request.send_flags & IBV_SEND_FENCE != 0 {
                state.connection.bar_starts();
            }
            let describe = || describe(own, signaled, request);
            let kind = work::kind(request.opcode);
            state.depth.post(signaled);
            if own.guard.tracks(kind) {
                tracked = true;
                state.connection.post(now.steady_ns(), describe());
            } else {
                state.connection.pass(kind, bytes(own, request), signaled);
            }
            wr = request.next;
        }
        (wr, tracked)
    });
    let (refused, tracked) = entered.unwrap_or((ptr::null_mut(), false));
    if tracked {
        watch::look_at(own);
    }
    refused
}

/// Before a thread posts fenced requests: they may send what a READ before them brings, so no READ may be open that goes
/// to pinned memory. The caller does not hold `posting`.
#[cold]
pub fn wait_for_pinned(own: &Qp) {
    while own.guard.with(|state| state.connection.has_pinned()) == Some(true) {
        let Some((Some(cq), address)) = own.guard.with(|state| (state.cq(), state.cq)) else { return };
        // SAFETY: the CQ of a QP of the program, which is in a call with the QP.
        unsafe { poll::keep_all(own.context(), address, &mut cq.guard.stash()) };
        std::thread::yield_now();
    }
}

/// Whether a request of a list is fenced.
///
/// # Safety
/// As for [`before`].
pub unsafe fn has_fence(first: *mut ibv_send_wr) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe { each(first) }.any(|wr| wr.send_flags & IBV_SEND_FENCE != 0)
}

/// Posts a list up to `left`, for which the program's send queue has no room, as a full send queue does.
///
/// # Safety
/// As `ibv_post_send`; `left` is in the list.
pub unsafe fn post_part(
    first: *mut ibv_send_wr,
    left: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
    post: impl FnOnce(*mut ibv_send_wr) -> c_int,
) -> c_int {
    let mut status = 0;
    if first != left {
        // SAFETY: guaranteed by the caller. The list is whole again when the call returns.
        unsafe {
            let mut last = first;
            while (*last).next != left {
                last = (*last).next;
            }
            (*last).next = ptr::null_mut();
            status = post(first);
            (*last).next = left;
        }
    }
    if status != 0 {
        return status;
    }
    // SAFETY: as above.
    if let Some(bad) = unsafe { bad.as_mut() } {
        *bad = left;
    }
    libc::ENOMEM
}

/// The library has refused the requests of a list from `refused` on.
///
/// # Safety
/// As for [`before`].
pub unsafe fn refused(own: &Qp, refused: *mut ibv_send_wr) {
    // SAFETY: guaranteed by the caller.
    let all: Vec<&ibv_send_wr> = unsafe { each(refused) }.collect();
    own.guard.with(|state| {
        let last_first = all.iter().rev();
        last_first.for_each(|wr| take_back(state, work::kind(wr.opcode), bytes(own, wr), own.signals(wr.send_flags)));
    });
}

/// Enters requests that were built call by call, and are about to be posted. `requests` are the last of them, from the
/// first READ of the QP on. False: the program's send queue has no room for all, and none is entered.
pub fn enter(own: &Qp, kinds: &[(Kind, u64, bool)], requests: &mut Vec<Request<Work>>) -> bool {
    let entered = own.guard.with(|state| {
        if state.depth.is_full(kinds.len() as u32) {
            return None;
        }
        kinds.iter().for_each(|(_, _, signaled)| state.depth.post(*signaled));
        let untracked = kinds.len() - requests.len();
        kinds[..untracked].iter().for_each(|(kind, bytes, signal)| state.connection.pass(*kind, *bytes, *signal));
        let now = if requests.is_empty() { 0 } else { steady_ns() };
        let tracked = !requests.is_empty();
        requests.drain(..).for_each(|request| state.connection.post(now, request));
        Some(tracked)
    });
    if entered == Some(Some(true)) {
        watch::look_at(own);
    }
    entered != Some(None)
}

/// The library has refused the last requests: kind, bytes, and whether they have a completion.
pub fn refused_batch(own: &Qp, batch: &[(Kind, u64, bool)]) {
    own.guard.with(|state| {
        batch.iter().rev().for_each(|(kind, bytes, signaled)| take_back(state, *kind, *bytes, *signaled));
    });
}

/// `ibv_post_recv`: a QP with receives cannot start again.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> i32 {
    let own = QPS.get(qp as u64).filter(|own| !own.is_inherited());
    let _acting = own.and_then(|own| own.guard.note_receive());
    // SAFETY: the program's QP; the caller's own call.
    unsafe {
        let real = CONTEXTS.get((*qp).context as u64).and_then(|own| own.real.post_recv);
        real.map_or(libc::ENOSYS, |real| real(qp, wr, bad))
    }
}

/// The requests of a list.
///
/// # Safety
/// As for [`before`].
unsafe fn each<'a>(first: *mut ibv_send_wr) -> impl Iterator<Item = &'a ibv_send_wr> {
    // SAFETY: guaranteed by the caller.
    std::iter::successors(unsafe { first.as_ref() }, |wr| unsafe { wr.next.as_ref() })
}

fn take_back(state: &mut State, kind: Kind, bytes: u64, signaled: bool) {
    state.connection.refused(kind, bytes, signaled);
    state.depth.refused(signaled);
}

fn describe(own: &Qp, signaled: bool, wr: &ibv_send_wr) -> Request<Work> {
    // SAFETY: numbers, which every kind of request has at this place or does not use.
    let rdma = unsafe { wr.wr.rdma };
    let remote = Remote { addr: rdma.remote_addr, rkey: rdma.rkey };
    let mut request = work::describe(wr.wr_id, wr.opcode, wr.send_flags, signaled, remote, wr.imm_data);
    work::add_sges(&mut request, own.context(), sges(own, wr));
    request
}

/// The SGEs of a request; none of one without data, and of one that the library refuses without a look at them.
fn sges<'a>(own: &Qp, wr: &'a ibv_send_wr) -> &'a [ibv_sge] {
    let count = usize::try_from(wr.num_sge).unwrap_or(0);
    if !work::has_data(wr.opcode) || count == 0 || count > own.most_sges() || wr.sg_list.is_null() {
        return &[];
    }
    // SAFETY: the caller's list of `num_sge` entries.
    unsafe { std::slice::from_raw_parts(wr.sg_list, count) }
}

fn bytes(own: &Qp, wr: &ibv_send_wr) -> u64 {
    sges(own, wr).iter().map(|sge| u64::from(sge.length)).sum()
}
