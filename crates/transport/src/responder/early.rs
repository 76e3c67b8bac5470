//! Packets of a WRITE that come before earlier ones of it, over several links.

use super::execute::check_memory_placement;
use super::opcode_order::{Message, Request};
use super::{Order, Responder, Waits};
use crate::config::Config;
use crate::{Access, Host};
use weir_wire::{Operation, Packet};

impl Responder {
    /// Places the payload of a packet within the WRITE that has begun, if earlier ones are missing. False: it is not such a
    /// packet, or cannot be placed before its turn.
    #[cold]
    pub fn place_early<H: Host>(&mut self, packet: &Packet<'_>, config: &Config, host: &mut H) -> bool {
        let Message::Write { va, rkey, received, total } = self.message else { return false };
        let bth = &packet.headers.bth;
        let ahead = usize::try_from(bth.psn.since(self.expected.psn())).unwrap_or(0);
        if !self.early.takes(ahead) || bth.opcode.operation() != Some(Operation::WriteMiddle) {
            return false;
        }
        if self.waits == Waits::Reads && !self.awaits_reads() {
            self.waits = Waits::No;
        }
        // A READ may be repeated in the middle of a WRITE: the packet waits for it, as one in its turn does.
        if self.waits != Waits::No || self.order == Order::Halted || self.must_follow_reads(Request::Write, config) {
            return false;
        }
        let offset = received + (ahead * config.mtu) as u64;
        let is_within = packet.payload.len() == config.mtu && offset + (config.mtu as u64) < total;
        let address = va.wrapping_add(offset);
        let belongs =
            packet.placement.is_some() && check_memory_placement(packet, address, rkey, offset, total).is_ok();
        if !is_within || !belongs || !config.attr.access_flags.contains(Access::REMOTE_WRITE) {
            return false;
        }
        // If that fails, the packet counts as lost: when it comes again in its turn, the peer is told why.
        if host.write_remote(rkey, address, packet.payload).is_ok() {
            self.early.place(ahead, bth.ack_req);
        }
        true
    }

    /// The expected packet has been executed: those behind it count that were placed before (IBTA 9.7.3.1), and the ACK that
    /// one of them asks for is owed (IBTA 9.7.5.1.2).
    #[cold]
    pub(super) fn count_early(&mut self, config: &Config) {
        let (packets, asks) = self.early.count();
        self.expected = self.expected.plus(packets);
        if let Message::Write { received, .. } = &mut self.message {
            *received += u64::from(packets) * config.mtu as u64;
        }
        if asks {
            self.owed.owe_ack();
        }
    }
}
