//! The requester: turns send work requests into request packets, and repeats what was not answered.
//!
//! It holds two positions in the stream of PSNs: the oldest that is not acknowledged and the next to send. Going back
//! is setting the second to the first. What responses mean is the completer's business.

mod credits;
mod dammed;
mod local;
mod page_fault;
mod places;
mod position;
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
use places::Places;
use position::{PACKET_COST, Position};
use retry::Retries;
pub use retry::Setbacks;
use send::Step;
use std::num::NonZeroU32;
use std::time::Duration;
use weir_wire::Psn;

/// What the requester is doing, or waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RequesterState {
    /// The send queue holds nothing that was not sent.
    #[default]
    Idle,
    /// There is something to send.
    Sending,
    /// The limits allow no more until something is answered.
    WaitWindow,
    /// `max_rd_atomic` READs and atomics are outstanding, or as many as the adapter allows to all QPs.
    WaitReads,
    /// A fenced work request waits for earlier READs and atomics, or an invalidation for everything before it.
    WaitFence,
    /// The peer said that it has no more receives: one packet goes at a time.
    WaitCredit,
    /// The receiver was not ready: waiting as long as it said.
    WaitReceiver,
    /// Pages of its own process are missing: waiting until they are there.
    PageFault,
    /// The next work request cannot be done; it fails once all before it are answered.
    Stalled,
    /// SQD: what was begun is sent.
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

/// Most packets between the oldest unacknowledged and the next: beyond half of the PSN space, order is lost
/// (IBTA 9.7.1).
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
    /// Packets ever sent: those from `next` on are known to the responder's side already.
    sent: u64,
    /// Work requests ever begun, wrapping.
    begun: u32,
    /// Everything before this asked for an acknowledgement, directly or by a later packet.
    asked: u64,
    credits: Credits,
    hold: Hold,
    /// Local work requests that were executed and are not retired.
    executed: u32,
    /// Where it has gone back to, until that is answered.
    repeating: Option<u64>,
    retries: Retries,
    setbacks: Setbacks,
    chance: Chance,
    /// How long an answer is waited for, until the next timeout; `None`: for ever.
    ack_timeout: Option<Duration>,
    ack_deadline: Option<Instant>,
    /// ACK timeouts in a row.
    timeouts: u32,
    /// Since when the oldest packet has been waiting for an answer, repetitions included.
    unanswered_since: Option<Instant>,
    rnr_deadline: Option<Instant>,
    /// An answer was dropped for want of a page, and nobody has said that it is there: READs that were outstanding then.
    unaware: Option<NonZeroU32>,
    /// What was posted during a pending period.
    dam: Option<Dam>,
    places: Places,
}

impl Requester {
    /// That of a new QP, which is still to be started.
    pub fn new(config: &Config) -> Requester {
        let chance = Chance::new(config.profile.seed, config.init.qp_num, Side::Requester as u8);
        Requester { chance, ..Requester::default() }
    }

    /// Starts afresh with the attributes as they are (at RTS, and at RESET).
    pub fn start(&mut self, config: &Config) {
        *self = Requester {
            base: config.attr.sq_psn,
            retries: Retries::fresh(config),
            setbacks: self.setbacks,
            ack_timeout: config.ack_timeout(&mut self.chance),
            chance: std::mem::take(&mut self.chance),
            ..Requester::default()
        };
    }

    pub fn state(&self) -> RequesterState {
        self.state
    }

    /// Takes over changed retry attributes.
    pub fn refresh_retries(&mut self, config: &Config) {
        self.retries = Retries::fresh(config);
    }

    /// Takes over a changed ACK timeout.
    pub fn refresh_timeout(&mut self, config: &Config) {
        self.ack_timeout = config.ack_timeout(&mut self.chance);
    }

    /// Stops for good: the QP is in the error state.
    pub fn halt(&mut self) {
        self.next = self.una;
        self.hold = Hold::No;
        self.ack_deadline = None;
        self.rnr_deadline = None;
        self.dam = None;
        self.state = RequesterState::Halted;
    }

    pub fn setbacks(&self) -> Setbacks {
        self.setbacks
    }

    pub fn in_flight(&self) -> InFlight {
        self.next.since(&self.una)
    }

    /// PSN of the next new packet.
    pub fn next_psn(&self) -> Psn {
        self.psn(self.sent)
    }

