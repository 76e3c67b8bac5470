//! Acknowledgements: owed, coalesced, sent (IBTA 9.7.5.1.2, 9.7.5.2).

use crate::config::Config;
use crate::{Instant, Outgoing, Payload};
use std::time::Duration;
use weir_wire::{Aeth, Operation, Psn, Syndrome};

/// What the requester is still to be told. All before the expected PSN is executed, so one ACK speaks for everything
/// that is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Owed {
    #[default]
    Nothing,
    /// The ACK of one single-packet message, which may wait for company until then.
    Lazy(Instant),
    /// An ACK, now.
    Ack,
    /// A NAK: it acknowledges all before its PSN, too.
    Nak(Syndrome),
    /// A NAK that is not to go before then, and maybe an ACK now of what comes before it.
    Later { at: Instant, syndrome: Syndrome, ack: bool },
}

impl Owed {
    /// A request that asked for an acknowledgement was executed. An XRC target's would wait for company in vain, for our
    /// answers leave by another QP: ahead of it, and the peer would hear of them before the end of its own send.
    #[inline]
    pub fn ask(&mut self, now: Instant, single_packet: bool, config: &Config) {
        *self = match self {
            Owed::Nothing if single_packet && !config.xrc_target => Owed::Lazy(now + config.tuning.lazy_ack),
            _ => Owed::Ack,
        };
    }

    /// A NAK, so long after `now`; if one waits already, that. What is owed beside it is said at once.
    pub fn nak_after(&mut self, now: Instant, wait: Duration, syndrome: Syndrome) {
        *self = match *self {
            later @ Owed::Later { .. } => later,
            _ if wait.is_zero() => Owed::Nak(syndrome),
            Owed::Nothing => Owed::Later { at: now + wait, syndrome, ack: false },
            _ => Owed::Later { at: now + wait, syndrome, ack: true },
        };
    }

    /// A duplicate asks for its ACK again; a NAK acknowledges it as well.
    pub fn repeat(&mut self) {
        match self {
            Owed::Nak(_) => {}
            Owed::Later { ack, .. } => *ack = true,
            _ => *self = Owed::Ack,
        }
    }

    /// It went out.
    pub fn said(&mut self) {
        *self = match *self {
            Owed::Later { at, syndrome, .. } => Owed::Later { at, syndrome, ack: false },
            _ => Owed::Nothing,
        };
    }

    /// An ACK that waits for company waits no more.
    pub fn hurry(&mut self) {
        if let Owed::Lazy(_) = self {
            *self = Owed::Ack;
        }
    }

    /// Hurries what is due by now.
    pub fn hurry_due(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            *self = match *self {
                Owed::Later { syndrome, .. } => Owed::Nak(syndrome),
                _ => Owed::Ack,
            };
        }
    }

    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        match *self {
            Owed::Lazy(at) | Owed::Later { at, .. } => Some(at),
            _ => None,
        }
    }

    /// A NAK is said, or will be.
    #[inline]
    pub fn is_nak(&self) -> bool {
        matches!(self, Owed::Nak(_) | Owed::Later { .. })
    }

    /// Whether it goes out at the next opportunity.
    #[inline]
    pub fn is_due(&self) -> bool {
        matches!(self, Owed::Ack | Owed::Nak(_) | Owed::Later { ack: true, .. })
    }

    /// The packet that says it.
    pub fn outgoing(&self, expected: Psn, msn: u32, config: &Config) -> Option<Outgoing<'static>> {
        let (psn, syndrome) = match *self {
            Owed::Nothing | Owed::Lazy(_) | Owed::Later { ack: false, .. } => return None,
            Owed::Ack | Owed::Later { .. } => (expected.minus(1), Syndrome::ACK_UNLIMITED),
            Owed::Nak(syndrome) => (expected, syndrome),
        };
        let mut headers = config.headers(Operation::Acknowledge, psn, 0);
        headers.put(Aeth::new(syndrome.to_byte(), msn));
        Some(Outgoing { headers, payload: Payload::None, to: None })
    }
}
