//! The responder: takes requests in PSN order, executes and answers them (IBTA 9.7.3, 9.7.4, 9.7.5).
//!
//! The order of checks is sequence → opcode order → operation allowed → resources (receive queue) → length → key →
//! execute → acknowledge; each check has its own file or function.
//!
//! Difference from Soft-RoCE: a SEND of several packets that meets an empty receive queue gets one RNR NAK here, and
//! its other packets are dropped without a reply until the first one is retransmitted (IBTA 9.7.5.2.8); Soft-RoCE
//! sends a sequence NAK for them as well.

mod ack;
mod datagram;
mod due;
mod duplicates;
mod early;
mod execute;
mod opcode_order;
mod page_fault;
mod raw;
mod read_order;
mod reply_pattern;
mod resources;
mod sequence;
mod tagged;
mod unreliable;

use crate::config::Config;
use crate::early::Early;
use crate::quirk::Chance;
use crate::recv_queue::RecvQueue;
use crate::{Access, Denied, Egress, Handled, Host, Instant, OdpOps, QpEvent, Refused, Side, Status};
use ack::{Covered, Owed};
use opcode_order::Message;
use reply_pattern::ReplyPattern;
use resources::Resources;
use sequence::{PsnPosition, Sequence};
use weir_wire::{NakCode, Packet, Psn, Syndrome, XrcEth};

/// The state of the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponderState {
    /// Between messages.
    Ready,
    /// Inside a SEND of several packets.
    InSend,
    /// Inside a WRITE of several packets.
    InWrite,
    /// A PSN is missing and a sequence NAK was sent; no further NAK until the packet arrives.
    AwaitMissing,
    /// There was no receive work request and an RNR NAK was sent; no further NAK until the request is retransmitted.
    AwaitReceive,
    /// A request waits until the data of earlier READs has been read out.
    AwaitReads,
    /// A request, or the response to one, needs a missing page.
    PageFault,
    /// In the error state.
    Halted,
}

/// An error that ends the connection: the NAK for the peer, and the status of the current receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fatal {
    /// The NAK code for the peer.
    pub nak: NakCode,
    /// Status and vendor error of the oldest receive work request, if the error affects it.
    pub receive: Option<(Status, u32)>,
    /// What was wrong, for the log.
    pub why: Option<&'static str>,
}

/// The result of a request without a fatal error.
enum Verdict {
    Executed,
    /// The response uses `packets` PSNs and is itself the acknowledgement.
    Responding {
        packets: u32,
    },
    /// No receive work request.
    NotReady,
}

/// Whether requests arrive in order, and which NAK was sent if not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Order {
    #[default]
    Kept,
    /// A sequence NAK was sent; no other is sent until a request is in order again (IBTA 9.7.5.2.2).
    SequenceNakSent,
    /// An RNR NAK was sent.
    RnrNakSent,
    /// An RNR NAK was sent because of a missing page.
    PageFaultNakSent,
    Halted,
}

/// The shared receive queue that a message names (XRC).
#[derive(Clone, Copy, Debug)]
struct Named {
    number: u32,
    /// Its protection domain.
    pd: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// The PSN that the next new request carries.
    expected: PsnPosition,
    /// Finished messages, modulo 2^24.
    msn: u32,
    message: Message,
    /// XRC: the shared receive queue of the current message, or of the last one.
    named: Option<Named>,
    order: Order,
    owed: Owed,
    reply_pattern: ReplyPattern,
    /// The NAK that ended the connection.
    ended_by: Option<Syndrome>,
    resources: Resources,
    early: Early,
    /// A request has arrived.
    established: bool,
    waits: Waits,
    /// Requests were dropped while a response waited for a page.
    dropped: bool,
    held_acks: HeldAcks,
    chance: Chance,
    /// Nothing is sent before this time: the next response is delayed.
    late: Option<Instant>,
}

/// What waits, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Waits {
    #[default]
    No,
    /// The request with the expected PSN, which the caller holds, waits for a page.
    Request,
    /// The response to a READ waits for a page.
    Response,
    /// The request with the expected PSN waits until the data of earlier READs has been read out.
    Reads,
}

