//! `ibv_post_send` and `ibv_poll_cq`: the functions of a context that programs call for each message.

use crate::clock::{Now, ticks};
use crate::contexts::{CONTEXTS, PostSend};
use crate::cq::{CQS, Cq};
use crate::file;
use crate::guard::work::has_data;
use crate::guard::{self, list};
use crate::locked::Raw;
use crate::objects::{QPS, Series};
use crate::qp::{Found, Qp};
use crate::quiet::{Uncancelled, observe};
use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;
use weir_abi::*;

/// `ibv_post_send`.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    let own = QPS.get(qp as u64).filter(|own| !own.is_inherited());
    // SAFETY: the program's QP.
    let context = own.map(Qp::context).or_else(|| CONTEXTS.get(unsafe { (*qp).context } as u64));
    let Some((context, real)) = context.and_then(|context| Some((context, context.real.post_send?))) else {
        return libc::ENOSYS;
    };
    // A cancelled thread must not leave the lock taken, or unwind through this function.
    let _uncancelled = (!context.posts_uncancelled).then(Uncancelled::new);
    let Some(own) = own else {
        // SAFETY: the caller's own call.
        return unsafe { real(qp, wr, bad) };
    };
    let mut refused = std::ptr::null_mut();
    let bad = if bad.is_null() { &raw mut refused } else { bad };
    // SAFETY: the caller's list of work requests.
    if own.guard.has_started() && unsafe { guard::post::has_fence(wr) } {
        observe(|| guard::post::wait_for_pinned(own));
    }
    own.posting.lock();
    // SAFETY: the caller's list of work requests.
    let left = if list().any() { observe(|| unsafe { guard::post::before(own, wr) }) } else { None };
    // SAFETY: as above; the caller's own call.
    let status = unsafe {
        match left.filter(|left| !left.is_null()) {
            None => post(own, real, qp, wr, bad),
            Some(left) => guard::post::post_part(wr, left, bad, |wr| post(own, real, qp, wr, bad)),
        }
    };
    own.posting.unlock();
    status
}

/// Posts a list, and observes it. The caller holds `posting`.
#[inline]
unsafe fn post(own: &Qp, real: PostSend, qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // Once the library has accepted all, another thread may free them. The time is read while they are on their way.
    // SAFETY: the caller's list of work requests.
    let staged = observe(|| unsafe { stage(own, wr) }).unwrap_or(0);
    // SAFETY: the caller's own call.
    let status = unsafe { real(qp, wr, bad) };
    if status != 0 {
        // SAFETY: the caller's list, and its variable, which the library has set to a member of the list.
        observe(|| unsafe { refused(own, wr, bad, staged) });
    } else if staged != 0 {
        observe(|| own.opened(staged, ticks()));
    }
    status
}

/// Opens the requests of a list, without their time; returns how many were seen.
unsafe fn stage(own: &Qp, mut wr: *mut ibv_send_wr) -> u64 {
    if !own.is_observed() {
        return 0;
    }
    let mut count = 0;
    // SAFETY: guaranteed by the caller of `post_send`.
    while let Some(request) = unsafe { wr.as_ref() } {
        let mut posted = own.describe(request.wr_id, request.opcode, request.send_flags);
        // The library refuses a request with too many SGEs, without a look at them. Without data, they may be anything.
        let count_sges = usize::try_from(request.num_sge).unwrap_or(0);
        let readable = has_data(request.opcode) && count_sges <= own.most_sges() && !request.sg_list.is_null();
        for at in 0..if readable { count_sges } else { 0 } {
            // SAFETY: as above: a list of `num_sge` entries. Inline data has no lkey.
            let mut sge = unsafe { *request.sg_list.add(at) };
            if request.send_flags & IBV_SEND_INLINE != 0 {
                sge.lkey = 0;
            }
            own.add_data(&mut posted, &sge);
        }
        if !own.queue.stage(count, posted) {
            break;
        }
        count += 1;
        wr = request.next;
    }
    own.queue.publish(count);
    count
}

/// The library has refused requests of a list.
unsafe fn refused(own: &Qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr, staged: u64) {
    // SAFETY: guaranteed by the caller.
    let first = unsafe { *bad };
    if staged != 0 {
        // SAFETY: as above.
        let accepted = unsafe { accepted(wr, first, staged) };
        own.refused(staged - accepted);
        own.opened(accepted, ticks());
    }
    if own.guard.is_on() {
        // SAFETY: as above.
        unsafe { guard::post::refused(own, first) };
    }
}

/// Number of requests before the refused one, at most `staged`.
unsafe fn accepted(mut wr: *mut ibv_send_wr, bad: *mut ibv_send_wr, staged: u64) -> u64 {
    let mut count = 0;
    while count < staged && wr != bad {
        count += 1;
        // SAFETY: the list has `staged` requests at least.
        wr = unsafe { (*wr).next };
    }
    count
}

/// `ibv_poll_cq`. Nothing here has a destructor while the library is called, which may be a cancellation point. Most
/// polls find the CQ empty, so their path is short.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C-unwind" fn poll_cq(cq: *mut ibv_cq, most: c_int, wc: *mut ibv_wc) -> c_int {
    let own = CQS.get(cq as u64);
    let Some((own, real)) = own.and_then(|own| Some((own, own.observed_only()?))) else {
        // SAFETY: the caller's own call.
        return unsafe { poll_otherwise(own, cq, most, wc) };
    };
    let time = own.time_of_poll();
    // SAFETY: the caller's own call.
    let count = unsafe { real(cq, most, wc) };
    if count == 0 && most > 0 {
        own.seen_empty(time);
        return 0;
    }
    // SAFETY: what the library has returned.
    unsafe { take(own, count, most, wc, time) };
    count
}

