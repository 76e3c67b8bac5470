//! Executes one request that arrived in order: the checks from "resources" on, then the operation (IBTA 9.7.4.1).

use super::opcode_order::{Message, Request};
use super::page_fault::Stop;
use super::resources::{Resource, Response};
use super::{Fatal, Responder, Verdict};
use crate::config::Config;
use crate::ending::NO_ODP;
use crate::recv_queue::{Received, RecvQueue};
use crate::send_queue::MAX_MESSAGE;
use crate::{Access, AtomicOp, Denied, Flush, Host, WcOpcode};
use weir_wire::{AtomicEth, Destination, Feth, Ieth, ImmDt, NakCode, Packet, Placement, Reth};

impl Responder {
    /// Executes a request. When it returns `Executed`, all data of the packet is in memory. After a page fault it may
    /// be called again: its state is unchanged (part of the payload may be in memory).
    #[inline(always)]
    pub(super) fn execute<H: Host>(
        &mut self,
        request: Request,
        packet: &Packet<'_>,
        config: &Config,
        queue: &mut RecvQueue,
        host: &mut H,
    ) -> Result<Verdict, Stop> {
        match request {
            Request::Send => self.send(packet, config, queue, host),
            Request::Write => self.write(packet, config, queue, host),
            Request::Read => self.read(packet, config, host),
            Request::Atomic => self.atomic(packet, config, host),
            Request::AtomicWrite => self.atomic_write(packet, config, host),
            Request::Flush => self.flush(packet, config, host),
        }
    }

    #[inline(always)]
    fn send<H: Host>(
        &mut self,
        packet: &Packet<'_>,
        config: &Config,
        queue: &mut RecvQueue,
        host: &mut H,
    ) -> Result<Verdict, Stop> {
        if queue.is_tagged() {
            return self.send_tagged(packet, config, queue, host);
        }
        let opcode = packet.headers.bth.opcode;
        let payload = packet.payload;
        let (received, total) = match self.message {
            Message::Send { received, total } => (received, total),
            _ if !queue.ready(host) => return Ok(Verdict::NotReady),
            _ => (0, None),
        };
        check_packet_length(packet, config)?;
        let (after, total) = self.after_packet(packet, received, total, config)?;
        // The message is longer than its receive (IBTA 9.7.4.1.6).
        if after > queue.room() {
            return Err(Fatal::too_long().into());
        }
        if !payload.is_empty() {
            host.scatter(queue.sges(), received, payload).map_err(Stop::receiving)?;
        }
        if !opcode.ends_message() {
            self.message = Message::Send { received: after, total };
            return Ok(Verdict::Executed);
        }
        let invalidated_rkey = self.invalidate(packet.headers.get::<Ieth>().map(|ieth| ieth.rkey.get()), host)?;
        self.end_message();
        let imm = packet.headers.get::<ImmDt>().map(|imm| imm.imm.get().to_be());
        let solicited = packet.headers.bth.solicited;
        let received =
            Received { opcode: WcOpcode::Recv, byte_len: after as u32, imm, invalidated_rkey, solicited, from: None };
        queue.complete(host, config, received);
        Ok(Verdict::Executed)
    }

    #[inline(always)]
    fn write<H: Host>(
        &mut self,
        packet: &Packet<'_>,
        config: &Config,
        queue: &mut RecvQueue,
        host: &mut H,
    ) -> Result<Verdict, Stop> {
        let headers = &packet.headers;
        let (ends, payload) = (headers.bth.opcode.ends_message(), packet.payload);
        // Only the packet with the immediate data uses a receive (IBTA 9.4).
        if headers.get::<ImmDt>().is_some() && !queue.ready(host) {
            return Ok(Verdict::NotReady);
        }
        check_packet_length(packet, config)?;
        let (va, rkey, received, total) = match (self.message, &headers.get::<Reth>()) {
            (Message::Write { va, rkey, received, total }, _) => (va, rkey, received, total),
            (_, Some(reth)) => (reth.va.get(), reth.rkey.get(), 0, u64::from(reth.dma_len.get())),
            _ => return Err(Fatal::invalid().into()),
        };
        let after = received + payload.len() as u64;
        // The packets' lengths add up to the length in the RETH, at most 2^31 (IBTA 9.7.4.1.6, C9-94).
        if total > MAX_MESSAGE || after > total || ends != (after == total) {
            return Err(Fatal::invalid().into());
        }
        check_memory_placement(packet, va.wrapping_add(received), rkey, received, total)?;
        // Nothing is checked for a zero-length WRITE (IBTA C9-88).
        if self.message == Message::None && total > 0 {
            host.check_remote(rkey, va, total, Access::REMOTE_WRITE).map_err(Stop::access)?;
        }
        if !payload.is_empty() {
            let addr = va.wrapping_add(received);
            host.write_remote(rkey, addr, payload)
                .map_err(|denied| Stop::write(denied, rkey, addr, total - received, host))?;
        }
        if !ends {
            self.message = Message::Write { va, rkey, received: after, total };
            return Ok(Verdict::Executed);
        }
        self.end_message();
        if let Some(imm) = headers.get::<ImmDt>() {
            let received = Received {
                opcode: WcOpcode::RecvRdmaWithImm,
                byte_len: total as u32,
                imm: Some(imm.imm.get().to_be()),
                invalidated_rkey: None,
                solicited: headers.bth.solicited,
                from: None,
            };
            // A peer that sends another packet than before: the receive was taken for a SEND.
            queue.uncount(host);
            queue.complete(host, config, received);
        }
        Ok(Verdict::Executed)
    }