/// The acknowledgements that a waiting response holds back.
#[derive(Debug, Default)]
struct HeldAcks {
    /// The PSN of its next packet: nothing from this PSN on is acknowledged.
    psn: Psn,
    /// Messages finished before it, modulo 2^24.
    msn: u32,
    /// The ACK or NAK owed for requests that were executed after it.
    owed: Owed,
}

impl Responder {
    /// The responder of a new QP, before `start`.
    pub fn new(config: &Config) -> Responder {
        let chance = Chance::new(config.profile.seed, config.init.qp_num, Side::Responder as u8);
        Responder { chance, ..Responder::default() }
    }

    /// Resets the responder to the current attributes (at RTR, and at RESET): first PSN (IBTA 9.7.1), MSN 0
    /// (IBTA 9.7.7.1).
    pub fn start(&mut self, config: &Config) {
        self.expected = PsnPosition::first(config.attr.rq_psn);
        self.msn = 0;
        self.message = Message::None;
        self.named = None;
        self.order = Order::Kept;
        self.owed = Owed::Nothing;
        self.reply_pattern = ReplyPattern::default();
        self.ended_by = None;
        self.resources.reset(config.attr.max_dest_rd_atomic);
        self.early.clear();
        self.established = false;
        self.waits = Waits::No;
        self.dropped = false;
        self.late = None;
    }

    /// Applies a changed `max_dest_rd_atomic`. The newest resources stay, whether their responses were sent or not.
    pub fn resize(&mut self, config: &Config) {
        self.resources.resize(config.attr.max_dest_rd_atomic);
    }

    /// What the responder is doing, or waiting for.
    pub fn state(&self) -> ResponderState {
        match (self.order, self.message) {
            (Order::Halted, _) => ResponderState::Halted,
            (Order::PageFaultNakSent, _) => ResponderState::PageFault,
            _ if self.waits == Waits::Reads => ResponderState::AwaitReads,
            _ if self.waits != Waits::No => ResponderState::PageFault,
            (Order::SequenceNakSent, _) => ResponderState::AwaitMissing,
            (Order::RnrNakSent, _) => ResponderState::AwaitReceive,
            (Order::Kept, Message::None) => ResponderState::Ready,
            (Order::Kept, Message::Send { .. }) => ResponderState::InSend,
            (Order::Kept, Message::Write { .. }) => ResponderState::InWrite,
        }
    }

    /// Stops: the QP is in the error state. With a NAK, the pending responses and then the NAK are still sent
    /// (IBTA 9.9.3). Without one, an ACK that waited for a reply leaves: the program has seen the message complete.
    pub fn halt(&mut self, nak: Option<NakCode>) {
        // An ACK must not cover a READ that gets no response.
        let responds = self.waits == Waits::Response || self.resources.is_pending();
        self.order = Order::Halted;
        self.waits = Waits::No;
        self.late = None;
        match nak {
            Some(code) => {
                self.ended_by = Some(Syndrome::Nak(code));
                self.owed = Owed::Nak(Syndrome::Nak(code));
            }
            None => {
                self.owed = if self.owed.has_ack() && !responds { Owed::Ack } else { Owed::Nothing };
                self.resources.reset(0);
            }
        }
    }

    /// The error state drops requests (IBTA 10.3.1). But if a NAK caused that state and the peer retransmits the
    /// refused request or an earlier one, then the NAK was lost and is sent again. Otherwise the peer would exhaust
    /// its retries without the reason that the NAK carries.
    #[cold]
    pub fn refuse_again(&mut self, psn: Psn) {
        if let Some(nak) = self.ended_by
            && sequence::check(self.expected.psn(), psn) != Sequence::Gap
        {
            self.owed = Owed::Nak(nak);
        }
    }

    /// Whether a request has arrived.
    pub fn is_established(&self) -> bool {
        self.established
    }

    /// The PSN that the next new request must carry (IBTA 9.7.3.1).
    pub fn expected(&self) -> Psn {
        self.expected.psn()
    }

