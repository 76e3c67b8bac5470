//! Posting to a queue pair.

use crate::rdma::adapter::Adapter;
use crate::rdma::completion_queue::CompletionQueue;
use crate::rdma::errno::{Errno, check};
use crate::rdma::tables;
use std::sync::Arc;
use weir_abi::*;

/// The CQs of a new QP and how much it must have room for.
#[derive(Clone)]
pub struct Queues {
    pub send_cq: Arc<CompletionQueue>,
    pub recv_cq: Arc<CompletionQueue>,
    pub caps: ibv_qp_cap,
}

/// An RC QP. It exists as long as the connection that it belongs to.
pub struct QueuePair {
    pub(crate) raw: *mut ibv_qp,
    number: u32,
    /// CQs are those of the QP, caps what the device has granted.
    queues: Queues,
}

// SAFETY: verbs may be called by several threads.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl Queues {
    /// What creates the QP. EINVAL: a CQ belongs to another adapter.
    pub(crate) fn init(&self, adapter: &Adapter) -> Result<ibv_qp_init_attr, Errno> {
        if [&self.send_cq, &self.recv_cq].iter().any(|cq| cq.adapter.context != adapter.context) {
            return Err(Errno(libc::EINVAL));
        }
        Ok(ibv_qp_init_attr {
            qp_context: std::ptr::null_mut(),
            send_cq: self.send_cq.raw,
            recv_cq: self.recv_cq.raw,
            srq: std::ptr::null_mut(),
            cap: self.caps,
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        })
    }
}

impl QueuePair {
    /// # Safety
    /// A QP that was created with these CQs, and exists as long as this.
    pub(crate) unsafe fn new(raw: *mut ibv_qp, queues: &Queues, granted: ibv_qp_cap) -> QueuePair {
        // SAFETY: the caller's QP.
        let number = unsafe { (*raw).qp_num };
        QueuePair { raw, number, queues: Queues { caps: granted, ..queues.clone() } }
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    /// What the device has granted, at least what was asked for.
    pub fn caps(&self) -> &ibv_qp_cap {
        &self.queues.caps
    }

    pub fn send_cq(&self) -> &Arc<CompletionQueue> {
        &self.queues.send_cq
    }

    pub fn recv_cq(&self) -> &Arc<CompletionQueue> {
        &self.queues.recv_cq
    }

    /// Posts a list of send requests. ENOMEM: the send queue is full; requests before the first that failed are posted.
    ///
    /// # Safety
    /// The list and its SGEs are valid. The memory of the SGEs is valid until the requests have completed, except that
    /// of inline requests.
    #[inline]
    pub unsafe fn post_send(&self, request: &mut ibv_send_wr) -> Result<(), Errno> {
        // SAFETY: the QP exists; the caller's list.
        unsafe { tables::post_send(self.raw, request) }
    }

    /// Posts a list of receive requests. ENOMEM: the receive queue is full; requests before the first that failed are
    /// posted.
    ///
    /// # Safety
    /// The list and its SGEs are valid. The memory of the SGEs is valid until the requests have completed.
    #[inline]
    pub unsafe fn post_recv(&self, request: &mut ibv_recv_wr) -> Result<(), Errno> {
        // SAFETY: the QP exists; the caller's list.
        unsafe { tables::post_recv(self.raw, request) }
    }

    /// Sets the QP to the error state: all its requests complete with an error.
    pub fn fail(&self) -> Result<(), Errno> {
        self.modify(ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() }, IBV_QP_STATE)
    }

    pub(crate) fn modify(&self, mut attributes: ibv_qp_attr, mask: std::ffi::c_int) -> Result<(), Errno> {
        let libraries = self.queues.send_cq.adapter.libraries;
        // SAFETY: the QP exists.
        check(unsafe { (libraries.ibv_modify_qp)(self.raw, &mut attributes, mask) })
    }
}
