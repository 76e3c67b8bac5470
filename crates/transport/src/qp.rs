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
    QpState, RecvWr, SendWr, Setbacks, Side, Status, Target, Tuning, state,
};
use std::collections::TryReserveError;
use std::sync::Arc;
use std::time::Duration;
use weir_wire::{Packet, Service};

/// A queue pair. What is particular to UC and UD stands in `unreliable`.
///
/// It allocates when it is made and in [`Qp::modify`], not per work request or packet.
pub struct Qp {
    pub(crate) config: Config,
    pub(crate) send_queue: SendQueue,
    pub(crate) recv_queue: RecvQueue,
    pub(crate) requester: Requester,
    completer: Completer,
    pub(crate) responder: Responder,
    /// Who goes first at the next `poll_transmit`, because the other filled the egress last time.
    starved: Option<Side>,
    /// SQD: `SendQueueDrained` is still to come.
    pub(crate) draining: bool,
    /// The error state was reached: `LastWqeReached` is still to come.
    last_wqe: bool,
    /// It ended by itself, and the caller has not asked why.
    ending: Option<Ending>,
}

/// How much may leave now; the adapter divides its peers' and its own receive buffers among QPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Cost in bytes of request packets that may go out beyond those in flight.
    pub request_bytes: usize,
    /// Bytes of READ responses that may be asked for beyond those in flight.
    pub read_bytes: usize,
}

/// What is under way; see [`Limits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Cost in bytes of request packets sent and not acknowledged.
    pub request_bytes: usize,
    /// Bytes of READ responses asked for and not arrived.
    pub read_bytes: usize,
}

/// How a `poll_transmit` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing more to send for now.
    Idle,
    /// The egress took no more.
    Full,
    /// A limit was reached: try again when something was acknowledged or has arrived.
    Limited,
}

impl Qp {
    /// A QP in RESET.
    ///
    /// # Panics
    /// If there is no memory for its rings.
    pub fn new(init: QpInit, profile: Arc<Profile>, tuning: Tuning) -> Qp {
        Qp::try_new(init, profile, tuning).expect("memory for its rings")
    }

    /// The same. Error: there is no memory for its rings.
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

    /// Its receives come from a shared receive queue ([`Host::take_receive`]), of `max_sges` pieces at most. Before
    /// anything else. Error: there is no memory for a place.
    pub fn share_receives(&mut self, max_sges: u32) -> Result<(), TryReserveError> {
        self.recv_queue = RecvQueue::shared(max_sges)?;
        Ok(())
    }

    /// XRC: it only responds (XRC_RECV); its receives come from the queues that requests name. Before anything else.
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

    /// All attributes; the PSNs are those of the next new packet each way.
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