    /// The earlier of ACK timeout and end of an RNR wait.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        match (self.ack_deadline, self.rnr_deadline) {
            (Some(ack), Some(rnr)) => Some(ack.min(rnr)),
            (ack, rnr) => ack.or(rnr),
        }
    }

    /// Whether an answer should have come by now.
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

    /// Whether a packet would go out if the limits let it.
    #[inline]
    pub fn wants_transmit(&self, queue: &SendQueue, config: &Config) -> bool {
        self.next.wr != self.end(queue, config) && self.rnr_deadline.is_none() && self.obstacle(queue, config).is_none()
    }

    /// Whether the last packet of the message at `next` is shorter than those before it, or than an ACK. There must be
    /// a message.
    #[inline]
    pub fn next_ends_short(&self, queue: &SendQueue, config: &Config) -> bool {
        let slot = queue.slot(self.next.wr);
        slot.length == 0 || slot.packets > 1 && !(slot.length as usize).is_multiple_of(config.mtu)
    }

    /// SQD: all that was begun is answered (IBTA 10.3.1.6).
    pub fn is_drained(&self) -> bool {
        self.una.wr == self.begun
    }

    /// Sends as much as limits, egress and rules allow. Returns how it ended and how many packets went.
    // Inlined into each of its callers: as a call it costs a third of the rate of small messages.
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

    /// The same, and nothing from work request `end` on.
    // Each argument is borrowed from another place: a struct of them would be made anew for each call.
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
        debug_assert!(end.wrapping_sub(self.next.wr) as i32 >= 0, "what is to be sent ends behind where it begins");
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
                && let Err(unprepared) = self.prepare(slot, queue.source(self.next.wr), step.read_bytes, config, host)
            {
                let Unprepared::Memory(denied) = unprepared else {
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

    /// Decides by the limits whether the packet of a step may go, and whether it must ask for an acknowledgement.
    #[inline]
    fn admit(&self, step: &Step, budget: &mut Limits, config: &Config) -> Option<bool> {
        let alone = self.next.seq == self.una.seq;
        let cost = step.payload + PACKET_COST as usize;
        // Something always goes if otherwise nothing could come back: nothing is under way, or nothing that was asked
        // to be acknowledged.
        let must = alone || self.asked <= self.una.seq;
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
            self.asked = self.next.seq;
        }
        if self.ack_deadline.is_none() {
            self.ack_deadline = self.ack_timeout.map(|timeout| now + self.stretched(timeout, config));
        }
        self.unanswered_since.get_or_insert(now);
    }

    /// What keeps the packet at `next` from being sent, limits aside.
    // As a call it costs 3 % of the instructions of a small message.
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
            // All before it must be answered, so that completions stay in order.
            Hold::Stalled => return (self.una.wr != self.next.wr).then_some(RequesterState::Stalled),
            Hold::Packet | Hold::Answer => return Some(RequesterState::PageFault),
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
        // IBTA 10.8.3.3: a fenced work request is begun only when earlier READs and atomics are complete.
        if fenced && reads > 0 {
            return Some(RequesterState::WaitFence);
        }
        // IBTA 9.7.3.2: no more READs and atomics than the responder has resources for. With none at all it fails.
        let limit = u64::from(config.attr.max_rd_atomic.max(1));
        (!matches!(slot.kind, Kind::Data | Kind::Local) && reads >= limit).then_some(RequesterState::WaitReads)
    }

    /// Memory of the work request at `next` was refused.
    #[cold]
    fn refused(&mut self, denied: Denied) -> Result<(), Failure> {
        match denied {
            Denied::PageFault => self.packet_waits(),
            Denied::Protection | Denied::Unmapped => self.stall(Failure::local(denied))?,
        }
        Ok(())
    }

    /// The work request at `next` cannot be done: fails it if it is the oldest, otherwise waits until it is.
    fn stall(&mut self, failure: Failure) -> Result<(), Failure> {
        if self.una.wr == self.next.wr {
            return Err(failure);
        }
        self.hold = Hold::Stalled;
        self.state = RequesterState::Stalled;
        Ok(())
    }

    /// The work request not to go beyond.
    #[inline]
    fn end(&self, queue: &SendQueue, config: &Config) -> u32 {
        // IBTA 10.3.1.6: in SQD only what was begun is finished.
        if config.state == QpState::Sqd { self.begun } else { queue.tail() }
    }

    fn psn(&self, seq: u64) -> Psn {
        self.base.plus(seq as u32)
    }
}

/// What the completer does to the requester.
impl Requester {
    /// The position of a response's PSN, if it lies between the oldest unacknowledged and the last sent.
    #[inline]
    pub fn locate(&self, psn: Psn) -> Option<u64> {
        let ahead = psn.since(self.psn(self.una.seq));
        let seq = self.una.seq.checked_add_signed(i64::from(ahead))?;
        (ahead >= 0 && seq < self.sent).then_some(seq)
    }

    /// The PSN of the oldest packet that is not acknowledged.
    pub fn una_psn(&self) -> Psn {
        self.psn(self.una.seq)
    }

    /// ACK timeouts in a row.
    pub fn timeouts(&self) -> u32 {
        self.timeouts
    }

    /// The oldest position that is not acknowledged.
    pub fn una(&self) -> u64 {
        self.una.seq
    }

    /// Whether requests are to be repeated, but not yet.
    #[inline]
    pub fn waits_for_receiver(&self) -> bool {
        self.rnr_deadline.is_some()
    }

    /// The work request there and how many of its packets are done.
    pub fn una_packet(&self) -> (u32, u32) {
        (self.una.wr, self.una.packet)
    }

    /// Moves the oldest unacknowledged position on by `packets` of its work request; true if that finishes it.
    #[inline]
    pub fn acknowledge(&mut self, slot: &SendSlot, packets: u32, config: &Config) -> bool {
        self.una.advance(slot, packets, config);
        self.una.packet == 0
    }

    /// After `acknowledge`: restarts timers and counts (IBTA 9.7.6.1.3, 9.9.2.1.1).
    #[inline]
    pub fn progressed(&mut self, now: Instant, config: &Config) {
        if self.next.seq < self.una.seq {
            self.next = self.una;
        }
        self.retries = Retries::fresh(config);
        self.timeouts = 0;
        self.repeating = None;
        self.rnr_deadline = None;
        let outstanding = self.next.seq != self.una.seq;
        self.ack_deadline = if outstanding { self.ack_timeout.map(|timeout| now + timeout) } else { None };
        self.unanswered_since = outstanding.then_some(now);
    }
}

/// Checks a work request before its first packet.
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
