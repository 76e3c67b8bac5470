//! Work requests that a program builds call by call: `ibv_wr_start`, one builder and its setters for each, then
//! `ibv_wr_complete` or `ibv_wr_abort`.
//!
//! They are collected outside of the send queue, so that the engine can continue meanwhile, and posted as one batch.
//! After an error the batch stays failed until it is completed, and `ibv_wr_complete` then posts nothing.

use crate::abi::*;
use crate::ah;
use crate::ffi::guard_hot;
use crate::gate::Gate;
use crate::mw;
use crate::qp::{self, QpOwn};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use weir_device::Errno;
use weir_transport::{Data, Datagram, SendFlags, SendOp, SendWr, Sge, Target};

/// The batch that is being built for a QP.
pub type Builder = Gate<Batch>;

/// Work requests between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Default)]
pub struct Batch {
    /// The first error; 0 if there was none.
    error: c_int,
    wrs: Vec<Staged>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
}

struct Staged {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    data: Stored,
    to: Target,
}

/// Where a work request's data lies in its batch.
enum Stored {
    Gather(Range<usize>),
    Inline(Range<usize>),
}

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
        IBV_QPT_RC => ALL | IBV_QP_EX_WITH_ATOMIC_WRITE,
        IBV_QPT_XRC_SEND => ALL,
        IBV_QPT_UC => SENDS_AND_WRITES,
        IBV_QPT_UD => SENDS,
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
        IBV_QP_EX_WITH_SEND_WITH_INV: wr_send_inv;
        IBV_QP_EX_WITH_LOCAL_INV: wr_local_inv;
        IBV_QP_EX_WITH_BIND_MW: wr_bind_mw;
    }
}

impl Batch {
    fn clear(&mut self) {
        self.error = 0;
        self.wrs.clear();
        self.sges.clear();
        self.inline.clear();
    }

    fn fail(&mut self, error: c_int) {
        if self.error == 0 {
            self.error = error;
        }
    }

    /// Adds a work request without data. ENOMEM for more requests than the send queue can hold.
    fn begin(&mut self, wr_id: u64, flags: u32, op: SendOp, max: u32) {
        if self.wrs.len() >= max as usize {
            return self.fail(libc::ENOMEM);
        }
        // The setter decides whether the data is inline.
        let flags = SendFlags::from_bits_truncate(flags) - SendFlags::INLINE;
        self.wrs.push(Staged { wr_id, op, flags, data: Stored::Gather(0..0), to: Target::Peer });
    }

    /// Sets the target of the newest work request. Whether the QP needs this target is checked when the request is
    /// posted.
    fn address(&mut self, to: Target) {
        match self.wrs.last_mut() {
            Some(wr) => wr.to = to,
            None => self.fail(libc::EINVAL),
        }
    }

    /// Sets the SGEs of the newest work request. ENOMEM for more SGEs than the QP was created for; EINVAL if there is
    /// no request.
    fn gather(&mut self, sges: &[Sge], max: u32) {
        if sges.len() > max as usize {
            return self.fail(libc::ENOMEM);
        }
        let Some(wr) = self.wrs.last_mut() else { return self.fail(libc::EINVAL) };
        let start = self.sges.len();
        self.sges.extend_from_slice(sges);
        wr.flags.remove(SendFlags::INLINE);
        wr.data = Stored::Gather(start..self.sges.len());
    }

    /// Sets the data of the newest work request and copies it now. ENOMEM for more bytes than the QP was created for.
    ///
    /// # Safety
    /// Each segment is readable for its length.
    unsafe fn copy(&mut self, segments: impl Iterator<Item = (*const u8, usize)> + Clone, max: usize) {
        let length = segments.clone().fold(0usize, |sum, (_, length)| sum.saturating_add(length));
        if length > max {
            return self.fail(libc::ENOMEM);
        }
        let Some(wr) = self.wrs.last_mut() else { return self.fail(libc::EINVAL) };
        let start = self.inline.len();
        self.inline.reserve(length);
        for (from, length) in segments.filter(|(_, length)| *length > 0) {
            let end = self.inline.len();
            // SAFETY: the caller guarantees that it is readable; the reserved space holds the sum of all lengths.
            unsafe {
                self.inline.as_mut_ptr().add(end).copy_from_nonoverlapping(from, length);
                self.inline.set_len(end + length);
            }
        }
        wr.flags.insert(SendFlags::INLINE);
        wr.data = Stored::Inline(start..self.inline.len());
    }

