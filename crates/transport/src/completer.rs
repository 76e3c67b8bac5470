//! The completer: applies responses and ACKs to the requests that wait for them (IBTA 9.7.5, 9.7.6).

use crate::config::Config;
use crate::early::Early;
use crate::requester::{Failure, Requester};
use crate::send_queue::{Kind, SendQueue, Source};
use crate::{Access, Denied, Handled, Host, Instant, OdpOps, RequesterFaults, Status};
use weir_wire::{Aeth, AtomicAckEth, Destination, NakCode, Operation, Packet, Placement, Syndrome};

/// The state of the completer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CompleterState {
    /// Every response so far was in order.
    #[default]
    InOrder,
    /// A response is missing; later responses are dropped until it arrives.
    MissingResponse,
    /// The receiver was not ready, or missed a packet: requests are being retransmitted.
    Retransmitting,
    /// A page of a response's destination buffer is missing: this response and all later ones wait.
    PageFault,
    /// A request failed.
    Failed,
}

#[derive(Debug, Default)]
pub(crate) struct Completer {
    state: CompleterState,
    early: Early,
}

/// How far an acknowledgement reached.
enum Reach {
    /// Up to the PSN in the packet.
    Full,
    /// Up to an earlier READ or atomic: no response to it has arrived.
    ResponseMissing,
}

/// The objects that a response affects.
struct Step<'a, H> {
    now: Instant,
    config: &'a Config,
    requester: &'a mut Requester,
    queue: &'a mut SendQueue,
    host: &'a mut H,
    early: &'a mut Early,
}

impl Completer {
    /// What the completer is doing, or waiting for.
    pub fn state(&self) -> CompleterState {
        self.state
    }

    /// Back to the initial state, at RESET.
    pub fn reset(&mut self) {
        self.state = CompleterState::InOrder;
        self.early.clear();
    }

    /// Handles a response. An error belongs to the oldest work request.
    pub fn handle<H: Host>(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        config: &Config,
        requester: &mut Requester,
        queue: &mut SendQueue,
        host: &mut H,
    ) -> Result<Handled, Failure> {
        // Responses to requests that are not outstanding are ghosts or duplicates, and dropped (IBTA 9.7.6.1).
        let Some(seq) = requester.locate(packet.headers.bth.psn) else {
            use_stale_ack(packet, requester);
            return Ok(Handled::Done);
        };
        let mut step = Step { now, config, requester, queue, host, early: &mut self.early };
        let result = match packet.headers.bth.opcode.operation() {
            Some(Operation::Acknowledge) => step.acknowledge(seq, packet),
            Some(Operation::AtomicAcknowledge) => step.atomic(seq, packet),
            Some(_) => step.read(seq, packet),
            None => return Ok(Handled::Done),
        };
        match result {
            Ok(state) => {
                self.state = state;
                Ok(if state == CompleterState::PageFault { Handled::Held } else { Handled::Done })
            }
            Err(failure) => {
                self.state = CompleterState::Failed;
                Err(failure)
            }
        }
    }

    /// Places the payload of a packet within a READ's response that has begun, if earlier ones of it are missing, as they may
    /// be over several links. False: it is not such a packet, or cannot be placed before its turn.
    #[cold]
    pub fn place_early<H: Host>(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        config: &Config,
        requester: &mut Requester,
        queue: &mut SendQueue,
        host: &mut H,
    ) -> bool {
        let Some(seq) = requester.locate(packet.headers.bth.psn) else { return false };
        let ahead = (seq - requester.una()) as usize;
        if !self.early.takes(ahead) || packet.headers.bth.opcode.operation() != Some(Operation::ReadResponseMiddle) {
            return false;
        }
        let mut step = Step { now, config, requester, queue, host, early: &mut self.early };
        let (wr, at) = step.requester.una_packet();
        let slot = *step.queue.slot(wr);
        let (its, chunk) = (at + ahead as u32, config.read_packets);
        let is_within = slot.kind == Kind::Read && its + 1 < slot.packets && its / chunk == at / chunk;
        let waits = step.requester.holds_response() || step.requester.is_deaf() || step.discards_responses();
        if !is_within || (its + 1).is_multiple_of(chunk) || packet.payload.len() != config.mtu || waits {
            return false;
        }
        if packet.placement != Some(step.response_placement(slot.length, its)) {
            return false;
        }
        // If that fails, the packet counts as lost: when it comes again in its turn, the program is told why.
        if step.scatter(wr, u64::from(its) * config.mtu as u64, packet.payload).is_ok() {
            step.early.place(ahead, false);
        }
        true
    }
}

