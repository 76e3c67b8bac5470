//! The responder: takes requests in PSN order, executes them, answers (IBTA 9.7.3, 9.7.4, 9.7.5).
//!
//! The order of checks is sequence → opcode order → operation allowed → resources (receive queue) → length → key →
//! execute → acknowledge; each has its own file or function.
//!
//! Where Soft-RoCE differs: a SEND of several packets that meets an empty receive queue gets one RNR NAK here, and its
//! other packets are dropped in silence until the first one is repeated (IBTA 9.7.5.2.8); Soft-RoCE sends a sequence NAK
//! for them as well.

mod ack;
mod datagram;
mod execute;
mod opcode_order;
mod page_fault;
mod resources;
mod sequence;
mod unreliable;

use crate::config::Config;
use crate::quirk::Chance;
use crate::recv_queue::RecvQueue;
use crate::{Denied, Egress, Handled, Host, Instant, QpEvent, Refused, Side, Status};
use ack::{Habit, Owed};
pub use datagram::GRH_LEN;
use opcode_order::{Message, Request};
use page_fault::{HeldBack, Waits};
use resources::Resources;
use sequence::{Place, Sequence};
use weir_wire::{NakCode, Packet, Psn, Reth, Syndrome, XrcEth};

/// What the responder is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponderState {
    /// Between messages.
    Ready,
    /// Inside a SEND of several packets.
    InSend,
    /// Inside a WRITE of several packets.
    InWrite,
    /// A PSN is missing and that was said; silent until it comes.
    AwaitMissing,
    /// There was no receive work request and that was said; silent until the request is repeated.
    AwaitReceive,
    /// A request, or the answer to one, needs a page that is missing.
    PageFault,
    /// In the error state.
    Halted,
}

/// An error that ends the connection: what the peer is told, and how the receive under way ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fatal {
    pub nak: NakCode,
    /// Status and detail of the oldest receive work request, if it is concerned.
    pub receive: Option<(Status, u32)>,
}

/// How a request ended that was not fatal.
enum Verdict {
    Executed,
    /// The answer takes `packets` PSNs and acknowledges by itself.
    Answering {
        packets: u32,
    },
    /// No receive work request.
    NotReady,
}

/// What follows if requests do not come in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Order {
    #[default]
    Kept,
    /// One sequence NAK was said; no more until in order again (IBTA 9.7.5.2.2).
    MissingSaid,
    /// An RNR NAK was said.
    NotReadySaid,
    /// The same, because of a page.
    PageFaultSaid,
    Halted,
}

/// A shared receive queue that a message named.
#[derive(Clone, Copy, Debug)]
struct Named {
    number: u32,
    /// Its protection domain.
    pd: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// The PSN that the next new request carries.
    expected: Place,
    /// Messages finished, 24 bits.
    msn: u32,
    message: Message,
    /// XRC: the shared receive queue of the message under way, or of the last one.
    named: Option<Named>,
    order: Order,
    owed: Owed,
    habit: Habit,
    /// The NAK that ended the connection.
    ended_by: Option<Syndrome>,
    resources: Resources,
    /// A request has come.
    established: bool,
    waits: Waits,
    /// Requests were dropped while an answer waited.
    dropped: bool,
    held_back: HeldBack,
    chance: Chance,
    /// Nothing goes out before then: the answer that is next is found the slow way.
    late: Option<Instant>,
}

impl Responder {
    /// That of a new QP, which is still to be started.
    pub fn new(config: &Config) -> Responder {
        let chance = Chance::new(config.profile.seed, config.init.qp_num, Side::Responder as u8);
        Responder { chance, ..Responder::default() }
    }

    /// Starts afresh with the attributes as they are (at RTR, and at RESET).
    pub fn start(&mut self, config: &Config) {
        self.expected = Place::first(config.attr.rq_psn);
        self.msn = 0;
        self.message = Message::None;
        self.named = None;
        self.order = Order::Kept;
        self.owed = Owed::Nothing;
        self.habit = Habit::default();
        self.ended_by = None;
        self.resources.reset(config.attr.max_dest_rd_atomic);
        self.established = false;
        self.waits = Waits::No;
        self.dropped = false;
        self.late = None;
    }

    /// Takes over a changed number of resources. The newest stay, answered or not.
    pub fn resize(&mut self, config: &Config) {
        self.resources.resize(config.attr.max_dest_rd_atomic);
    }

