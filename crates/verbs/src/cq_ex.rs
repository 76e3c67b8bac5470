//! Extended CQs: a program polls one completion after another and reads it field by field.

use crate::abi::*;
use crate::context;
use crate::cq::{self, Creating, Polling};
use crate::domain;
use crate::ffi::{EINVAL, EOPNOTSUPP, guard_hot};
use crate::living::object;
use std::ffi::{c_int, c_uint};

/// Wall clock time stamps come from the adapter's clock and are converted when the program reads them.
const STAMPED: u64 = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// `ibv_create_cq_ex`. EOPNOTSUPP for flags that rdma-core 44 does not have, EINVAL for a PD that is no parent
/// domain.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    object(|| {
        const MASK: u32 = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
        const FLAGS: u32 = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
        // SAFETY: guaranteed by the caller.
        let attr = unsafe { &*attr };
        let flags = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
        if attr.wc_flags & !IBV_CREATE_CQ_SUP_WC_FLAGS != 0 || attr.comp_mask & !MASK != 0 || flags & !FLAGS != 0 {
            return Err(EOPNOTSUPP);
        }
        let parent =
            if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0 { attr.parent_domain } else { std::ptr::null_mut() };
        // SAFETY: guaranteed by the caller.
        if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0 && !unsafe { domain::is_parent(parent) } {
            let why = "CQ: create: parent_domain is not of ibv_alloc_parent_domain";
            // SAFETY: guaranteed by the caller.
            return Err(unsafe { context::refuse(context, EINVAL, why) });
        }
        let single_threaded = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0;
        let creating = Creating {
            cqe: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel,
            comp_vector: attr.comp_vector,
            timestamps: attr.wc_flags & STAMPED != 0,
            ignore_overrun: flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
            polling: Polling { single_threaded, ..Polling::default() },
            parent,
        };
        // SAFETY: guaranteed by the caller.
        unsafe {
            let cq = cq::create(context, creating)?;
            install(&mut *cq, attr.wc_flags);
            Ok(cq)
        }
    })
}

/// The readers that the program did not request stay NULL, as with adapters: a call of such a reader fails in the
/// same way.
fn install(cq: &mut ibv_cq_ex, wc_flags: u64) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    macro_rules! offer {
        ($($flag:ident: $member:ident;)*) => {
            $(if wc_flags & $flag != 0 {
                cq.$member = Some($member);
            })*
        };
    }
    offer! {
        IBV_WC_EX_WITH_BYTE_LEN: read_byte_len;
        IBV_WC_EX_WITH_IMM: read_imm_data;
        IBV_WC_EX_WITH_QP_NUM: read_qp_num;
        IBV_WC_EX_WITH_SRC_QP: read_src_qp;
        IBV_WC_EX_WITH_SLID: read_slid;
        IBV_WC_EX_WITH_SL: read_sl;
        IBV_WC_EX_WITH_DLID_PATH_BITS: read_dlid_path_bits;
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: read_completion_ts;
        IBV_WC_EX_WITH_CVLAN: read_cvlan;
        IBV_WC_EX_WITH_FLOW_TAG: read_flow_tag;
        IBV_WC_EX_WITH_TM_INFO: read_tm_info;
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK: read_completion_wallclock_ns;
    }
}

/// After success the CQ belongs to the calling thread until `end_poll`. ENOENT if the CQ is empty.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    guard_hot(libc::EIO, || {
        // SAFETY: the caller's CQ is alive, `attr` NULL or readable.
        let polling = unsafe {
            if attr.as_ref().is_some_and(|attr| attr.comp_mask != 0) {
                return EINVAL.0;
            }
            match cq::own_checked(cq.cast()) {
                Ok(own) => &own.polling,
                Err(errno) => return errno.0,
            }
        };
        if !polling.single_threaded {
            polling.current.enter();
        }
        // A panic must not leave the gate entered.
        // SAFETY: entered.
        let found = guard_hot(libc::EIO, || unsafe { advance(cq, polling, true) });
        if found != 0 {
            // SAFETY: entered above; the program does not call `end_poll` after an error.
            unsafe { leave(polling) };
        }
        found
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller's CQ is alive, and `start_poll` entered its gate.
    guard_hot(libc::EIO, || unsafe { advance(cq, &cq::own(cq.cast()).polling, false) })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller's CQ is alive, and `start_poll` entered its gate.
    guard_hot((), || unsafe {
        if let Ok(own) = cq::own_checked(cq.cast()) {
            leave(&own.polling);
        }
    })
}

