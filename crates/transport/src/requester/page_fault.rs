//! Network page faults of the requester: missing pages of the local process, in outgoing data or in the destination
//! buffer of a READ or an atomic.
//!
//! Outgoing data waits for its pages. For destination buffers the profile decides. Either the requester prepares the
//! buffer before the request leaves, and a response that still meets a page fault is held by the caller; or there is
//! no preparation, the response is dropped, and the request is retransmitted at intervals. With packet flood a requester
//! that met two faults in a row is deaf: it drops responses and ACKs until its event is served.

use super::{Failure, Hold, Requester, RequesterState};
use crate::completion::vendor;
use crate::config::Config;
use crate::send_queue::{Kind, SendSlot, Source};
use crate::{Access, Denied, Handled, Host, Instant, RequesterFaults, Status};

impl Requester {
    /// The missing pages are present: the requester tries again, and the ACK timeout restarts (IBTA 9.7.6.1.3).
    pub fn page_resolved(&mut self, now: Instant, config: &Config) {
        self.faulted.deaf = false;
        if !self.waits_for_page() {
            return;
        }
        self.hold = Hold::No;
        self.state = RequesterState::Sending;
        if self.next.seq != self.una.seq {
            self.ack_deadline = self.timeout_from(now, config);
            self.unanswered_since = Some(now);
        }
    }

    /// Whether responses are dropped without a look at their page.
    pub fn is_deaf(&self) -> bool {
        self.faulted.deaf
    }

    /// A page was missing since the last call; true: the requester waits for `page_resolved`.
    pub fn take_fault_event(&mut self) -> Option<bool> {
        std::mem::take(&mut self.faulted.event).then(|| self.faulted.deaf || self.waits_for_page())
    }

    /// Whether a packet to send, or a response that the caller holds, waits for a page.
    pub fn waits_for_page(&self) -> bool {
        matches!(self.hold, Hold::Packet | Hold::Response)
    }

    /// Whether the caller holds a response, and all later responses with it.
    pub fn holds_response(&self) -> bool {
        self.hold == Hold::Response
    }

    /// The packet at `next` needs a missing page. The ACK timeout stops meanwhile, because perhaps no packet in flight
    /// has requested an ACK.
    #[cold]
    pub(super) fn packet_waits(&mut self, config: &Config) {
        self.count_fault(config);
        self.faulted.packet = self.next.seq;
        self.hold = Hold::Packet;
        self.state = RequesterState::PageFault;
        self.ack_deadline = None;
    }

    /// A page of an arrived response's destination buffer is missing. The IBTA
    /// specification has no page faults: a dropped response counts as lost, and its request is retransmitted
    /// (IBTA 9.7.6.1).
    #[cold]
    #[inline(never)]
    pub fn response_waits(&mut self, now: Instant, config: &Config) -> Handled {
        self.count_fault(config);
        if config.profile.page_faults.requester == RequesterFaults::Wait {
            self.hold = Hold::Response;
            self.state = RequesterState::PageFault;
            self.ack_deadline = None;
            return Handled::Held;
        }
        self.response_dropped(now, config);
        Handled::Done
    }

    /// A response is dropped because of a missing page, or an ACK because the requester is deaf: the oldest request is
    /// retransmitted after the profile's time, as often as necessary.
    pub fn response_dropped(&mut self, now: Instant, config: &Config) {
        if let RequesterFaults::Discard { retransmit } = config.profile.page_faults.requester {
            let time = retransmit.at(self.chance.share());
            if self.rnr_deadline.is_none() {
                self.go_back_after(now, time, config);
                self.state = RequesterState::PageFault;
            }
        }
    }

    /// Where the profile has packet flood: a fault queues an event, and the second in a row makes the requester deaf if it
    /// drops responses at all.
    fn count_fault(&mut self, config: &Config) {
        if config.profile.flood.is_none() {
            return;
        }
        self.faulted.event = true;
        if let RequesterFaults::Discard { .. } = config.profile.page_faults.requester
            && config.is_reliable()
        {
            self.faulted.in_row = self.faulted.in_row.saturating_add(1);
            self.faulted.deaf |= self.faulted.in_row >= 2;
        }
    }

    /// Prepares the destination buffer of the request at `next` (`len` bytes if it is a READ).
    #[inline(never)]
    pub(super) fn prepare_buffer<H: Host>(
        &mut self,
        slot: &SendSlot,
        source: Source<'_>,
        len: usize,
        config: &Config,
        host: &mut H,
    ) -> Result<(), Denied> {
        let len = match slot.kind {
            Kind::Read => len as u64,
            Kind::Atomic => 8,
            Kind::Data | Kind::Answered | Kind::Local => 0,
        };
        match (source, config.profile.page_faults.requester) {
            (Source::Gather(sges), RequesterFaults::Wait) if len > 0 => {
                let offset = u64::from(self.next.packet) * config.mtu as u64;
                host.prepare_local(sges, offset, len, Access::LOCAL_WRITE)
            }
            _ => Ok(()),
        }
    }
}

impl Failure {
    /// The host refused memory of the local process (IBTA 9.9.2).
    pub fn local(denied: Denied) -> Failure {
        Failure { status: Status::LocalProtection, vendor: vendor::denied(denied) }
    }
}