    pub fn state(&self) -> ResponderState {
        match (self.order, self.message) {
            (Order::Halted, _) => ResponderState::Halted,
            (Order::PageFaultSaid, _) => ResponderState::PageFault,
            _ if self.waits != Waits::No => ResponderState::PageFault,
            (Order::MissingSaid, _) => ResponderState::AwaitMissing,
            (Order::NotReadySaid, _) => ResponderState::AwaitReceive,
            (Order::Kept, Message::None) => ResponderState::Ready,
            (Order::Kept, Message::Send { .. }) => ResponderState::InSend,
            (Order::Kept, Message::Write { .. }) => ResponderState::InWrite,
        }
    }

    /// Stops for good: the QP is in the error state. With a NAK, that and the answers before it still go out.
    pub fn halt(&mut self, nak: Option<NakCode>) {
        self.order = Order::Halted;
        self.waits = Waits::No;
        self.late = None;
        match nak {
            Some(code) => {
                self.ended_by = Some(Syndrome::Nak(code));
                self.owed = Owed::Nak(Syndrome::Nak(code));
            }
            None => {
                self.owed = Owed::Nothing;
                self.resources.reset(0);
            }
        }
    }

    /// In the error state a request is dropped (IBTA 10.3.1). But if that state was told by a NAK and the peer asks
    /// again for what was refused, or for what came before, then it has not heard: it is told again, where it would
    /// count its tries instead of learning why.
    #[cold]
    pub fn refuse_again(&mut self, psn: Psn) {
        if let Some(nak) = self.ended_by
            && sequence::check(self.expected.psn(), psn) != Sequence::Gap
        {
            self.owed = Owed::Nak(nak);
        }
    }

    /// Whether a request has come.
    pub fn is_established(&self) -> bool {
        self.established
    }

    pub fn expected(&self) -> Psn {
        self.expected.psn()
    }

