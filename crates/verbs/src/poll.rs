//! Polling and arming a CQ: the hot path of completions.

use crate::abi::{ibv_cq, ibv_wc};
use crate::cq;
use crate::ffi::{guard_hot, status};
use std::ffi::c_int;
use weir_transport::Completion;

/// `ibv_poll_cq`: returns the number of completions written to `wc`, or a negative errno value after the CQ has
/// overflowed.
///
/// # Safety
/// `cq` is alive and `wc` has room for `num_entries`.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    guard_hot(-libc::EIO, || {
        // SAFETY: guaranteed by the caller.
        let cq = match unsafe { cq::own_checked(cq) } {
            Ok(cq) => cq,
            Err(errno) => return -errno.0,
        };
        let mut next = wc;
        let room = usize::try_from(num_entries).unwrap_or(0);
        let polled = cq.device.poll(room, |completion| {
            // SAFETY: `poll` returns at most `room` completions.
            unsafe {
                next.write(work_completion(completion));
                next = next.add(1);
            }
        });
        match polled {
            Ok(count) => count as c_int,
            Err(errno) => -errno.0,
        }
    })
}

/// `ibv_req_notify_cq`.
///
/// # Safety
/// `cq` is alive.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { cq::own_checked(cq)? }.device.arm(solicited_only != 0)
    })
}

fn work_completion(c: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: c.wr_id,
        status: c.status as c_int,
        opcode: c.opcode as c_int,
        vendor_err: c.vendor_err,
        byte_len: c.byte_len,
        imm_data: c.imm,
        qp_num: c.qp_num,
        src_qp: c.src_qp,
        wc_flags: c.flags.bits().into(),
        pkey_index: 0,
        slid: 0,
        sl: c.network as u8,
        dlid_path_bits: 0,
    }
}
