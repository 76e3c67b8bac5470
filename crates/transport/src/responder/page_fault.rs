//! Network page faults of the responder: a request, or the response to a READ, needs a missing page.
//!
//! The profile decides: either the caller holds the request, and no later request is executed or acknowledged; or the
//! peer gets an RNR NAK and retransmits the request. In both cases duplicates are answered meanwhile.

use super::ack::Owed;
use super::opcode_order::{self, Message, Request};
use super::sequence::Sequence;
use super::{Fatal, Order, Responder, Verdict, Waits};
use crate::completion::vendor;
use crate::config::Config;
use crate::recv_queue::RecvQueue;
use crate::{Access, Denied, Handled, Host, Instant, OdpOps, Remote, ResponderFaults, Status};
use std::time::Duration;
use weir_wire::{Packet, Psn, Syndrome};

/// Why a request was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Fatal(Fatal),
    PageFault,
    /// It invalidates a key that unfinished responses to earlier READs still use.
    StillRead,
}

impl Responder {
    /// The missing page is present: the waiting request or response is tried again. One ACK covers all requests that
    /// were executed meanwhile (IBTA 9.7.5.1.2).
    pub fn page_resolved(&mut self, now: Instant, config: &Config) {
        self.resources.unpark();
        // The peer retransmits the requests dropped meanwhile only after a NAK: then the owed RNR NAK stays.
        let dropped = std::mem::take(&mut self.dropped) && self.owed.is_nak();
        let waited = if self.waits == Waits::Reads { Waits::No } else { std::mem::take(&mut self.waits) };
        if waited == Waits::Response && !dropped {
            let held_acks = std::mem::take(&mut self.held_acks.owed);
            self.owed = match (held_acks, self.owed) {
                (Owed::Nak(syndrome), _) => Owed::Nak(syndrome),
                (Owed::Nothing, Owed::Nothing) => Owed::Nothing,
                // An RNR NAK that was not sent is obsolete.
                _ => Owed::Ack,
            };
        }
        if waited == Waits::Request && config.answers_faults_with_naks() {
            // The NAK leaves when the page is there: 0.513 and 0.526 ms after the request (T fig 4.3, 4.4).
            self.order = Order::PageFaultNakSent;
            self.owed.nak_after(now, Duration::ZERO, Syndrome::RnrNak(config.attr.min_rnr_timer));
        }
    }

    /// A request that is out of order, or arrives while the responder waits. A duplicate gets its response, the first
    /// packet after a gap gets a NAK (IBTA 9.7.4.1.1). `None`: the request is in order, and what it waited for is over.
    #[cold]
    #[inline(never)]
    pub(super) fn handle_out_of_order<H: Host>(
        &mut self,
        now: Instant,
        sequence: Sequence,
        packet: &Packet<'_>,
        config: &Config,
        host: &mut H,
    ) -> Option<Handled> {
        if self.waits == Waits::Reads && !self.awaits_reads() {
            self.waits = Waits::No;
        }
        if sequence != Sequence::Duplicate && self.dams(config) {
            return Some(Handled::Dammed);
        }
        match sequence {
            Sequence::Duplicate => self.repeat(now, packet, config),
            Sequence::Expected if self.waits == Waits::No => return None,
            Sequence::Expected if self.read_behind(packet, config, host) => {}
            Sequence::Expected if self.waits == Waits::Request && config.answers_faults_with_naks() => {
                // Its ACK timeout has passed: without a NAK the peer would use up its retries on a slow page.
                self.owed.nak_after(now, Duration::ZERO, Syndrome::RnrNak(config.attr.min_rnr_timer));
            }
            _ if self.waits == Waits::Reads => return Some(Handled::AfterReads),
            _ if self.waits != Waits::No => {
                self.dropped = config.answers_faults_with_naks();
                return Some(self.hold(config));
            }
            _ if self.order == Order::Kept => self.owe_sequence_nak(),
            _ => {}
        }
        Some(Handled::Done)
    }