/// Makes the next completion current; ENOENT if there is none.
///
/// # Safety
/// The CQ is alive, and the caller has entered its gate.
unsafe fn advance(cq: *mut ibv_cq_ex, polling: &Polling, first: bool) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match cq::own_checked(cq.cast()).and_then(|own| own.device.poll_one(first)) {
            Ok(Some((completion, stamp))) => {
                (*cq).wr_id = completion.wr_id;
                (*cq).status = completion.status as c_int;
                *polling.current.inner() = Some((completion, stamp));
                0
            }
            Ok(None) => libc::ENOENT,
            Err(errno) => errno.0,
        }
    }
}

/// # Safety
/// The caller has entered the gate.
unsafe fn leave(polling: &Polling) {
    if !polling.single_threaded {
        // SAFETY: guaranteed by the caller.
        unsafe { polling.current.leave() };
    }
}

/// Functions that read a field of the current completion: 0 if there is none.
macro_rules! readers {
    ($($name:ident -> $type:ty: |$completion:ident, $stamp:ident| $value:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the caller's CQ is alive, and `start_poll` entered its gate.
            let current = unsafe { cq::own(cq.cast()).polling.current.inner() };
            current.as_ref().map_or(0, |($completion, $stamp)| $value)
        }
    )*};
}

readers! {
    read_opcode -> c_int: |completion, _stamp| completion.opcode as c_int;
    read_vendor_err -> u32: |completion, _stamp| completion.vendor_err;
    read_byte_len -> u32: |completion, _stamp| completion.byte_len;
    read_imm_data -> u32: |completion, _stamp| completion.imm;
    read_qp_num -> u32: |completion, _stamp| completion.qp_num;
    read_src_qp -> u32: |completion, _stamp| completion.src_qp;
    read_wc_flags -> c_uint: |completion, _stamp| completion.flags.bits().into();
    read_sl -> u8: |completion, _stamp| completion.network as u8;
    read_completion_ts -> u64: |_completion, stamp| *stamp;
    read_completion_wallclock_ns -> u64: |_completion, stamp| wallclock(*stamp);
}

/// Ethernet has no LID.
unsafe extern "C" fn read_slid(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_dlid_path_bits(_cq: *mut ibv_cq_ex) -> u8 {
    0
}

/// The interface removes VLAN tags.
unsafe extern "C" fn read_cvlan(_cq: *mut ibv_cq_ex) -> u16 {
    0
}

/// There are no flow rules that could set a tag.
unsafe extern "C" fn read_flow_tag(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

/// The tag of a message that matched one, otherwise 0.
unsafe extern "C" fn read_tm_info(cq: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    // SAFETY: the caller's CQ is alive, and `start_poll` entered its gate.
    let current = unsafe { cq::own(cq.cast()).polling.current.inner() };
    let (tag, app_ctx) = current.as_ref().map_or((0, 0), |(completion, _)| (completion.tag, completion.app_ctx));
    // SAFETY: the caller guarantees that `info` is writable.
    unsafe { info.write(ibv_wc_tm_info { tag, r#priv: app_ctx }) };
}

/// The adapter's clock is CLOCK_MONOTONIC; the present offset to CLOCK_REALTIME is used.
fn wallclock(stamp: u64) -> u64 {
    let age = now(libc::CLOCK_MONOTONIC).saturating_sub(stamp);
    now(libc::CLOCK_REALTIME).saturating_sub(age)
}

fn now(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills one timespec.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_of_a_second_ago_converts_to_a_wall_clock_of_a_second_ago() {
        let second = 1_000_000_000;
        let then = wallclock(now(libc::CLOCK_MONOTONIC) - second);
        let ago = now(libc::CLOCK_REALTIME) - then;
        assert!((second..2 * second).contains(&ago), "{ago}");
    }

    #[test]
    fn only_requested_fields_have_readers() {
        // SAFETY: integers, pointers and optional functions.
        let mut cq: ibv_cq_ex = unsafe { crate::ffi::zeroed() };
        install(&mut cq, IBV_WC_EX_WITH_QP_NUM);
        assert!(cq.read_qp_num.is_some() && cq.read_opcode.is_some());
        assert!(cq.read_byte_len.is_none() && cq.read_completion_ts.is_none());
    }
}
