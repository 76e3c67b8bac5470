//! Work requests that a program builds call by call (`ibv_wr_*`): the functions of an extended QP.
//!
//! The library may hold a lock of its own from `wr_start` to `wr_complete`; the layer's lock of the QP is taken before.

use crate::clock::ticks;
use crate::contexts;
use crate::guard::{self, list, work};
use crate::locked::Raw;
use crate::objects::QPS;
use crate::qp::Qp;
use crate::quiet::{Uncancelled, observe};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::*;
use weir_abi::*;
use weir_guard::Remote;

/// Replaces the functions of an extended QP. `offered` are those that the program asked for (IBV_QP_EX_WITH_*): a
/// library of an older release has no member for the others.
///
/// # Safety
/// An extended QP of the program, which is known as `own`, and which no thread uses yet.
pub unsafe fn install(qp: *mut ibv_qp_ex, own: &Qp, offered: u64) {
    // SAFETY: guaranteed by the caller.
    let qp = unsafe { &mut *qp };
    install_operations(qp, own, offered);
    install_setters(qp, own);
}

/// The QP's state, and the library's function at this place. Without them, the function returns `$unknown`.
macro_rules! real {
    ($qp:ident, $at:expr, $type:ty) => {
        real!($qp, $at, $type, ())
    };
    ($qp:ident, $at:expr, $type:ty, $unknown:expr) => {{
        let Some(own) = QPS.get($qp as u64) else { return $unknown };
        let function = own.builder[$at as usize].load(Acquire);
        if function.is_null() {
            return $unknown;
        }
        // SAFETY: `install` stored the library's function of this type there.
        (own, unsafe { std::mem::transmute::<*mut c_void, $type>(function) })
    }};
}

/// Functions that begin a work request: name, arguments, opcode, what the program must have asked for; the peer's
/// address and key, and immediate data.
macro_rules! operations {
    ($($member:ident($($argument:ident: $type:ty),*) $place:ident $opcode:ident $offered:ident
       $remote:expr, $imm:expr;)*) => {
        #[derive(Clone, Copy)]
        #[allow(non_camel_case_types)] // The names are those of the members.
        enum Operation { $($place),* }

        fn install_operations(qp: &mut ibv_qp_ex, own: &Qp, offered: u64) {
            $(if offered & $offered != 0 && let Some(function) = qp.$member {
                own.builder[Operation::$place as usize].store(function as *mut c_void, Release);
                qp.$member = Some($member);
            })*
        }

        $(unsafe extern "C" fn $member(qp: *mut ibv_qp_ex, $($argument: $type),*) {
            let (own, real) =
                real!(qp, Operation::$place, unsafe extern "C" fn(*mut ibv_qp_ex, $($type),*));
            // SAFETY: the caller's own call.
            unsafe { real(qp, $($argument),*) };
            // SAFETY: between `wr_start` and `wr_complete` the lock is held.
            observe(|| unsafe { begin(own, qp, $opcode, $remote, $imm) });
        })*
    };
}

operations! {
    wr_atomic_cmp_swp(rkey: u32, to: u64, compare: u64, swap: u64)
        CompareSwap IBV_WR_ATOMIC_CMP_AND_SWP IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP NOWHERE, 0;
    wr_atomic_fetch_add(rkey: u32, to: u64, add: u64)
        FetchAdd IBV_WR_ATOMIC_FETCH_AND_ADD IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD NOWHERE, 0;
    wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info)
        BindMw IBV_WR_BIND_MW IBV_QP_EX_WITH_BIND_MW NOWHERE, 0;
    wr_local_inv(rkey: u32) LocalInv IBV_WR_LOCAL_INV IBV_QP_EX_WITH_LOCAL_INV NOWHERE, 0;
    wr_rdma_read(rkey: u32, from: u64)
        Read IBV_WR_RDMA_READ IBV_QP_EX_WITH_RDMA_READ Remote { addr: from, rkey }, 0;
    wr_rdma_write(rkey: u32, to: u64)
        Write IBV_WR_RDMA_WRITE IBV_QP_EX_WITH_RDMA_WRITE Remote { addr: to, rkey }, 0;
    wr_rdma_write_imm(rkey: u32, to: u64, imm: u32)
        WriteImm IBV_WR_RDMA_WRITE_WITH_IMM IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM Remote { addr: to, rkey }, imm;
    wr_send() Send IBV_WR_SEND IBV_QP_EX_WITH_SEND NOWHERE, 0;
    wr_send_imm(imm: u32) SendImm IBV_WR_SEND_WITH_IMM IBV_QP_EX_WITH_SEND_WITH_IMM NOWHERE, imm;
    wr_send_inv(rkey: u32) SendInv IBV_WR_SEND_WITH_INV IBV_QP_EX_WITH_SEND_WITH_INV NOWHERE, 0;
    wr_send_tso(header: *mut c_void, bytes: u16, mss: u16) Tso IBV_WR_TSO IBV_QP_EX_WITH_TSO NOWHERE, 0;
    wr_atomic_write(rkey: u32, to: u64, from: *const c_void)
        AtomicWrite IBV_WR_ATOMIC_WRITE IBV_QP_EX_WITH_ATOMIC_WRITE NOWHERE, 0;
    wr_flush(rkey: u32, to: u64, bytes: usize, level: u8, kind: u8)
        Flush IBV_WR_FLUSH IBV_QP_EX_WITH_FLUSH NOWHERE, 0;
}

