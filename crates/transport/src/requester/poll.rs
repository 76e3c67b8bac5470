//! What leaves next: limits, windows, fences, READ limits, and the checks before a work request begins.

use super::send::{self, Step};
use super::{Failure, Hold, Requester, RequesterState};
use crate::completion::vendor;
use crate::config::Config;
use crate::limits::{Limits, PACKET_COST, Progress};
use crate::send_queue::{Kind, SendQueue, SendSlot, Source};
use crate::{Access, Denied, Egress, Host, Instant, OdpOps, QpState, Refused, SendFlags, SendOp, Status};

/// The most packets between the oldest unacknowledged and the next: beyond half of the PSN space the order of PSNs is
/// ambiguous (IBTA 9.7.1).
const MAX_OUTSTANDING: u64 = 1 << 22;

impl Requester {
    /// Whether a packet would leave if the limits allowed it.
    #[inline]
    pub fn has_to_send(&self, queue: &SendQueue, config: &Config) -> bool {
        self.next.wr != self.end(queue, config) && self.rnr_deadline.is_none() && self.obstacle(queue, config).is_none()
    }

    /// Whether every posted work request has left.
    #[inline]
    pub fn has_sent_all(&self, queue: &SendQueue) -> bool {
        self.next.wr == queue.tail()
    }

    /// The number of work requests that were begun and are not complete.
    #[inline]
    pub fn unacknowledged(&self) -> u32 {
        self.next.wr.wrapping_sub(self.una.wr)
    }

    /// Whether the last packet of the message at `next` is shorter than its other packets, or than an ACK. The send
    /// queue must hold a message there. A frame is longer than an ACK, even without payload.
    #[inline]
    pub fn next_ends_short(&self, queue: &SendQueue, config: &Config) -> bool {
        let slot = queue.slot(self.next.wr);
        let framed = config.frames && slot.kind == Kind::Data;
        slot.length == 0 && !framed || slot.packets > 1 && !(slot.length as usize).is_multiple_of(config.mtu)
    }

    /// Sends as much as limits, egress and rules allow. Returns the progress and the number of packets sent.
    // Inlined: a call costs a third of the rate of small messages.
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
        let end = self.end(queue, config);
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
            let (first_try, room) = (self.next.wr == self.begun, egress.has_room());
            // Beyond its first packet, a message with data needs no check and no page before its packets are built.
            if !room && !first_try && slot.kind == Kind::Data {
                self.state = RequesterState::Sending;
                return Ok((Progress::Full, count));
            }
            let step = Step::at(&self.next, slot, config);
            let Some(ack_req) = self.admit(&step, &mut budget, config) else {
                self.state = RequesterState::WaitWindow;
                return Ok((Progress::Limited, count));
            };
            if first_try && let Err(failure) = check(queue, slot, self.next.wr, config, host) {
                self.stall(failure)?;
                return Ok((Progress::Idle, count));
            }
            if slot.kind != Kind::Data
                && let Err(denied) =
                    self.prepare_buffer(slot, queue.source(self.next.wr), step.read_bytes, config, host)
            {
                self.refused(denied, slot, config)?;
                return Ok((Progress::Idle, count));
            }
            let pushed = if room {
                egress.push(&send::outgoing(queue, &self.next, &step, self.psn(self.next.seq), ack_req, config))
            } else {
                Err(Refused::Full)
            };
            match pushed {
                Ok(()) => {}
                Err(Refused::Full) => {
                    self.state = RequesterState::Sending;
                    return Ok((Progress::Full, count));
                }
                Err(Refused::Denied(denied)) => {
                    self.refused(denied, slot, config)?;
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
        let cost = step.payload + PACKET_COST;
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
        let window_ends = budget.request_bytes < config.mtu + PACKET_COST;
        let in_message = (self.next.packet + 1).is_multiple_of(config.tuning.ack_every.clamp(1, 1 << 16));
        Some(
            config.is_reliable()
                && (step.last || step.read_bytes > 0 || in_message || window_ends || self.is_limited()),
        )
    }

    /// The packet of a step has left. The ACK timeout runs from the oldest unacknowledged packet on (IBTA 9.7.6.1.3).
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
        if self.hold == Hold::Stalled {
            self.hold = Hold::No;
        }
        if ack_req {
            self.ack_requested = self.next.seq;
        }
        if self.ack_deadline.is_none() {
            self.ack_deadline = self.timeout_from(now, config);
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

    /// As `obstacle`, for what is not a plain SEND or WRITE with credit (IBTA 9.7.3.2, 9.7.7.2, 10.8.3.3).
    #[inline(never)]
    fn rare_obstacle(&self, slot: &SendSlot, config: &Config) -> Option<RequesterState> {
        match self.hold {
            Hold::No => {}
            // Every earlier work request must be complete first, so that completions stay in order.
            Hold::Stalled => return (self.una.wr != self.next.wr).then_some(RequesterState::Stalled),
            // A deaf requester repeats the packets before the one that waits.
            Hold::Packet if self.next.seq < self.faulted.packet => {}
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
        // A fenced work request begins only when earlier READs and atomics are complete (IBTA 10.8.3.3).
        if fenced && reads > 0 {
            return Some(RequesterState::WaitFence);
        }
        // No more READs and atomics than the responder has resources for (IBTA 9.7.3.2). With 0, `check` fails them.
        let limit = u64::from(config.attr.max_rd_atomic.max(1));
        (!matches!(slot.kind, Kind::Data | Kind::Local) && reads >= limit).then_some(RequesterState::WaitReads)
    }

    /// The host refused memory of the work request at `next`: a local error, except for a page fault of an operation with
    /// ODP (IBTA 9.9.2).
    #[cold]
    fn refused(&mut self, denied: Denied, slot: &SendSlot, config: &Config) -> Result<(), Failure> {
        if denied == Denied::PageFault && config.has_odp(OdpOps::of(&slot.op)) {
            self.packet_waits(config);
            return Ok(());
        }
        self.stall(Failure::local(denied))
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
        // In SQD only work requests that were begun are finished (IBTA 10.3.1).
        if config.state == QpState::Sqd { self.begun } else { queue.tail() }
    }
}

/// Checks a work request before its first packet leaves: what fails here is a local error (IBTA 9.9.2).
fn check<H: Host>(
    queue: &SendQueue,
    slot: &SendSlot,
    index: u32,
    config: &Config,
    host: &mut H,
) -> Result<(), Failure> {
    let sends = matches!(slot.kind, Kind::Data | Kind::Answered);
    let access = if sends { Access::empty() } else { Access::LOCAL_WRITE };
    if slot.kind != Kind::Data && config.attr.max_rd_atomic == 0 {
        return Err(Failure { status: Status::LocalQpOperation, vendor: vendor::NO_READS });
    }
    // A datagram is one packet (IBTA 9.8.3.1).
    if config.has_datagrams() && slot.packets > 1 {
        return Err(Failure { status: Status::LocalLength, vendor: vendor::OVER_MTU });
    }
    match queue.source(index) {
        Source::Gather(sges) if slot.length > 0 => host.check_local(sges, access).map_err(Failure::local),
        _ => Ok(()),
    }
}