    /// A request was not executed. For a missing page the peer gets an RNR NAK if the profile says so
    /// (IBTA 9.7.5.2.8).
    #[cold]
    #[inline(never)]
    pub(super) fn defer_or_nak(&mut self, stop: Stop, config: &Config) -> Result<Handled, Fatal> {
        match stop {
            Stop::Fatal(fatal) => return Err(fatal),
            Stop::StillRead => {
                // Treat the request as lost: the responses leave, then the NAK, and the peer retransmits it at once.
                self.owe_sequence_nak();
                return Ok(Handled::Done);
            }
            Stop::PageFault => {}
        }
        // The request is the expected one, so an earlier gap is closed.
        self.order = Order::Kept;
        if let Owed::Nak(_) = self.owed {
            self.owed = Owed::Ack;
        }
        match config.profile.page_faults.responder {
            ResponderFaults::Wait => {
                self.waits = Waits::Request;
                // An ACK reports the progress so far, so that the peer's ACK timeout restarts.
                match self.message {
                    Message::None => {
                        self.owed.end_ack_delay();
                    }
                    Message::Send { .. } | Message::Write { .. } => self.owed.repeat(),
                }
            }
            // `page_resolved` raises the NAK.
            ResponderFaults::RnrNak { .. } => self.waits = Waits::Request,
        }
        Ok(self.hold(config))
    }

    /// A READ that arrives while the response to an earlier READ waits for a page. Where faults are answered with RNR NAKs
    /// it is accepted, and its response waits behind that one: the READ is a duplicate when the peer has waited
    /// (T fig 5.3: only READs that arrive after the NAK are lost). A READ uses a PSN for each response packet
    /// (IBTA 9.7.3.1). False: it cannot be accepted; then it is dropped as any
    /// other request.
    fn read_behind<H: Host>(&mut self, packet: &Packet<'_>, config: &Config, host: &mut H) -> bool {
        let operation = packet.headers.bth.opcode.operation().and_then(opcode_order::lookup);
        let Some((Request::Read, access)) = operation else { return false };
        let waits = self.waits == Waits::Response && config.answers_faults_with_naks();
        let follows = opcode_order::follows(&self.message, Request::Read, true);
        let allowed = follows && config.attr.access_flags.contains(access) && !config.xrc_target;
        if !waits || !allowed || self.resources.is_exhausted() {
            return false;
        }
        let Ok(Verdict::Responding { packets }) = self.read(packet, config, host) else { return false };
        self.expected = self.expected.plus(packets);
        true
    }

    /// The next response packet needs a missing page: it waits, or is preceded by an RNR NAK (IBTA 9.7.5.2.8).
    #[cold]
    #[inline(never)]
    pub(super) fn response_waits<H: Host>(&mut self, now: Instant, config: &Config, host: &mut H) {
        let Some(rest) = self.resources.park() else { return };
        host.expect_remote(&rest.range, Access::REMOTE_READ);
        if self.waits != Waits::Response {
            self.held_acks.owed = std::mem::take(&mut self.owed);
        }
        self.waits = Waits::Response;
        (self.held_acks.psn, self.held_acks.msn) = (rest.psn, rest.msn.wrapping_sub(1) & 0xff_ffff);
        if let ResponderFaults::RnrNak { read_after } = config.profile.page_faults.responder
            && self.order != Order::Halted
            && !rest.behind
        {
            // The peer retransmits everything after the READ, so ACKs owed for later requests are dropped.
            self.owed = std::mem::take(&mut self.held_acks.owed);
            self.order = Order::Kept;
            self.owed.nak_after(now, read_after, Syndrome::RnrNak(config.attr.min_rnr_timer));
        }
    }

