//! One queue pair: its work queues and the three state machines around them.

use crate::completer::{Completer, CompleterState};
use crate::config::{Class, Config};
use crate::ending::Ending;
use crate::recv_queue::RecvQueue;
use crate::requester::{Failure, Requester, RequesterState};
use crate::responder::{Fatal, Responder, ResponderState};
use crate::send_queue::SendQueue;
use crate::{
    AttrMask, Egress, Handled, Host, Instant, ModifyError, PostError, Profile, QpAttr, QpCaps, QpEvent, QpInit,
    QpState, RecvWr, Retransmissions, SendWr, Side, Status, Target, Tuning, state,
};
use std::collections::TryReserveError;
use std::sync::Arc;
use std::time::Duration;
use weir_wire::{Packet, Service};

/// A queue pair. The parts that are specific to UC and UD are in `unreliable`.
///
/// It allocates on creation and in [`Qp::modify`], not per work request or packet.
pub struct Qp {
    pub(crate) config: Config,
    pub(crate) send_queue: SendQueue,
    pub(crate) recv_queue: RecvQueue,
    pub(crate) requester: Requester,
    completer: Completer,
    pub(crate) responder: Responder,
    /// The side that sends first at the next `poll_transmit`, because the other side filled the egress last time.
    starved: Option<Side>,
    /// SQD: `SendQueueDrained` is not raised yet.
    pub(crate) draining: bool,
    /// The error state was reached: `LastWqeReached` is not raised yet.
    last_wqe: bool,
    /// The reason why the QP entered the error state by itself, until the caller takes it.
    ending: Option<Ending>,
}

/// How much may leave now; the adapter divides its peers' receive buffers and its own among its QPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Cost in bytes of request packets that may go out beyond those in flight.
    pub request_bytes: usize,
    /// Bytes of READ responses that may be requested beyond those in flight.
    pub read_bytes: usize,
}

/// Data in flight; see [`Limits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Cost in bytes of request packets sent and not acknowledged.
    pub request_bytes: usize,
    /// Bytes of READ responses requested and not received.
    pub read_bytes: usize,
}

/// The result of a `poll_transmit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing more to send for now.
    Idle,
    /// The egress took no more.
    Full,
    /// A limit was reached: poll again when an ACK or a response has arrived.
    Limited,
}

impl Qp {
    /// A QP in RESET.
    ///
    /// # Panics
    /// If the memory for its rings cannot be allocated.
    pub fn new(init: QpInit, profile: Arc<Profile>, tuning: Tuning) -> Qp {
        Qp::try_new(init, profile, tuning).expect("no memory for the queue pair's rings")
    }

    /// As `new`. Error: the memory for its rings cannot be allocated.
    pub fn try_new(init: QpInit, profile: Arc<Profile>, tuning: Tuning) -> Result<Qp, TryReserveError> {
        let caps = init.caps;
        let config = Config::new(init, profile, tuning);
        let mut qp = Qp {
            send_queue: SendQueue::new(caps.max_send_wr, caps.max_send_sge, caps.max_inline_data)?,
            recv_queue: RecvQueue::new(caps.max_recv_wr, caps.max_recv_sge)?,
            requester: Requester::new(&config),
            completer: Completer::default(),
            responder: Responder::new(&config),
            starved: None,
            draining: false,
            last_wqe: false,
            ending: None,
            config,
        };
        qp.reset();
        Ok(qp)
    }

    /// Makes the QP take its receives from a shared receive queue ([`Host::take_receive`]), of at most `max_sges`
    /// SGEs each. Call it before any other function. Error: the memory for the slot cannot be allocated.
    pub fn share_receives(&mut self, max_sges: u32) -> Result<(), TryReserveError> {
        self.recv_queue = RecvQueue::shared(max_sges)?;
        Ok(())
    }

    /// XRC: the QP only responds (XRC_RECV), with receives from the SRQs that requests name. Call it before any other.
    pub fn become_xrc_target(&mut self, max_sges: u32) -> Result<(), TryReserveError> {
        self.config.xrc_target = true;
        self.share_receives(max_sges)
    }

    /// Its number on the wire.
    pub fn num(&self) -> u32 {
        self.config.init.qp_num
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.config.state
    }