    /// Handles a request, with the checks in their order: PSN, opcode order, operation allowed (IBTA 9.7.4.1.1,
    /// 9.7.4.1.2, 9.7.4.1.3); then it is executed. Without a receive the peer gets an RNR NAK (IBTA 9.7.5.2.8).
    #[inline]
    pub fn handle<H: Host>(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        config: &Config,
        queue: &mut RecvQueue,
        host: &mut H,
    ) -> Result<Handled, Fatal> {
        self.established = true;
        let bth = &packet.headers.bth;
        let sequence = sequence::check(self.expected.psn(), bth.psn);
        let plain = sequence == Sequence::Expected && self.waits == Waits::No && !self.resources.in_replay();
        if !plain && let Some(handled) = self.handle_out_of_order(now, sequence, packet, config, host) {
            return Ok(handled);
        }
        let (starts, ends) = (bth.opcode.starts_message(), bth.opcode.ends_message());
        let (request, access) = bth.opcode.operation().and_then(opcode_order::lookup).ok_or(Fatal::invalid())?;
        if !opcode_order::follows(&self.message, request, starts) || !config.attr.access_flags.contains(access) {
            return Err(self.refused(access, config));
        }
        if (self.resources.is_pending() || self.resources.in_replay()) && self.must_follow_reads(request, config) {
            return Ok(Handled::AfterReads);
        }
        if let Some(xrceth) = &packet.headers.get::<XrcEth>() {
            self.name_srq(xrceth.srq.get() & 0xff_ffff, starts, queue, host)?;
        }
        let verdict = match self.execute(request, packet, config, queue, host) {
            Ok(verdict) => verdict,
            Err(stop) => return self.defer_or_nak(stop.unless_odp(request, queue, config), config),
        };
        if let Verdict::NotReady = verdict {
            self.order = Order::RnrNakSent;
            self.owed = Owed::Nak(Syndrome::RnrNak(config.attr.min_rnr_timer));
            return Ok(Handled::Done);
        }
        self.order = Order::Kept;
        if self.owed.is_nak() {
            // A NAK that was not sent is obsolete; but an ACK for the packets before it is still owed.
            self.owed = Owed::Ack;
        }
        match verdict {
            Verdict::Responding { packets } => {
                self.expected = self.expected.plus(packets);
                self.owed = Owed::Nothing;
            }
            _ => {
                self.expected = self.expected.plus(1);
                if !self.early.is_empty() {
                    self.count_early(config);
                }
                if bth.ack_req {
                    // An XRC target's application replies on another QP. They would leave before a waiting ACK, and
                    // the peer would receive them before its own send completes.
                    let takes_receive = request == opcode_order::Request::Send || bth.opcode.has_imm();
                    if ends
                        && !config.xrc_target
                        && self.reply_pattern.message_executed(now, starts, takes_receive, config)
                    {
                        let before = Covered { psn: bth.psn.minus(1), msn: self.msn.wrapping_sub(1) & 0xff_ffff };
                        self.owed.delay_ack(now + config.tuning.ack_delay, before);
                    } else {
                        self.owed.owe_ack();
                    }
                }
            }
        }
        Ok(Handled::Done)
    }

    /// Sends what is due, in PSN order: responses, then an ACK or a NAK. False: the egress is full.
    pub fn poll<H: Host, E: Egress>(
        &mut self,
        now: Instant,
        config: &Config,
        host: &mut H,
        egress: &mut E,
    ) -> Result<bool, Fatal> {
        if self.late.is_some() {
            return Ok(true);
        }
        if !self.poll_responses(now, config, host, egress)? {
            return Ok(false);
        }
        if !egress.has_room() || self.late.is_some() {
            return Ok(!self.has_to_send());
        }
        let (expected, msn) = self.acknowledged();
        let Some(outgoing) = self.owed.outgoing(expected, msn, config) else { return Ok(true) };
        let sent = egress.push(&outgoing).is_ok();
        if sent {
            self.owed.mark_sent();
        }
        Ok(sent)
    }