    /// Changes attributes and state (IBTA 11.2.5.2). To ERROR: flushes all work requests. To RESET: forgets them; their
    /// completions are the caller's to purge.
    pub fn modify<H: Host>(
        &mut self,
        _now: Instant,
        attr: &QpAttr,
        mask: AttrMask,
        host: &mut H,
    ) -> Result<(), ModifyError> {
        let mask = state::heeded(self.config.class(), mask);
        let to = state::check(self.config.class(), self.config.state, attr, mask)?;
        let from = self.config.state;
        state::apply(&mut self.config.attr, attr, mask);
        self.config.state = to;
        self.config.derive();
        match (from, to) {
            (_, QpState::Reset) => {
                self.requester.give_back_all(host);
                self.reset();
            }
            // A NAK that is still to go out goes out.
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
                // What was posted before is flushed, what comes now is not.
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

    /// The same, to somebody: services that are not connected need it, others refuse it.
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

    /// Takes a packet whose ICRC was right and whose destination QP is this one.
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

    /// Sends what is to be sent, as far as limits and egress allow. Responses come first, unless requests were left
    /// behind last time; a mere ACK follows the requests, so that both fit into one burst.
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
        self.responder.answers(now, &self.config);
        let responses_first = match self.starved.take() {
            Some(side) => side == Side::Responder,
            None => self.responder.has_answers() || self.ack_leads(),
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

    /// When `handle_timeout` is due.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match (self.requester.deadline(), self.responder.deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether the peer's answer should have come by now. Whoever drives looks for it before `handle_timeout`: it may
    /// have come while he was away.
    #[inline]
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.requester.is_overdue(now)
    }

    /// Does what is due: retransmission, the end of an RNR wait, an ACK that waited long enough.
    pub fn handle_timeout<H: Host>(&mut self, now: Instant, host: &mut H) {
        self.responder.hurry_due(now);
        if let Err(failure) = self.requester.handle_timeout(now, &self.config) {
            self.fail(failure, host);
        }
    }

    /// Whether `poll_transmit` would do something, limits aside; an ACK that may wait does not count.
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

    /// Whether ACKs, NAKs or responses would go out: no limit holds them back.
    #[inline]
    pub fn wants_respond(&self) -> bool {
        self.config.state != QpState::Reset && self.responder.wants_transmit()
    }

    /// Whether an ACK waits for company.
    #[inline]
    pub fn owes_lazy_ack(&self) -> bool {
        self.responder.owes_lazy_ack()
    }

    /// Lets an ACK that waits for company go at the next `poll_transmit`.
    pub fn hurry_ack(&mut self) {
        self.responder.hurry();
    }

    /// Takes back the newest sends, which were posted since the last call of anything else: a batch that cannot be
    /// posted as a whole leaves nothing behind.
    pub fn take_back_sends(&mut self, count: u32) {
        self.send_queue.take_back(count);
    }

    /// Whether an ACK goes out before requests that leave with it, as adapters do: the peer may then hear of the end of
    /// its send before it hears of our answer to it. Otherwise it follows them, where it fits into their burst.
    pub fn set_acks_first(&mut self, first: bool) {
        self.config.acks_first = first;
    }

    /// The peer is waited for at least this long before the QP gives up on it: it may stand in a debugger.
    pub fn set_patience(&mut self, patience: Duration) {
        self.config.patience = patience;
    }

    /// What is under way.
    #[inline]
    pub fn in_flight(&self) -> InFlight {
        self.requester.in_flight()
    }

    /// How often requests had to be sent again.
    pub fn setbacks(&self) -> Setbacks {
        self.requester.setbacks()
    }

    /// Why it went to the error state by itself: told once.
    #[inline]
    pub fn take_ending(&mut self) -> Option<Ending> {
        self.ending.take()
    }

    /// An ACK is owed that must not come after our requests. Where it may, it ends their burst, as the shorter last of
    /// packets of one size; behind a last one that is shorter itself it would be a burst of its own, and late.
    fn ack_leads(&mut self) -> bool {
        let leads = self.responder.owes_ack()
            && matches!(self.config.state, QpState::Rts | QpState::Sqd)
            && self.requester.wants_transmit(&self.send_queue, &self.config)
            && (self.config.acks_first || self.requester.next_ends_short(&self.send_queue, &self.config));
        if leads {
            self.responder.accompany();
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

    // Called in one place, and for every packet.
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
                        self.responder.accompany();
                    }
                    if retired && progress == Progress::Idle {
                        if self.draining {
                            self.check_drained(host);
                        }
                        // What waited for those may go on.
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
                // Nothing is left but the NAK.
                self.responder.poll(now, &self.config, host, egress).unwrap_or(true)
            }
        }
    }

    /// The oldest send work request failed: it completes so, the QP goes to ERROR (IBTA 10.3.1.7, 9.9.2).
    fn fail<H: Host>(&mut self, failure: Failure, host: &mut H) {
        if !self.send_queue.is_empty() {
            self.send_queue.retire(host, &self.config, failure.status, failure.vendor);
        }
        self.ending = Some(Ending::requester(failure, &self.requester, &self.config));
        self.halt(None);
        self.flush(host);
    }

    /// A request was invalid: the peer gets a NAK, the application an event, the QP goes to ERROR (IBTA 9.9.3).
    fn fail_response<H: Host>(&mut self, fatal: Fatal, host: &mut H) {
        if let Some((status, vendor)) = fatal.receive {
            self.recv_queue.fail(host, &self.config, status, vendor);
        }
        if self.config.state == QpState::Error {
            // An answer that was still to go out: only the peer has not heard of the end.
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
        // IBTA 11.6.3.1: nothing of a shared queue will be taken any more. The domain's queues of XRC are no QP's.
        self.last_wqe = self.recv_queue.is_shared() && self.config.init.service != Service::Xrc;
        self.draining = false;
        self.requester.halt();
        self.responder.halt(fatal.map(|fatal| fatal.nak));
    }

    /// Retires everything as flushed (IBTA 10.3.1.7, C10-42).
    pub(crate) fn flush<H: Host>(&mut self, host: &mut H) {
        self.requester.give_back_all(host);
        self.flush_sends(host);
        while !self.recv_queue.is_empty() {
            self.recv_queue.fail(host, &self.config, Status::WrFlushed, 0);
        }
        if std::mem::take(&mut self.last_wqe) {
            host.event(QpEvent::LastWqeReached);
        }
    }

    /// The adapter has failed: ERROR from every state but RESET. All work requests are flushed, also those that were
    /// posted in ERROR.
    pub fn shut<H: Host>(&mut self, host: &mut H) {
        match self.config.state {
            QpState::Reset => return,
            QpState::Error => {}
            _ => self.halt(None),
        }
        self.flush(host);
    }

    /// The same by the two queues alone, where nothing else of the QP can be trusted.
    pub fn shut_queues<H: Host>(&mut self, host: &mut H) {
        if self.config.state == QpState::Reset {
            return;
        }
        self.config.state = QpState::Error;
        self.flush_sends(host);
        while !self.recv_queue.is_empty() {
            self.recv_queue.fail(host, &self.config, Status::WrFlushed, 0);
        }
    }

    /// SQD: tells once that all that was begun is answered (IBTA 10.3.1.6).
    pub(crate) fn check_drained<H: Host>(&mut self, host: &mut H) {
        if self.config.state == QpState::Sqd && self.draining && self.requester.is_drained() {
            self.draining = false;
            if self.config.attr.en_sqd_async_notify {
                host.event(QpEvent::SendQueueDrained);
            }
        }
    }

    /// Its owner is done with it: work requests are forgotten without completions, nothing is asked of the peer any
    /// more. What the peer has sent before is acknowledged again if it asks. Returns how many places for outstanding
    /// READs it had ([`crate::Outstanding::give_back`]).
    pub fn abandon(&mut self) -> u32 {
        let places = self.requester.leave_places();
        self.send_queue.reset();
        self.recv_queue.reset();
        self.requester.start(&self.config);
        self.completer.reset();
        self.responder.hurry();
        places
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
