//! Requests that the program posts, as the guards enter them.

use super::qp::State;
use super::work::{self, Work};
use super::{list, watch};
use crate::clock::steady_ns;
use crate::contexts::{self, CONTEXTS, Context};
use crate::objects::QPS;
use crate::qp::Qp;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use weir_abi::*;
use weir_guard::{Pages, Remote, Request};

/// Enters the requests of a list that is about to be posted. The caller holds `posting`.
///
/// # Safety
/// A list of work requests, as `ibv_post_send` takes it.
pub unsafe fn before(own: &Qp, first: *const ibv_send_wr) {
    // SAFETY: guaranteed by the caller.
    let list_of = || std::iter::successors(unsafe { first.as_ref() }, |wr| unsafe { wr.next.as_ref() });
    if list().prefetch && contexts::any_odp() {
        list_of().for_each(|wr| prefetch(own, wr.opcode, sges(own, wr)));
    }
    if !own.guard.is_on() {
        return;
    }
    let tracked = own.guard.with(|state| {
        let mut tracked = false;
        for wr in list_of() {
            let request = || request(own, state.signal_all, wr);
            tracked |= enter_with(&mut state.connection, work::kind(wr.opcode), || bytes(own, wr), request);
        }
        tracked
    });
    if tracked == Some(true) {
        watch::look_at(own);
    }
}

/// The library has refused the requests of a list from `refused` on.
///
/// # Safety
/// As for [`before`].
pub unsafe fn refused(own: &Qp, refused: *const ibv_send_wr) {
    // SAFETY: guaranteed by the caller.
    let all: Vec<&ibv_send_wr> =
        std::iter::successors(unsafe { refused.as_ref() }, |wr| unsafe { wr.next.as_ref() }).collect();
    own.guard.with(|state| {
        all.iter().rev().for_each(|wr| state.connection.refused(work::kind(wr.opcode), bytes(own, wr)));
    });
}

/// Enters requests that were built call by call, and are about to be posted.
pub fn enter(own: &Qp, requests: &mut Vec<Request<Work>>) {
    let tracked = own.guard.with(|state| {
        requests.drain(..).fold(false, |tracked, request| {
            let (kind, bytes) = (request.kind, request.bytes);
            enter_with(&mut state.connection, kind, || bytes, || request) || tracked
        })
    });
    if tracked == Some(true) {
        watch::look_at(own);
    }
}

/// `ibv_post_recv`: a QP with receives cannot start again.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> i32 {
    if let Some(own) = QPS.get(qp as u64) {
        own.guard.note_receive();
    }
    // SAFETY: the program's QP; the caller's own call.
    unsafe {
        let real = CONTEXTS.get((*qp).context as u64).and_then(|own| own.real.post_recv);
        real.map_or(libc::ENOSYS, |real| real(qp, wr, bad))
    }
}

/// The library has refused all requests of a batch.
pub fn refused_batch(state: &mut State, batch: &[(weir_guard::Kind, u64)]) {
    batch.iter().rev().for_each(|(kind, bytes)| state.connection.refused(*kind, *bytes));
}

fn enter_with(
    connection: &mut weir_guard::Connection<Work>,
    kind: weir_guard::Kind,
    bytes: impl FnOnce() -> u64,
    request: impl FnOnce() -> Request<Work>,
) -> bool {
    let tracked = connection.tracks(kind);
    if tracked {
        connection.post(steady_ns(), request());
    } else {
        connection.pass(kind, bytes());
    }
    tracked
}

fn request(own: &Qp, signal_all: bool, wr: &ibv_send_wr) -> Request<Work> {
    let signaled = signal_all || wr.send_flags & IBV_SEND_SIGNALED != 0;
    // SAFETY: numbers, which every kind of request has at this place or does not use.
    let rdma = unsafe { wr.wr.rdma };
    let remote = Remote { addr: rdma.remote_addr, rkey: rdma.rkey };
    let mut request = work::describe(wr.wr_id, wr.opcode, wr.send_flags, signaled, remote, wr.imm_data);
    work::add_sges(&mut request, own.context(), sges(own, wr));
    request
}

/// The SGEs of a request; none of one that the library refuses without a look at them.
fn sges<'a>(own: &Qp, wr: &'a ibv_send_wr) -> &'a [ibv_sge] {
    let count = usize::try_from(wr.num_sge).unwrap_or(0);
    if count == 0 || count > own.most_sges() || wr.sg_list.is_null() {
        return &[];
    }
    // SAFETY: the caller's list of `num_sge` entries.
    unsafe { std::slice::from_raw_parts(wr.sg_list, count) }
}

fn bytes(own: &Qp, wr: &ibv_send_wr) -> u64 {
    sges(own, wr).iter().map(|sge| u64::from(sge.length)).sum()
}

thread_local! {
    /// Pages that this thread takes to be present since that many late requests; without a lock.
    static PAGES: RefCell<(Pages, u32)> = RefCell::default();
}

/// Late requests of this process.
static LATE: AtomicU32 = AtomicU32::new(0);

/// Asks for the pages of a request in ODP memory, and waits for them.
pub fn prefetch(own: &Qp, opcode: i32, sges: &[ibv_sge]) {
    for sge in sges {
        if contexts::odp(own.context(), sge.lkey).is_some() && is_new(sge) {
            advise(own, own.context(), opcode, sge);
        }
    }
}

/// A request was late: what was taken to be present may be absent.
pub fn forget_pages() {
    LATE.fetch_add(1, Relaxed);
}

fn is_new(sge: &ibv_sge) -> bool {
    // While a thread ends, its variables are gone.
    let enter = |pages: &RefCell<(Pages, u32)>| {
        let (pages, since) = &mut *pages.borrow_mut();
        let late = LATE.load(Relaxed);
        if std::mem::replace(since, late) != late {
            pages.forget();
        }
        pages.enter(sge.lkey, sge.addr, sge.length.into())
    };
    PAGES.try_with(enter).unwrap_or(false)
}

#[cold]
fn advise(own: &Qp, context: &Context, opcode: i32, sge: &ibv_sge) {
    let Some(real) = context.real.advise_mr else { return };
    let writes = matches!(opcode, IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD);
    let advice = if writes { IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE } else { IBV_ADVISE_MR_ADVICE_PREFETCH };
    let mut sge = *sge;
    // SAFETY: the PD of the program's QP, which exists as long as the QP; a list of one SGE. A failure changes nothing:
    // the request meets the page fault that it would have met.
    unsafe { real(own.pd(), advice, IBV_ADVISE_MR_FLAG_FLUSH, &mut sge, 1) };
}