    /// What the requester is doing.
    pub fn requester_state(&self) -> RequesterState {
        self.requester.state()
    }

    /// What the responder is doing.
    pub fn responder_state(&self) -> ResponderState {
        self.responder.state()
    }

    /// What the completer is doing.
    pub fn completer_state(&self) -> CompleterState {
        self.completer.state()
    }

    /// All attributes; the PSNs are those of the next new packet in each direction.
    pub fn attr(&self) -> QpAttr {
        QpAttr {
            qp_state: self.config.state,
            cur_qp_state: self.config.state,
            caps: self.config.init.caps,
            sq_draining: self.config.state == QpState::Sqd && !self.requester.is_drained(),
            sq_psn: self.requester.next_psn(),
            rq_psn: self.responder.expected(),
            ..self.config.attr
        }
    }

    /// Sizes of its queues.
    pub fn caps(&self) -> QpCaps {
        self.config.init.caps
    }

    /// Changes attributes and state (IBTA 11.2.5.2). To ERROR: flushes all work requests. To RESET: discards them;
    /// the caller must purge their completions.
    pub fn modify<H: Host>(
        &mut self,
        _now: Instant,
        attr: &QpAttr,
        mask: AttrMask,
        host: &mut H,
    ) -> Result<(), ModifyError> {
        let mask = state::applicable_mask(self.config.class(), mask);
        let to = state::check(self.config.class(), self.config.state, attr, mask)?;
        let from = self.config.state;
        state::apply(&mut self.config.attr, attr, mask);
        self.config.state = to;
        self.config.derive();
        match (from, to) {
            (_, QpState::Reset) => {
                self.requester.give_back_read_credits(host);
                self.reset();
            }
            // A NAK that is still owed is sent.
            (QpState::Error, QpState::Error) => {}
            (_, QpState::Error) => {
                self.halt(None);
                self.flush(host);
            }
            (QpState::Init, QpState::Rtr) => self.responder.start(&self.config),
            (QpState::Rtr, QpState::Rts) => self.requester.start(&self.config),
            (QpState::Rts, QpState::Sqd) => {
                self.draining = true;
                self.check_drained(host);
            }
            (QpState::Sqd, QpState::Rts) => self.draining = false,
            (QpState::Sqe, QpState::Rts) => {
                // Work requests posted before this are flushed; later ones are not.
                self.flush_sends(host);
                self.requester.resume(&self.send_queue);
            }
            _ => {}
        }
        if to == QpState::Sqd && mask.contains(AttrMask::MAX_DEST_RD_ATOMIC) {
            self.responder.resize(&self.config);
        }
        if mask.contains(AttrMask::TIMEOUT) {
            self.requester.refresh_timeout(&self.config);
        }
        if mask.intersects(AttrMask::RETRY_CNT | AttrMask::RNR_RETRY) {
            self.requester.refresh_retries(&self.config);
        }
        Ok(())
    }

