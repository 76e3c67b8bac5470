//! Why a work request is not posted: a line of the log. It is derived again from the request, so that posting itself keeps no
//! reasons. A full queue has no line: programs post until it is full.

use crate::abi::*;
use crate::ffi::{EINVAL, EOPNOTSUPP, guard, is_nested};
use crate::post::{operation, target};
use crate::qp::QpOwn;
use std::ffi::c_int;
use weir_device::Errno;
use weir_transport::QpState;

/// A send that failed with `errno`.
///
/// # Safety
/// `request` is as in verbs.h.
#[cold]
pub unsafe fn send(qp: &QpOwn, request: &ibv_send_wr, errno: Errno) {
    log(qp, "ibv_post_send", errno, || {
        // SAFETY: guaranteed by the caller.
        let (known, reached) = unsafe { (operation(request).is_ok(), target(qp.service, request).is_ok()) };
        let state = qp.device.query().qp_state;
        if let Some(why) = sges(request.sg_list, request.num_sge, qp.max_send_sge, "max_send_sge") {
            why
        } else if !known {
            format!("opcode {} is not supported, or its memory window is missing or of type 1", request.opcode)
        } else if !reached {
            "wr.ud.ah is NULL".into()
        } else if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            format!("the QP is in state {state:?}, and sends need IBV_QPS_RTS (ibv_modify_qp)")
        } else {
            // SAFETY: the list was found right.
            let length: u64 = unsafe { list(request) }.iter().map(|sge| u64::from(sge.length)).sum();
            let inline = request.send_flags & IBV_SEND_INLINE != 0;
            if inline && length > qp.max_inline as u64 {
                format!("{length} bytes with IBV_SEND_INLINE, and max_inline_data is {}", qp.max_inline)
            } else {
                format!(
                    "opcode {} with {length} bytes{} is not possible on a QP of {:?}: 2^31 bytes at most, 8 for atomics; \
                     READs and atomics not inline, and only on RC and XRC",
                    request.opcode,
                    if inline { " inline" } else { "" },
                    qp.service
                )
            }
        }
    });
}

/// A receive that failed with `errno`.
///
/// # Safety
/// `request` is as in verbs.h.
#[cold]
pub unsafe fn receive(qp: &QpOwn, request: &ibv_recv_wr, errno: Errno) {
    let has_queue = qp.device.caps().max_recv_wr > 0;
    // Such a queue is always full.
    let errno_of_line = if has_queue { errno } else { EINVAL };
    log(qp, "ibv_post_recv", errno_of_line, || {
        if !has_queue {
            return "it has no receive queue: ibv_post_srq_recv of its SRQ, or a max_recv_wr of 1 at least at creation"
                .into();
        }
        sges(request.sg_list, request.num_sge, qp.max_recv_sge, "max_recv_sge").unwrap_or_else(|| {
            let state = qp.device.query().qp_state;
            format!("the QP is in state {state:?}, and receives need IBV_QPS_INIT (ibv_modify_qp)")
        })
    });
}

fn log(qp: &QpOwn, call: &str, errno: Errno, why: impl FnOnce() -> String) {
    if matches!(errno, EINVAL | EOPNOTSUPP) {
        // Not in a signal handler that interrupted the log's writer.
        guard((), || {
            if !is_nested() {
                qp.device.refuse(errno.0, format_args!("{call}: {}", why()));
            }
        });
    }
}

fn sges(list: *const ibv_sge, count: c_int, max: u32, name: &str) -> Option<String> {
    if count as u32 > max {
        Some(format!("num_sge is {count}, and {name} of the QP is {max}"))
    } else {
        (count > 0 && list.is_null()).then(|| format!("sg_list is NULL, and num_sge is {count}"))
    }
}

/// # Safety
/// As in verbs.h.
unsafe fn list(request: &ibv_send_wr) -> &[ibv_sge] {
    if request.num_sge == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts(request.sg_list, request.num_sge as usize) }
}
