//! One queue pair: its work queues and the three state machines around them.

mod ack_order;
mod failure;
mod modify;
mod page_fault;
mod receive;
mod rendezvous;
mod transmit;
mod unreliable;

use crate::completer::{Completer, CompleterState};
use crate::config::Config;
use crate::ending::Ending;
use crate::limits::InFlight;
use crate::recv_queue::RecvQueue;
use crate::requester::{Requester, RequesterState};
use crate::responder::{Responder, ResponderState};
use crate::send_queue::SendQueue;
use crate::{
    Host, Instant, PostError, Profile, QpAttr, QpCaps, QpInit, QpState, RecvWr, Retransmissions, SendWr, Side, Target,
    Tuning, Unanswered,
};
use std::collections::TryReserveError;
use std::sync::Arc;
use std::time::Duration;

/// A queue pair. The parts that are specific to UC and UD are in `qp::unreliable`.
///
/// It allocates on creation and in [`Qp::modify`], not per work request or packet.
pub struct Qp {
    config: Config,
    send_queue: SendQueue,
    recv_queue: RecvQueue,
    requester: Requester,
    completer: Completer,
    responder: Responder,
    ack_order: AckOrder,
    /// SQD: `SendQueueDrained` is not raised yet.
    draining: bool,
    /// The error state was reached: `LastWqeReached` is not raised yet.
    last_wqe: bool,
    /// The reason why the QP entered the error state by itself, until the caller takes it.
    ending: Option<Ending>,
}

/// What decides the order of requests and ACKs (`ack_order.rs`), kept from one poll to the next.
#[derive(Debug, Default)]
struct AckOrder {
    /// An ACK leaves before requests, whatever their sizes are.
    acks_first: bool,
    /// The side that sends first at the next poll, because the other side filled the egress last time.
    starved: Option<Side>,
}

impl AckOrder {
    /// The QP is reset; the adapter's choice stays.
    fn reset(&mut self) {
        self.starved = None;
    }
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
            ack_order: AckOrder::default(),
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

    /// Whether its requester drops responses and ACKs without a look at their pages (packet flood).
    pub fn is_deaf(&self) -> bool {
        self.requester.is_deaf()
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
        self.responder.end_delays(now);
        if let Err(failure) = self.requester.handle_timeout(now, &self.config) {
            self.fail(failure, host);
        }
    }

    /// Whether requests have left that the peer has not acknowledged.
    pub fn has_unacknowledged(&self) -> bool {
        self.requester.unacknowledged() > 0
    }

    /// Whether an ACK waits for a request to share a burst with.
    #[inline]
    pub fn has_waiting_ack(&self) -> bool {
        self.responder.has_waiting_ack()
    }

    /// The program polled, and its poll found nothing. A waiting ACK leaves at the next `poll_transmit`, unless its
    /// reply is likely to be posted soon or is leaving: see [`has_waiting_ack`](Self::has_waiting_ack) then.
    pub fn program_polled(&mut self, now: Instant) {
        let unacknowledged = self.requester.in_flight().request_bytes > 0;
        self.responder.program_polled(now, unacknowledged, &self.config);
    }

    /// Makes a waiting ACK leave at the next `poll_transmit`.
    pub fn end_ack_delay(&mut self) {
        self.responder.end_ack_delay();
    }

    /// Takes back the newest sends, which must have been posted since the last call of any other function: if a batch
    /// cannot be posted completely, none of it stays posted.
    pub fn take_back_sends(&mut self, count: u32) {
        self.send_queue.take_back(count);
    }

    /// The minimum time before the QP gives up on its peer: the peer may be stopped in a debugger.
    pub fn set_patience(&mut self, patience: Duration) {
        self.config.patience = patience;
    }

    /// Whether the application polls for completions (the default). A peer that waits for events, as this side does, may
    /// count on an event of its send before the event of the reply. So only while this side polls does the ACK of a long
    /// message wait for the reply, and leave after it in a datagram of its own.
    pub fn set_program_polls(&mut self, polls: bool) {
        self.config.program_polls = polls;
    }

    /// Whether payload of SENDs, WRITEs and READ responses leaves in frames ([`weir_wire::frame`]), which the peer must
    /// accept; UD and raw QPs have no frames. Frames and RoCE packets are taken alike.
    pub fn set_frames(&mut self, frames: bool) {
        self.config.frames = frames && !self.config.has_datagrams();
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

    /// The oldest request that has no response yet.
    pub fn unanswered(&self) -> Option<Unanswered> {
        self.requester.unanswered()
    }

    /// The reason why the QP entered the error state by itself; returned once.
    #[inline]
    pub fn take_ending(&mut self) -> Option<Ending> {
        self.ending.take()
    }

    /// The owner has destroyed the QP: work requests are discarded without completions (except what a TM SRQ gave: call
    /// [`Qp::end_tags`] before), and no further request is sent to the peer. Requests that the peer sent before are
    /// acknowledged again if it retransmits them.
    pub fn abandon(&mut self) {
        self.send_queue.reset();
        self.recv_queue.reset();
        self.requester.start(&self.config);
        self.completer.reset();
        self.responder.end_ack_delay();
    }
}