/// Polls a CQ that is guarded, or not observed.
#[inline(never)]
unsafe extern "C-unwind" fn poll_otherwise(
    own: Option<&'static Cq>,
    cq: *mut ibv_cq,
    most: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    let own = own.filter(|own| !own.is_inherited());
    // SAFETY: the program's CQ.
    let context = own.map(Cq::context).or_else(|| CONTEXTS.get(unsafe { (*cq).context } as u64));
    let Some(real) = context.and_then(|context| context.real.poll_cq) else { return -libc::ENOSYS };
    let Some(own) = own else {
        // SAFETY: the caller's own call.
        return unsafe { real(cq, most, wc) };
    };
    let observed = file::exists();
    let time = if observed { own.time_of_poll() } else { None };
    // SAFETY: the caller's own call.
    let count = unsafe { if own.guard.is_on() { guard::poll::poll_cq(own, cq, most, wc) } else { real(cq, most, wc) } };
    if observed {
        // SAFETY: what the library has returned.
        unsafe { take(own, count, most, wc, time) };
    }
    count
}

/// Observes what a poll returned. `time`: before the poll, if it was read.
#[inline(never)]
unsafe fn take(own: &Cq, count: c_int, most: c_int, wc: *const ibv_wc, time: Option<u64>) {
    if count > 0 {
        // SAFETY: the library has written so many completions.
        let completions = unsafe { std::slice::from_raw_parts(wc, count as usize) };
        observe(|| polled(own, completions, time));
    }
    if count >= 0 && count < most {
        own.seen_empty(time);
    }
}

fn polled(own: &Cq, completions: &[ibv_wc], time: Option<u64>) {
    let mut found = found(own, time);
    let mut qps = Series::default();
    for wc in completions {
        if let Some(qp) = qps.qp(own.context(), wc.qp_num) {
            report(qp, wc.wr_id, wc.status, wc.opcode, &mut found);
        }
    }
}

/// The circumstances of a completion that was just polled; `time`: before the poll, if it was read. A program that
/// found the CQ empty after it had requested an event waits for this event. Otherwise the completion may have been there
/// before.
pub fn found(cq: &Cq, time: Option<u64>) -> Found {
    let (waits, waited) = (waits(cq), cq.waited.load(Relaxed));
    if waits {
        cq.armed.store(0, Relaxed);
    }
    if waited {
        cq.waited.store(false, Relaxed);
    }
    let armed = waits || waited;
    // Of a completion that the program has waited for, before this thread waits for a lock.
    Found { now: Now::known(time.or_else(|| armed.then(ticks))), missing: cq.dry.load(Relaxed), armed }
}

/// The program requests an event. Most programs do so when the event before has come, and poll then.
fn requested(cq: &Cq) {
    if waits(cq) {
        cq.waited.store(true, Relaxed);
    }
    cq.arm();
}

/// Whether the program found the CQ empty after it had requested an event.
fn waits(cq: &Cq) -> bool {
    let requested = cq.armed.load(Relaxed);
    requested != 0 && cq.dry.load(Relaxed) >= requested
}

/// Reports a completion to its QP.
#[inline]
pub fn report(qp: &Qp, wr_id: u64, status: c_int, opcode: c_int, found: &mut Found) {
    // A failed completion has no opcode.
    if status == IBV_WC_SUCCESS && opcode & IBV_WC_RECV != 0 {
        qp.received();
    } else {
        qp.completed(wr_id, status, found);
    }
}

/// `ibv_req_notify_cq`.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the program's CQ.
    let context = CONTEXTS.get(unsafe { (*cq).context } as u64);
    let Some(real) = context.and_then(|context| context.real.req_notify_cq) else { return libc::ENOSYS };
    if solicited_only == 0
        && let Some(own) = CQS.get(cq as u64)
    {
        requested(own);
    }
    let _uncancelled = Uncancelled::new();
    // SAFETY: the caller's own call.
    unsafe { real(cq, solicited_only) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_waits_if_the_cq_was_empty_after_it_requested_an_event() {
        let cq = Cq::default();
        let empty = || cq.dry.store(ticks(), Relaxed);
        let request = || requested(&cq);
        empty();
        assert!(!found(&cq, None).armed, "no event was requested");
        request();
        assert!(!found(&cq, None).armed, "it may have been there before");
        empty();
        assert!(found(&cq, None).armed, "the event was still to come");
        empty();
        assert!(!found(&cq, None).armed, "it has come");
    }

    #[test]
    fn a_program_that_requests_the_next_event_before_it_polls_has_waited() {
        let cq = Cq::default();
        let empty = || cq.dry.store(ticks(), Relaxed);
        requested(&cq);
        for _ in 0..3 {
            empty();
            requested(&cq);
            assert!(found(&cq, None).armed, "the event has come");
            assert!(!found(&cq, None).armed, "its completion was polled");
        }
        requested(&cq);
        assert!(!found(&cq, None).armed, "the CQ was not empty meanwhile");
    }

    #[test]
    fn the_completion_that_ends_a_wait_has_the_time_after_the_wait() {
        crate::clock::start();
        let cq = Cq::default();
        // The program finds the CQ empty, requests an event, and looks once more before it waits.
        for _ in 0..3 {
            (0..2).for_each(|_| _ = cq.time_of_poll());
            requested(&cq);
            cq.seen_empty(cq.time_of_poll());
            std::thread::sleep(std::time::Duration::from_millis(2));
            let after = ticks();
            let mut found = found(&cq, cq.time_of_poll());
            assert!(found.armed && found.now.ticks() >= after);
        }
    }
}
