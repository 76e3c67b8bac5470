//! The time in which a responder replays a READ that was repeated, as far as packets show it.
//!
//! It begins when the requester repeats the READ and ends with the response. Some adapters answer such a READ twice
//! (T fig 6.2: the second response 0.83 ms after the first): then it ends with the second response. Requests that are
//! new to the responder and arrive meanwhile are those that packet damming loses.

use super::request::Request;
use crate::packet::Kind;
use weir_wire::Psn;

/// The current or the last replay.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replay {
    /// The READs that are repeated: the first one's PSN, and the last one's end.
    psns: Option<(Psn, Psn)>,
    /// `None`: a response is outstanding.
    ended: Option<u64>,
}

/// A second response comes within this time of the first, ns.
pub const SECOND_RESPONSE: u64 = 3_000_000;

impl Replay {
    /// Whether a request that leaves now arrives during the replay, and is behind its READs.
    pub fn covers(&self, request: &Request, now: u64) -> bool {
        self.psns.is_some_and(|(_, end)| !request.psn.before(end)) && self.ended.is_none_or(|ended| now < ended)
    }

    /// Whether a response is outstanding.
    pub fn lasts(&self) -> bool {
        self.psns.is_some() && self.ended.is_none()
    }

    /// A request was repeated.
    pub fn repeated(&mut self, request: &Request) {
        if request.kind != Kind::Read {
            return;
        }
        match &mut self.psns {
            Some((first, end)) if self.ended.is_none() && !request.psn.before(*first) => {
                // A READ that was lost during the replay is new to the responder: it prolongs nothing.
                if !request.during_replay && end.before(request.end()) {
                    *end = request.end();
                }
            }
            psns => {
                *psns = Some((request.psn, request.end()));
                self.ended = None;
            }
        }
    }

    /// A READ was answered; `waits` says whether a READ of these PSNs is still open.
    pub fn answered(&mut self, request: &Request, now: u64, waits: impl Fn((Psn, Psn)) -> bool) {
        let is_of = |(first, end): &(Psn, Psn)| !request.psn.before(*first) && request.psn.before(*end);
        if self.ended.is_none() && self.psns.filter(is_of).is_some_and(|psns| !waits(psns)) {
            self.ended = Some(now);
        }
    }

    /// A READ was answered once more. Returns the end of the replay until now, if it was this READ's.
    pub fn answered_again(&mut self, request: &Request, now: u64) -> Option<u64> {
        let ended = self.ended.filter(|ended| now.saturating_sub(*ended) < SECOND_RESPONSE)?;
        self.psns.filter(|(first, end)| !request.psn.before(*first) && request.psn.before(*end))?;
        self.ended = Some(now);
        Some(ended)
    }
}
