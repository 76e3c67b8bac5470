//! The send queue: a ring of work requests, each from its posting until it is retired.

mod owner;
mod rendezvous;

use crate::config::Config;
use crate::ring::filled;
use crate::{
    Completion, Data, Host, Network, PostError, Queue, SendFlags, SendOp, SendWr, Sge, Status, Target, WcFlags,
    WcOpcode,
};
use owner::{OwnRequests, Owner};
use std::collections::TryReserveError;
use weir_wire::Service;

/// Longest message, bytes: 2^31 (IBTA C9-94).
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

/// How a work request uses PSNs, and what completes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Carries data to the peer: one PSN per packet sent, complete when acknowledged.
    Data,
    /// One PSN per response packet, complete when all data has arrived.
    Read,
    /// One PSN, complete when the original value has arrived.
    Atomic,
    /// One PSN, complete when the peer's response has arrived, which has no payload: ATOMIC WRITE and FLUSH.
    Answered,
    /// Sends nothing: complete when it was executed and everything before it is complete.
    Local,
}

/// A work request in the ring; its SGEs and inline data are in separate arrays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendSlot {
    pub wr_id: u64,
    pub op: SendOp,
    pub flags: SendFlags,
    pub kind: Kind,
    /// Bytes of the message.
    pub length: u32,
    pub to: Target,
    /// Number of PSNs that it uses.
    pub packets: u32,
    num_sge: u32,
    inline: bool,
    owner: Owner,
}

/// A ring of `max_send_wr` slots, rounded up to a power of two.
pub(crate) struct SendQueue {
    slots: Box<[SendSlot]>,
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    max_sges: usize,
    max_inline: usize,
    /// The most work requests of the program.
    limit: u32,
    own: OwnRequests,
    /// Number of retired work requests, wrapping: the index of the oldest that is not retired.
    head: u32,
    /// Number of posted work requests, wrapping.
    tail: u32,
}

/// The location of a work request's data.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    Gather(&'a [Sge]),
    Inline(&'a [u8]),
}

impl SendQueue {
    /// Error: the memory for its rings cannot be allocated.
    pub fn new(max_wr: u32, max_sges: u32, max_inline: u32) -> Result<Self, TryReserveError> {
        // A power of two, so that an index maps to the same slot when the counters wrap.
        let slots = max_wr.next_power_of_two() as usize;
        let empty = SendSlot {
            wr_id: 0,
            op: SendOp::Send,
            flags: SendFlags::empty(),
            kind: Kind::Data,
            length: 0,
            to: Target::Peer,
            packets: 1,
            num_sge: 0,
            inline: false,
            owner: Owner::Program,
        };
        Ok(SendQueue {
            slots: filled(empty, slots)?,
            sges: filled(Sge::default(), slots * max_sges as usize)?,
            inline: filled(0, slots * max_inline as usize)?,
            max_sges: max_sges as usize,
            max_inline: max_inline as usize,
            limit: max_wr,
            own: OwnRequests::default(),
            head: 0,
            tail: 0,
        })
    }

    /// Discards all work requests.
    pub fn reset(&mut self) {
        (self.head, self.tail) = (0, 0);
        (self.own.queued, self.own.retired) = (0, 0);
    }

    /// Number of the next work request to post.
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Whether every work request is retired.
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Discards the newest work requests, none of which has begun.
    pub fn take_back(&mut self, count: u32) {
        debug_assert!(count <= self.tail.wrapping_sub(self.head));
        self.tail = self.tail.wrapping_sub(count);
    }

    /// The work request with this number, which must be in the queue.
    #[inline]
    pub fn slot(&self, index: u32) -> &SendSlot {
        &self.slots[self.slot_index(index)]
    }

