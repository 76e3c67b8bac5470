//! Packet damming: requests posted while an earlier request of the same QP is pending are lost (T 5.1).
//!
//! Observed: a READ is pending, because the responder was not ready or because its response was dropped for a missing
//! page. Meanwhile the application posts a second request. When the pending period ends, the sender's capture shows
//! both, the READ again and the second request 2 to 4 µs after it; but the responder answers only the READ. The
//! sender retransmits the second request after the ACK timeout, half a second later, and the responder then treats it
//! as new (T fig 5.3). If a third request follows later, the responder sends a sequence NAK, and the sender
//! retransmits both at once (T fig 5.6). The size of the requests, their pages, whether the second is a READ, a WRITE
//! or a SEND, and the activity of other QPs make no difference (T 5.1.3). The vendor attributes the loss to the page
//! fault processing of the ConnectX-4 (T 7.2).
//!
//! Hypothesis: when the pending period ends, the adapter takes up the requests posted during it together with the
//! retransmission, and counts packets as sent that never leave. Requests that `max_rd_atomic` or a fence keeps out of
//! that burst are taken up later and are not lost: 8192 READs on one QP succeed (T fig 5.7).
//!
//! The requester has a [`Damming`] and consults it at three points. `Requester::go_back_after`: a pending period
//! begins. `Requester::go_back`: any other retransmission ends the damming. `Requester::poll`: the period is over, and
//! the requester sends the parts of [`Damming::burst`].

use crate::config::Config;
use crate::limits::Progress;
use crate::{Egress, Instant, Outgoing, QpState, Refused};

/// The damming of one requester: none, or work requests that are lost when the pending period ends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Damming(Option<Dam>);

/// The work requests that were posted during a pending period: their first packets will be lost.
#[derive(Clone, Copy, Debug)]
struct Dam {
    /// Index of the first of them.
    from: u32,
    /// The index after the last of them, set when the period is over.
    to: Option<u32>,
}

/// What leaves next after a pending period.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// Work requests before this one are sent.
    Sent(u32),
    /// Work requests before this one are lost.
    Lost(u32),
    /// All others are sent.
    Rest,
}

/// An egress that loses every packet.
pub(crate) struct Lost<'e, E>(pub &'e mut E);

impl Damming {
    /// A pending period begins; the send queue ends at `tail`. Has no effect if the profile does not have the flaw.
    #[cold]
    pub fn begin(&mut self, tail: u32, config: &Config) {
        if config.profile.damming {
            self.0 = Some(Dam { from: tail, to: None });
        }
    }

    /// Whether a pending period has ended, and the requester must send a `burst`. `pending` is the time at which the
    /// current pending period ends.
    #[inline(always)]
    pub fn applies(&self, pending: Option<Instant>, now: Instant) -> bool {
        self.0.is_some() && pending.is_none_or(|end| end <= now)
    }

    /// The first part of a burst; the send queue ends at `tail`.
    pub fn burst(&mut self, state: QpState, tail: u32) -> Part {
        match self.0 {
            // In SQD, work requests posted meanwhile are not begun (IBTA 10.3.1), so none of them is in the burst.
            Some(Dam { from, to }) if state != QpState::Sqd => {
                self.0 = Some(Dam { from, to: to.or(Some(tail)) });
                Part::Sent(from)
            }
            _ => self.rest(),
        }
    }

    /// The part after `part`, which ended with this progress before work request `next`. `None`: the burst has ended
    /// for now.
    pub fn after(&mut self, part: Part, progress: Progress, next: u32) -> Option<Part> {
        let to = self.0.and_then(|dam| dam.to);
        if let Part::Lost(to) = part {
            self.0 = Some(Dam { from: next, to: Some(to) });
        }
        match (part, to) {
            (Part::Rest, _) => None,
            _ if progress != Progress::Idle => None,
            (Part::Sent(from), Some(to)) if next == from => Some(Part::Lost(to)),
            _ => Some(self.rest()),
        }
    }

    /// Work requests that did not fit into the burst, or were posted later, are sent normally.
    fn rest(&mut self) -> Part {
        self.0 = None;
        Part::Rest
    }
}

impl<E: Egress> Egress for Lost<'_, E> {
    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused> {
        self.0.lose(packet);
        Ok(())
    }
}
