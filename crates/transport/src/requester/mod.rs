//! The requester: turns send work requests into request packets, and retransmits unacknowledged requests.
//!
//! It holds two positions in the stream of PSNs: the oldest unacknowledged packet and the next packet to send. Going
//! back sets the second to the first. The completer handles responses.

mod credits;
mod dammed;
mod local;
mod page_fault;
mod position;
mod read_credits;
mod retry;
mod send;
mod unreliable;

use crate::completion::vendor;
use crate::config::Config;
use crate::qp::{InFlight, Limits, Progress};
use crate::quirk::{Chance, Dam};
use crate::send_queue::{Kind, SendQueue, SendSlot, Source};
use crate::{Access, Denied, Egress, Host, Instant, QpState, Refused, SendFlags, SendOp, Side, Status, Target};
use credits::Credits;
use page_fault::{Hold, Unprepared};
use position::{PACKET_COST, Position};
use read_credits::ReadCredits;
pub use retry::Retransmissions;
use retry::Retries;
use send::Step;
use std::num::NonZeroU32;
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
    /// `max_rd_atomic` READs and atomics are outstanding, or the adapter's limit over all QPs is reached.
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

/// Why the oldest work request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub status: Status,
    pub vendor: u32,
}

/// The most packets between the oldest unacknowledged and the next: beyond half of the PSN space the order of PSNs is
/// ambiguous (IBTA 9.7.1).
const MAX_OUTSTANDING: u64 = 1 << 22;

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
    /// Local work requests that were executed and not retired.
    executed: u32,
    /// The position that it has gone back to, until that is acknowledged.
    repeating: Option<u64>,
    retries: Retries,
    retransmissions: Retransmissions,
    chance: Chance,
    /// How long the requester waits for a response, until the next timeout; `None`: indefinitely.
    ack_timeout: Option<Duration>,
    ack_deadline: Option<Instant>,
    /// ACK timeouts in a row.
    timeouts: u32,
    /// Time since which the oldest packet has been unacknowledged, retransmissions included.
    unanswered_since: Option<Instant>,
    rnr_deadline: Option<Instant>,
    /// READs that were outstanding when a response was dropped for a missing page, until the page is reported present.
    unnotified: Option<NonZeroU32>,
    /// The work requests posted during a pending period.
    dam: Option<Dam>,
    read_credits: ReadCredits,
}

impl Requester {
    /// The requester of a new QP, before `start`.
    pub fn new(config: &Config) -> Requester {
        let chance = Chance::new(config.profile.seed, config.init.qp_num, Side::Requester as u8);
        Requester { chance, ..Requester::default() }
    }

    /// Resets the requester to the current attributes (at RTS, and at RESET).
    pub fn start(&mut self, config: &Config) {
        *self = Requester {
            base: config.attr.sq_psn,
            retries: Retries::new(config),
            retransmissions: self.retransmissions,
            ack_timeout: config.ack_timeout(&mut self.chance),
            chance: std::mem::take(&mut self.chance),
            ..Requester::default()
        };
    }

    pub fn state(&self) -> RequesterState {
        self.state
    }

    /// Applies changed retry attributes.
    pub fn refresh_retries(&mut self, config: &Config) {
        self.retries = Retries::new(config);
    }

    /// Applies a changed ACK timeout.
    pub fn refresh_timeout(&mut self, config: &Config) {
        self.ack_timeout = config.ack_timeout(&mut self.chance);
    }

    /// Stops: the QP is in the error state.
    pub fn halt(&mut self) {
        self.next = self.una;
        self.hold = Hold::No;
        self.ack_deadline = None;
        self.rnr_deadline = None;
        self.dam = None;
        self.state = RequesterState::Halted;
    }

    pub fn retransmissions(&self) -> Retransmissions {
        self.retransmissions
    }