/// Of operations that are not posted again.
const NOWHERE: Remote = Remote { addr: 0, rkey: 0 };

/// Functions that every extended QP has; their places are behind those of the operations.
#[derive(Clone, Copy)]
enum Setter {
    Start = 16,
    Complete,
    Abort,
    Sge,
    SgeList,
    Inline,
    InlineList,
}

fn install_setters(qp: &mut ibv_qp_ex, own: &Qp) {
    macro_rules! replace {
        ($($member:ident $place:ident;)*) => {
            $(if let Some(function) = qp.$member {
                own.builder[Setter::$place as usize].store(function as *mut c_void, Release);
                qp.$member = Some($member);
            })*
        };
    }
    replace! {
        wr_start Start;
        wr_complete Complete;
        wr_abort Abort;
        wr_set_sge Sge;
        wr_set_sge_list SgeList;
        wr_set_inline_data Inline;
        wr_set_inline_data_list InlineList;
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    let (own, real) = real!(qp, Setter::Start, unsafe extern "C" fn(*mut ibv_qp_ex));
    if !own.is_inherited() {
        // The requests to come may be fenced.
        if own.guard.has_started() {
            observe(|| guard::post::wait_for_pinned(own));
        }
        own.posting.lock();
        // SAFETY: the lock is held.
        let building = unsafe { &mut *own.building.get() };
        building.count = 0;
        building.batch.clear();
        building.kinds.clear();
    }
    // SAFETY: the caller's own call.
    unsafe { real(qp) };
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let (own, real) = real!(qp, Setter::Complete, unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int, libc::EINVAL);
    // A cancelled thread must not leave the lock taken, or unwind through this function.
    let _uncancelled = (!own.context().posts_uncancelled).then(Uncancelled::new);
    if own.is_inherited() {
        // SAFETY: the caller's own call.
        return unsafe { real(qp) };
    }
    // SAFETY: `wr_start` has taken the lock.
    let Some(count) = observe(|| unsafe { finish(own) }).unwrap_or(Some(0)) else {
        // SAFETY: the caller's batch, which it does not touch again.
        unsafe { wr_abort(qp) };
        return libc::ENOMEM;
    };
    // SAFETY: the caller's own call.
    let status = unsafe { real(qp) };
    observe(|| {
        // SAFETY: the lock is held.
        let building = unsafe { &*own.building.get() };
        match (status, count) {
            (_, 0) => {}
            (0, _) => own.opened(count, ticks()),
            _ => own.refused(count),
        }
        if status != 0 {
            guard::post::refused_batch(own, &building.kinds);
        }
    });
    own.posting.unlock();
    status
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    let (own, real) = real!(qp, Setter::Abort, unsafe extern "C" fn(*mut ibv_qp_ex));
    // SAFETY: the caller's own call.
    unsafe { real(qp) };
    if !own.is_inherited() {
        own.posting.unlock();
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let (own, real) = real!(qp, Setter::Sge, unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32));
    // SAFETY: the caller's own call.
    unsafe { real(qp, lkey, addr, length) };
    // SAFETY: between `wr_start` and `wr_complete` the lock is held.
    observe(|| unsafe { add(own, &[ibv_sge { addr, length, lkey }]) });
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    let (own, real) = real!(qp, Setter::SgeList, unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge));
    // SAFETY: the caller's own call.
    unsafe { real(qp, count, list) };
    // The library refuses a longer list, without a look at it.
    if count > own.most_sges() || list.is_null() {
        return;
    }
    // SAFETY: as in `wr_set_sge`; the caller's list of `count` entries.
    observe(|| unsafe { add(own, std::slice::from_raw_parts(list, count)) });
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, data: *mut c_void, length: usize) {
    let (own, real) = real!(qp, Setter::Inline, unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize));
    // SAFETY: the caller's own call.
    unsafe { real(qp, data, length) };
    // SAFETY: as in `wr_set_sge`.
    observe(|| unsafe { add_inline(own, length as u32) });
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    let (own, real) = real!(qp, Setter::InlineList, unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf));
    // SAFETY: the caller's own call.
    unsafe { real(qp, count, list) };
    if list.is_null() {
        return;
    }
    // The library reads the list as far as there is room for its data.
    let (mut length, mut at) = (0u64, 0);
    while at < count && length <= own.most_inline() {
        // SAFETY: the caller's list of `count` entries.
        length = length.saturating_add(unsafe { (*list.add(at)).length } as u64);
        at += 1;
    }
    // SAFETY: as in `wr_set_sge`.
    observe(|| unsafe { add_inline(own, length as u32) });
}

