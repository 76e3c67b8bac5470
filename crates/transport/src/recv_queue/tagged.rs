//! The receive queue of a QP with a TM SRQ: the work request that a message has taken may belong to a tag.

use super::tags::{Message, Rendezvous, Report, Tags};
use super::{Received, RecvQueue};
use crate::config::Config;
use crate::{Host, Queue, Sge, Status, WcFlags, WcOpcode};
use std::collections::TryReserveError;
use weir_wire::tag::{RENDEZVOUS_LEN, Rvh, TMH_LEN, TagMessage};

impl RecvQueue {
    /// A queue of one slot, for a work request from a TM SRQ.
    pub fn tagged(max_sges: u32) -> Result<Self, TryReserveError> {
        let tags = Some(Box::new(Tags { room: false, message: None, begins: None }));
        Ok(RecvQueue { tags, ..RecvQueue::shared(max_sges)? })
    }

    /// Whether receives come from a TM SRQ.
    #[inline]
    pub fn is_tagged(&self) -> bool {
        self.tags.is_some()
    }

    /// Whether the send queue has room for a rendezvous; the caller says so before each packet.
    pub fn allow_rendezvous(&mut self, room: bool) {
        if let Some(tags) = &mut self.tags {
            tags.room = room;
        }
    }

    /// Whether the send queue has room for a rendezvous.
    pub fn allows_rendezvous(&self) -> bool {
        self.tags.as_ref().is_some_and(|tags| tags.room)
    }

    /// Takes a work request for a message that begins. False: it matches no tag, and the TM SRQ is empty.
    pub fn take_tagged<H: Host>(&mut self, message: TagMessage, host: &mut H) -> bool {
        let Some(tags) = &mut self.tags else { return false };
        let (tmh, rendezvous) = match message {
            TagMessage::NoTag => (None, None),
            TagMessage::Eager(tmh) => (Some(tmh), None),
            TagMessage::Rendezvous(tmh, rvh) => (Some(tmh), Some(rvh)),
        };
        let sges = &mut self.sges[..self.max_sges];
        let Some(taken) = host.take_tagged(tmh.map(|tmh| tmh.tag), sges) else { return false };
        tags.message = Some(match tmh {
            Some(tmh) if taken.matched => Message::Matched { tmh, rendezvous },
            _ => {
                let mut flags = WcFlags::empty();
                flags.set(WcFlags::TM_SYNC_REQ, taken.sync_requested);
                let opcode = if tmh.is_some() { WcOpcode::TagRecv } else { WcOpcode::NoTag };
                Message::Unmatched { opcode, flags }
            }
        });
        self.hold(taken.wr_id, taken.num_sge);
        true
    }

    /// Bytes of the message that are not stored: the header of an eager message that matched.
    pub fn header_len(&self) -> usize {
        match self.message() {
            Some(Message::Matched { rendezvous: None, .. }) => TMH_LEN,
            _ => 0,
        }
    }

    /// Whether the message matched a tag.
    pub fn is_matched(&self) -> bool {
        matches!(self.message(), Some(Message::Matched { .. }))
    }

    /// The payload of the message, if it is a rendezvous request that matched.
    pub fn rendezvous(&self) -> Option<Rvh> {
        match self.message() {
            Some(Message::Matched { rendezvous, .. }) => rendezvous,
            _ => None,
        }
    }

    /// Completes a message, or reports its match.
    pub fn report<H: Host>(&mut self, host: &mut H, config: &Config, received: Received, report: Report) {
        let mut completion = self.completion(config, &received);
        let (opcode, of_tags) = match (self.message(), report) {
            // A peer that sends another packet than before: the receive was taken for a WRITE.
            (None, _) => (WcOpcode::NoTag, WcFlags::empty()),
            (Some(Message::Unmatched { opcode, flags }), _) => (opcode, flags),
            (_, Report::Match) => (WcOpcode::TagRecv, WcFlags::TM_MATCH),
            (_, Report::Whole { begun: true }) => (WcOpcode::TagRecv, WcFlags::TM_DATA_VALID),
            _ => (WcOpcode::TagRecv, WcFlags::TM_MATCH | WcFlags::TM_DATA_VALID),
        };
        completion.opcode = opcode;
        completion.flags |= of_tags;
        if let (Some(Message::Matched { tmh, .. }), true) = (self.message(), of_tags.contains(WcFlags::TM_MATCH)) {
            (completion.tag, completion.app_ctx) = (tmh.tag, tmh.app_ctx);
        }
        if report == Report::Incomplete {
            (completion.status, completion.byte_len) = (Status::RendezvousIncomplete, RENDEZVOUS_LEN as u32);
        }
        if report != Report::Match {
            self.head = self.head.wrapping_add(1);
        }
        host.complete(Queue::Receive, completion, received.solicited || completion.status != Status::Success);
    }

    /// The rendezvous of the message begins: the caller of the responder posts its requests.
    pub fn begin_rendezvous(&mut self, solicited: bool) {
        let wr_id = self.slots[self.slot_index(self.head)].wr_id;
        if let Some(tags) = &mut self.tags
            && let Some(Message::Matched { tmh, rendezvous: Some(rvh) }) = tags.message
        {
            tags.begins = Some(Rendezvous { wr_id, tmh, rvh, solicited });
        }
    }

    /// Retires the work request of a rendezvous that begins, without a completion: returns it with its SGEs.
    pub fn take_rendezvous(&mut self) -> Option<(Rendezvous, &[Sge])> {
        let rendezvous = self.tags.as_mut()?.begins.take()?;
        let index = self.slot_index(self.head);
        self.head = self.head.wrapping_add(1);
        Some((rendezvous, &self.sges[index * self.max_sges..][..self.slots[index].num_sge as usize]))
    }

    /// The message that holds the work request does not end as the program expects of a message with a tag. If it was
    /// counted as unexpected, it is no longer.
    #[inline]
    pub fn uncount<H: Host>(&mut self, host: &mut H) {
        if self.is_tagged() && !self.is_empty() {
            self.uncount_held(host);
        }
    }

    #[cold]
    fn uncount_held<H: Host>(&mut self, host: &mut H) {
        if let Some(Message::Unmatched { opcode: WcOpcode::TagRecv, .. }) = self.message() {
            host.uncount_unexpected();
        }
        self.forget_message();
    }

    /// The work request that was taken is for a WRITE with immediate data.
    pub(super) fn forget_message(&mut self) {
        if let Some(tags) = &mut self.tags {
            tags.message = None;
        }
    }

    fn message(&self) -> Option<Message> {
        self.tags.as_ref()?.message
    }
}