    pub fn in_flight(&self) -> InFlight {
        self.next.since(&self.una)
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

    /// Whether a packet would leave if the limits allowed it.
    #[inline]
    pub fn wants_transmit(&self, queue: &SendQueue, config: &Config) -> bool {
        self.next.wr != self.end(queue, config) && self.rnr_deadline.is_none() && self.obstacle(queue, config).is_none()
    }

    /// Whether the last packet of the message at `next` is shorter than its other packets, or than an ACK. The send
    /// queue must hold a message there.
    #[inline]
    pub fn next_ends_short(&self, queue: &SendQueue, config: &Config) -> bool {
        let slot = queue.slot(self.next.wr);
        slot.length == 0 || slot.packets > 1 && !(slot.length as usize).is_multiple_of(config.mtu)
    }

    /// SQD: everything that was begun is acknowledged (IBTA 10.3.1.6).
    pub fn is_drained(&self) -> bool {
        self.una.wr == self.begun
    }

    /// Sends as much as limits, egress and rules allow. Returns the progress and the number of packets sent.
    // Inlined into each of its callers: a call costs a third of the rate of small messages.
    #[inline(always)]
    pub fn poll<H: Host, E: Egress>(
        &mut self,
        now: Instant,
        limits: Limits,
        config: &Config,
        queue: &SendQueue,
        host: &mut H,
        egress: &mut E,
    ) -> Result<(Progress, u32), Failure> {
        self.poll_until(self.end(queue, config), now, limits, config, queue, host, egress)
    }

    /// As `poll`, but sends nothing from work request `end` on.
    // Each argument is borrowed from a different object: a struct of them would have to be built for each call.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    fn poll_until<H: Host, E: Egress>(
        &mut self,
        end: u32,
        now: Instant,
        limits: Limits,
        config: &Config,
        queue: &SendQueue,
        host: &mut H,
        egress: &mut E,
    ) -> Result<(Progress, u32), Failure> {
        debug_assert!(end.wrapping_sub(self.next.wr) as i32 >= 0, "the end of the range to send is before its begin");
        let mut budget = limits;
        let mut count = 0;
        if self.rnr_deadline.is_some_and(|deadline| now < deadline) {
            return Ok((Progress::Idle, 0));
        }
        self.rnr_deadline = None;
        loop {
            if self.next.wr == end {
                let rest = config.state == QpState::Sqd;
                self.state = if rest { RequesterState::Draining } else { RequesterState::Idle };
                return Ok((Progress::Idle, count));
            }
            if let Some(obstacle) = self.obstacle(queue, config) {
                self.state = obstacle;
                return Ok((Progress::Idle, count));
            }
            let slot = queue.slot(self.next.wr);
            if slot.kind == Kind::Local {
                if let Err(failure) = self.execute(slot, config, host) {
                    self.stall(failure)?;
                    return Ok((Progress::Idle, count));
                }
                continue;
            }
            let step = Step::at(&self.next, slot, config);
            let Some(ack_req) = self.admit(&step, &mut budget, config) else {
                self.state = RequesterState::WaitWindow;
                return Ok((Progress::Limited, count));
            };
            let first_try = self.next.wr == self.begun;
            if first_try && let Err(failure) = check(queue, slot, self.next.wr, config, host) {
                self.stall(failure)?;
                return Ok((Progress::Idle, count));
            }
            if slot.kind != Kind::Data
                && let Err(why) = self.prepare_buffer(slot, queue.source(self.next.wr), step.read_bytes, config, host)
            {
                let Unprepared::Memory(denied) = why else {
                    self.state = RequesterState::WaitReads;
                    return Ok((Progress::Limited, count));
                };
                self.refused(denied)?;
                return Ok((Progress::Idle, count));
            }
            let packet = send::outgoing(queue, &self.next, &step, self.psn(self.next.seq), ack_req, config);
            match egress.push(&packet) {
                Ok(()) => {}
                Err(Refused::Full) => {
                    self.state = RequesterState::Sending;
                    return Ok((Progress::Full, count));
                }
                Err(Refused::Denied(denied)) => {
                    self.refused(denied)?;
                    return Ok((Progress::Idle, count));
                }
            }
            self.pushed(now, slot, &step, ack_req, config);
            count += 1;
        }
    }