    /// Queues a send work request (IBTA 11.4.1.1). In the ERROR state it is flushed by the next `poll_transmit`.
    #[inline]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post_send_to(wr, Target::Peer)
    }

    /// As `post_send`, with a destination: unconnected services and XRC need it, other services refuse it.
    #[inline]
    pub fn post_send_to(&mut self, wr: &SendWr<'_>, to: Target) -> Result<(), PostError> {
        if self.config.xrc_target {
            return Err(PostError::Operation);
        }
        if matches!(self.config.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::State);
        }
        self.send_queue.post(wr, to, &self.config)?;
        self.responder.posted();
        Ok(())
    }

    /// Queues a receive work request (IBTA 11.4.1.2). In the ERROR state it is flushed by the next `poll_transmit`.
    #[inline]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.config.state == QpState::Reset {
            return Err(PostError::State);
        }
        self.recv_queue.post(wr)
    }

    /// Takes a packet with a correct ICRC and this QP as its destination.
    #[inline]
    pub fn handle_packet<H: Host>(&mut self, now: Instant, packet: &Packet<'_>, host: &mut H) -> Handled {
        let opcode = packet.headers.bth.opcode;
        if opcode.service() != self.config.init.service {
            return Handled::Done;
        }
        if !self.config.is_reliable() {
            return self.handle_unreliable(packet, host);
        }
        if opcode.is_response() {
            return self.handle_response(now, packet, host);
        }
        if self.config.class() != Class::XrcInitiator {
            return self.handle_request(now, packet, host);
        }
        Handled::Done
    }

    /// Sends what is due, as far as limits and egress allow. Responses go first, unless requests were left unsent
    /// last time; an ACK alone follows the requests, so that both fit into one burst.
    #[inline]
    pub fn poll_transmit<H: Host, E: Egress>(
        &mut self,
        now: Instant,
        limits: Limits,
        host: &mut H,
        egress: &mut E,
    ) -> Progress {
        match self.config.state {
            QpState::Reset | QpState::Init => return Progress::Idle,
            QpState::Error => {
                self.flush(host);
                return if self.send_responses(now, host, egress) { Progress::Idle } else { Progress::Full };
            }
            QpState::Sqe => {
                self.flush_sends(host);
                return Progress::Idle;
            }
            _ => {}
        }
        self.responder.hurry_due(now);
        self.responder.sends_leave(now, &self.config);
        let responses_first = match self.starved.take() {
            Some(side) => side == Side::Responder,
            None => self.responder.has_responses() || self.ack_leads(),
        };
        if responses_first && !self.send_responses(now, host, egress) {
            self.starved = Some(Side::Requester);
            return Progress::Full;
        }
        let progress = self.send_requests(now, limits, host, egress);
        if progress == Progress::Full {
            if !responses_first && self.responder.wants_transmit() {
                self.starved = Some(Side::Responder);
            }
            return progress;
        }
        if self.responder.wants_transmit() && !self.send_responses(now, host, egress) {
            return Progress::Full;
        }
        progress
    }

    /// The time at which `handle_timeout` is due.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match (self.requester.deadline(), self.responder.deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether the ACK timeout of the oldest request has expired. The caller then receives pending packets before it
    /// calls `handle_timeout`: the response may have arrived while the calling thread was off its core.
    #[inline]
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.requester.is_overdue(now)
    }

    /// Handles expired deadlines: ACK timeout, the end of an RNR wait, the end of an ACK's waiting time.
    pub fn handle_timeout<H: Host>(&mut self, now: Instant, host: &mut H) {
        self.responder.hurry_due(now);
        if let Err(failure) = self.requester.handle_timeout(now, &self.config) {
            self.fail(failure, host);
        }
    }

    /// Whether `poll_transmit` would do something, ignoring limits; an ACK that may still wait does not count.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        let requests = match self.config.state {
            QpState::Reset | QpState::Init => return false,
            QpState::Error => !self.send_queue.is_empty() || !self.recv_queue.is_empty(),
            QpState::Rtr => false,
            QpState::Sqe => !self.send_queue.is_empty(),
            QpState::Rts | QpState::Sqd => self.requester.wants_transmit(&self.send_queue, &self.config),
        };
        requests || self.responder.wants_transmit()
    }

    /// Whether ACKs, NAKs or responses are due; no limit applies to them.
    #[inline]
    pub fn wants_respond(&self) -> bool {
        self.config.state != QpState::Reset && self.responder.wants_transmit()
    }

    /// Whether an ACK waits for a request to share a burst with.
    #[inline]
    pub fn has_waiting_ack(&self) -> bool {
        self.responder.has_waiting_ack()
    }

    /// Makes a waiting ACK leave at the next `poll_transmit`.
    pub fn hurry_ack(&mut self) {
        self.responder.hurry();
    }

    /// Takes back the newest sends, which must have been posted since the last call of any other function: if a batch
    /// cannot be posted completely, none of it stays posted.
    pub fn take_back_sends(&mut self, count: u32) {
        self.send_queue.take_back(count);
    }

    /// Whether an ACK leaves before requests of the same poll, as on hardware adapters: the peer may then see its send
    /// complete before it receives this side's reply. Otherwise the ACK follows the requests, if it fits their burst.
    pub fn set_acks_first(&mut self, first: bool) {
        self.config.acks_first = first;
    }

    /// The minimum time before the QP gives up on its peer: the peer may be stopped in a debugger.
    pub fn set_patience(&mut self, patience: Duration) {
        self.config.patience = patience;
    }

    /// Data in flight.
    #[inline]
    pub fn in_flight(&self) -> InFlight {
        self.requester.in_flight()
    }

    /// How often the QP retransmitted requests, by cause.
    pub fn retransmissions(&self) -> Retransmissions {
        self.requester.retransmissions()
    }

    /// The reason why the QP entered the error state by itself; returned once.
    #[inline]
    pub fn take_ending(&mut self) -> Option<Ending> {
        self.ending.take()
    }

    /// Whether an ACK must leave before the requests. Otherwise the ACK ends their burst of equal-sized packets as the
    /// shorter last packet. If the last request is short itself, the ACK would need a burst of its own and be late.
    fn ack_leads(&mut self) -> bool {
        let leads = self.responder.owes_ack()
            && matches!(self.config.state, QpState::Rts | QpState::Sqd)
            && self.requester.wants_transmit(&self.send_queue, &self.config)
            && (self.config.acks_first || self.requester.next_ends_short(&self.send_queue, &self.config));
        if leads {
            self.responder.send_ack_with_requests();
        }
        leads
    }

    fn handle_request<H: Host>(&mut self, now: Instant, packet: &Packet<'_>, host: &mut H) -> Handled {
        match self.config.state {
            // IBTA 10.3.1: requests are dropped before RTR.
            QpState::Reset | QpState::Init => return Handled::Done,
            QpState::Error => {
                self.responder.refuse_again(packet.headers.bth.psn);
                return Handled::Done;
            }
            QpState::Rtr if !self.responder.is_established() => host.event(QpEvent::CommunicationEstablished),
            _ => {}
        }
        match self.responder.handle(now, packet, &self.config, &mut self.recv_queue, host) {
            Ok(handled) => handled,
            Err(fatal) => {
                self.fail_response(fatal, host);
                Handled::Done
            }
        }
    }

    fn handle_response<H: Host>(&mut self, now: Instant, packet: &Packet<'_>, host: &mut H) -> Handled {
        if !matches!(self.config.state, QpState::Rts | QpState::Sqd) {
            return Handled::Done;
        }
        let Qp { config, send_queue, requester, completer, .. } = self;
        match completer.handle(now, packet, config, requester, send_queue, host) {
            Ok(handled) => {
                if self.draining {
                    self.check_drained(host);
                }
                handled
            }
            Err(failure) => {
                self.fail(failure, host);
                Handled::Done
            }
        }
    }

    // Inlined: it has one caller and runs for every packet.
    #[inline(always)]
    fn send_requests<H: Host, E: Egress>(
        &mut self,
        now: Instant,
        limits: Limits,
        host: &mut H,
        egress: &mut E,
    ) -> Progress {
        if !matches!(self.config.state, QpState::Rts | QpState::Sqd) {
            return Progress::Idle;
        }
        if !self.config.is_reliable() {
            return self.send_unreliable(now, host, egress);
        }
        loop {
            let polled = if self.requester.is_dammed(now) {
                self.requester.poll_dammed(now, limits, &self.config, &self.send_queue, host, egress)
            } else {
                self.requester.poll(now, limits, &self.config, &self.send_queue, host, egress)
            };
            let retired = self.requester.retire_local(&mut self.send_queue, &self.config, host);
            match polled {
                Ok((progress, sent)) => {
                    if sent > 0 {
                        self.responder.send_ack_with_requests();
                    }
                    if retired && progress == Progress::Idle {
                        if self.draining {
                            self.check_drained(host);
                        }
                        // Work requests that waited for these may proceed.
                        continue;
                    }
                    return progress;
                }
                Err(failure) => {
                    self.fail(failure, host);
                    return Progress::Idle;
                }
            }
        }
    }

    /// False: the egress is full.
    fn send_responses<H: Host, E: Egress>(&mut self, now: Instant, host: &mut H, egress: &mut E) -> bool {
        match self.responder.poll(now, &self.config, host, egress) {
            Ok(done) => done,
            Err(fatal) => {
                self.fail_response(fatal, host);
                // Only the NAK is left to send.
                self.responder.poll(now, &self.config, host, egress).unwrap_or(true)
            }
        }
    }

    /// The oldest send work request failed: it completes with an error, the QP goes to ERROR (IBTA 10.3.1.7, 9.9.2).
    fn fail<H: Host>(&mut self, failure: Failure, host: &mut H) {
        if !self.send_queue.is_empty() {
            self.send_queue.retire(host, &self.config, failure.status, failure.vendor);
        }
        self.ending = Some(Ending::requester(failure, &self.requester, &self.config));
        self.halt(None);
        self.flush(host);
    }

    /// A request was invalid: the peer gets a NAK, the application an event, and the QP goes to ERROR (IBTA 9.9.3).
    fn fail_response<H: Host>(&mut self, fatal: Fatal, host: &mut H) {
        if let Some((status, vendor)) = fatal.receive {
            self.recv_queue.fail(host, &self.config, status, vendor);
        }
        if self.config.state == QpState::Error {
            // A pending response failed after the QP entered ERROR: only the peer still needs a NAK.
            self.responder.halt(Some(fatal.nak));
            return;
        }
        self.ending = Some(Ending::responder(fatal, self.responder.expected()));
        self.halt(Some(fatal));
        host.event(fatal.event());
        self.flush(host);
    }

    pub(crate) fn halt(&mut self, fatal: Option<Fatal>) {
        self.config.state = QpState::Error;
        // IBTA 11.6.3.1: the QP takes nothing more from its SRQ. The SRQs of an XRC domain do not belong to a QP.
        self.last_wqe = self.recv_queue.is_shared() && self.config.init.service != Service::Xrc;
        self.draining = false;
        self.requester.halt();
        self.responder.halt(fatal.map(|fatal| fatal.nak));
    }

    /// Completes all work requests as flushed (IBTA 10.3.1.7, C10-42).
    pub(crate) fn flush<H: Host>(&mut self, host: &mut H) {
        self.requester.give_back_read_credits(host);
        self.flush_sends(host);
        while !self.recv_queue.is_empty() {
            self.recv_queue.fail(host, &self.config, Status::WrFlushed, 0);
        }
        if std::mem::take(&mut self.last_wqe) {
            host.event(QpEvent::LastWqeReached);
        }
    }

    /// The adapter has failed: goes to ERROR from every state but RESET. Flushes all work requests, including those
    /// that were posted in ERROR.
    pub fn enter_error_state<H: Host>(&mut self, host: &mut H) {
        match self.config.state {
            QpState::Reset => return,
            QpState::Error => {}
            _ => self.halt(None),
        }
        self.flush(host);
    }

    /// As `enter_error_state`, but touches the two queues only: the rest of the QP's state may be inconsistent.
    pub fn flush_queues<H: Host>(&mut self, host: &mut H) {
        if self.config.state == QpState::Reset {
            return;
        }
        self.config.state = QpState::Error;
        self.flush_sends(host);
        while !self.recv_queue.is_empty() {
            self.recv_queue.fail(host, &self.config, Status::WrFlushed, 0);
        }
    }

    /// SQD: raises an event once when every begun work request is acknowledged (IBTA 10.3.1.6).
    pub(crate) fn check_drained<H: Host>(&mut self, host: &mut H) {
        if self.config.state == QpState::Sqd && self.draining && self.requester.is_drained() {
            self.draining = false;
            if self.config.attr.en_sqd_async_notify {
                host.event(QpEvent::SendQueueDrained);
            }
        }
    }

    /// The owner has destroyed the QP: work requests are discarded without completions, and no further request is
    /// sent to the peer. Requests that the peer sent before are acknowledged again if it retransmits them. Returns
    /// the number of READ credits that the QP held ([`crate::Outstanding::give_back`]).
    pub fn abandon(&mut self) -> u32 {
        let read_credits = self.requester.take_read_credits();
        self.send_queue.reset();
        self.recv_queue.reset();
        self.requester.start(&self.config);
        self.completer.reset();
        self.responder.hurry();
        read_credits
    }

    fn reset(&mut self) {
        let Qp { config, .. } = self;
        config.attr = QpAttr { caps: config.init.caps, ..QpAttr::default() };
        config.state = QpState::Reset;
        config.derive();
        self.send_queue.reset();
        self.recv_queue.reset();
        self.requester.start(&self.config);
        self.completer.reset();
        self.responder.start(&self.config);
        self.starved = None;
        self.draining = false;
        self.last_wqe = false;
        self.ending = None;
    }
}
