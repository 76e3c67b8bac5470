//! Packets that arrive at a node of a pair, those that have to wait, and what becomes of them.

use super::host::Staging;
use super::pair::{NETWORK_HEADER, Node, Pair};
use super::wire::Wire;
use crate::{Handled, Side};
use weir_wire::{Packet, Service, frame};

impl Pair {
    /// Delivers a UDP payload to a node.
    pub fn deliver(&mut self, to: usize, bytes: &[u8]) {
        self.set_paging_time(to);
        if !Wire::intact(bytes) {
            return;
        }
        if let Ok(packet) = frame::parse_any(bytes)
            && packet.headers.bth.dest_qp == self.nodes[to].qp.num()
        {
            let side = if packet.headers.bth.opcode.is_response() { Side::Requester } else { Side::Responder };
            if let Some(paging) = &mut self.nodes[to].host.memory.borrow_mut().paging {
                paging.side = side;
            }
            let Node { qp, host, .. } = &mut self.nodes[to];
            if self.wire.over_links && qp.place_early(self.now, &packet, host) {
                return;
            }
            let mut handled = self.handle(to, &packet);
            if handled == Handled::AfterReads && self.nodes[to].reads_out && !self.nodes[to].waits_for_reads {
                let Node { qp, host, burst, .. } = &mut self.nodes[to];
                let mut staging = Staging::new(host.memory.clone(), *burst);
                qp.poll_responses(self.now, host, &mut staging);
                self.send(to, staging);
                handled = self.handle(to, &packet);
            }
            self.keep(to, side, handled, bytes);
        }
    }

    fn handle(&mut self, to: usize, packet: &Packet<'_>) -> Handled {
        let Node { qp, host, .. } = &mut self.nodes[to];
        let handled = match self.service {
            Service::Ud => qp.handle_datagram(self.now, packet, &NETWORK_HEADER, host),
            _ => qp.handle_packet(self.now, packet, host),
        };
        if let Some(resumes) = qp.take_fault_event() {
            self.fault_events[to].met_fault(self.now, qp.num(), resumes);
        }
        if handled == Handled::Dammed {
            self.wire.dammed(to, packet);
        }
        handled
    }

    /// Keeps a packet that waits, if there is room.
    fn keep(&mut self, node: usize, side: Side, handled: Handled, bytes: &[u8]) {
        let Node { qp, held, most_held, waits_for_reads, .. } = &mut self.nodes[node];
        let held = &mut held[side as usize];
        let has_room = held.len() < *most_held;
        match handled {
            Handled::Done | Handled::Dammed => {}
            Handled::AfterReads if !has_room => qp.refuse_waiting(),
            Handled::Held | Handled::AfterReads => {
                *waits_for_reads |= handled == Handled::AfterReads;
                if has_room {
                    held.push_back(bytes.to_vec());
                }
            }
        }
    }

    /// Passes in the requests that waited for READs, if these have been read out. Returns whether there were any.
    pub(super) fn continue_after_reads(&mut self, node: usize) -> bool {
        let Node { qp, held, waits_for_reads, .. } = &mut self.nodes[node];
        if qp.awaits_reads() || !std::mem::take(waits_for_reads) {
            return false;
        }
        for bytes in std::mem::take(&mut held[Side::Responder as usize]) {
            self.deliver(node, &bytes);
        }
        true
    }
}
