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
    /// A request that asked for an acknowledgement was executed. `may_wait`: its ACK will have company soon.
    #[inline]
    pub fn ask(&mut self, now: Instant, may_wait: bool, config: &Config) {
        *self = match self {
            Owed::Nothing if may_wait => Owed::Lazy(now + config.tuning.lazy_ack),
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

    /// An ACK that waits for company waits no more. Whether there was one.
    pub fn hurry(&mut self) -> bool {
        let waited = matches!(self, Owed::Lazy(_));
        if waited {
            *self = Owed::Ack;
        }
        waited
    }

    /// Hurries what is due by now. Whether that is an ACK that has waited for company in vain.
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

/// Whether this side answers each message by a send of its own, soon. Only then does an ACK wait for that send: one
/// that waits is lost where the process ends meanwhile, and the peer takes a message that was delivered for a failed
/// one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habit {
    /// Messages that were answered in a row, as far as that is counted.
    answered: u8,
    /// A message was executed then, and was not answered yet.
    open: Option<Instant>,
    /// Something was posted after it.
    posted: bool,
}

/// So many answers in a row are a habit.
const HABIT: u8 = 8;

impl Habit {
    /// A single-packet message was executed. Whether its ACK may wait for an answer.
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

    /// What was posted is about to leave.
    #[inline]
    pub fn leaves(&mut self, now: Instant, config: &Config) {
        if std::mem::take(&mut self.posted)
            && let Some(since) = self.open.take()
        {
            let in_time = now <= since + config.tuning.lazy_ack;
            self.answered = if in_time { HABIT.min(self.answered + 1) } else { 0 };
        }
    }

    /// An ACK waited for an answer in vain.
    #[cold]
    pub fn broken(&mut self) {
        self.answered = 0;
    }
}
