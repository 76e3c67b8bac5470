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
    /// The ACK of one single-packet message. It may wait until this time for a request to share a burst with.
    DelayedAck(Instant),
    /// An ACK, due now.
    Ack,
    /// A NAK, due now: it also acknowledges everything before its PSN.
    Nak(Syndrome),
    /// A NAK that is due at time `at`, and, if `ack` is set, an ACK of everything before it that is due now.
    DelayedNak { at: Instant, syndrome: Syndrome, ack: bool },
}

impl Owed {
    /// A request that asks for an acknowledgement was executed. `may_wait`: a request is likely to leave soon.
    #[inline]
    pub fn owe_ack(&mut self, now: Instant, may_wait: bool, config: &Config) {
        *self = match self {
            Owed::Nothing if may_wait => Owed::DelayedAck(now + config.tuning.ack_delay),
            _ => Owed::Ack,
        };
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
            _ => Owed::Nothing,
        };
    }

    /// A waiting ACK becomes due. Returns whether there was one.
    pub fn end_ack_delay(&mut self) -> bool {
        let waited = matches!(self, Owed::DelayedAck(_));
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
            Owed::DelayedAck(at) | Owed::DelayedNak { at, .. } => Some(at),
            _ => None,
        }
    }

    /// Whether a NAK is owed, due now or later.
    #[inline]
    pub fn is_nak(&self) -> bool {
        matches!(self, Owed::Nak(_) | Owed::DelayedNak { .. })
    }

    /// Whether an ACK or a NAK is due now.
    #[inline]
    pub fn is_due(&self) -> bool {
        matches!(self, Owed::Ack | Owed::Nak(_) | Owed::DelayedNak { ack: true, .. })
    }

    /// The packet of the due ACK or NAK. An ACK has the PSN of the newest request that it covers (IBTA C9-95), a NAK
    /// the expected PSN (IBTA C9-111, C9-112, C9-113).
    pub fn outgoing(&self, expected: Psn, msn: u32, config: &Config) -> Option<Outgoing<'static>> {
        let (psn, syndrome) = match *self {
            Owed::Nothing | Owed::DelayedAck(_) | Owed::DelayedNak { ack: false, .. } => return None,
            Owed::Ack | Owed::DelayedNak { .. } => (expected.minus(1), Syndrome::ACK_UNLIMITED),
            Owed::Nak(syndrome) => (expected, syndrome),
        };
        let mut headers = config.headers(Operation::Acknowledge, psn, 0);
        headers.put(Aeth::new(syndrome.to_byte(), msn));
        Some(Outgoing { headers, payload: Payload::None, to: None })
    }
}

/// Whether the application replies to each message soon with a send. Only then does an ACK wait for that send: a
/// waiting ACK is lost if the process ends meanwhile, and the peer would report a delivered message as failed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplyPattern {
    /// Replies in time in a row, up to `REPLIES_BEFORE_DELAY`.
    replies: u8,
    /// The time at which the last message was executed, until the reply to it leaves.
    open: Option<Instant>,
    /// A send was posted after it.
    posted: bool,
}

/// ACKs wait after this number of replies in time in a row.
const REPLIES_BEFORE_DELAY: u8 = 8;

impl ReplyPattern {
    /// A single-packet message was executed. Returns whether its ACK may wait for the application's reply.
    #[inline]
    pub fn message_executed(&mut self, now: Instant) -> bool {
        if self.open.replace(now).is_some() {
            self.replies = 0;
        }
        self.posted = false;
        self.replies >= REPLIES_BEFORE_DELAY
    }

    /// A send was posted.
    #[inline]
    pub fn send_posted(&mut self) {
        self.posted = true;
    }

    /// The posted sends are about to leave.
    #[inline]
    pub fn sends_leave(&mut self, now: Instant, config: &Config) {
        if std::mem::take(&mut self.posted)
            && let Some(since) = self.open.take()
        {
            let in_time = now <= since + config.tuning.ack_delay;
            self.replies = if in_time { REPLIES_BEFORE_DELAY.min(self.replies + 1) } else { 0 };
        }
    }

    /// An ACK has waited for a reply that was not posted in time.
    #[cold]
    pub fn reply_late(&mut self) {
        self.replies = 0;
    }
}