    /// When an ACK that waits for company must go, or what is late may.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        match (self.owed.deadline(), self.late) {
            (owed, None) => owed,
            (None, late) => late,
            (Some(owed), Some(late)) => Some(owed.min(late)),
        }
    }

    pub fn owes_lazy_ack(&self) -> bool {
        matches!(self.owed, Owed::Lazy(_))
    }

    /// Whether an ACK is owed, be it one that may wait.
    #[inline]
    pub fn owes_ack(&self) -> bool {
        matches!(self.owed, Owed::Lazy(_) | Owed::Ack)
    }

    /// A send was posted.
    #[inline]
    pub fn posted(&mut self) {
        self.habit.posted();
    }

    /// What was posted leaves now, and an ACK that is owed may leave with it.
    #[inline]
    pub fn answers(&mut self, now: Instant, config: &Config) {
        self.habit.leaves(now, config);
    }

    /// An ACK that waits for an answer goes with one that is there.
    pub fn accompany(&mut self) {
        self.owed.hurry();
    }

    /// An ACK that waits for an answer waits no more.
    pub fn hurry(&mut self) {
        if self.owed.hurry() {
            self.habit.broken();
        }
    }

    #[inline]
    pub fn hurry_due(&mut self, now: Instant) {
        if self.owed.hurry_due(now) {
            self.habit.broken();
        }
        if self.late.is_some_and(|late| late <= now) {
            self.late = None;
        }
    }

    /// Whether something is to go out now; an ACK that may wait does not count.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        (self.owed.is_due() || self.resources.is_pending()) && self.late.is_none()
    }

    /// Whether that is more than an ACK, which can as well follow our own requests.
    #[inline]
    pub fn has_answers(&self) -> bool {
        matches!(self.owed, Owed::Nak(_)) || self.resources.is_pending()
    }

    /// Takes a request.
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
        if sequence != Sequence::Expected || self.waits != Waits::No {
            return Ok(self.not_now(now, sequence, packet, config));
        }
        let (starts, ends) = (bth.opcode.starts_message(), bth.opcode.ends_message());
        let (request, access) = bth.opcode.operation().and_then(opcode_order::lookup).ok_or(Fatal::invalid())?;
        if !opcode_order::follows(&self.message, request, starts) || !config.attr.access_flags.contains(access) {
            return Err(Fatal::invalid());
        }
        if let Some(xrceth) = &packet.headers.get::<XrcEth>() {
            self.name_srq(xrceth.srq.get() & 0xff_ffff, starts, queue, host)?;
        }
        let verdict = match self.execute(request, packet, config, queue, host) {
            Ok(verdict) => verdict,
            Err(stop) => return self.stopped(now, stop, config),
        };
        if let Verdict::NotReady = verdict {
            self.order = Order::NotReadySaid;
            self.owed = Owed::Nak(Syndrome::RnrNak(config.attr.min_rnr_timer));
            return Ok(Handled::Done);
        }
        self.order = Order::Kept;
        if self.owed.is_nak() {
            // Not out yet, and no longer true; but what it acknowledged stays acknowledged.
            self.owed = Owed::Ack;
        }
        match verdict {
            Verdict::Answering { packets } => {
                self.expected = self.expected.plus(packets);
                self.owed = Owed::Nothing;
            }
            _ => {
                self.expected = self.expected.plus(1);
                if bth.ack_req {
                    // An XRC target's answers leave by another QP: ahead of an ACK that waits, and the peer would hear
                    // of them before the end of its own send.
                    let may_wait = starts && ends && !config.xrc_target && self.habit.message(now);
                    self.owed.ask(now, may_wait, config);
                }
            }
        }
        Ok(Handled::Done)
    }

    /// Sends what is due, in PSN order: answers, then an ACK or a NAK. False: the egress is full.
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
        while let Some((outgoing, psn)) = self.resources.outgoing(config) {
            match egress.push(&outgoing) {
                Ok(()) => self.resources.advance(config),
                Err(Refused::Full) => return Ok(false),
                Err(Refused::Denied(Denied::PageFault)) => self.answer_waits(now, config, host),
                Err(Refused::Denied(denied)) => {
                    // The NAK stands in for the response packet, and nothing comes after it.
                    self.expected = self.expected.nearest(psn);
                    self.resources.reset(config.attr.max_dest_rd_atomic);
                    return Err(Fatal::access(denied));
                }
            }
        }
        let (expected, msn) = self.acknowledged();
        let Some(outgoing) = self.owed.outgoing(expected, msn, config) else { return Ok(true) };
        let sent = egress.push(&outgoing).is_ok();
        if sent {
            self.owed.said();
        }
        Ok(sent)
    }

    /// XRC: a request names its SRQ. The first packet of a message decides; the SRQ of a message that has taken a receive
    /// stays the same too (IBTA annex A14).
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

    /// A packet is missing: said once (IBTA 9.7.5.2.2).
    fn say_missing(&mut self) {
        self.order = Order::MissingSaid;
        self.owed = Owed::Nak(Syndrome::Nak(NakCode::PsnSequence));
    }

    /// A request that was seen before: answered again, not executed again (IBTA 9.7.5.1.2).
    fn repeat(&mut self, now: Instant, packet: &Packet<'_>, config: &Config) {
        let bth = &packet.headers.bth;
        let place = self.expected.nearest(bth.psn);
        match bth.opcode.operation().and_then(opcode_order::lookup) {
            Some((Request::Send | Request::Write, _)) if bth.ack_req || bth.opcode.ends_message() => {
                self.owed.repeat();
            }
            Some((Request::Send | Request::Write, _)) => {}
            Some((Request::Read, _)) => {
                if let Some(reth) = packet.headers.get::<Reth>() {
                    let (va, rkey, length) = (reth.va.get(), reth.rkey.get(), reth.dma_len.get());
                    let known = self.resources.repeat_read(place, va, rkey, length, config.mtu);
                    self.answer_repeated(known, config);
                    if known {
                        self.answer_late(now, config);
                    }
                }
            }
            Some((Request::Atomic | Request::AtomicWrite, _)) => {
                let known = self.resources.repeat_atomic(place);
                self.answer_repeated(known, config);
            }
            None => {}
        }
    }
}

/// A READ that comes again is answered late: fresh ones took 3 to 7 µs in all of the thesis' traces, repeated ones 74 to
/// 93 (T fig 4.2, 5.3). Answers leave in PSN order, so what is behind it is late with it.
impl Responder {
    #[cold]
    fn answer_late(&mut self, now: Instant, config: &Config) {
        let wait = config.profile.repeated_read;
        if self.late.is_none() && !wait.high.is_zero() {
            self.late = Some(now + wait.at(self.chance.share()));
        }
    }
}

impl Fatal {
    /// NAK invalid request (IBTA 9.7.5.2.4).
    fn invalid() -> Fatal {
        Fatal { nak: NakCode::InvalidRequest, receive: None }
    }

    /// NAK remote operational error (IBTA 9.7.5.2.6).
    fn operational() -> Fatal {
        Fatal { nak: NakCode::RemoteOperational, receive: None }
    }

    fn receiving(self, status: Status, vendor: u32) -> Fatal {
        Fatal { receive: Some((status, vendor)), ..self }
    }

    /// The event that tells the application (IBTA 11.6.3.1).
    pub fn event(&self) -> QpEvent {
        match self.nak {
            NakCode::RemoteAccess => QpEvent::AccessError,
            NakCode::PsnSequence | NakCode::InvalidRequest => QpEvent::RequestError,
            NakCode::RemoteOperational => QpEvent::Fatal,
        }
    }
}
