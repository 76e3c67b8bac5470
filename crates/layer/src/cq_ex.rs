//! Extended CQs: a program polls one completion after another.

use crate::clock::Now;
use crate::contexts::{CONTEXTS, CONTROL};
use crate::cq::{CQS, Cq};
use crate::file;
use crate::guard;
use crate::locked::Raw;
use crate::objects::NUMBERS;
use crate::post::{found, report};
use crate::quiet::{Uncancelled, observe};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::*;
use weir_abi::*;

/// `ibv_create_cq_ex`. The layer needs the QP number of each completion, so it asks for it too.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    let own = CONTEXTS.get(context as u64);
    let Some((own, real)) = own.and_then(|own| Some((own, own.real.create_cq_ex?))) else {
        return std::ptr::null_mut();
    };
    let _uncancelled = Uncancelled::new();
    // SAFETY: the caller's own call, with a copy of its attributes, then as the caller made it.
    unsafe {
        let mut more = std::ptr::read(attr);
        more.wc_flags |= IBV_WC_EX_WITH_QP_NUM;
        let (cqe, wanted) = (more.cqe, guard::cq::wanted_entries(more.cqe as c_int) as u32);
        more.cqe = cqe.saturating_add(wanted);
        let mut cq = real(context, &mut more);
        if cq.is_null() && wanted != 0 {
            more.cqe = cqe;
            cq = real(context, &mut more);
        }
        if cq.is_null() {
            cq = real(context, attr);
        }
        if !cq.is_null() {
            let spare = i64::from((*cq).cqe) - i64::from(cqe);
            observe(|| CONTROL.with(|| install(&mut *cq, Cq::enter(cq.cast(), own, spare.max(0)))));
        }
        cq
    }
}

fn install(cq: &mut ibv_cq_ex, own: &Cq) {
    own.guard.extended(cq.read_qp_num.is_none());
    if let (Some(start), Some(next)) = (cq.start_poll, cq.next_poll) {
        own.start_poll.store(start as *mut c_void, Release);
        own.next_poll.store(next as *mut c_void, Release);
        cq.start_poll = Some(start_poll);
        cq.next_poll = Some(next_poll);
    }
}

type Start = unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int;
type Next = unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int;

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    let Some(own) = CQS.get(cq as u64) else { return libc::EIO };
    let _uncancelled = (!own.context().polls_uncancelled).then(Uncancelled::new);
    let time = if file::exists() { own.time_of_poll() } else { None };
    // SAFETY: `install` stored the library's function; the caller's own call.
    let mut status = unsafe { std::mem::transmute::<*mut c_void, Start>(own.start_poll.load(Acquire))(cq, attr) };
    // SAFETY: the program's CQ.
    if status == 0 && own.guard.is_on() && unsafe { hides(own, cq) } {
        // SAFETY: as above.
        status = unsafe { next_shown(own, cq) };
        if status != 0 {
            // The program takes this for the result of `ibv_start_poll`, and does not end the poll.
            // SAFETY: as above.
            unsafe { (*cq).end_poll.map(|end| end(cq)) };
        }
    }
    // SAFETY: the program's CQ.
    unsafe { polled(own, cq, status, time) };
    status
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let Some(own) = CQS.get(cq as u64) else { return libc::EIO };
    let _uncancelled = (!own.context().polls_uncancelled).then(Uncancelled::new);
    let time = if file::exists() { own.time_of_poll() } else { None };
    // SAFETY: as above.
    let status = unsafe { next_shown(own, cq) };
    // SAFETY: as above.
    unsafe { polled(own, cq, status, time) };
    status
}

/// Goes to the next completion that the program gets.
unsafe fn next_shown(own: &Cq, cq: *mut ibv_cq_ex) -> c_int {
    loop {
        // SAFETY: `install` stored the library's function; the program's CQ.
        let status = unsafe { std::mem::transmute::<*mut c_void, Next>(own.next_poll.load(Acquire))(cq) };
        // SAFETY: as above.
        if status != 0 || !own.guard.is_on() || !unsafe { hides(own, cq) } {
            return status;
        }
    }
}

/// Whether the program must not see the completion that the CQ is at.
unsafe fn hides(own: &Cq, cq: *mut ibv_cq_ex) -> bool {
    observe(|| {
        // SAFETY: the CQ is at a completion.
        let (number, opcode) = unsafe {
            let Some(number) = (*cq).read_qp_num else { return false };
            let opcode = (*cq).read_opcode.filter(|_| (*cq).status == IBV_WC_SUCCESS);
            (number(cq), opcode.map_or(0, |opcode| opcode(cq)))
        };
        if opcode & IBV_WC_RECV != 0 {
            return false;
        }
        let qp = NUMBERS.get(own.context().key(number)).filter(|qp| qp.guard.is_on());
        // SAFETY: as above.
        qp.is_some_and(|qp| unsafe {
            let shown = guard::poll::completed(qp, (*cq).wr_id, (*cq).status, &mut Now::default());
            (*cq).status = shown.unwrap_or((*cq).status);
            shown.is_none()
        })
    })
    .unwrap_or(false)
}

unsafe fn polled(own: &Cq, cq: *mut ibv_cq_ex, status: c_int, time: Option<u64>) {
    if own.is_inherited() || !file::exists() {
        return;
    }
    if status == libc::ENOENT {
        own.seen_empty(time);
    }
    if status != 0 {
        return;
    }
    observe(|| {
        // SAFETY: the CQ is at a completion; it was created with the QP number, if the library has that.
        let (number, wr_id, status, opcode) = unsafe {
            let Some(number) = (*cq).read_qp_num else { return };
            let opcode = (*cq).read_opcode.filter(|_| (*cq).status == IBV_WC_SUCCESS);
            (number(cq), (*cq).wr_id, (*cq).status, opcode.map_or(0, |opcode| opcode(cq)))
        };
        if let Some(qp) = NUMBERS.get(own.context().key(number)) {
            report(qp, wr_id, status, opcode, &mut found(own, time));
        }
    });
}
