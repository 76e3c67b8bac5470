//! Network page faults of the responder: a request, or the answer to a READ, needs a page that is not there.
//!
//! As the profile has it, the request waits at its caller, and nothing after it is executed or acknowledged; or the peer
//! gets an RNR NAK and repeats it. Either way duplicates are answered meanwhile.

use super::ack::Owed;
use super::opcode_order::Message;
use super::sequence::Sequence;
use super::{Fatal, Order, Responder};
use crate::completion::vendor;
use crate::config::Config;
use crate::{Access, Denied, Handled, Host, Instant, Remote, ResponderFaults, Status};
use weir_wire::{Packet, Psn, Syndrome};

/// Why a request was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Fatal(Fatal),
    PageFault,
    /// It ends a key that READs before it are still being answered by.
    StillRead,
}

/// What a page is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Waits {
    #[default]
    No,
    /// For the request with the expected PSN, which the caller keeps.
    Request,
    /// For the answer to a READ.
    Answer,
}

/// What an answer that waits holds back.
#[derive(Debug, Default)]
pub(super) struct HeldBack {
    /// The PSN of its next packet: nothing from there on is acknowledged.
    psn: Psn,
    /// Messages finished before it.
    msn: u32,
    /// What was owed for requests that were executed after it.
    owed: Owed,
}

impl Responder {
    /// What was missing is there: what waited tries again.
    pub fn page_resolved(&mut self) {
        self.resources.unpark();
        // What was dropped meanwhile comes again only if the peer is told: then the RNR NAK stands.
        let dropped = std::mem::take(&mut self.dropped) && self.owed.is_nak();
        if std::mem::take(&mut self.waits) == Waits::Answer && !dropped {
            let held_back = std::mem::take(&mut self.held_back.owed);
            self.owed = match (held_back, self.owed) {
                (Owed::Nak(syndrome), _) => Owed::Nak(syndrome),
                (Owed::Nothing, Owed::Nothing) => Owed::Nothing,
                // An RNR NAK that is not out is no longer true.
                _ => Owed::Ack,
            };
        }
    }

    /// A request that does not come in order, or while a page is waited for.
    #[cold]
    #[inline(never)]
    pub(super) fn not_now(
        &mut self,
        now: Instant,
        sequence: Sequence,
        packet: &Packet<'_>,
        config: &Config,
    ) -> Handled {
        match sequence {
            Sequence::Duplicate => self.repeat(now, packet, config),
            _ if self.waits != Waits::No => {
                self.dropped = config.answers_faults_with_naks();
                return self.hold(config);
            }
            _ if self.order == Order::Kept => self.say_missing(),
            _ => {}
        }
        Handled::Done
    }

    /// A request was not executed.
    #[cold]
    #[inline(never)]
    pub(super) fn stopped(&mut self, now: Instant, stop: Stop, config: &Config) -> Result<Handled, Fatal> {
        match stop {
            Stop::Fatal(fatal) => return Err(fatal),
            Stop::StillRead => {
                // As if it had been lost: the answers leave, then the NAK, and the peer repeats it at once.
                self.say_missing();
                return Ok(Handled::Done);
            }
            Stop::PageFault => {}
        }
        // It came in order, whatever was missing before it.
        self.order = Order::Kept;
        if let Owed::Nak(_) = self.owed {
            self.owed = Owed::Ack;
        }
        match config.profile.page_faults.responder {
            ResponderFaults::Wait => {
                self.waits = Waits::Request;
                // The peer hears how far it has come: its patience begins anew.
                match self.message {
                    Message::None => {
                        self.owed.hurry();
                    }
                    Message::Send { .. } | Message::Write { .. } => self.owed.repeat(),
                }
            }
            ResponderFaults::RnrNak { other_after, .. } => {
                self.order = Order::PageFaultSaid;
                self.owed.nak_after(now, other_after, Syndrome::RnrNak(config.attr.min_rnr_timer));
            }
        }
        Ok(self.hold(config))
    }

    /// The next answer packet needs a page that is not there.
    #[cold]
    #[inline(never)]
    pub(super) fn answer_waits<H: Host>(&mut self, now: Instant, config: &Config, host: &mut H) {
        let Some(rest) = self.resources.park() else { return };
        host.expect_remote(&rest.range, Access::REMOTE_READ);
        if self.waits != Waits::Answer {
            self.held_back.owed = std::mem::take(&mut self.owed);
        }
        self.waits = Waits::Answer;
        (self.held_back.psn, self.held_back.msn) = (rest.psn, rest.msn.wrapping_sub(1) & 0xff_ffff);
        if let ResponderFaults::RnrNak { read_after, .. } = config.profile.page_faults.responder
            && self.order != Order::Halted
        {
            // The peer repeats all that comes after, which makes up for what was owed.
            self.owed = std::mem::take(&mut self.held_back.owed);
            self.order = Order::Kept;
            self.owed.nak_after(now, read_after, Syndrome::RnrNak(config.attr.min_rnr_timer));
        }
    }

    /// The PSN and MSN up to which an acknowledgement may go now.
    #[inline]
    pub(super) fn acknowledged(&self) -> (Psn, u32) {
        match self.waits {
            Waits::Answer => (self.held_back.psn, self.held_back.msn),
            _ => (self.expected.psn(), self.msn),
        }
    }

    /// An answer is asked for again, one that is `known`: answers that wait try again at once.
    pub(super) fn answer_repeated(&mut self, known: bool, config: &Config) {
        if !known {
            return;
        }
        self.resources.unpark();
        // What follows the repeated READ is executed; where nobody was told to repeat, it waits in its place.
        if self.waits == Waits::Answer && config.answers_faults_with_naks() {
            self.waits = Waits::No;
            self.dropped = false;
            // Not out yet, and said again if it is still true.
            if self.owed.is_nak() {
                self.owed = Owed::Nothing;
            }
        }
    }

    /// A datagram or a packet of UC needs a page that is not there.
    #[cold]
    #[inline(never)]
    pub(super) fn hold_unreliable(&mut self, config: &Config) -> Handled {
        if config.profile.page_faults.responder == ResponderFaults::Wait {
            self.waits = Waits::Request;
        }
        self.hold(config)
    }

    /// The packet is kept by the caller, unless it will be repeated or, where there is nobody to do so, is lost.
    fn hold(&self, config: &Config) -> Handled {
        match config.profile.page_faults.responder {
            ResponderFaults::Wait => Handled::Held,
            ResponderFaults::RnrNak { .. } => Handled::Done,
        }
    }
}

impl Stop {
    /// A peer's access was refused.
    #[cold]
    pub fn access(denied: Denied) -> Stop {
        match denied {
            Denied::PageFault => Stop::PageFault,
            Denied::Protection | Denied::Unmapped => Stop::Fatal(Fatal::access(denied)),
        }
    }

    /// The same for a WRITE, of which `len` bytes from `va` on are left.
    #[cold]
    pub fn write<H: Host>(denied: Denied, rkey: u32, va: u64, len: u64, host: &mut H) -> Stop {
        if denied == Denied::PageFault {
            host.expect_remote(&Remote { pd: None, rkey, va, len }, Access::REMOTE_WRITE);
        }
        Stop::access(denied)
    }

    /// The place of a receive was refused.
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
