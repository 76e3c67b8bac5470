//! The functions that the completer calls: the unacknowledged position, and how an acknowledgement advances it.

use super::{Requester, Retries};
use crate::Instant;
use crate::config::Config;
use crate::send_queue::SendSlot;
use weir_wire::Psn;

impl Requester {
    /// The position of a response's PSN, if it lies between the oldest unacknowledged packet and the last packet sent.
    #[inline]
    pub fn locate(&self, psn: Psn) -> Option<u64> {
        let ahead = psn.since(self.psn(self.una.seq));
        let seq = self.una.seq.checked_add_signed(i64::from(ahead))?;
        (ahead >= 0 && seq < self.sent).then_some(seq)
    }

    /// The PSN of the oldest unacknowledged packet.
    pub fn una_psn(&self) -> Psn {
        self.psn(self.una.seq)
    }

    /// ACK timeouts in a row.
    pub fn timeouts(&self) -> u32 {
        self.timeouts
    }

    /// The oldest unacknowledged position.
    pub fn una(&self) -> u64 {
        self.una.seq
    }

    /// Whether the requester waits before a retransmission.
    #[inline]
    pub fn waits_for_receiver(&self) -> bool {
        self.rnr_deadline.is_some()
    }

    /// The oldest unacknowledged work request, and the number of its packets that are acknowledged.
    pub fn una_packet(&self) -> (u32, u32) {
        (self.una.wr, self.una.packet)
    }

    /// The number of messages before that of the oldest unacknowledged packet, modulo 2^24.
    pub fn una_message(&self) -> u32 {
        self.una.messages() & 0xff_ffff
    }

    /// Moves the oldest unacknowledged position forward by `packets` of its work request; true if that finishes it.
    /// An acknowledgement covers every earlier request (IBTA 9.7.5.1.2).
    #[inline]
    pub fn acknowledge(&mut self, slot: &SendSlot, packets: u32, config: &Config) -> bool {
        self.una.advance(slot, packets, config);
        self.una.packet == 0
    }

    /// After `acknowledge`: restarts timers and retry counters (IBTA 9.7.6.1.3, 9.9.2.1.1).
    #[inline]
    pub fn progressed(&mut self, now: Instant, config: &Config) {
        if self.next.seq < self.una.seq {
            self.next = self.una;
        }
        self.retries = Retries::new(config);
        self.timeouts = 0;
        self.gone_back_to = None;
        self.rnr_deadline = None;
        self.faulted.in_row = 0;
        let outstanding = self.next.seq != self.una.seq;
        self.ack_deadline = if outstanding { self.timeout_from(now, config) } else { None };
        self.unanswered_since = outstanding.then_some(now);
    }
}