    fn requests(&self) -> impl ExactSizeIterator<Item = (SendWr<'_>, Target)> {
        self.wrs.iter().map(|wr| {
            let data = match &wr.data {
                Stored::Gather(range) => Data::Gather(&self.sges[range.clone()]),
                Stored::Inline(range) => Data::Inline(&self.inline[range.clone()]),
            };
            (SendWr { wr_id: wr.wr_id, op: wr.op, flags: wr.flags, data }, wr.to)
        })
    }

    fn post(&self, qp: &QpOwn) -> c_int {
        if self.error != 0 || self.wrs.is_empty() {
            return self.error;
        }
        match qp.device.post_sends(self.requests()) {
            Ok(()) => {
                qp.device.doorbell();
                0
            }
            Err(error) => Errno::from(error).0,
        }
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
                    let outcome = guard_hot(libc::EIO, || own.builder.inner().post(own));
                    own.builder.leave();
                    outcome
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
            Err(errno) => with_batch(qp, |_, batch| batch.fail(errno.0)),
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

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: the caller's QP is alive, and `wr_start` entered its gate; the address handle is NULL or alive.
    unsafe {
        with_batch(qp, |_, batch| {
            if ah.is_null() {
                return batch.fail(libc::EINVAL);
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

    fn write() -> SendOp {
        SendOp::Write { remote_addr: 1, rkey: 2 }
    }

    #[test]
    fn each_work_request_has_its_own_data() {
        let mut batch = Batch::default();
        let sge = |length| Sge { addr: 1, length, lkey: 2 };
        batch.begin(7, IBV_SEND_SIGNALED | IBV_SEND_INLINE, SendOp::Send, 8);
        batch.gather(&[sge(3), sge(4)], 2);
        batch.begin(8, 0, write(), 8);
        let (a, b) = (*b"in", *b"line");
        // SAFETY: arrays of this test.
        unsafe { batch.copy([(a.as_ptr(), 2), (std::ptr::null(), 0), (b.as_ptr(), 4)].into_iter(), 6) };
        batch.begin(9, IBV_SEND_FENCE, write(), 8);
        let wrs: Vec<_> = batch.requests().map(|(wr, _)| wr).collect();
        assert_eq!(wrs.iter().map(|wr| wr.wr_id).collect::<Vec<_>>(), [7, 8, 9]);
        assert!(matches!(wrs[0].data, Data::Gather([x, y]) if (x.length, y.length) == (3, 4)));
        assert_eq!(wrs[0].flags, SendFlags::SIGNALED);
        assert!(matches!(wrs[1].data, Data::Inline(b"inline")));
        assert!(matches!(wrs[2].data, Data::Gather([])));
        assert_eq!(batch.error, 0);
    }

    #[test]
    fn a_target_belongs_to_the_newest_work_request() {
        let mut batch = Batch::default();
        batch.begin(1, 0, SendOp::Send, 8);
        batch.begin(2, 0, SendOp::Send, 8);
        batch.address(Target::Srq(5));
        assert_eq!(batch.requests().map(|(_, to)| to).collect::<Vec<_>>(), [Target::Peer, Target::Srq(5)]);
        batch.clear();
        batch.address(Target::Srq(5));
        assert_eq!(batch.error, libc::EINVAL);
    }

    #[test]
    fn each_qp_type_offers_its_operations() {
        assert!(offers(IBV_QPT_RC, ALL) && offers(IBV_QPT_UC, SENDS_AND_WRITES) && offers(IBV_QPT_UD, SENDS));
        assert!(!offers(IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ) && !offers(IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE));
        assert!(!offers(IBV_QPT_RC, IBV_QP_EX_WITH_TSO));
    }

    #[test]
    fn the_first_error_is_kept_until_the_batch_is_cleared() {
        let mut batch = Batch::default();
        batch.gather(&[], 1);
        assert_eq!(batch.error, libc::EINVAL);
        batch.begin(1, 0, write(), 0);
        assert_eq!(batch.error, libc::EINVAL);
        batch.clear();
        batch.begin(1, 0, write(), 1);
        batch.gather(&[Sge::default(); 2], 1);
        assert_eq!(batch.error, libc::ENOMEM);
        batch.clear();
        batch.begin(1, 0, write(), 1);
        // SAFETY: an array of this test.
        unsafe { batch.copy(std::iter::once((b"four".as_ptr(), 4)), 3) };
        assert_eq!(batch.error, libc::ENOMEM);
    }
}
