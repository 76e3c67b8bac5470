//! Polling for a program with guards: completions that were kept for it come first, those of dummies never.

use super::work::{DUMMY, Work};
use crate::clock::Now;
use crate::contexts::Context;
use crate::cq::Cq;
use crate::objects::{NUMBERS, Series};
use crate::qp::Qp;
use crate::quiet::{Uncancelled, observe};
use std::collections::VecDeque;
use std::ffi::c_int;
use weir_abi::*;
use weir_guard::Completed;

/// `ibv_poll_cq` of a CQ with guarded QPs.
///
/// # Safety
/// As in verbs.h.
pub unsafe fn poll_cq(own: &Cq, cq: *mut ibv_cq, most: c_int, wc: *mut ibv_wc) -> c_int {
    let Some(real) = own.context().real.poll_cq else { return -libc::ENOSYS };
    // A cancelled thread must not leave the lock taken.
    let _uncancelled = (!own.context().polls_uncancelled).then(Uncancelled::new);
    let mut stash = own.guard.stash();
    let wanted = usize::try_from(most).unwrap_or(0);
    let (mut count, mut now) = (0, Now::default());
    while count < wanted
        && let Some(kept) = stash.pop_front()
    {
        // SAFETY: the caller's array has room for `most`.
        unsafe { *wc.add(count) = kept };
        count += 1;
    }
    while count < wanted {
        // SAFETY: the caller's own call, for the rest of its array.
        let polled = unsafe { real(cq, (wanted - count) as c_int, wc.add(count)) };
        let Ok(polled) = usize::try_from(polled) else { return if count == 0 { polled } else { count as c_int } };
        // SAFETY: the library has written so many completions.
        let new = unsafe { std::slice::from_raw_parts_mut(wc.add(count), polled) };
        let shown = observe(|| hide(own.context(), new, &mut now)).unwrap_or(polled);
        // Fewer than asked for tell the program that the CQ is empty.
        let asked = wanted - count;
        count += shown;
        if polled < asked {
            break;
        }
    }
    count as c_int
}

/// Polls all completions that there are, and keeps them for the program. The caller holds the lock of the stash.
///
/// # Safety
/// A CQ that exists.
pub unsafe fn keep_all(context: &Context, cq: *mut ibv_cq, stash: &mut VecDeque<ibv_wc>) {
    // SAFETY: guaranteed by the caller.
    while let Some(wc) = unsafe { poll_one(context, cq) } {
        keep(context, wc, stash);
    }
}

/// Keeps a completion for the program, unless it is a dummy's.
pub fn keep(context: &Context, mut wc: ibv_wc, stash: &mut VecDeque<ibv_wc>) {
    if shows(NUMBERS.get(context.key(wc.qp_num)), &mut wc, &mut Now::default()) {
        stash.push_back(wc);
    }
}

/// Polls a completion.
///
/// # Safety
/// A CQ that exists.
pub unsafe fn poll_one(context: &Context, cq: *mut ibv_cq) -> Option<ibv_wc> {
    let real = context.real.poll_cq?;
    let mut wc = std::mem::MaybeUninit::zeroed();
    // SAFETY: guaranteed by the caller; the library writes a completion, or the zeros are not used.
    unsafe { (real(cq, 1, wc.as_mut_ptr()) == 1).then(|| wc.assume_init()) }
}

/// Moves the completions that the program gets to the front; returns their number.
fn hide(context: &Context, completions: &mut [ibv_wc], now: &mut Now) -> usize {
    let (mut shown, mut qps) = (0, Series::default());
    for at in 0..completions.len() {
        let own = qps.qp(context, completions[at].qp_num);
        if shows(own, &mut completions[at], now) {
            completions.swap(shown, at);
            shown += 1;
        }
    }
    shown
}

/// Whether the program gets a completion, which may become an error.
#[inline]
fn shows(own: Option<&Qp>, wc: &mut ibv_wc, now: &mut Now) -> bool {
    if wc.status == IBV_WC_SUCCESS && wc.opcode & IBV_WC_RECV != 0 {
        return true;
    }
    let Some(own) = own.filter(|own| own.guard.is_on()) else {
        // A QP that is about to be destroyed may have dummies, too.
        return wc.wr_id != DUMMY;
    };
    let shown = completed(own, wc.wr_id, wc.status, now);
    wc.status = shown.unwrap_or(wc.status);
    shown.is_some()
}

/// A completion of a send work request was polled. Returns the status that the program gets; `None`: it does not see
/// this completion.
#[inline]
pub fn completed(own: &Qp, wr_id: u64, status: c_int, now: &mut Now) -> Option<c_int> {
    let success = status == IBV_WC_SUCCESS;
    let mut copied = true;
    let shown = own.guard.with(|state| {
        if state.connection.passed(success) {
            state.depth.completed(success);
            return Some(status);
        }
        let ended = state.connection.completed(now.steady_ns(), wr_id, success, |work, good| {
            copied &= !good || deliver(work);
        });
        state.settle();
        match ended {
            Completed::Dummy => {
                if !success && status != IBV_WC_WR_FLUSH_ERR {
                    state.failed = Some(status);
                }
                None
            }
            Completed::Unknown if wr_id == DUMMY => None,
            Completed::Unknown if !success && state.given > 0 => {
                state.given -= 1;
                None
            }
            // Receives that fail have no opcode, and pass here, too: after a failure nothing is limited.
            Completed::Unknown => {
                state.depth.completed(success);
                Some(status)
            }
            Completed::Theirs => {
                state.depth.completed(success);
                match status {
                    // Without the dummy this request would have failed.
                    IBV_WC_WR_FLUSH_ERR => Some(state.failed.take().unwrap_or(status)),
                    // The program has no memory where its READ should write.
                    _ if success && !copied => Some(IBV_WC_LOC_PROT_ERR),
                    _ => Some(status),
                }
            }
        }
    });
    // A QP that is being destroyed is not guarded any more.
    shown.unwrap_or_else(|| (wr_id != DUMMY).then_some(status))
}

/// A request is over: the data of a READ into pinned memory goes to where the program expects it.
pub fn deliver(work: &Work) -> bool {
    work.pinned.as_ref().is_none_or(|piece| piece.copy_to(work.sges()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_without_dummies_stays_in_order() {
        let context = Context::example();
        // SAFETY: structures of numbers, for which zeros are a value.
        let mut completions: [ibv_wc; 6] = unsafe { std::mem::zeroed() };
        let ids = [DUMMY, 1, DUMMY, 2, 3, DUMMY];
        completions.iter_mut().zip(ids).for_each(|(wc, id)| wc.wr_id = id);
        // Receives may have any ID.
        completions[5].opcode = IBV_WC_RECV;
        let shown = hide(&context, &mut completions, &mut Now::default());
        let ids: Vec<u64> = completions[..shown].iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, [1, 2, 3, DUMMY]);
    }
}
