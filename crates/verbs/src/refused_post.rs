//! Work requests that are not posted: their errno, and a line of the log. A full queue has no line: programs post until it is
//! full.

use crate::abi::*;
use crate::batch::Refusal;
use crate::ffi::{EOPNOTSUPP, guard, is_nested};
use crate::qp::QpOwn;
use std::ffi::c_int;
use weir_device::{Errno, Qp, Srq, refused_post};
use weir_transport::{PostError, Service};

/// A send that is not posted because of `error`. EOPNOTSUPP for IBV_WR_TSO, else the errno of the error.
///
/// # Safety
/// `request` is as in verbs.h.
#[cold]
pub unsafe fn send(qp: &QpOwn, request: &ibv_send_wr, error: PostError) -> Errno {
    let ibv_send_wr { opcode, num_sge, .. } = *request;
    if is_usual(error) {
        return error.into();
    }
    log_of(qp, "ibv_post_send", || match error {
        PostError::TooManySges => sges(request.sg_list, num_sge, qp.max_send_sge, "max_send_sge of the QP"),
        PostError::State => state(qp),
        // SAFETY: guaranteed by the caller; the list was found right before this error.
        PostError::Inline => unsafe {
            let length = length(request);
            format!("opcode {opcode} with {length} bytes and IBV_SEND_INLINE: {}", inline(qp))
        },
        // SAFETY: as above.
        PostError::Length => unsafe {
            let length = length(request);
            format!("opcode {opcode} with {length} bytes: {LENGTHS}")
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
    log_of(qp, "ibv_post_recv", || match error {
        PostError::TooManySges => sges(request.sg_list, request.num_sge, qp.max_recv_sge, "max_recv_sge of the QP"),
        PostError::State => "the QP is in state Reset, and receives need IBV_QPS_INIT (ibv_modify_qp)".into(),
        // Such a queue is always full.
        _ => "it has no receive queue: ibv_post_srq_recv of its SRQ, or a max_recv_wr of 1 at least at creation".into(),
    });
    error.into()
}

/// A receive of an SRQ that is not posted because of `error`.
#[cold]
pub fn shared_receive(srq: &Srq, max_sge: u32, request: &ibv_recv_wr, error: PostError) -> Errno {
    if error == PostError::TooManySges {
        let why = || sges(request.sg_list, request.num_sge, max_sge, "max_sge of the SRQ");
        log(|| srq.name(), "ibv_post_srq_recv", why);
    }
    error.into()
}

/// A receive of a work queue that is not posted because of `error`. The log names its QP, which has the number of the WQ.
#[cold]
pub fn queue_receive(qp: &Qp, max_sge: u32, request: &ibv_recv_wr, error: PostError) -> Errno {
    if !is_usual(error) {
        log(
            || qp.name(),
            "ibv_post_wq_recv",
            || match error {
                PostError::TooManySges => sges(request.sg_list, request.num_sge, max_sge, "max_sge of the WQ"),
                _ => "the WQ is in state IBV_WQS_RESET, and receives need IBV_WQS_RDY (ibv_modify_wq)".into(),
            },
        );
    }
    error.into()
}

/// An operation on the list of tags that is not done because of `error`.
#[cold]
pub fn tag_operation(srq: &Srq, max_sge: u32, op: &ibv_ops_wr, error: PostError) -> Errno {
    let opcode = op.opcode;
    let why = || match (error, opcode) {
        _ if !srq.has_tags() => "only SRQs of type IBV_SRQT_TM have tags".into(),
        // Only an addition has SGEs.
        (PostError::TooManySges, _) => {
            let ibv_ops_tm_add { sg_list, num_sge, .. } = op.tm.add;
            sges(sg_list, num_sge, max_sge, "max_sge of tags")
        }
        (_, IBV_WR_TAG_DEL) => format!("IBV_WR_TAG_DEL: no tag can have the handle {}", op.tm.handle),
        _ => format!("opcode {opcode} is none of IBV_WR_TAG_ADD, IBV_WR_TAG_DEL and IBV_WR_TAG_SYNC"),
    };
    if !is_usual(error) {
        log(|| srq.name(), "ibv_post_srq_ops", why);
    }
    error.into()
}

/// An `ibv_bind_mw` that is not posted because of `error`.
#[cold]
pub fn bind(qp: &QpOwn, error: PostError) -> Errno {
    if !is_usual(error) && !is_nested() {
        refused_post(|| {
            let why = match error {
                PostError::State => state(qp),
                _ => operation(qp, IBV_WR_BIND_MW),
            };
            format!("{}: ibv_bind_mw: {why}", qp.device.name())
        });
    }
    error.into()
}

/// A batch that is not posted because of `refusal`.
#[cold]
pub fn batch(qp: &QpOwn, refusal: Refusal) -> Errno {
    if !matches!(refusal, Refusal::Post(PostError::QueueFull | PostError::Failed)) {
        log_of(qp, "ibv_wr_complete", || match refusal {
            Refusal::Requests => format!("more work requests than max_send_wr, {}", qp.max_send_wr),
            Refusal::NoRequest => "ibv_wr_set_* came before the first work request".into(),
            Refusal::Sges(count) => format!("{count} SGEs, and max_send_sge of the QP is {}", qp.max_send_sge),
            Refusal::Inline(length) => format!("{length} bytes of inline data: {}", inline(qp)),
            Refusal::Window => operation(qp, IBV_WR_BIND_MW),
            Refusal::Flush => {
                "ibv_wr_flush: placement or selectivity is unknown, or the range is 4 GiB or longer".into()
            }
            Refusal::NoAddress => "ibv_wr_set_ud_addr: the address handle is NULL".into(),
            Refusal::Post(PostError::State) => state(qp),
            Refusal::Post(PostError::Length) => format!("the length of a request: {LENGTHS}"),
            Refusal::Post(PostError::Inline) => format!("inline data: {}", inline(qp)),
            Refusal::Post(_) if qp.service == Service::Ud => "a request without ibv_wr_set_ud_addr".into(),
            Refusal::Post(_) if qp.service == Service::Xrc => "a request without ibv_wr_set_xrc_srqn".into(),
            Refusal::Post(_) => format!("a request is not possible on a QP of type {:?}", qp.service),
        });
    }
    refusal.into()
}

/// An error without a line: programs post until a queue is full, and that the adapter has failed is in the log.
fn is_usual(error: PostError) -> bool {
    matches!(error, PostError::QueueFull | PostError::Failed)
}

/// Lengths of requests.
const LENGTHS: &str = "atomics must have 8 bytes, a FLUSH none, other requests 2^31 bytes at most";

fn state(qp: &QpOwn) -> String {
    format!("the QP is in state {:?}, and sends need IBV_QPS_RTS (ibv_modify_qp)", qp.device.query().qp_state)
}

fn inline(qp: &QpOwn) -> String {
    format!("max_inline_data is {}, and only SENDs and WRITEs have inline data", qp.max_inline)
}

/// Why a QP does not have an operation.
fn operation(qp: &QpOwn, opcode: c_int) -> String {
    let all = match (qp.service, opcode) {
        (_, IBV_WR_BIND_MW) => {
            return "a bind needs an RC, UC or XRC_SEND QP, a region, and in a work request a window of type 2".into();
        }
        (Service::Ud, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) => return "wr.ud.ah is NULL".into(),
        (Service::Ud, _) => "IBV_WR_SEND and IBV_WR_SEND_WITH_IMM",
        (Service::Raw, _) => "IBV_WR_SEND",
        (Service::Uc, _) => "SENDs and RDMA WRITEs",
        _ => "SENDs, RDMA WRITEs and READs, atomics and local operations, and not those of the receiving side of XRC",
    };
    format!("opcode {opcode} is not possible on a QP of type {:?}, which has {all}", qp.service)
}

fn log_of(qp: &QpOwn, call: &str, why: impl FnOnce() -> String) {
    log(|| qp.device.name(), call, why);
}

fn log(name: impl FnOnce() -> String, call: &str, why: impl FnOnce() -> String) {
    // Not in a signal handler that interrupted the log's writer.
    guard((), || {
        if !is_nested() {
            refused_post(|| format!("{}: {call}: {}", name(), why()));
        }
    });
}

fn sges(list: *const ibv_sge, count: c_int, max: u32, name: &str) -> String {
    let list = if list.is_null() { ", sg_list is NULL" } else { "" };
    format!("num_sge is {count}{list}, and {name} is {max}")
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
