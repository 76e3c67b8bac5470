//! Work requests that a program builds call by call: `ibv_wr_start`, one builder and its setters for each, then
//! `ibv_wr_complete` or `ibv_wr_abort`.
//!
//! They are collected outside of the send queue, so that the engine can continue meanwhile, and posted as one batch.
//! After an error the batch stays failed until it is completed, and `ibv_wr_complete` then posts nothing.

use crate::abi::*;
use crate::ah;
use crate::batch::{Batch, Refusal};
use crate::ffi::guard_hot;
use crate::mw;
use crate::qp::{self, QpOwn};
use crate::refused_post;
use std::ffi::{c_int, c_void};
use weir_transport::{Datagram, Flush, PostError, SendOp, Sge, Target};

/// The operations that each type of QP can build; each set contains the one before it.
const SENDS: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
const SENDS_AND_WRITES: u64 = SENDS
    | IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW;
const ALL: u64 = SENDS_AND_WRITES
    | IBV_QP_EX_WITH_SEND_WITH_INV
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

/// Bytes that an atomic operates on.
const ATOMIC_BYTES: usize = 8;

/// Whether a QP of this type can build these operations.
pub fn offers(qp_type: c_int, operations: u64) -> bool {
    let offered = match qp_type {
        IBV_QPT_RC => ALL | IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_FLUSH,
        IBV_QPT_XRC_SEND => ALL | IBV_QP_EX_WITH_FLUSH,
        IBV_QPT_UC => SENDS_AND_WRITES,
        IBV_QPT_UD => SENDS,
        IBV_QPT_RAW_PACKET => IBV_QP_EX_WITH_SEND,
        _ => 0,
    };
    operations & !offered == 0
}

/// Inline bytes that these operations need, whether or not the program requests them.
pub fn inline_bytes(operations: u64) -> u32 {
    if operations & IBV_QP_EX_WITH_ATOMIC_WRITE != 0 { ATOMIC_BYTES as u32 } else { 0 }
}

/// Sets the functions of a QP that was created for `operations`. The others stay NULL, as with adapters.
pub fn install(qp: &mut ibv_qp_ex, operations: u64) {
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    match qp.qp_base.qp_type {
        IBV_QPT_UD => qp.wr_set_ud_addr = Some(wr_set_ud_addr),
        IBV_QPT_XRC_SEND => qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn),
        _ => {}
    }
    macro_rules! offer {
        ($($flag:ident: $member:ident;)*) => {
            $(if operations & $flag != 0 {
                qp.$member = Some($member);
            })*
        };
    }
    offer! {
        IBV_QP_EX_WITH_RDMA_WRITE: wr_rdma_write;
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: wr_rdma_write_imm;
        IBV_QP_EX_WITH_SEND: wr_send;
        IBV_QP_EX_WITH_SEND_WITH_IMM: wr_send_imm;
        IBV_QP_EX_WITH_RDMA_READ: wr_rdma_read;
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: wr_atomic_cmp_swp;
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: wr_atomic_fetch_add;
        IBV_QP_EX_WITH_ATOMIC_WRITE: wr_atomic_write;
        IBV_QP_EX_WITH_FLUSH: wr_flush;
        IBV_QP_EX_WITH_SEND_WITH_INV: wr_send_inv;
        IBV_QP_EX_WITH_LOCAL_INV: wr_local_inv;
        IBV_QP_EX_WITH_BIND_MW: wr_bind_mw;
    }
}

/// All calls between `wr_start` and `wr_complete` or `wr_abort` come from one thread. In a forked child this does
/// nothing, because another thread may have been changing the batch at the fork.
unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's QP is alive; the gate is entered before the batch is accessed.
    guard_hot((), || unsafe {
        if let Ok(own) = qp::own_checked(qp.cast()) {
            own.builder.enter();
            own.builder.inner().clear();
        }
    })
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    guard_hot(libc::EIO, || {
        // SAFETY: the caller's QP is alive, and `wr_start` entered its gate. A panic must not leave the gate entered.
        unsafe {
            match qp::own_checked(qp.cast()) {
                Ok(own) => {
                    let failed = Err(Refusal::Post(PostError::Failed));
                    let outcome = guard_hot(failed, || own.builder.inner().post(&own.device));
                    own.builder.leave();
                    outcome.map_or_else(|refusal| refused_post::batch(own, refusal).0, |()| 0)
                }
                Err(errno) => errno.0,
            }
        }
    })
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's QP is alive, and `wr_start` entered its gate.
    unsafe {
        with_batch(qp, |own, batch| {
            batch.clear();
            own.builder.leave();
        });
    }
}

/// Runs `work` on the batch of a QP.
///
/// # Safety
/// The QP is alive and entered.
unsafe fn with_batch(qp: *mut ibv_qp_ex, work: impl FnOnce(&QpOwn, &mut Batch)) {
    // SAFETY: guaranteed by the caller.
    guard_hot((), || unsafe {
        if let Ok(own) = qp::own_checked(qp.cast()) {
            work(own, own.builder.inner());
        }
    })
}

/// # Safety
/// The QP is alive and entered.
unsafe fn begin(qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: guaranteed by the caller.
    unsafe { with_batch(qp, |own, batch| batch.begin((*qp).wr_id, (*qp).wr_flags, op, own.max_send_wr)) }
}

