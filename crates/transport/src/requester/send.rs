//! Describes one request packet: opcode, extension headers, location of the payload.

use super::position::Position;
use crate::config::Config;
use crate::send_queue::{Kind, SendQueue, SendSlot, Source};
use crate::{Datagram, Outgoing, Payload, SendFlags, SendOp, Target};
use weir_wire::{
    AtomicEth, Destination, Deth, Feth, Headers, Ieth, ImmDt, Operation, Operation as O, Placement, Psn, Reth, XrcEth,
};

/// The next packet from a position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Number of PSNs that it uses.
    pub packets: u32,
    /// Payload bytes of the packet.
    pub payload: usize,
    /// Bytes of READ response that it requests.
    pub read_bytes: usize,
    /// It is the last packet of the work request.
    pub last: bool,
}

impl Step {
    /// The packet of `slot` at position `at`.
    #[inline]
    pub fn at(at: &Position, slot: &SendSlot, config: &Config) -> Step {
        let left = slot.length as usize - (at.packet as usize * config.mtu).min(slot.length as usize);
        match slot.kind {
            Kind::Data => {
                Step { packets: 1, payload: left.min(config.mtu), read_bytes: 0, last: at.packet + 1 == slot.packets }
            }
            Kind::Read => {
                // A retransmitted READ ends where the original ended, so that the responder recognizes it.
                let chunk = config.read_packets;
                let packets = (chunk - at.packet % chunk).min(slot.packets - at.packet);
                Step {
                    packets,
                    payload: 0,
                    read_bytes: left.min(packets as usize * config.mtu),
                    last: at.packet + packets == slot.packets,
                }
            }
            Kind::Answered => Step { packets: 1, payload: left, read_bytes: 0, last: true },
            // Local work requests are never sent.
            Kind::Atomic | Kind::Local => Step { packets: 1, payload: 0, read_bytes: 0, last: true },
        }
    }
}

/// Builds the packet of a step.
#[inline(always)]
pub(super) fn outgoing<'a>(
    queue: &'a SendQueue,
    at: &Position,
    step: &Step,
    psn: Psn,
    ack_req: bool,
    config: &Config,
) -> Outgoing<'a> {
    let slot = queue.slot(at.wr);
    let first = at.packet == 0;
    let offset = at.packet as u64 * config.mtu as u64;
    let payload = match queue.source(at.wr) {
        _ if step.payload == 0 => Payload::None,
        Source::Gather(sges) => Payload::Gather { sges, offset, len: step.payload },
        Source::Inline(bytes) => Payload::Bytes(&bytes[offset as usize..][..step.payload]),
    };
    // Modified in place: moving headers is expensive.
    let headers = config.headers(operation(&slot.op, first, step.last), psn, step.payload);
    let mut outgoing = Outgoing { headers, payload, placement: None, to: None };
    outgoing.headers.bth.ack_req = ack_req;
    if config.frames {
        outgoing.placement = placement(slot, at, offset);
    }
    extend(&mut outgoing.headers, slot, first, offset, step);
    if slot.to != Target::Peer {
        outgoing.to = direct(&mut outgoing.headers, slot, config);
    }
    outgoing
}

/// Where the payload of a packet belongs, if it is of a SEND or a WRITE.
#[inline(always)]
fn placement(slot: &SendSlot, at: &Position, offset: u64) -> Option<Placement> {
    let destination = match slot.op {
        SendOp::Write { remote_addr, rkey } | SendOp::WriteImm { remote_addr, rkey, .. } => {
            Destination::Memory { address: remote_addr.wrapping_add(offset), rkey }
        }
        SendOp::Send | SendOp::SendImm { .. } | SendOp::SendInvalidate { .. } => {
            Destination::Message { number: at.messages() & 0xff_ffff }
        }
        _ => return None,
    };
    Some(Placement { destination, offset: offset as u32, length: slot.length })
}

/// Adds the header that names the destination, unless that is just the connected peer.
#[cold]
fn direct(headers: &mut Headers, slot: &SendSlot, config: &Config) -> Option<Datagram> {
    match slot.to {
        Target::Peer => None,
        Target::Srq(number) => {
            headers.put(XrcEth { srq: number.into() });
            None
        }
        Target::Datagram(to) => {
            // A controlled Q_Key is replaced by the sending QP's own (IBTA 10.2.5).
            let qkey = if to.qkey >> 31 != 0 { config.attr.qkey } else { to.qkey };
            headers.bth.dest_qp = to.dest_qp;
            headers.put(Deth { qkey: qkey.into(), src_qp: config.init.qp_num.into() });
            Some(to)
        }
    }
}