    pub(super) fn read<H: Host>(
        &mut self,
        packet: &Packet<'_>,
        config: &Config,
        host: &mut H,
    ) -> Result<Verdict, Stop> {
        let reth = packet.headers.get::<Reth>().ok_or(Fatal::invalid())?;
        let (va, rkey, length) = (reth.va.get(), reth.rkey.get(), reth.dma_len.get());
        self.check_resources(config)?;
        // At most 2^31 bytes (IBTA C9-94); no key is checked for none (IBTA C9-88).
        if u64::from(length) > MAX_MESSAGE || !packet.payload.is_empty() {
            return Err(Fatal::invalid().into());
        }
        if length > 0 {
            host.check_remote(rkey, va, u64::from(length), Access::REMOTE_READ).map_err(Stop::access)?;
        }
        let packets = config.packets(length);
        self.respond(packets, Response::Read { va, rkey, length, pd: self.named.map(|named| named.pd) });
        Ok(Verdict::Responding { packets })
    }

    fn atomic<H: Host>(&mut self, packet: &Packet<'_>, config: &Config, host: &mut H) -> Result<Verdict, Stop> {
        let atomic = packet.headers.get::<AtomicEth>().ok_or(Fatal::invalid())?;
        let (va, rkey) = (atomic.va.get(), atomic.rkey.get());
        self.check_resources(config)?;
        host.check_remote(rkey, va, 8, Access::REMOTE_ATOMIC).map_err(Stop::access)?;
        // Addresses of 64-bit atomics are aligned (IBTA 9.4.5).
        if !va.is_multiple_of(8) {
            return Err(Fatal::invalid().because("the address of an atomic is no multiple of 8").into());
        }
        let operation = match packet.headers.bth.opcode.operation() {
            Some(weir_wire::Operation::CompareSwap) => {
                AtomicOp::CompareSwap { compare: atomic.compare.get(), swap: atomic.swap_or_add.get() }
            }
            _ => AtomicOp::FetchAdd { add: atomic.swap_or_add.get() },
        };
        let original = host.atomic(rkey, va, operation).map_err(Stop::access)?;
        self.respond(1, Response::Atomic { original });
        Ok(Verdict::Responding { packets: 1 })
    }

    #[cold]
    fn atomic_write<H: Host>(&mut self, packet: &Packet<'_>, config: &Config, host: &mut H) -> Result<Verdict, Stop> {
        let reth = packet.headers.get::<Reth>().ok_or(Fatal::invalid())?;
        let (va, rkey) = (reth.va.get(), reth.rkey.get());
        self.check_resources(config)?;
        // Eight bytes at an aligned address (IBTA annex A19).
        if packet.payload.len() != 8 || reth.dma_len.get() != 8 || !va.is_multiple_of(8) {
            return Err(Fatal::invalid().into());
        }
        check_memory_placement(packet, va, rkey, 0, 8)?;
        host.check_remote(rkey, va, 8, Access::REMOTE_WRITE).map_err(Stop::access)?;
        host.write_remote(rkey, va, packet.payload).map_err(Stop::access)?;
        self.respond(1, Response::Executed);
        Ok(Verdict::Responding { packets: 1 })
    }

    /// Earlier requests were executed before this one, so nothing is left but to make their data visible. The QP and the
    /// key must both allow each placement type of the FLUSH (IBTA annex A19).
    #[cold]
    fn flush<H: Host>(&mut self, packet: &Packet<'_>, config: &Config, host: &mut H) -> Result<Verdict, Stop> {
        let headers = &packet.headers;
        let (feth, reth) = headers.get::<Feth>().zip(headers.get::<Reth>()).ok_or(Fatal::invalid())?;
        let flush = Flush::from_bits(feth.flags.get()).ok_or(Fatal::invalid())?;
        let (va, length) = (reth.va.get(), u64::from(reth.dma_len.get()));
        self.check_resources(config)?;
        let allowed = config.attr.access_flags.contains(flush.access());
        if !allowed || !packet.payload.is_empty() || length > MAX_MESSAGE && !flush.whole {
            return Err(Fatal::invalid().into());
        }
        // No key is checked for no bytes (IBTA C9-88).
        let range = (!flush.whole).then_some((va, length));
        if range.is_none_or(|(_, length)| length > 0) {
            host.flush_remote(reth.rkey.get(), range, flush.access()).map_err(Stop::access)?;
        }
        self.respond(1, Response::Executed);
        Ok(Verdict::Responding { packets: 1 })
    }

