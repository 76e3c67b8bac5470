//! The receive queue: a ring of receive work requests. A message takes the oldest with its first packet and retires
//! it with its last. A QP with a shared receive queue has one slot, for the work request that a message has taken.

mod tagged;
mod tags;

use crate::config::Config;
use crate::ring::filled;
use crate::{Completion, Host, Network, PostError, Queue, RecvWr, Sge, Status, WcFlags, WcOpcode};
use std::collections::TryReserveError;
use tags::Tags;
pub(crate) use tags::{Rendezvous, Report};

#[derive(Clone, Copy, Default)]
struct RecvSlot {
    wr_id: u64,
    length: u64,
    num_sge: u32,
}

/// The contents of a received message's completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub opcode: WcOpcode,
    /// Bytes of the message; of a datagram, with its GRH.
    pub byte_len: u32,
    /// Immediate data in network byte order, as verbs give it.
    pub imm: Option<u32>,
    /// The rkey that the message invalidated.
    pub invalidated_rkey: Option<u32>,
    pub solicited: bool,
    /// The sending QP, if it is not the connected peer: then a GRH precedes the data.
    pub from: Option<(u32, Network)>,
}

/// A ring of `max_recv_wr` slots, rounded up to a power of two.
pub(crate) struct RecvQueue {
    slots: Box<[RecvSlot]>,
    sges: Box<[Sge]>,
    max_sges: usize,
    limit: u32,
    /// Work requests come from a shared receive queue.
    shared: bool,
    /// The shared receive queue matches tags.
    tags: Option<Box<Tags>>,
    /// Number of retired work requests, wrapping: the index of the oldest that is not retired.
    head: u32,
    /// Number of posted work requests, wrapping.
    tail: u32,
}

impl RecvQueue {
    /// Error: the memory for its rings cannot be allocated.
    pub fn new(max_wr: u32, max_sges: u32) -> Result<Self, TryReserveError> {
        let slots = max_wr.next_power_of_two() as usize;
        Ok(RecvQueue {
            slots: filled(RecvSlot::default(), slots)?,
            sges: filled(Sge::default(), slots * max_sges as usize)?,
            max_sges: max_sges as usize,
            limit: max_wr,
            shared: false,
            tags: None,
            head: 0,
            tail: 0,
        })
    }

    /// A queue of one slot, for a work request from a shared receive queue.
    pub fn shared(max_sges: u32) -> Result<Self, TryReserveError> {
        Ok(RecvQueue { shared: true, ..RecvQueue::new(1, max_sges)? })
    }

    /// Whether receives come from a shared receive queue.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Whether a message that begins has a work request; takes one from the shared receive queue if necessary.
    #[inline]
    pub fn ready<H: Host>(&mut self, host: &mut H) -> bool {
        !self.is_empty() || (self.shared && self.refill(host))
    }

    #[cold]
    #[inline(never)]
    fn refill<H: Host>(&mut self, host: &mut H) -> bool {
        let Some((wr_id, num_sge)) = host.take_receive(&mut self.sges[..self.max_sges]) else { return false };
        self.hold(wr_id, num_sge);
        self.forget_message();
        true
    }

    /// A work request was taken from the shared receive queue; its SGEs are in the slot.
    fn hold(&mut self, wr_id: u64, num_sge: usize) {
        let length = self.sges[..num_sge].iter().map(|sge| u64::from(sge.length)).sum();
        self.slots[0] = RecvSlot { wr_id, length, num_sge: num_sge as u32 };
        self.tail = self.tail.wrapping_add(1);
    }

    /// Discards all work requests. A queue of a TM SRQ holds none: see `Qp::end_tags`.
    pub fn reset(&mut self) {
        (self.head, self.tail) = (0, 0);
    }

    /// Whether the queue itself holds no work request.
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Capacity in bytes of the oldest work request.
    pub fn room(&self) -> u64 {
        self.slots[self.slot_index(self.head)].length
    }

    /// The SGEs of the oldest work request.
    pub fn sges(&self) -> &[Sge] {
        let index = self.slot_index(self.head);
        &self.sges[index * self.max_sges..][..self.slots[index].num_sge as usize]
    }

    /// Posts a work request; the caller checks the QP's state.
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.shared {
            return Err(PostError::Operation);
        }
        if self.tail.wrapping_sub(self.head) >= self.limit {
            return Err(PostError::QueueFull);
        }
        if wr.sges.len() > self.max_sges {
            return Err(PostError::TooManySges);
        }
        let index = self.slot_index(self.tail);
        let length = wr.sges.iter().map(|sge| u64::from(sge.length)).sum();
        self.slots[index] = RecvSlot { wr_id: wr.wr_id, length, num_sge: wr.sges.len() as u32 };
        self.sges[index * self.max_sges..][..wr.sges.len()].copy_from_slice(wr.sges);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Retires the oldest work request: its message is complete.
    pub fn complete<H: Host>(&mut self, host: &mut H, config: &Config, received: Received) {
        let completion = self.completion(config, &received);
        self.head = self.head.wrapping_add(1);
        host.complete(Queue::Receive, completion, received.solicited);
    }

    #[inline(always)]
    fn completion(&self, config: &Config, received: &Received) -> Completion {
        let mut flags = WcFlags::empty();
        flags.set(WcFlags::WITH_IMM, received.imm.is_some());
        flags.set(WcFlags::WITH_INV, received.invalidated_rkey.is_some());
        flags.set(WcFlags::GRH, received.from.is_some());
        Completion {
            opcode: received.opcode,
            byte_len: received.byte_len,
            imm: received.imm.or(received.invalidated_rkey).unwrap_or(0),
            flags,
            src_qp: received.from.map_or(config.attr.dest_qp_num, |(src_qp, _)| src_qp),
            network: received.from.map_or(Network::None, |(_, network)| network),
            ..self.blank(config, Status::Success, 0)
        }
    }

    /// Retires the oldest work request with an error.
    pub fn fail<H: Host>(&mut self, host: &mut H, config: &Config, status: Status, vendor_err: u32) {
        self.uncount(host);
        let completion = self.blank(config, status, vendor_err);
        self.head = self.head.wrapping_add(1);
        host.complete(Queue::Receive, completion, true);
    }

    fn blank(&self, config: &Config, status: Status, vendor_err: u32) -> Completion {
        debug_assert!(!self.is_empty());
        Completion {
            wr_id: self.slots[self.slot_index(self.head)].wr_id,
            status,
            opcode: if self.is_tagged() { WcOpcode::TagRecv } else { WcOpcode::Recv },
            byte_len: 0,
            imm: 0,
            flags: WcFlags::empty(),
            vendor_err,
            qp_num: config.init.qp_num,
            src_qp: config.attr.dest_qp_num,
            network: Network::None,
            tag: 0,
            app_ctx: 0,
            retired: self.head.wrapping_add(1),
        }
    }

    fn slot_index(&self, index: u32) -> usize {
        index as usize & (self.slots.len() - 1)
    }
}