    /// Sends the responses that are due, without the ACK or NAK after them. False: the egress is full.
    pub fn poll_responses<H: Host, E: Egress>(
        &mut self,
        now: Instant,
        config: &Config,
        host: &mut H,
        egress: &mut E,
    ) -> Result<bool, Fatal> {
        if self.late.is_some() {
            return Ok(true);
        }
        while self.late.is_none()
            && egress.has_room()
            && let Some((outgoing, psn)) = self.resources.outgoing(config)
        {
            match egress.push(&outgoing) {
                Ok(()) => {
                    self.resources.advance(config);
                    if self.resources.in_replay() {
                        self.begin_replay(now, config);
                    }
                }
                Err(Refused::Full) => return Ok(false),
                Err(Refused::Denied(Denied::PageFault)) if config.has_odp(OdpOps::READ) => {
                    self.response_waits(now, config, host);
                }
                Err(Refused::Denied(denied)) => {
                    // The NAK takes the PSN of the response packet, and nothing follows it (IBTA 9.7.5.1.3).
                    self.expected = self.expected.nearest(psn);
                    self.resources.reset(config.attr.max_dest_rd_atomic);
                    return Err(Fatal::access(denied));
                }
            }
        }
        Ok(egress.has_room() || !self.resources.is_pending() || self.late.is_some())
    }

    /// XRC: a request names its SRQ. The first packet of a message decides; all packets of the message, and a message
    /// that already holds a receive, must name the same SRQ (IBTA annex A14).
    #[inline(never)]
    fn name_srq<H: Host>(&mut self, number: u32, starts: bool, queue: &RecvQueue, host: &mut H) -> Result<(), Fatal> {
        if !starts || !queue.is_empty() {
            let same = self.named.is_some_and(|named| named.number == number);
            return if same { Ok(()) } else { Err(Fatal::invalid()) };
        }
        let pd = host.select_srq(number).ok_or(Fatal::invalid())?;
        self.named = Some(Named { number, pd });
        Ok(())
    }

    /// An operation that the QP does not allow, or a packet that may not follow the one before it: an invalid request
    /// (IBTA 9.7.4.1.2, 9.7.4.1.3).
    #[cold]
    fn refused(&self, access: Access, config: &Config) -> Fatal {
        let missing = access.difference(config.attr.access_flags);
        Fatal::invalid().because(if missing.contains(Access::REMOTE_WRITE) {
            "the QP's qp_access_flags lack IBV_ACCESS_REMOTE_WRITE"
        } else if missing.contains(Access::REMOTE_READ) {
            "the QP's qp_access_flags lack IBV_ACCESS_REMOTE_READ"
        } else if missing.contains(Access::REMOTE_ATOMIC) {
            "the QP's qp_access_flags lack IBV_ACCESS_REMOTE_ATOMIC"
        } else if !missing.is_empty() {
            "the QP's qp_access_flags do not allow the operation"
        } else {
            "the packet cannot follow the packet before it: a message began within another, or without its first packet"
        })
    }

    /// A packet is missing: one sequence NAK is owed (IBTA 9.7.5.2.2, 9.9.3.1, class B).
    fn owe_sequence_nak(&mut self) {
        self.order = Order::SequenceNakSent;
        self.owed = Owed::Nak(Syndrome::Nak(NakCode::PsnSequence));
    }
}

impl Fatal {
    /// NAK invalid request (IBTA 9.7.5.2.2).
    fn invalid() -> Fatal {
        Fatal { nak: NakCode::InvalidRequest, receive: None, why: None }
    }

    /// NAK remote operational error (IBTA 9.7.5.2.2).
    fn operational() -> Fatal {
        Fatal { nak: NakCode::RemoteOperational, receive: None, why: None }
    }

    /// The same, with its reason for the log (IBTA 9.7.5.2.2).
    fn because(self, why: &'static str) -> Fatal {
        Fatal { why: Some(why), ..self }
    }

    /// The current receive completes with an error as well (IBTA 9.9.3.1).
    fn receiving(self, status: Status, vendor: u32) -> Fatal {
        Fatal { receive: Some((status, vendor)), ..self }
    }

    /// The event for the application (IBTA 11.6.3.1).
    pub fn event(&self) -> QpEvent {
        match self.nak {
            NakCode::RemoteAccess => QpEvent::AccessError,
            NakCode::PsnSequence | NakCode::InvalidRequest => QpEvent::RequestError,
            NakCode::RemoteOperational => QpEvent::Fatal,
        }
    }
}
