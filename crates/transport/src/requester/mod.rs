//! The requester: turns send work requests into request packets, and retransmits unacknowledged requests.
//!
//! It holds two positions in the stream of PSNs: the oldest unacknowledged packet and the next packet to send. Going
//! back sets the second to the first. The completer handles responses.

mod acknowledge;
mod credits;
mod local;
mod page_fault;
mod poll;
mod position;
mod retry;
mod send;
mod unreliable;

use crate::config::Config;
use crate::limits::InFlight;
use crate::quirk::Chance;
use crate::{Instant, Side, Status};
use position::Position;
use std::time::Duration;
use weir_wire::Psn;

/// What the requester is doing, or waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RequesterState {
    /// Every work request in the send queue was sent.
    #[default]
    Idle,
    /// There are packets to send.
    Sending,
    /// The limits allow no more packets until an ACK or a response arrives.
    WaitWindow,
    /// `max_rd_atomic` READs and atomics are outstanding.
    WaitReads,
    /// A fenced work request waits for earlier READs and atomics, or an invalidation for all earlier work requests.
    WaitFence,
    /// The peer advertised that it has no receives left: one packet leaves at a time.
    WaitCredit,
    /// The receiver was not ready: waiting for the time in its RNR NAK.
    WaitReceiver,
    /// Pages of the local process are missing: waiting for their resolution.
    PageFault,
    /// The next work request cannot be executed; it fails when all earlier ones are complete.
    Stalled,
    /// SQD: all work requests that were begun are sent.
    Draining,
    /// In the error state.
    Halted,
}

/// Retransmission counters: how often requests were sent again since the QP was created, by cause, wrapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retransmissions {
    /// The ACK timeout of the oldest request expired.
    pub ack_timeouts: u32,
    /// The responder reported a missing packet.
    pub sequence_naks: u32,
    /// A response was missing.
    pub implied_naks: u32,
    /// The receiver was not ready.
    pub rnr_naks: u32,
}

/// The oldest request that has no response yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// PSN of its oldest packet without a response.
    pub psn: Psn,
    /// Since when there has been no response that can be used, retransmissions included.
    pub since: Instant,
    /// The end of an RNR wait, if there is one.
    pub until: Option<Instant>,
}

/// Why the oldest work request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The status of its completion.
    pub status: Status,
    /// The `vendor_err` of its completion.
    pub vendor: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Requester {
    state: RequesterState,
    /// PSN of position 0.
    base: Psn,
    /// Oldest packet not acknowledged; its work request is the oldest in the queue.
    una: Position,
    /// Next packet to send.
    next: Position,
    /// Packets sent at least once: from `next` up to this number, packets are retransmissions.
    sent: u64,
    /// Work requests ever begun, wrapping.
    begun: u32,
    /// All packets before this one are covered by an ACK request, their own or that of a later packet.
    ack_requested: u64,
    credits: Credits,
    hold: Hold,
    /// Before RESET: the PSN of the oldest request, and the messages before it.
    left_off: (Psn, u32),
    /// Local work requests that were executed and not retired.
    executed: u32,
    /// The position that it has gone back to, until that is acknowledged.
    gone_back_to: Option<u64>,
    retries: Retries,
    retransmissions: Retransmissions,
    chance: Chance,
    /// T_o, until the next timeout; `None`: the requester waits for a response indefinitely.
    ack_timeout: Option<Duration>,
    /// The profile has adaptive retransmission: the first timeouts in a row are not T_o.
    adaptive: bool,
    ack_deadline: Option<Instant>,
    /// ACK timeouts in a row.
    timeouts: u32,
    /// Time since which the oldest packet has been unacknowledged, retransmissions included.
    unanswered_since: Option<Instant>,
    rnr_deadline: Option<Instant>,
    faulted: Faulted,
}

/// Why the requester cannot send, apart from the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Hold {
    #[default]
    No,
    /// The work request at `next` cannot be executed.
    Stalled,
    /// The packet at `next` needs a page; or, while the requester is deaf, that at `Faulted::packet`, and those before it
    /// are repeated.
    Packet,
    /// The response to the oldest work request needs a page; the caller holds the response.
    Response,
}

/// The credits that the peer has granted.
#[derive(Clone, Copy, Debug, Default)]
struct Credits {
    /// Number of messages, from the first on, for which the peer has receives, wrapping: the limit sequence number.
    /// `None`: no limit.
    limit: Option<u32>,
    /// End position of a packet in flight without credit: the next one waits until this packet is acknowledged.
    probed: u64,
}

