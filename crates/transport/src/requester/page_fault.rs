//! Network page faults of the requester: pages of its own process are missing, of what it sends or of the place that the
//! answer to a READ or an atomic goes to.
//!
//! What is sent waits. For the place of an answer the profile decides: it is seen to before the request leaves, and an
//! answer that meets a page fault all the same waits at its caller; or nobody sees to it, the answer is dropped, and the
//! request repeated at intervals.

use super::{Failure, Requester, RequesterState};
use crate::completion::vendor;
use crate::config::Config;
use crate::send_queue::{Kind, SendSlot, Source};
use crate::{Access, Denied, Handled, Host, Instant, RequesterFaults, Status};
use std::num::NonZeroU32;
use std::time::Duration;

/// What keeps the requester from sending, however the limits are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Hold {
    #[default]
    No,
    /// The work request at `next` cannot be done.
    Stalled,
    /// The packet at `next` needs a page.
    Packet,
    /// The answer to the oldest work request needs a page; the caller keeps it.
    Answer,
}

/// Why a READ or an atomic cannot leave yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unprepared {
    /// The place of its answer.
    Memory(Denied),
    /// All QPs together have too many outstanding.
    NoPlace,
}

impl Requester {
    /// What was missing is there: what waited tries again, and the peer's time begins anew.
    pub fn page_resolved(&mut self, now: Instant) {
        self.unaware = None;
        if !self.waits_for_page() {
            return;
        }
        self.hold = Hold::No;
        self.state = RequesterState::Sending;
        if self.next.seq != self.una.seq {
            self.ack_deadline = self.ack_timeout.map(|timeout| now + timeout);
            self.unanswered_since = Some(now);
        }
    }

    /// READs that were outstanding when an answer was dropped, if answers for that page are still dropped.
    pub fn unaware_reads(&self) -> Option<u32> {
        self.unaware.map(NonZeroU32::get)
    }

    pub fn waits_for_page(&self) -> bool {
        matches!(self.hold, Hold::Packet | Hold::Answer)
    }

    /// Whether an answer waits at the caller, and so does what comes after it.
    pub fn holds_answers(&self) -> bool {
        self.hold == Hold::Answer
    }

    /// The packet at `next` needs a page that is not there. The peer owes no answer meanwhile: it may not have been
    /// asked for one.
    #[cold]
    pub(super) fn packet_waits(&mut self) {
        self.hold = Hold::Packet;
        self.state = RequesterState::PageFault;
        self.ack_deadline = None;
    }

    /// The place of an answer that came is not there; the send queue ends at `tail`.
    #[cold]
    #[inline(never)]
    pub fn answer_waits(&mut self, now: Instant, tail: u32, config: &Config) -> Handled {
        match config.profile.page_faults.requester {
            RequesterFaults::Wait => {
                self.hold = Hold::Answer;
                self.state = RequesterState::PageFault;
                self.ack_deadline = None;
                Handled::Held
            }
            RequesterFaults::Discard { retransmit } => {
                if config.profile.flood.is_some() && self.unaware.is_none() {
                    self.unaware = NonZeroU32::new(self.next.reads_since(&self.una).max(1) as u32);
                }
                let time = retransmit.at(self.chance.share());
                self.repeat_after(now, time, tail, config);
                Handled::Done
            }
        }
    }

    /// The answer is dropped; the request goes out again in a while, as often as need be.
    fn repeat_after(&mut self, now: Instant, time: Duration, tail: u32, config: &Config) {
        if self.rnr_deadline.is_some() {
            return;
        }
        self.restart_retries(config);
        self.go_back();
        self.begin_pending(tail, config);
        self.rnr_deadline = Some(now + time);
        self.state = RequesterState::PageFault;
    }

    /// Sees to a place among what is outstanding, and to that of the answer that the request at `next` asks for, of `len` bytes unless it is an atomic.
    #[inline(never)]
    pub(super) fn prepare<H: Host>(
        &mut self,
        slot: &SendSlot,
        source: Source<'_>,
        len: usize,
        config: &Config,
        host: &mut H,
    ) -> Result<(), Unprepared> {
        if config.profile.outstanding_reads.is_some() && !self.has_place(host) {
            return Err(Unprepared::NoPlace);
        }
        let len = match slot.kind {
            Kind::Read => len as u64,
            Kind::Atomic => 8,
            Kind::Data | Kind::AtomicWrite | Kind::Local => 0,
        };
        match (source, config.profile.page_faults.requester) {
            (Source::Gather(sges), RequesterFaults::Wait) if len > 0 => {
                let offset = u64::from(self.next.packet) * config.mtu as u64;
                host.prepare_local(sges, offset, len, Access::LOCAL_WRITE).map_err(Unprepared::Memory)
            }
            _ => Ok(()),
        }
    }
}

impl Failure {
    /// Memory of the own process was refused.
    pub fn local(denied: Denied) -> Failure {
        Failure { status: Status::LocalProtection, vendor: vendor::denied(denied) }
    }
}