/// A work request begins: the one before it is complete.
unsafe fn begin(own: &Qp, qp: *mut ibv_qp_ex, opcode: c_int, remote: Remote, imm: u32) {
    if own.is_inherited() {
        return;
    }
    // SAFETY: the caller holds the QP's lock; the program's QP.
    let (building, qp) = unsafe { (&mut *own.building.get(), &*qp) };
    if own.guard.is_on() {
        let (kind, signaled) = (work::kind(opcode), own.signals(qp.wr_flags));
        building.kinds.push((kind, 0, signaled));
        if qp.wr_flags & IBV_SEND_FENCE != 0 {
            own.guard.with(|state| state.connection.bar_starts());
        }
        if own.guard.tracks(kind) {
            building.batch.push(work::describe(qp.wr_id, opcode, qp.wr_flags, signaled, remote, imm));
        }
    }
    building.last.opcode = opcode as u8;
    if !own.is_observed() {
        return;
    }
    building.count += 1;
    building.last = own.describe(qp.wr_id, opcode, qp.wr_flags);
    own.queue.stage(building.count - 1, building.last);
}

/// The last work request gets data.
unsafe fn add(own: &Qp, sges: &[ibv_sge]) {
    if own.is_inherited() {
        return;
    }
    // SAFETY: the caller holds the QP's lock.
    let building = unsafe { &mut *own.building.get() };
    if list().prefetch && contexts::any_odp() {
        guard::prefetch::prefetch(own, building.last.opcode.into(), sges);
    }
    if let Some((_, bytes, _)) = building.kinds.last_mut() {
        *bytes += sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>();
    }
    if let Some(request) = building.batch.last_mut() {
        work::add_sges(request, own.context(), sges);
    }
    if building.count > 0 {
        sges.iter().for_each(|sge| own.add_data(&mut building.last, sge));
        own.queue.stage(building.count - 1, building.last);
    }
}

/// The last work request gets data from memory that the program may use again at once.
unsafe fn add_inline(own: &Qp, length: u32) {
    if own.is_inherited() {
        return;
    }
    // SAFETY: the caller holds the QP's lock.
    let building = unsafe { &mut *own.building.get() };
    if let Some((_, bytes, _)) = building.kinds.last_mut() {
        *bytes += u64::from(length);
    }
    if let Some(request) = building.batch.last_mut() {
        request.bytes += u64::from(length);
        request.repeatable = false;
    }
    if building.count > 0 {
        own.add_data(&mut building.last, &ibv_sge { addr: 0, length, lkey: 0 });
        own.queue.stage(building.count - 1, building.last);
    }
}

/// The batch is about to be posted; returns the number of its requests that are seen. `None`: the program's send queue
/// has no room for it.
unsafe fn finish(own: &Qp) -> Option<u64> {
    // SAFETY: the caller holds the QP's lock.
    let building = unsafe { &mut *own.building.get() };
    let count = building.count;
    if !building.kinds.is_empty() && !guard::post::enter(own, &building.kinds, &mut building.batch) {
        return None;
    }
    if !own.is_observed() {
        return Some(0);
    }
    let room = own.queue.capacity() as u64 - own.queue.open();
    let seen = count.min(room);
    own.queue.publish(seen);
    Some(seen)
}