/// Missing pages, where the profile has packet flood.
#[derive(Clone, Copy, Debug, Default)]
struct Faulted {
    /// Faults since something was acknowledged, if only by a NAK.
    in_row: u8,
    /// Until `page_resolved` ACKs and data of responses are dropped. What a NAK, or the response to a later READ,
    /// acknowledges is complete nevertheless.
    deaf: bool,
    /// A page was missing, and the host has not taken the event.
    event: bool,
    /// The position of the packet that waits for a page, with `Hold::Packet`.
    packet: u64,
}

/// How many more times the oldest request may be retransmitted.
#[derive(Clone, Copy, Debug, Default)]
struct Retries {
    left: u8,
    rnr_left: u8,
}

impl Retries {
    pub fn new(config: &Config) -> Self {
        Retries { left: config.attr.retry_cnt, rnr_left: config.attr.rnr_retry }
    }
}

impl Requester {
    /// The requester of a new QP, before `start`.
    pub fn new(config: &Config) -> Requester {
        let chance = Chance::new(config.profile.seed, config.init.qp_num, Side::Requester as u8);
        Requester { chance, ..Requester::default() }
    }

    /// The QP goes to RESET. If it is connected again with the PSN of the oldest request, its peer may not have been
    /// reset: then the count of messages goes on, too.
    pub fn leave_off(&mut self) {
        let (seq, messages) = self.una.start();
        self.left_off = (self.psn(seq), messages);
    }

    /// Resets the requester to the current attributes (at RTS, and at RESET).
    pub fn start(&mut self, config: &Config) {
        let (psn, messages) = self.left_off;
        let first = Position::after_messages(if psn == config.attr.sq_psn { messages } else { 0 });
        *self = Requester {
            base: config.attr.sq_psn,
            left_off: self.left_off,
            una: first,
            next: first,
            retries: Retries::new(config),
            retransmissions: self.retransmissions,
            ack_timeout: config.ack_timeout(&mut self.chance),
            adaptive: !config.profile.ack_timeout.adaptive.steps.is_empty(),
            chance: std::mem::take(&mut self.chance),
            ..Requester::default()
        };
    }

    /// What the requester is doing, or waiting for.
    pub fn state(&self) -> RequesterState {
        self.state
    }

    /// Applies changed retry attributes (IBTA 9.9.2.1.1).
    pub fn refresh_retries(&mut self, config: &Config) {
        self.retries = Retries::new(config);
    }

    /// Applies a changed ACK timeout.
    pub fn refresh_timeout(&mut self, config: &Config) {
        self.ack_timeout = config.ack_timeout(&mut self.chance);
    }

    /// Stops: the QP is in the error state (IBTA 10.3.1).
    pub fn halt(&mut self) {
        self.next = self.una;
        self.hold = Hold::No;
        self.ack_deadline = None;
        self.rnr_deadline = None;
        self.state = RequesterState::Halted;
    }

    /// Retransmission counters since the QP was created.
    pub fn retransmissions(&self) -> Retransmissions {
        self.retransmissions
    }

    /// What is sent and not acknowledged.
    pub fn in_flight(&self) -> InFlight {
        self.next.since(&self.una)
    }

    /// The oldest request that has no response yet.
    pub fn unanswered(&self) -> Option<Unanswered> {
        let until = self.rnr_deadline;
        self.unanswered_since.map(|since| Unanswered { psn: self.una_psn(), since, until })
    }

    /// PSN of the next new packet.
    pub fn next_psn(&self) -> Psn {
        self.psn(self.sent)
    }

    /// The earlier of the ACK timeout and the end of an RNR wait.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        match (self.ack_deadline, self.rnr_deadline) {
            (Some(ack), Some(rnr)) => Some(ack.min(rnr)),
            (ack, rnr) => ack.or(rnr),
        }
    }

    /// Whether the ACK timeout has expired.
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.ack_deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Ends an RNR wait after its time, and goes back if the ACK timeout expired. Fails when no retry is left
    /// (IBTA 9.9.2.1.1).
    pub fn handle_timeout(&mut self, now: Instant, config: &Config) -> Result<(), Failure> {
        if self.rnr_deadline.is_some_and(|deadline| deadline <= now) {
            self.rnr_deadline = None;
            self.state = RequesterState::Sending;
        }
        if self.ack_deadline.is_some_and(|deadline| deadline <= now) {
            if self.waits_for_page() {
                self.ack_deadline = None;
            } else {
                self.ack_timed_out(now, config)?;
            }
        }
        Ok(())
    }

    /// SQD: everything that was begun is acknowledged (IBTA 10.3.1).
    pub fn is_drained(&self) -> bool {
        self.una.wr == self.begun
    }

    fn psn(&self, seq: u64) -> Psn {
        self.base.plus(seq as u32)
    }
}