    /// The bytes of a SEND with this packet, and its length if frames state it. The packets of a message have that length
    /// together (IBTA 9.7.4.1.6).
    #[inline(always)]
    pub(super) fn after_packet(
        &self,
        packet: &Packet<'_>,
        received: u64,
        total: Option<u32>,
        config: &Config,
    ) -> Result<(u64, Option<u32>), Fatal> {
        let total = match &packet.placement {
            Some(placement) => Some(self.check_send_placement(placement, received, total, config)?),
            None => total,
        };
        let (after, ends) = (received + packet.payload.len() as u64, packet.headers.bth.opcode.ends_message());
        // The lengths of the packets add up to the length in the frames. (A message may begin in RoCE packets and end in
        // frames, and the other way round.)
        if total.is_some_and(|total| after > u64::from(total) || ends != (after == u64::from(total))) {
            return Err(Fatal::invalid());
        }
        Ok((after, total))
    }

    /// The last packet of a SEND invalidates this key, if it names one. Returns the key.
    #[inline(always)]
    pub(super) fn invalidate<H: Host>(&mut self, rkey: Option<u32>, host: &mut H) -> Result<Option<u32>, Stop> {
        if let Some(rkey) = rkey {
            // Earlier requests finish first, with the access rights that they had (IBTA 9.5).
            if self.resources.reads_by(rkey) {
                return Err(Stop::StillRead);
            }
            host.invalidate_remote(rkey).map_err(Stop::access)?;
        }
        Ok(rkey)
    }

    /// The frame of a SEND must belong where its PSN puts it, and state the length that earlier frames of the message
    /// stated (`total`), otherwise it is an invalid request (IBTA 9.7.5.2.2). Returns that length, 2^31 at most
    /// (IBTA C9-94). A lost message of UC is not counted here, so the numbers of UC differ.
    #[inline]
    fn check_send_placement(
        &self,
        placement: &Placement,
        received: u64,
        total: Option<u32>,
        config: &Config,
    ) -> Result<u32, Fatal> {
        let number = Destination::Message { number: self.msn };
        let length = placement.length;
        let fits = u64::from(placement.offset) == received
            && u64::from(length) <= MAX_MESSAGE
            && total.is_none_or(|total| total == length)
            && (placement.destination == number || !config.is_reliable());
        if fits { Ok(length) } else { Err(Fatal::invalid()) }
    }

    /// No more READs and atomics than the QP has resources for (IBTA 9.7.4.1.4).
    fn check_resources(&self, config: &Config) -> Result<(), Fatal> {
        let none = config.attr.max_dest_rd_atomic == 0;
        if none || self.resources.is_exhausted() {
            return Err(Fatal::invalid().because("more READs and atomics were outstanding than max_dest_rd_atomic"));
        }
        Ok(())
    }

    fn respond(&mut self, packets: u32, response: Response) {
        self.end_message();
        self.resources.add(Resource::new(self.expected, packets, self.msn, response));
    }

    /// A message is finished; the MSN counts finished messages (IBTA 9.7.7.1).
    pub(super) fn end_message(&mut self) {
        self.message = Message::None;
        self.msn = (self.msn + 1) & 0xff_ffff;
    }
}

/// A frame of a WRITE must belong to the address, key, offset and length of the message that its PSN puts it at, otherwise
/// it is an invalid request (IBTA 9.7.5.2.2). A RoCE packet has no placement.
#[inline(always)]
pub(super) fn check_memory_placement(
    packet: &Packet<'_>,
    address: u64,
    rkey: u32,
    offset: u64,
    length: u64,
) -> Result<(), Fatal> {
    let Some(placement) = &packet.placement else { return Ok(()) };
    let destination = Destination::Memory { address, rkey };
    let here = Placement { destination, offset: offset as u32, length: length as u32 };
    if *placement == here { Ok(()) } else { Err(Fatal::invalid()) }
}

/// FIRST and MIDDLE are full, LAST is not empty, no packet exceeds the path MTU (IBTA C9-92).
#[inline(always)]
pub(super) fn check_packet_length(packet: &Packet<'_>, config: &Config) -> Result<(), Fatal> {
    let opcode = packet.headers.bth.opcode;
    let length = packet.payload.len();
    let valid = match (opcode.starts_message(), opcode.ends_message()) {
        (_, false) => length == config.mtu,
        (false, true) => (1..=config.mtu).contains(&length),
        (true, true) => length <= config.mtu,
    };
    if valid { Ok(()) } else { Err(Fatal::invalid()) }
}

impl Fatal {
    /// The host refused a peer's access: a wrong request, or missing local memory (IBTA 9.7.5.2.2, 9.7.5.2.4).
    pub(super) fn access(denied: Denied) -> Fatal {
        match denied {
            Denied::Protection => Fatal { nak: NakCode::RemoteAccess, receive: None, why: None },
            Denied::Unmapped => Fatal::operational(),
            // Without ODP for the operation.
            Denied::PageFault => Fatal::operational().because(NO_ODP),
        }
    }
}
