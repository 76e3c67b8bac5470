//! Completions of a turn, which enter their CQs when the turn has sent what it has to send.
//!
//! A program may end as soon as it sees a completion. The peer's send must have succeeded then, so the ACK leaves
//! first: a thread that polls meanwhile, or sleeps until an event comes, sees the completion when the ACK is out.

use crate::qp::Shared;
use std::sync::Arc;
use weir_transport::{Completion, Queue};

/// Completions that wait, in order.
pub struct Done {
    items: Vec<Item>,
    /// Whose they are: QPs, and how many items of each come next.
    runs: Vec<(Arc<Shared>, usize)>,
}

struct Item {
    queue: Queue,
    completion: Completion,
    solicited: bool,
}

/// What is beyond enters its CQ before the end of the turn, for the list does not grow.
const ITEMS: usize = 512;
const RUNS: usize = 64;

impl Done {
    pub fn new() -> Done {
        Done { items: Vec::with_capacity(ITEMS), runs: Vec::with_capacity(RUNS) }
    }

    /// A QP has completed a work request.
    #[inline]
    pub fn add(&mut self, shared: &Arc<Shared>, queue: Queue, completion: Completion, solicited: bool) {
        if queue == Queue::Receive && shared.receives_vary() {
            // Where it belongs may be another CQ at the end of the turn. An XRC target's ACKs do not wait either way.
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

    /// All that wait enter their CQs.
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
