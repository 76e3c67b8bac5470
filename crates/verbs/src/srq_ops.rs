//! Operations on the list of tags of a TM SRQ.

use crate::abi::*;
use crate::ffi::{EIO, guard_hot};
use crate::post::sge_list;
use crate::refused_post;
use crate::srq::{self, SrqOwn};
use std::ffi::c_int;
use weir_device::{TagBuffer, TagOp, TagOpKind};
use weir_transport::PostError;

/// `ibv_post_srq_ops`: 0, or an errno value with the first operation that was not done in `bad_wr`. EINVAL for an SRQ
/// that is no TM SRQ, for an unknown operation, for too many SGEs and for a handle that the list cannot have; ENOMEM if
/// the list is full, or if too many completions of operations are not polled.
///
/// # Safety
/// `srq` is alive, `wr` is a list as in verbs.h, `bad_wr` is writable.
pub unsafe extern "C" fn post_srq_ops(srq: *mut ibv_srq, wr: *mut ibv_ops_wr, bad_wr: *mut *mut ibv_ops_wr) -> c_int {
    let mut next = wr;
    let outcome = guard_hot(EIO.0, || {
        // SAFETY: guaranteed by the caller.
        let own = match unsafe { srq::own_checked(srq) } {
            Ok(own) => own,
            Err(errno) => return errno.0,
        };
        // SAFETY: the caller's list; each `next` is NULL or points to the next operation.
        while let Some(op) = unsafe { next.as_mut() } {
            // SAFETY: the caller's operation.
            if let Err(error) = unsafe { post(own, op) } {
                return refused_post::tag_operation(&own.device, own.max_tag_sge, op, error).0;
            }
            next = op.next;
        }
        0
    });
    if outcome != 0 && !bad_wr.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { *bad_wr = next };
    }
    outcome
}

/// Does one operation. The handle of a new tag is written to it.
///
/// # Safety
/// The SGE list of an addition is as in verbs.h.
unsafe fn post(own: &SrqOwn, op: &mut ibv_ops_wr) -> Result<(), PostError> {
    let kind = match op.opcode {
        IBV_WR_TAG_ADD => {
            let ibv_ops_tm_add { recv_wr_id: wr_id, sg_list, num_sge, tag, mask } = op.tm.add;
            // SAFETY: guaranteed by the caller.
            let sges = unsafe { sge_list(sg_list, num_sge, own.max_tag_sge)? };
            TagOpKind::Add(TagBuffer { wr_id, tag, mask, sges })
        }
        IBV_WR_TAG_DEL => TagOpKind::Delete(op.tm.handle),
        IBV_WR_TAG_SYNC => TagOpKind::Sync,
        _ => return Err(PostError::Operation),
    };
    let unexpected = (op.flags & IBV_OPS_TM_SYNC != 0).then_some(op.tm.unexpected_cnt);
    let signaled = op.flags & IBV_OPS_SIGNALED != 0;
    let adds = op.opcode == IBV_WR_TAG_ADD;
    let handle = own.device.post_op(&TagOp { wr_id: op.wr_id, signaled, unexpected, kind })?;
    if adds {
        op.tm.handle = handle;
    }
    Ok(())
}
