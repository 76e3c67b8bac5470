//! Requests of the adapter itself: a READ that fetches the data of a rendezvous, and the SEND that tells its end to the
//! peer. They have room of their own, and complete to the CQ of the TM SRQ.

use super::owner::{OwnRequests, Owner};
use super::{Kind, SendQueue, SendSlot, Source};
use crate::config::Config;
use crate::recv_queue::Rendezvous;
use crate::{Completion, Host, Network, QpCaps, Queue, SendFlags, SendOp, Sge, Status, Target, WcFlags, WcOpcode};
use std::collections::TryReserveError;
use weir_wire::tag::{RENDEZVOUS_LEN, fin, fin_len};

/// Rendezvous that a QP has under way at a time.
const RENDEZVOUS: u32 = 64;

impl SendQueue {
    /// A queue with room for rendezvous with buffers of `max_sges`, beside that for the program.
    pub fn with_rendezvous(caps: &QpCaps, max_sges: u32) -> Result<Self, TryReserveError> {
        let limit = 2 * RENDEZVOUS;
        let max_sges = caps.max_send_sge.max(max_sges);
        let max_inline = caps.max_inline_data.max(RENDEZVOUS_LEN as u32);
        let queue = SendQueue::new(caps.max_send_wr + limit, max_sges, max_inline)?;
        Ok(SendQueue { limit: caps.max_send_wr, own: OwnRequests { limit, ..OwnRequests::default() }, ..queue })
    }

    /// Whether there is room for one more rendezvous.
    pub fn has_room_for_rendezvous(&self) -> bool {
        self.own.queued + 2 <= self.own.limit
    }

    /// Posts the requests of a rendezvous, for which there must be room. `sges`: the buffer, which the data fits into.
    pub fn post_rendezvous(&mut self, rendezvous: &Rendezvous, sges: &[Sge], config: &Config) {
        debug_assert!(self.has_room_for_rendezvous());
        let Rendezvous { wr_id, tmh, rvh, solicited } = *rendezvous;
        let read = SendSlot {
            wr_id,
            op: SendOp::Read { remote_addr: rvh.va, rkey: rvh.rkey },
            flags: SendFlags::empty(),
            kind: Kind::Read,
            length: rvh.len,
            to: Target::Peer,
            packets: config.packets(rvh.len),
            num_sge: 0,
            inline: false,
            owner: Owner::Read,
        };
        let index = self.slot_index(self.tail);
        let num_sge = cut(sges, rvh.len, &mut self.sges[index * self.max_sges..][..self.max_sges]);
        self.slots[index] = SendSlot { num_sge, ..read };
        let message = fin(&tmh, &rvh);
        let index = self.slot_index(self.tail.wrapping_add(1));
        self.inline[index * self.max_inline..][..message.len()].copy_from_slice(&message);
        self.slots[index] = SendSlot {
            op: SendOp::Send,
            // It leaves when the READ is complete.
            flags: SendFlags::FENCE,
            kind: Kind::Data,
            length: message.len() as u32,
            packets: config.packets(message.len() as u32),
            inline: true,
            owner: if solicited { Owner::SolicitedFin } else { Owner::Fin },
            ..read
        };
        self.tail = self.tail.wrapping_add(2);
        self.own.queued += 2;
    }

    /// Retires the oldest work request, which is the adapter's. The tag of a rendezvous completes once: with the SEND, or
    /// with a READ that failed.
    #[cold]
    #[inline(never)]
    pub(super) fn retire_own<H: Host>(&mut self, host: &mut H, config: &Config, status: Status, vendor_err: u32) {
        let slot = *self.slot(self.head);
        let failed = status != Status::Success;
        let (byte_len, solicited) = match slot.owner {
            Owner::Fin | Owner::SolicitedFin => (self.rendezvous_len(self.head), slot.owner == Owner::SolicitedFin),
            Owner::Read if failed => {
                let fin = self.slot_index(self.head.wrapping_add(1));
                self.slots[fin].owner = Owner::FailedFin;
                (0, true)
            }
            Owner::Program | Owner::Read | Owner::FailedFin => return self.own_retired(),
        };
        self.own_retired();
        let completion = Completion {
            wr_id: slot.wr_id,
            status,
            opcode: WcOpcode::TagRecv,
            byte_len,
            imm: 0,
            flags: if failed { WcFlags::empty() } else { WcFlags::TM_DATA_VALID },
            vendor_err,
            qp_num: config.init.qp_num,
            src_qp: config.attr.dest_qp_num,
            network: Network::None,
            tag: 0,
            app_ctx: 0,
            retired: 0,
        };
        host.complete(Queue::Receive, completion, failed || solicited);
    }

    /// Discards all work requests. Those of the adapter complete as flushed.
    pub fn discard<H: Host>(&mut self, host: &mut H, config: &Config) {
        while !self.is_empty() {
            match self.slot(self.head).owner {
                Owner::Program => self.head = self.head.wrapping_add(1),
                _ => self.retire_own(host, config, Status::WrFlushed, 0),
            }
        }
    }

    fn own_retired(&mut self) {
        self.head = self.head.wrapping_add(1);
        self.own.queued -= 1;
        self.own.retired = self.own.retired.wrapping_add(1);
    }

    /// The bytes of the rendezvous that this SEND ends: they are in its message.
    fn rendezvous_len(&self, index: u32) -> u32 {
        match self.source(index) {
            Source::Inline(message) => fin_len(message),
            Source::Gather(_) => 0,
        }
    }
}

/// Copies the first `len` bytes of a buffer: returns the number of SGEs.
fn cut(sges: &[Sge], len: u32, to: &mut [Sge]) -> u32 {
    let (mut left, mut count) = (len, 0);
    for sge in sges {
        if left == 0 {
            break;
        }
        let length = sge.length.min(left);
        to[count] = Sge { length, ..*sge };
        (left, count) = (left - length, count + 1);
    }
    count as u32
}