    /// The data of a work request.
    #[inline(always)]
    pub fn source(&self, index: u32) -> Source<'_> {
        let index = self.slot_index(index);
        let slot = &self.slots[index];
        if slot.inline {
            Source::Inline(&self.inline[index * self.max_inline..][..slot.length as usize])
        } else {
            Source::Gather(&self.sges[index * self.max_sges..][..slot.num_sge as usize])
        }
    }

    /// Posts a work request; the caller checks the QP's state.
    pub fn post(&mut self, wr: &SendWr<'_>, to: Target, config: &Config) -> Result<(), PostError> {
        if !supports(config.init.service, &wr.op, to) {
            return Err(PostError::Operation);
        }
        if self.tail.wrapping_sub(self.head) - self.own.queued >= self.limit {
            return Err(PostError::QueueFull);
        }
        let (kind, caps) = (kind(&wr.op), &config.init.caps);
        let index = self.slot_index(self.tail);
        let (length, num_sge, inline) = match wr.data {
            Data::Gather(sges) => {
                if sges.len() > caps.max_send_sge as usize {
                    return Err(PostError::TooManySges);
                }
                let length: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
                if length > MAX_MESSAGE || fixed_length(&wr.op).is_some_and(|fixed| length != fixed) {
                    return Err(PostError::Length);
                }
                self.sges[index * self.max_sges..][..sges.len()].copy_from_slice(sges);
                (length as u32, sges.len() as u32, false)
            }
            Data::Inline(bytes) => {
                if bytes.len() > caps.max_inline_data as usize || !matches!(kind, Kind::Data | Kind::Answered) {
                    return Err(PostError::Inline);
                }
                if fixed_length(&wr.op).is_some_and(|fixed| bytes.len() as u64 != fixed) {
                    return Err(PostError::Length);
                }
                self.inline[index * self.max_inline..][..bytes.len()].copy_from_slice(bytes);
                (bytes.len() as u32, 0, true)
            }
        };
        let packets = match kind {
            Kind::Data | Kind::Read => config.packets(length),
            Kind::Atomic | Kind::Answered => 1,
            Kind::Local => 0,
        };
        let mut flags = wr.flags;
        flags.set(SendFlags::SIGNALED, config.init.sq_sig_all || wr.flags.contains(SendFlags::SIGNALED));
        let (wr_id, op, owner) = (wr.wr_id, wr.op, Owner::Program);
        self.slots[index] = SendSlot { wr_id, op, flags, kind, length, to, packets, num_sge, inline, owner };
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Retires the oldest work request. An error completes even if the request is not signalled (IBTA 10.7.3.1).
    pub fn retire<H: Host>(&mut self, host: &mut H, config: &Config, status: Status, vendor_err: u32) {
        debug_assert!(!self.is_empty());
        let slot = self.slot(self.head);
        if slot.owner != Owner::Program {
            return self.retire_own(host, config, status, vendor_err);
        }
        let failed = status != Status::Success;
        let completion = (failed || slot.flags.contains(SendFlags::SIGNALED)).then(|| Completion {
            wr_id: slot.wr_id,
            status,
            opcode: wc_opcode(&slot.op),
            byte_len: slot.length,
            imm: 0,
            flags: WcFlags::empty(),
            vendor_err,
            qp_num: config.init.qp_num,
            src_qp: config.attr.dest_qp_num,
            network: Network::None,
            tag: 0,
            app_ctx: 0,
            retired: self.head.wrapping_add(1).wrapping_sub(self.own.retired),
        });
        self.head = self.head.wrapping_add(1);
        if let Some(completion) = completion {
            host.complete(Queue::Send, completion, failed);
        }
    }

    fn slot_index(&self, index: u32) -> usize {
        index as usize & (self.slots.len() - 1)
    }
}

/// Whether a service has an operation and the kind of destination (IBTA 9.8.2, 9.8.3, table 38).
#[inline]
fn supports(service: Service, op: &SendOp, to: Target) -> bool {
    match (service, to) {
        (Service::Rc, Target::Peer) | (Service::Xrc, Target::Srq(_)) => true,
        (Service::Uc, Target::Peer) => match kind(op) {
            Kind::Data => !matches!(op, SendOp::SendInvalidate { .. }),
            Kind::Local => true,
            Kind::Read | Kind::Atomic | Kind::Answered => false,
        },
        (Service::Raw, Target::Peer) => matches!(op, SendOp::Send),
        (Service::Ud, Target::Datagram(_)) => matches!(op, SendOp::Send | SendOp::SendImm { .. }),
        _ => false,
    }
}

fn kind(op: &SendOp) -> Kind {
    match op {
        SendOp::Send
        | SendOp::SendImm { .. }
        | SendOp::SendInvalidate { .. }
        | SendOp::Write { .. }
        | SendOp::WriteImm { .. } => Kind::Data,
        SendOp::Read { .. } => Kind::Read,
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => Kind::Atomic,
        SendOp::AtomicWrite { .. } | SendOp::Flush { .. } => Kind::Answered,
        SendOp::LocalInvalidate { .. } | SendOp::BindWindow(_) => Kind::Local,
    }
}

/// The length of an operation's data, if it has only one.
fn fixed_length(op: &SendOp) -> Option<u64> {
    match op {
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite { .. } => Some(8),
        SendOp::Flush { .. } => Some(0),
        _ => None,
    }
}

fn wc_opcode(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Send | SendOp::SendImm { .. } | SendOp::SendInvalidate { .. } => WcOpcode::Send,
        SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOpcode::RdmaWrite,
        SendOp::Read { .. } => WcOpcode::RdmaRead,
        SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        SendOp::AtomicWrite { .. } => WcOpcode::AtomicWrite,
        SendOp::Flush { .. } => WcOpcode::Flush,
        SendOp::LocalInvalidate { .. } => WcOpcode::LocalInvalidate,
        SendOp::BindWindow(_) => WcOpcode::BindWindow,
    }
}