    /// Applies the limits to the packet of a step. `None`: it must wait. Otherwise: whether it must request an ACK.
    #[inline]
    fn admit(&self, step: &Step, budget: &mut Limits, config: &Config) -> Option<bool> {
        let none_in_flight = self.next.seq == self.una.seq;
        let cost = step.payload + PACKET_COST as usize;
        // A packet may always leave if otherwise no ACK could arrive: nothing is in flight, or nothing in flight has
        // requested an ACK.
        let must = none_in_flight || self.ack_requested <= self.una.seq;
        if cost > budget.request_bytes && !must || self.next.seq - self.una.seq >= MAX_OUTSTANDING {
            return None;
        }
        if step.read_bytes > budget.read_bytes && self.in_flight().read_bytes != 0 {
            return None;
        }
        budget.request_bytes = budget.request_bytes.saturating_sub(cost);
        budget.read_bytes = budget.read_bytes.saturating_sub(step.read_bytes);
        let window_ends = budget.request_bytes < config.mtu + PACKET_COST as usize;
        let in_message = (self.next.packet + 1).is_multiple_of(config.tuning.ack_every.clamp(1, 1 << 16));
        Some(
            config.is_reliable()
                && (step.last || step.read_bytes > 0 || in_message || window_ends || self.is_limited()),
        )
    }

    #[inline(always)]
    fn pushed(&mut self, now: Instant, slot: &SendSlot, step: &Step, ack_req: bool, config: &Config) {
        if self.next.wr == self.begun {
            self.begun = self.begun.wrapping_add(1);
        }
        if ack_req && self.is_limited() {
            self.probe(slot);
        }
        self.next.advance(slot, step.packets, config);
        self.sent = self.sent.max(self.next.seq);
        self.hold = Hold::No;
        if ack_req {
            self.ack_requested = self.next.seq;
        }
        if self.ack_deadline.is_none() {
            self.ack_deadline = self.ack_timeout.map(|timeout| now + self.stretched(timeout, config));
        }
        self.unanswered_since.get_or_insert(now);
    }

    /// The reason why the packet at `next` cannot be sent, other than the limits.
    // Inlined: a call costs 3 % of the instructions of a small message.
    #[inline(always)]
    fn obstacle(&self, queue: &SendQueue, config: &Config) -> Option<RequesterState> {
        let slot = queue.slot(self.next.wr);
        let plain = slot.kind == Kind::Data && !slot.flags.contains(SendFlags::FENCE);
        if plain && self.hold == Hold::No && !self.is_limited() { None } else { self.rare_obstacle(slot, config) }
    }

    #[inline(never)]
    fn rare_obstacle(&self, slot: &SendSlot, config: &Config) -> Option<RequesterState> {
        match self.hold {
            Hold::No => {}
            // Every earlier work request must be complete first, so that completions stay in order.
            Hold::Stalled => return (self.una.wr != self.next.wr).then_some(RequesterState::Stalled),
            Hold::Packet | Hold::Response => return Some(RequesterState::PageFault),
        }
        if self.is_limited()
            && let Some(obstacle) = self.credit_obstacle(slot)
        {
            return Some(obstacle);
        }
        let fenced = slot.flags.contains(SendFlags::FENCE) && self.next.packet == 0;
        if slot.kind == Kind::Data && !fenced {
            return None;
        }
        if let SendOp::LocalInvalidate { .. } = slot.op {
            return (self.una.wr != self.next.wr).then_some(RequesterState::WaitFence);
        }
        let reads = self.next.reads_since(&self.una);
        // IBTA 10.8.3.3: a fenced work request begins only when earlier READs and atomics are complete.
        if fenced && reads > 0 {
            return Some(RequesterState::WaitFence);
        }
        // IBTA 9.7.3.2: no more READs and atomics than the responder has resources for. `check` fails them if it has 0.
        let limit = u64::from(config.attr.max_rd_atomic.max(1));
        (!matches!(slot.kind, Kind::Data | Kind::Local) && reads >= limit).then_some(RequesterState::WaitReads)
    }

