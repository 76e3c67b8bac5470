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
    Lazy(Instant),
    /// An ACK, due now.
    Ack,
    /// A NAK, due now: it also acknowledges everything before its PSN.
    Nak(Syndrome),
    /// A NAK that is due at time `at`, and, if `ack` is set, an ACK of everything before it that is due now.
    Later { at: Instant, syndrome: Syndrome, ack: bool },
}

impl Owed {
    /// A request that asks for an acknowledgement was executed. `may_wait`: a request is likely to leave soon.
    #[inline]
    pub fn owe_ack(&mut self, now: Instant, may_wait: bool, config: &Config) {
        *self = match self {
            Owed::Nothing if may_wait => Owed::Lazy(now + config.tuning.lazy_ack),
            _ => Owed::Ack,
        };
    }

    /// A NAK that is due `wait` after `now`; a delayed NAK that is owed already stays. An owed ACK becomes due now.
    pub fn nak_after(&mut self, now: Instant, wait: Duration, syndrome: Syndrome) {
        *self = match *self {
            later @ Owed::Later { .. } => later,
            _ if wait.is_zero() => Owed::Nak(syndrome),
            Owed::Nothing => Owed::Later { at: now + wait, syndrome, ack: false },
            _ => Owed::Later { at: now + wait, syndrome, ack: true },
        };
    }

    /// A duplicate asks for its ACK again; an owed NAK acknowledges it as well.
    pub fn repeat(&mut self) {
        match self {
            Owed::Nak(_) => {}
            Owed::Later { ack, .. } => *ack = true,
            _ => *self = Owed::Ack,
        }
    }

    /// The due ACK or NAK was sent.
    pub fn mark_sent(&mut self) {
        *self = match *self {
            Owed::Later { at, syndrome, .. } => Owed::Later { at, syndrome, ack: false },
            _ => Owed::Nothing,
        };
    }

    /// A waiting ACK becomes due. Returns whether there was one.
    pub fn hurry(&mut self) -> bool {
        let waited = matches!(self, Owed::Lazy(_));
        if waited {
            *self = Owed::Ack;
        }
        waited
    }

    /// Makes due what has waited until `now`. Returns whether that is an ACK that no request came to join.
    pub fn hurry_due(&mut self, now: Instant) -> bool {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return false;
        }
        if let Owed::Later { syndrome, .. } = *self {
            *self = Owed::Nak(syndrome);
            return false;
        }
        *self = Owed::Ack;
        true
    }

    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        match *self {
            Owed::Lazy(at) | Owed::Later { at, .. } => Some(at),
            _ => None,
        }
    }

    /// Whether a NAK is owed, due now or later.
    #[inline]
    pub fn is_nak(&self) -> bool {
        matches!(self, Owed::Nak(_) | Owed::Later { .. })
    }

    /// Whether an ACK or a NAK is due now.
    #[inline]
    pub fn is_due(&self) -> bool {
        matches!(self, Owed::Ack | Owed::Nak(_) | Owed::Later { ack: true, .. })
    }

    /// The packet of the due ACK or NAK. An ACK has the PSN of the newest request that it covers (IBTA C9-95), a NAK
    /// the expected PSN (IBTA C9-111, C9-112, C9-113).
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

/// Whether the application answers each message soon with a send. Only then does an ACK wait for that send: a waiting
/// ACK is lost if the process ends meanwhile, and the peer would report a delivered message as failed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habit {
    /// Number of messages answered in a row, up to `HABIT`.
    answered: u8,
    /// The time at which the last message was executed, while it is unanswered.
    open: Option<Instant>,
    /// A send was posted after it.
    posted: bool,
}

/// The number of answers in a row from which on ACKs wait.
const HABIT: u8 = 8;

impl Habit {
    /// A single-packet message was executed. Returns whether its ACK may wait for the application's answer.
    #[inline]
    pub fn message(&mut self, now: Instant) -> bool {
        if self.open.replace(now).is_some() {
            self.answered = 0;
        }
        self.posted = false;
        self.answered >= HABIT
    }

    /// A send was posted.
    #[inline]
    pub fn posted(&mut self) {
        self.posted = true;
    }

    /// The posted sends are about to leave.
    #[inline]
    pub fn leaves(&mut self, now: Instant, config: &Config) {
        if std::mem::take(&mut self.posted)
            && let Some(since) = self.open.take()
        {
            let in_time = now <= since + config.tuning.lazy_ack;
            self.answered = if in_time { HABIT.min(self.answered + 1) } else { 0 };
        }
    }

    /// An ACK has waited for an answer that did not come in time.
    #[cold]
    pub fn broken(&mut self) {
        self.answered = 0;
    }
}
