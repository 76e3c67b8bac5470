//! Tag matching of a TM SRQ: the operations that the program posts, and their completions.

use crate::Errno;
use crate::os::locks::{RankedGuard, RankedMutex, rank};
use crate::shared::cq::{CqShared, FollowUp, RetiredWqes};
use crate::shared::tags::{TagBuffer, TagList};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_transport::{Completion, Network, PostError, Queue, Sge, Status, TaggedReceive, WcFlags, WcOpcode};

/// An operation on the list of tags.
#[derive(Clone, Copy, Debug)]
pub struct TagOp<'a> {
    pub wr_id: u64,
    /// It completes to the CQ of the SRQ.
    pub signaled: bool,
    /// The unexpected messages that the program has compared with all tags so far, if it reports them.
    pub unexpected: Option<u32>,
    pub kind: TagOpKind<'a>,
}

/// What an operation does.
#[derive(Clone, Copy, Debug)]
pub enum TagOpKind<'a> {
    Add(TagBuffer<'a>),
    /// The handle of an `Add`.
    Delete(u32),
    /// Nothing else.
    Sync,
}

/// The tags of an SRQ.
pub(crate) struct Tagging {
    state: RankedMutex<State, { rank::TAGS }>,
    /// The CQ of the SRQ.
    pub cq: Arc<CqShared>,
    /// The number of operations that were signaled and are polled.
    polled: Arc<RetiredWqes>,
    max_ops: u32,
}

struct State {
    list: TagList,
    /// Signaled operations so far, wrapping.
    posted: u32,
}

impl Tagging {
    /// For `max_tags` tags of `max_sge` SGEs each, and `max_ops` signaled operations before their completions are
    /// polled. ENOMEM without memory.
    pub fn new(max_tags: u16, max_sge: u32, max_ops: u32, cq: Arc<CqShared>) -> Result<Tagging, Errno> {
        let state = State { list: TagList::new(max_tags, max_sge)?, posted: 0 };
        Ok(Tagging { state: RankedMutex::new(state), cq, polled: Arc::default(), max_ops })
    }

    /// Does an operation, unless the adapter has failed, which `works` checks under the lock. Returns the handle of a new
    /// tag, otherwise 0; and what the completion causes in the CQ of the SRQ.
    pub fn post(&self, op: &TagOp<'_>, works: impl FnOnce() -> bool) -> Result<(u32, FollowUp), PostError> {
        let mut state = self.state();
        if !works() {
            return Err(PostError::Failed);
        }
        if state.posted.wrapping_sub(self.polled.send.load(Ordering::Acquire)) >= self.max_ops {
            return Err(PostError::QueueFull);
        }
        let (opcode, handle, done) = match &op.kind {
            TagOpKind::Add(buffer) => (WcOpcode::TagAdd, state.list.add(buffer)?, true),
            TagOpKind::Delete(handle) => (WcOpcode::TagDel, 0, state.list.remove(*handle)?),
            TagOpKind::Sync => (WcOpcode::TagSync, 0, true),
        };
        if let Some(count) = op.unexpected {
            state.list.report(count);
        }
        let mut follow_up = FollowUp::Nothing;
        if op.signaled {
            state.posted = state.posted.wrapping_add(1);
            let status = if done { Status::Success } else { Status::TagError };
            let mut flags = WcFlags::empty();
            flags.set(WcFlags::TM_SYNC_REQ, !state.list.is_in_sync());
            let completion = completion(op.wr_id, status, opcode, flags, state.posted);
            // Under the lock: a message that matches the new tag completes after this.
            follow_up = self.cq.enter(Queue::Send, completion, &self.polled, !done);
        }
        Ok((handle, follow_up))
    }

    /// The receive for a message: the oldest tag that it matches, otherwise the receive that `take` takes. `None`: it
    /// takes none.
    pub fn take(
        &self,
        tag: Option<u64>,
        sges: &mut [Sge],
        take: impl FnOnce(&mut [Sge]) -> Option<(u64, usize)>,
    ) -> Option<TaggedReceive> {
        let mut state = self.state();
        if let Some((wr_id, num_sge)) = tag.and_then(|tag| state.list.take(tag, sges)) {
            return Some(TaggedReceive { wr_id, num_sge, matched: true, sync_requested: false });
        }
        // Under the lock: a tag that is added from now on is added after this message.
        let (wr_id, num_sge) = take(sges)?;
        let sync_requested = tag.is_some() && state.list.count_unexpected();
        Some(TaggedReceive { wr_id, num_sge, matched: false, sync_requested })
    }

    /// A message that took an ordinary receive with its tag has failed.
    pub fn uncount_unexpected(&self) {
        self.state().list.uncount_unexpected();
    }

    fn state(&self) -> RankedGuard<'_, State, { rank::TAGS }> {
        self.state.lock()
    }
}

/// The completion of the operation number `retired`.
fn completion(wr_id: u64, status: Status, opcode: WcOpcode, flags: WcFlags, retired: u32) -> Completion {
    Completion {
        wr_id,
        status,
        opcode,
        byte_len: 0,
        imm: 0,
        flags,
        vendor_err: 0,
        qp_num: 0,
        src_qp: 0,
        network: Network::None,
        tag: 0,
        app_ctx: 0,
        retired,
    }
}
