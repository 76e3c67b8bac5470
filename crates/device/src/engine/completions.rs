//! The completions of a turn, which enter their CQs when the turn has sent its packets.
//!
//! A program may end as soon as it sees a completion. The peer's send must have succeeded then, so the ACK leaves
//! first: a thread that polls meanwhile, or sleeps until an event, sees the completion only after the ACK has left.

use crate::shared::drop_log::DropNote;
use crate::shared::qp::QpShared;
use std::sync::Arc;
use weir_transport::{Completion, Queue};

/// Pending completions, in order.
pub struct PendingCompletions {
    items: Vec<Item>,
    /// The QPs of the items: each QP with the number of its consecutive items.
    runs: Vec<(Arc<QpShared>, usize)>,
    /// Messages that QPs have dropped in the turn, one of each kind.
    pub drops: Vec<DropNote>,
}

struct Item {
    queue: Queue,
    completion: Completion,
    solicited: bool,
}

/// The lists do not grow: when they are full, completions enter their CQs before the end of the turn.
const ITEMS: usize = 512;
const RUNS: usize = 64;

impl PendingCompletions {
    /// No completions. The lists never grow.
    pub fn new() -> PendingCompletions {
        PendingCompletions {
            items: Vec::with_capacity(ITEMS),
            runs: Vec::with_capacity(RUNS),
            drops: Vec::with_capacity(DropNote::KINDS),
        }
    }

    /// A QP has completed a work request.
    #[inline]
    pub fn add(&mut self, shared: &Arc<QpShared>, queue: Queue, completion: Completion, solicited: bool) {
        if queue == Queue::Receive && shared.recv_cq_varies() {
            // Its CQ is that of the SRQ named last, which may change before the turn ends. An XRC target's ACKs are
            // never delayed.
            self.publish();
            shared.complete(queue, completion, solicited);
            return;
        }
        if self.items.len() == ITEMS || self.runs.len() == RUNS {
            self.publish();
        }
        self.items.push(Item { queue, completion, solicited });
        match self.runs.last_mut() {
            Some((last, count)) if Arc::ptr_eq(last, shared) => *count += 1,
            _ => self.runs.push((shared.clone(), 1)),
        }
    }

    /// A QP has dropped a message.
    #[cold]
    pub fn dropped(&mut self, note: DropNote) {
        if !self.drops.iter().any(|drop| drop.kind() == note.kind()) {
            self.drops.push(note);
        }
    }

    /// Moves all pending completions to their CQs.
    #[inline]
    pub fn publish(&mut self) {
        if !self.items.is_empty() {
            self.publish_some();
        }
    }

    fn publish_some(&mut self) {
        let mut items = self.items.drain(..);
        for (shared, count) in self.runs.drain(..) {
            for Item { queue, completion, solicited } in items.by_ref().take(count) {
                shared.complete(queue, completion, solicited);
            }
        }
    }
}