/// A response to a request that is not outstanding: only the credits of an ACK are used (IBTA 9.7.7.2).
#[cold]
fn use_stale_ack(packet: &Packet<'_>, requester: &mut Requester) {
    if packet.headers.bth.opcode.operation() == Some(Operation::Acknowledge)
        && let Some(aeth) = packet.headers.get::<Aeth>()
        && let syndrome @ Syndrome::Ack(_) = Syndrome::from_byte(aeth.syndrome())
    {
        requester.credited_again(packet.headers.bth.psn, syndrome, aeth.msn());
    }
}

impl<H: Host> Step<'_, H> {
    /// An ACK covers its request and all earlier ones; a NAK covers the earlier ones and carries the reason for
    /// its own (IBTA 9.7.5.1.2, 9.7.5.2).
    fn acknowledge(&mut self, seq: u64, packet: &Packet<'_>) -> Result<CompleterState, Failure> {
        let Some(aeth) = packet.headers.get::<Aeth>() else { return Ok(CompleterState::InOrder) };
        let syndrome = Syndrome::from_byte(aeth.syndrome());
        let before = self.requester.una();
        let up_to = match syndrome {
            Syndrome::Ack(_) if self.requester.is_deaf() => {
                self.requester.response_dropped(self.now, self.config);
                return Ok(CompleterState::Retransmitting);
            }
            Syndrome::Ack(_) => {
                self.requester.credited(syndrome, aeth.msn());
                seq + 1
            }
            // A NAK acknowledges everything before it (IBTA 9.7.5.1.2).
            Syndrome::RnrNak(_) | Syndrome::Nak(_) => seq,
            Syndrome::Reserved(_) => return Ok(CompleterState::InOrder),
        };
        if let Reach::ResponseMissing = self.advance(up_to) {
            return Ok(self.response_missing());
        }
        let progress = self.requester.una() != before;
        // Sequence and RNR NAKs are retried, the others are errors of the oldest request (IBTA 9.7.5.2.2, 9.9.2).
        let failure = |status| Err(Failure { status, vendor: u32::from(aeth.syndrome()) });
        match syndrome {
            Syndrome::Ack(_) | Syndrome::Reserved(_) => return Ok(CompleterState::InOrder),
            Syndrome::RnrNak(timer) => {
                self.requester.receiver_not_ready(self.now, timer, self.config)?;
            }
            Syndrome::Nak(NakCode::PsnSequence) => self.requester.sequence_nak(progress)?,
            Syndrome::Nak(NakCode::InvalidRequest) => return failure(Status::RemoteInvalidRequest),
            Syndrome::Nak(NakCode::RemoteAccess) => return failure(Status::RemoteAccess),
            Syndrome::Nak(NakCode::RemoteOperational) => return failure(Status::RemoteOperation),
        }
        Ok(CompleterState::Retransmitting)
    }

    /// A packet of a READ response, or the response to an ATOMIC WRITE or a FLUSH: it must have the length and the end that the
    /// request asked for (IBTA 9.7.6.1).
    fn read(&mut self, seq: u64, packet: &Packet<'_>) -> Result<CompleterState, Failure> {
        if !self.acknowledge_before(seq) {
            return Ok(self.response_missing());
        }
        let (wr, at) = self.requester.una_packet();
        let slot = *self.queue.slot(wr);
        if self.discards_responses() {
            self.fault_in_buffer(wr, u64::from(at) * self.config.mtu as u64, packet.payload.len());
            return Ok(CompleterState::Retransmitting);
        }
        if slot.kind == Kind::Answered {
            return self.empty_response(packet, at);
        }
        let mtu = self.config.mtu;
        let offset = at as usize * mtu;
        let chunk = self.config.read_packets;
        let ends = at + 1 == slot.packets || (at + 1).is_multiple_of(chunk);
        // A response begins at its request's first packet, and a retransmitted request may begin at any packet: so
        // FIRST and ONLY are not checked against the position. The end and the length are (IBTA 9.7.6.1).
        let aeth = packet.headers.get::<Aeth>().map(|aeth| (Syndrome::from_byte(aeth.syndrome()), aeth.msn()));
        let fits = slot.kind == Kind::Read
            && packet.headers.bth.opcode.ends_message() == ends
            && packet.payload.len() == (slot.length as usize - offset).min(mtu)
            && aeth.is_none_or(|(syndrome, _)| matches!(syndrome, Syndrome::Ack(_)))
            && packet.placement.is_none_or(|placement| placement == self.response_placement(slot.length, at));
        if !fits {
            return Err(Failure { status: Status::BadResponse, vendor: u32::from(packet.headers.bth.opcode.0) });
        }
        if let Err(denied) = self.scatter(wr, offset as u64, packet.payload) {
            return self.refused(wr, denied);
        }
        if let Some((syndrome, msn)) = aeth {
            self.requester.credited(syndrome, msn);
        }
        self.response_arrived();
        Ok(CompleterState::InOrder)
    }

    /// Where packet `at` of the oldest work request's response belongs, a READ of `length` bytes. Each READ request is
    /// a message.
    fn response_placement(&self, length: u32, at: u32) -> Placement {
        let (mtu, chunk) = (self.config.mtu as u32, self.config.read_packets);
        let first = at - at % chunk;
        let rest = u64::from(length) - u64::from(first) * u64::from(mtu);
        Placement {
            destination: Destination::Message { number: self.requester.una_message() },
            offset: (at - first) * mtu,
            length: rest.min(u64::from(chunk) * u64::from(mtu)) as u32,
        }
    }

    /// The response to an ATOMIC WRITE or a FLUSH is a READ response without payload (IBTA annex A19); any other is a bad response
    /// (IBTA 9.9.2).
    fn empty_response(&mut self, packet: &Packet<'_>, at: u32) -> Result<CompleterState, Failure> {
        let opcode = packet.headers.bth.opcode;
        let fits = opcode.starts_message()
            && opcode.ends_message()
            && packet.payload.is_empty()
            && packet.placement.is_none_or(|placement| placement == self.response_placement(0, at));
        if !fits {
            return Err(Failure { status: Status::BadResponse, vendor: u32::from(opcode.0) });
        }
        self.response_arrived();
        Ok(CompleterState::InOrder)
    }

    /// The response to an atomic is its original value (IBTA 9.4.5); any other is a bad response (IBTA 9.9.2).
    fn atomic(&mut self, seq: u64, packet: &Packet<'_>) -> Result<CompleterState, Failure> {
        if !self.acknowledge_before(seq) {
            return Ok(self.response_missing());
        }
        if self.discards_responses() {
            return Ok(CompleterState::Retransmitting);
        }
        let (wr, _) = self.requester.una_packet();
        match packet.headers.get::<AtomicAckEth>() {
            Some(ack) if self.queue.slot(wr).kind == Kind::Atomic => {
                if let Err(denied) = self.scatter(wr, 0, &ack.original.get().to_ne_bytes()) {
                    return self.refused(wr, denied);
                }
            }
            _ => return Err(Failure { status: Status::BadResponse, vendor: u32::from(packet.headers.bth.opcode.0) }),
        }
        if let Some(aeth) = packet.headers.get::<Aeth>()
            && let syndrome @ Syndrome::Ack(_) = Syndrome::from_byte(aeth.syndrome())
        {
            self.requester.credited(syndrome, aeth.msn());
        }
        self.response_arrived();
        Ok(CompleterState::InOrder)
    }

    /// A READ response or atomic acknowledgement implies that the responder executed every earlier request
    /// (IBTA 9.7.5.1.2): acknowledges those before position `seq`. False: the response to an earlier READ or atomic is
    /// missing.
    #[inline(never)]
    fn acknowledge_before(&mut self, seq: u64) -> bool {
        matches!(self.advance(seq), Reach::Full)
    }

    /// An earlier response waits for a page, or is missing: then its request is retransmitted (IBTA 9.7.6.1).
    #[cold]
    fn response_missing(&mut self) -> CompleterState {
        if self.requester.holds_response() {
            return CompleterState::PageFault;
        }
        self.requester.response_lost();
        CompleterState::MissingResponse
    }

    /// The host refused the destination buffer of a response: a local error, except for a page fault of an operation with
    /// ODP (IBTA 9.9.2). A deaf requester has not looked at the buffer.
    #[cold]
    fn refused(&mut self, wr: u32, denied: Denied) -> Result<CompleterState, Failure> {
        let has_odp = self.requester.is_deaf() || self.config.has_odp(OdpOps::of(&self.queue.slot(wr).op));
        if denied != Denied::PageFault || !has_odp {
            return Err(Failure::local(denied));
        }
        Ok(match self.requester.response_waits(self.now, self.config) {
            Handled::Held => CompleterState::PageFault,
            Handled::Done | Handled::AfterReads | Handled::Dammed => CompleterState::Retransmitting,
        })
    }

    /// Whether an RNR wait is on and the profile drops responses during it.
    #[inline]
    fn discards_responses(&self) -> bool {
        self.requester.waits_for_receiver() && self.config.profile.rnr_wait.discards
    }

    /// Requests the pages of a dropped response's destination buffer: the response is dropped before any check, but a
    /// missing page there causes a page fault. (With on-demand paging on both sides the requester's page is present
    /// when the READ is retransmitted after the RNR wait: T fig 5.2 would not show damming otherwise.)
    #[cold]
    fn fault_in_buffer(&mut self, wr: u32, offset: u64, len: usize) {
        if let (RequesterFaults::Discard { .. }, Source::Gather(sges)) =
            (self.config.profile.page_faults.requester, self.queue.source(wr))
            && self.queue.slot(wr).kind == Kind::Read
            && offset + len as u64 <= u64::from(self.queue.slot(wr).length)
            && len > 0
        {
            // The host reports the resolution later; nothing waits for it.
            let _ = self.host.prepare_local(sges, offset, len as u64, Access::LOCAL_WRITE);
        }
    }

    /// Acknowledges everything before `up_to`, stopping at a READ or an atomic: those need their responses
    /// (IBTA 9.7.6.1).
    #[inline(always)]
    fn advance(&mut self, up_to: u64) -> Reach {
        let before = self.requester.una();
        let mut reach = Reach::Full;
        while self.requester.una() < up_to {
            let (wr, at) = self.requester.una_packet();
            let slot = self.queue.slot(wr);
            if slot.kind != Kind::Data {
                reach = Reach::ResponseMissing;
                break;
            }
            let packets = (up_to - self.requester.una()).min(u64::from(slot.packets - at)) as u32;
            if self.requester.acknowledge(slot, packets, self.config) {
                self.queue.retire(self.host, self.config, Status::Success, 0);
                self.requester.retire_local(self.queue, self.config, self.host);
            }
        }
        if self.requester.una() != before {
            self.requester.progressed(self.now, self.config);
        }
        reach
    }

    /// The response packet that the oldest work request waited for has arrived (IBTA 9.7.6).
    fn response_arrived(&mut self) {
        let (wr, _) = self.requester.una_packet();
        let early = if self.early.is_empty() { 0 } else { self.early.count().0 };
        if self.requester.acknowledge(self.queue.slot(wr), 1 + early, self.config) {
            self.queue.retire(self.host, self.config, Status::Success, 0);
            self.requester.retire_local(self.queue, self.config, self.host);
        }
        self.requester.progressed(self.now, self.config);
    }

    /// Writes part of a response to its destination buffer, from byte `offset` on.
    fn scatter(&mut self, wr: u32, offset: u64, bytes: &[u8]) -> Result<(), Denied> {
        if self.requester.is_deaf() {
            return Err(Denied::PageFault);
        }
        match self.queue.source(wr) {
            Source::Gather(sges) if !bytes.is_empty() => self.host.scatter(sges, offset, bytes),
            _ => Ok(()),
        }
    }
}