/// The operation of a packet by its position in the message (IBTA 9.2.1). A new kind of work request adds its line.
fn operation(op: &SendOp, first: bool, last: bool) -> Operation {
    const fn part(first: bool, last: bool, parts: [Operation; 4]) -> Operation {
        parts[(first as usize) | (last as usize) << 1]
    }
    match op {
        SendOp::Send => part(first, last, [O::SendMiddle, O::SendFirst, O::SendLast, O::SendOnly]),
        SendOp::SendImm { .. } => part(first, last, [O::SendMiddle, O::SendFirst, O::SendLastImm, O::SendOnlyImm]),
        SendOp::Write { .. } => part(first, last, [O::WriteMiddle, O::WriteFirst, O::WriteLast, O::WriteOnly]),
        SendOp::WriteImm { .. } => part(first, last, [O::WriteMiddle, O::WriteFirst, O::WriteLastImm, O::WriteOnlyImm]),
        SendOp::Read { .. } => O::ReadRequest,
        SendOp::CompareSwap { .. } => O::CompareSwap,
        SendOp::FetchAdd { .. } => O::FetchAdd,
        SendOp::AtomicWrite { .. } => O::AtomicWrite,
        SendOp::Flush { .. } => O::Flush,
        // Local work requests are never sent.
        SendOp::SendInvalidate { .. } | SendOp::LocalInvalidate { .. } | SendOp::BindWindow(_) => {
            part(first, last, [O::SendMiddle, O::SendFirst, O::SendLastInv, O::SendOnlyInv])
        }
    }
}

#[inline(always)]
fn extend(headers: &mut Headers, slot: &SendSlot, first: bool, offset: u64, step: &Step) {
    // The solicited bit has an effect on a message's last packet, where the receiver gets a completion (IBTA 9.2.3).
    let solicited = step.last && slot.flags.contains(SendFlags::SOLICITED);
    let reth = |va: u64, rkey: u32, len: u32| Reth { va: va.into(), rkey: rkey.into(), dma_len: len.into() };
    let atomic = |va: u64, rkey: u32, swap_or_add: u64, compare: u64| AtomicEth {
        va: va.into(),
        rkey: rkey.into(),
        swap_or_add: swap_or_add.into(),
        compare: compare.into(),
    };
    // Immediate data is a big-endian word of the application.
    let imm_dt = |imm: u32| ImmDt { imm: u32::from_be(imm).into() };
    match slot.op {
        SendOp::Send => headers.bth.solicited = solicited,
        SendOp::SendImm { imm } => {
            headers.bth.solicited = solicited;
            headers.put(imm_dt(imm));
        }
        SendOp::Write { remote_addr, rkey } => {
            if first {
                headers.put(reth(remote_addr, rkey, slot.length));
            }
        }
        SendOp::WriteImm { remote_addr, rkey, imm } => {
            headers.bth.solicited = solicited;
            if first {
                headers.put(reth(remote_addr, rkey, slot.length));
            }
            headers.put(imm_dt(imm));
        }
        SendOp::Read { remote_addr, rkey } => {
            headers.put(reth(remote_addr.wrapping_add(offset), rkey, step.read_bytes as u32));
        }
        SendOp::CompareSwap { remote_addr, rkey, compare, swap } => {
            headers.put(atomic(remote_addr, rkey, swap, compare));
        }
        SendOp::FetchAdd { remote_addr, rkey, add } => headers.put(atomic(remote_addr, rkey, add, 0)),
        SendOp::SendInvalidate { rkey } => {
            headers.bth.solicited = solicited;
            headers.put(Ieth { rkey: rkey.into() });
        }
        SendOp::AtomicWrite { remote_addr, rkey } => headers.put(reth(remote_addr, rkey, slot.length)),
        SendOp::Flush { remote_addr, rkey, length, flush } => {
            headers.put(Feth { flags: flush.bits().into() });
            headers.put(reth(remote_addr, rkey, length));
        }
        SendOp::LocalInvalidate { .. } | SendOp::BindWindow(_) => {}
    }
}
