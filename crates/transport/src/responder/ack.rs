//! ACKs and NAKs: owed, coalesced, sent (IBTA 9.7.5.1.2, 9.7.5.2).

use crate::config::Config;
use crate::{Instant, Outgoing, Payload};
use std::time::Duration;
use weir_wire::{Aeth, Operation, Psn, Syndrome};

/// The ACK or NAK that is owed to the peer. Everything before the expected PSN is executed, so one ACK covers it all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Owed {
    #[default]
    Nothing,
    /// The ACK of one message. It may wait until time `at` for requests to leave with. An ACK of what came before the
    /// last packet of that message is due now, if `earlier` is set.
    DelayedAck { at: Instant, earlier: Option<Covered> },
    /// An ACK, due now.
    Ack,
    /// A NAK, due now: it also acknowledges everything before its PSN.
    Nak(Syndrome),
    /// A NAK that is due at time `at`, and, if `ack` is set, an ACK of everything before it that is due now.
    DelayedNak { at: Instant, syndrome: Syndrome, ack: bool },
}

/// What an ACK covers: the PSN of the newest request, and the number of finished messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Covered {
    pub psn: Psn,
    pub msn: u32,
}

impl Owed {
    /// A request that asks for an acknowledgement was executed. It is acknowledged at once, with all before it.
    #[inline]
    pub fn owe_ack(&mut self) {
        *self = Owed::Ack;
    }

    /// A message was executed, and requests are likely to leave soon: its ACK waits until time `at` for them. An ACK
    /// that is owed for requests inside the message remains due, because the peer's window may depend on it. It covers
    /// `before`, which is everything before the last packet of the message.
    pub fn delay_ack(&mut self, at: Instant, before: Covered) {
        *self = match self {
            Owed::Nothing => Owed::DelayedAck { at, earlier: None },
            _ => Owed::DelayedAck { at, earlier: Some(before) },
        };
    }

    /// A part of the reply has left: the waiting ACK may wait until time `until` for the rest.
    pub fn extend_ack_delay(&mut self, until: Instant) {
        if let Owed::DelayedAck { at, .. } = self {
            *at = until;
        }
    }

    /// A NAK that is due `wait` after `now`; a delayed NAK that is owed already stays. An owed ACK becomes due now.
    pub fn nak_after(&mut self, now: Instant, wait: Duration, syndrome: Syndrome) {
        *self = match *self {
            delayed @ Owed::DelayedNak { .. } => delayed,
            _ if wait.is_zero() => Owed::Nak(syndrome),
            Owed::Nothing => Owed::DelayedNak { at: now + wait, syndrome, ack: false },
            _ => Owed::DelayedNak { at: now + wait, syndrome, ack: true },
        };
    }

    /// A duplicate asks for its ACK again; an owed NAK acknowledges it as well.
    pub fn repeat(&mut self) {
        match self {
            Owed::Nak(_) => {}
            Owed::DelayedNak { ack, .. } => *ack = true,
            _ => *self = Owed::Ack,
        }
    }

    /// The due ACK or NAK was sent.
    pub fn mark_sent(&mut self) {
        *self = match *self {
            Owed::DelayedNak { at, syndrome, .. } => Owed::DelayedNak { at, syndrome, ack: false },
            Owed::DelayedAck { at, .. } => Owed::DelayedAck { at, earlier: None },
            _ => Owed::Nothing,
        };
    }

    /// A waiting ACK becomes due. Returns whether there was one.
    pub fn end_ack_delay(&mut self) -> bool {
        let waited = self.is_waiting();
        if waited {
            *self = Owed::Ack;
        }
        waited
    }

    /// Makes due what has waited until `now`. Returns whether that is an ACK: no reply was posted in time.
    pub fn end_delays(&mut self, now: Instant) -> bool {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return false;
        }
        if let Owed::DelayedNak { syndrome, .. } = *self {
            *self = Owed::Nak(syndrome);
            return false;
        }
        *self = Owed::Ack;
        true
    }

    /// The time at which a delayed ACK or NAK becomes due.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        match *self {
            Owed::DelayedAck { at, .. } | Owed::DelayedNak { at, .. } => Some(at),
            _ => None,
        }
    }

    /// Whether an ACK waits for requests to leave with.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        matches!(self, Owed::DelayedAck { .. })
    }

    /// Whether an ACK is owed, due now or later.
    pub fn has_ack(&self) -> bool {
        matches!(self, Owed::DelayedAck { .. } | Owed::Ack | Owed::DelayedNak { ack: true, .. })
    }

    /// Whether a NAK is owed, due now or later.
    #[inline]
    pub fn is_nak(&self) -> bool {
        matches!(self, Owed::Nak(_) | Owed::DelayedNak { .. })
    }

    /// Whether an ACK or a NAK is due now.
    #[inline]
    pub fn is_due(&self) -> bool {
        use Owed::*;
        matches!(self, Ack | Nak(_) | DelayedNak { ack: true, .. } | DelayedAck { earlier: Some(_), .. })
    }

    /// The packet of the due ACK or NAK. An ACK has the PSN of the newest request that it covers (IBTA C9-95), a NAK
    /// the expected PSN (IBTA C9-111, C9-112, C9-113).
    pub fn outgoing(&self, expected: Psn, msn: u32, config: &Config) -> Option<Outgoing<'static>> {
        let (psn, msn, syndrome) = match *self {
            Owed::Nothing | Owed::DelayedAck { earlier: None, .. } | Owed::DelayedNak { ack: false, .. } => {
                return None;
            }
            Owed::DelayedAck { earlier: Some(covered), .. } => (covered.psn, covered.msn, Syndrome::ACK_UNLIMITED),
            Owed::Ack | Owed::DelayedNak { .. } => (expected.minus(1), msn, Syndrome::ACK_UNLIMITED),
            Owed::Nak(syndrome) => (expected, msn, syndrome),
        };
        let mut headers = config.headers(Operation::Acknowledge, psn, 0);
        headers.put(Aeth::new(syndrome.to_byte(), msn));
        Some(Outgoing { headers, payload: Payload::None, placement: None, to: None })
    }
}