    /// The PSN and MSN up to which an acknowledgement may go now.
    #[inline]
    pub(super) fn acknowledged(&self) -> (Psn, u32) {
        match self.waits {
            Waits::Response => (self.held_acks.psn, self.held_acks.msn),
            _ => (self.expected.psn(), self.msn),
        }
    }

    /// A duplicate asks for a response again (IBTA 9.7.5.1), and its resource is `known`: waiting responses are tried
    /// again at once.
    pub(super) fn duplicate_requested(&mut self, known: bool, config: &Config) {
        if !known {
            return;
        }
        self.resources.unpark();
        // With RNR NAKs the peer also retransmits the requests after this READ: execute them. Else they stay held.
        if self.waits == Waits::Response && config.answers_faults_with_naks() {
            self.waits = Waits::No;
            self.dropped = false;
            // A NAK that was not sent yet; the next fault raises it again.
            if self.owed.is_nak() {
                self.owed = Owed::Nothing;
            }
        }
    }

    /// A UD or UC packet needs a missing page.
    #[cold]
    #[inline(never)]
    pub(super) fn hold_unreliable(&mut self, config: &Config) -> Handled {
        if config.profile.page_faults.responder == ResponderFaults::Wait {
            self.waits = Waits::Request;
        }
        self.hold(config)
    }

    /// Whether the caller keeps the packet. With RNR NAKs the peer retransmits it; on UC and UD it is lost.
    fn hold(&self, config: &Config) -> Handled {
        match config.profile.page_faults.responder {
            ResponderFaults::Wait => Handled::Held,
            ResponderFaults::RnrNak { .. } => Handled::Done,
        }
    }
}

impl Stop {
    /// The host refused a peer's access (IBTA 9.7.5.2.4).
    #[cold]
    pub fn access(denied: Denied) -> Stop {
        match denied {
            Denied::PageFault => Stop::PageFault,
            Denied::Protection | Denied::Unmapped => Stop::Fatal(Fatal::access(denied)),
        }
    }

    /// A missing page is an error if the adapter has no ODP for the operation (IBTA 9.7.5.2.4, 9.9.3.1).
    #[cold]
    #[inline(never)]
    pub fn unless_odp(self, request: Request, queue: &RecvQueue, config: &Config) -> Stop {
        let operation = match request {
            Request::Send if queue.is_shared() => OdpOps::SRQ_RECV,
            Request::Send => OdpOps::RECV,
            Request::Write => OdpOps::WRITE,
            Request::Read => OdpOps::READ,
            Request::Atomic => OdpOps::ATOMIC,
            Request::AtomicWrite => OdpOps::ATOMIC_WRITE,
            Request::Flush => OdpOps::FLUSH,
        };
        if self != Stop::PageFault || config.has_odp(operation) {
            return self;
        }
        let fatal = Fatal::access(Denied::PageFault);
        Stop::Fatal(match request {
            Request::Send => fatal.receiving(Status::LocalProtection, vendor::NO_ODP),
            _ => fatal,
        })
    }

    /// As `access`, for a WRITE with `len` bytes left from `va` on.
    #[cold]
    pub fn write<H: Host>(denied: Denied, rkey: u32, va: u64, len: u64, host: &mut H) -> Stop {
        if denied == Denied::PageFault {
            host.expect_remote(&Remote { pd: None, rkey, va, len }, Access::REMOTE_WRITE);
        }
        Stop::access(denied)
    }

    /// The host refused the buffer of a receive: a remote operational error for the peer (IBTA 9.9.3.1, class A).
    #[cold]
    pub fn receiving(denied: Denied) -> Stop {
        match denied {
            Denied::PageFault => Stop::PageFault,
            Denied::Protection | Denied::Unmapped => {
                Stop::Fatal(Fatal::operational().receiving(Status::LocalProtection, vendor::denied(denied)))
            }
        }
    }
}

impl From<Fatal> for Stop {
    fn from(fatal: Fatal) -> Stop {
        Stop::Fatal(fatal)
    }
}