/// Functions that begin a work request.
macro_rules! builders {
    ($($name:ident($($arg:ident: $type:ty),*) => $op:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $($arg: $type),*) {
            // SAFETY: the caller's QP is alive, and `wr_start` entered its gate.
            unsafe { begin(qp, $op) }
        }
    )*};
}

builders! {
    wr_send() => SendOp::Send;
    wr_send_imm(imm: u32) => SendOp::SendImm { imm };
    wr_send_inv(rkey: u32) => SendOp::SendInvalidate { rkey };
    wr_local_inv(key: u32) => SendOp::LocalInvalidate { key };
    wr_rdma_write(rkey: u32, remote_addr: u64) => SendOp::Write { remote_addr, rkey };
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm: u32) => SendOp::WriteImm { remote_addr, rkey, imm };
    wr_rdma_read(rkey: u32, remote_addr: u64) => SendOp::Read { remote_addr, rkey };
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64) =>
        SendOp::CompareSwap { remote_addr, rkey, compare, swap };
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) => SendOp::FetchAdd { remote_addr, rkey, add };
}

unsafe extern "C" fn wr_bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: the caller's QP is alive, and `wr_start` entered its gate; window and region are alive.
    unsafe {
        match mw::by_request(&ibv_wr_bind_mw { mw, rkey, bind_info: *info }) {
            Ok(bind) => begin(qp, SendOp::BindWindow(bind)),
            Err(_) => with_batch(qp, |_, batch| batch.fail(Refusal::Window)),
        }
    }
}

/// Copies the eight bytes now; this request needs no setter.
unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, bytes: *const c_void) {
    // SAFETY: the caller's QP is alive, and `wr_start` entered its gate; the bytes are readable.
    unsafe {
        begin(qp, SendOp::AtomicWrite { remote_addr, rkey });
        with_batch(qp, |own, batch| batch.copy(std::iter::once((bytes.cast(), ATOMIC_BYTES)), own.max_inline));
    }
}

/// This request needs no setter. EINVAL for an unknown placement type or selectivity, and for a range of 4 GiB or more.
unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    length: usize,
    placement: u8,
    selectivity: u8,
) {
    let (global, persistent) = (placement & IBV_FLUSH_GLOBAL != 0, placement & IBV_FLUSH_PERSISTENT != 0);
    let whole = selectivity == IBV_FLUSH_MR;
    let known =
        placement & !(IBV_FLUSH_GLOBAL | IBV_FLUSH_PERSISTENT) == 0 && (whole || selectivity == IBV_FLUSH_RANGE);
    // The length of a whole region has no meaning.
    let bytes = if whole { Some(0) } else { u32::try_from(length).ok() };
    // SAFETY: the caller's QP is alive, and `wr_start` entered its gate.
    unsafe {
        match bytes.filter(|_| known && (global || persistent)) {
            Some(length) => {
                let flush = Flush { global, persistent, whole };
                begin(qp, SendOp::Flush { remote_addr, rkey, length, flush });
            }
            None => with_batch(qp, |_, batch| batch.fail(Refusal::Flush)),
        }
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: the caller's QP is alive, and `wr_start` entered its gate; the address handle is NULL or alive.
    unsafe {
        with_batch(qp, |_, batch| {
            if ah.is_null() {
                return batch.fail(Refusal::NoAddress);
            }
            let address = ah::number_of(ah);
            batch.address(Target::Datagram(Datagram { address, dest_qp: remote_qpn & 0xff_ffff, qkey: remote_qkey }));
        });
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: the caller's QP is alive, and `wr_start` entered its gate.
    unsafe { with_batch(qp, |_, batch| batch.address(Target::Srq(remote_srqn & 0xff_ffff))) }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the caller's QP is alive, and `wr_start` entered its gate.
    unsafe { with_batch(qp, |own, batch| batch.gather(&[Sge { addr, length, lkey }], own.max_send_sge)) }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the caller's QP is alive, and `wr_start` entered its gate; the list has `count` SGEs.
    unsafe {
        // `Sge` has the layout of `ibv_sge`.
        let sges = if count == 0 { &[] } else { std::slice::from_raw_parts(list.cast(), count) };
        with_batch(qp, |own, batch| batch.gather(sges, own.max_send_sge));
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the caller's QP is alive, and `wr_start` entered its gate; the data is readable.
    unsafe {
        let segment = (addr.cast_const().cast(), length);
        with_batch(qp, |own, batch| batch.copy(std::iter::once(segment), own.max_inline));
    }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: the caller's QP is alive, and `wr_start` entered its gate; the list has `count` readable buffers.
    unsafe {
        let buffers = if count == 0 { &[] } else { std::slice::from_raw_parts(list, count) };
        let segments = buffers.iter().map(|buffer| (buffer.addr.cast_const().cast::<u8>(), buffer.length));
        with_batch(qp, |own, batch| batch.copy(segments, own.max_inline));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_qp_type_offers_its_operations() {
        assert!(offers(IBV_QPT_RC, ALL) && offers(IBV_QPT_UC, SENDS_AND_WRITES) && offers(IBV_QPT_UD, SENDS));
        assert!(!offers(IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ) && !offers(IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE));
        assert!(!offers(IBV_QPT_RC, IBV_QP_EX_WITH_TSO));
    }
}
