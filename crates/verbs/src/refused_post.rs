//! Work requests that are not posted: their errno, and a line of the log. A full queue has no line: programs post until it is
//! full.

use crate::abi::*;
use crate::ffi::{EOPNOTSUPP, guard, is_nested};
use crate::qp::QpOwn;
use std::ffi::c_int;
use weir_device::{Errno, refused_post};
use weir_transport::{PostError, Service};

/// A send that is not posted because of `error`. EOPNOTSUPP for IBV_WR_TSO, else the errno of the error.
///
/// # Safety
/// `request` is as in verbs.h.
#[cold]
pub unsafe fn send(qp: &QpOwn, request: &ibv_send_wr, error: PostError) -> Errno {
    let ibv_send_wr { opcode, num_sge, .. } = *request;
    if matches!(error, PostError::QueueFull | PostError::Failed) {
        return error.into();
    }
    log(qp, "ibv_post_send", || match error {
        PostError::TooManySges => sges(request.sg_list.is_null(), num_sge, qp.max_send_sge, "max_send_sge"),
        PostError::State => {
            let state = qp.device.query().qp_state;
            format!("the QP is in state {state:?}, and sends need IBV_QPS_RTS (ibv_modify_qp)")
        }
        // SAFETY: guaranteed by the caller; the list was found right before this error.
        PostError::Inline => unsafe {
            let length = length(request);
            let max = qp.max_inline;
            format!(
                "opcode {opcode} with {length} bytes and IBV_SEND_INLINE: max_inline_data is {max}, and only SENDs and \
                 WRITEs have inline data"
            )
        },
        // SAFETY: as above.
        PostError::Length => unsafe {
            let length = length(request);
            format!("opcode {opcode} with {length} bytes: atomics must have 8, other requests 2^31 at most")
        },
        _ => operation(qp, opcode),
    });
    if opcode == IBV_WR_TSO && error == PostError::Operation { EOPNOTSUPP } else { error.into() }
}

/// A receive that is not posted because of `error`.
#[cold]
pub fn receive(qp: &QpOwn, request: &ibv_recv_wr, error: PostError) -> Errno {
    let has_queue = qp.device.caps().max_recv_wr > 0;
    if error == PostError::Failed || error == PostError::QueueFull && has_queue {
        return error.into();
    }
    log(qp, "ibv_post_recv", || match error {
        PostError::TooManySges => sges(request.sg_list.is_null(), request.num_sge, qp.max_recv_sge, "max_recv_sge"),
        PostError::State => "the QP is in state Reset, and receives need IBV_QPS_INIT (ibv_modify_qp)".into(),
        // Such a queue is always full.
        _ => "it has no receive queue: ibv_post_srq_recv of its SRQ, or a max_recv_wr of 1 at least at creation".into(),
    });
    error.into()
}

/// Why a QP does not have an operation.
fn operation(qp: &QpOwn, opcode: c_int) -> String {
    let all = match (qp.service, opcode) {
        (_, IBV_WR_BIND_MW) => return "IBV_WR_BIND_MW needs an RC QP, a window of type 2 and a region".into(),
        (Service::Ud, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) => return "wr.ud.ah is NULL".into(),
        (Service::Ud, _) => "IBV_WR_SEND and IBV_WR_SEND_WITH_IMM",
        (Service::Raw, _) => "IBV_WR_SEND",
        (Service::Uc, _) => "SENDs and RDMA WRITEs",
        _ => "SENDs, RDMA WRITEs and READs, atomics and local operations, and not those of the receiving side of XRC",
    };
    format!("opcode {opcode} is not possible on a QP of type {:?}, which has {all}", qp.service)
}

fn log(qp: &QpOwn, call: &str, why: impl FnOnce() -> String) {
    // Not in a signal handler that interrupted the log's writer.
    guard((), || {
        if !is_nested() {
            refused_post(|| format!("{}: {call}: {}", qp.device.name(), why()));
        }
    });
}

fn sges(missing: bool, count: c_int, max: u32, name: &str) -> String {
    let list = if missing { ", sg_list is NULL" } else { "" };
    format!("num_sge is {count}{list}, and {name} of the QP is {max}")
}

/// # Safety
/// The SGEs are as in verbs.h.
unsafe fn length(request: &ibv_send_wr) -> u64 {
    if request.num_sge == 0 {
        return 0;
    }
    // SAFETY: guaranteed by the caller.
    let sges = unsafe { std::slice::from_raw_parts(request.sg_list, request.num_sge as usize) };
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}