    /// The host refused memory of the work request at `next`.
    #[cold]
    fn refused(&mut self, denied: Denied) -> Result<(), Failure> {
        match denied {
            Denied::PageFault => self.packet_waits(),
            Denied::Protection | Denied::Unmapped => self.stall(Failure::local(denied))?,
        }
        Ok(())
    }

    /// The work request at `next` cannot be executed: fails it if it is the oldest, otherwise waits until it is.
    fn stall(&mut self, failure: Failure) -> Result<(), Failure> {
        if self.una.wr == self.next.wr {
            return Err(failure);
        }
        self.hold = Hold::Stalled;
        self.state = RequesterState::Stalled;
        Ok(())
    }

    /// The first work request that must not be sent.
    #[inline]
    fn end(&self, queue: &SendQueue, config: &Config) -> u32 {
        // IBTA 10.3.1.6: in SQD only work requests that were begun are finished.
        if config.state == QpState::Sqd { self.begun } else { queue.tail() }
    }

    fn psn(&self, seq: u64) -> Psn {
        self.base.plus(seq as u32)
    }
}

/// The functions that the completer calls.
impl Requester {
    /// The position of a response's PSN, if it lies between the oldest unacknowledged packet and the last packet sent.
    #[inline]
    pub fn locate(&self, psn: Psn) -> Option<u64> {
        let ahead = psn.since(self.psn(self.una.seq));
        let seq = self.una.seq.checked_add_signed(i64::from(ahead))?;
        (ahead >= 0 && seq < self.sent).then_some(seq)
    }

    /// The PSN of the oldest unacknowledged packet.
    pub fn una_psn(&self) -> Psn {
        self.psn(self.una.seq)
    }

    /// ACK timeouts in a row.
    pub fn timeouts(&self) -> u32 {
        self.timeouts
    }

    /// The oldest unacknowledged position.
    pub fn una(&self) -> u64 {
        self.una.seq
    }

    /// Whether the requester waits before a retransmission.
    #[inline]
    pub fn waits_for_receiver(&self) -> bool {
        self.rnr_deadline.is_some()
    }

    /// The oldest unacknowledged work request, and the number of its packets that are acknowledged.
    pub fn una_packet(&self) -> (u32, u32) {
        (self.una.wr, self.una.packet)
    }

    /// Moves the oldest unacknowledged position forward by `packets` of its work request; true if that finishes it.
    #[inline]
    pub fn acknowledge(&mut self, slot: &SendSlot, packets: u32, config: &Config) -> bool {
        self.una.advance(slot, packets, config);
        self.una.packet == 0
    }

    /// After `acknowledge`: restarts timers and retry counters (IBTA 9.7.6.1.3, 9.9.2.1.1).
    #[inline]
    pub fn progressed(&mut self, now: Instant, config: &Config) {
        if self.next.seq < self.una.seq {
            self.next = self.una;
        }
        self.retries = Retries::new(config);
        self.timeouts = 0;
        self.repeating = None;
        self.rnr_deadline = None;
        let outstanding = self.next.seq != self.una.seq;
        self.ack_deadline = if outstanding { self.ack_timeout.map(|timeout| now + timeout) } else { None };
        self.unanswered_since = outstanding.then_some(now);
    }
}

/// Checks a work request before its first packet leaves.
fn check<H: Host>(
    queue: &SendQueue,
    slot: &SendSlot,
    index: u32,
    config: &Config,
    host: &mut H,
) -> Result<(), Failure> {
    let sends = matches!(slot.kind, Kind::Data | Kind::AtomicWrite);
    let access = if sends { Access::empty() } else { Access::LOCAL_WRITE };
    if slot.kind != Kind::Data && config.attr.max_rd_atomic == 0 {
        return Err(Failure { status: Status::LocalQpOperation, vendor: vendor::NO_READS });
    }
    // IBTA 9.8.3.1: a datagram is one packet.
    if matches!(slot.to, Target::Datagram(_)) && slot.packets > 1 {
        return Err(Failure { status: Status::LocalLength, vendor: vendor::OVER_MTU });
    }
    match queue.source(index) {
        Source::Gather(sges) if slot.length > 0 => host.check_local(sges, access).map_err(Failure::local),
        _ => Ok(()),
    }
}
