//! Arrivals: the QP of each packet, the checks of address and ICRC, and the call of the protocol.

use crate::engine::datagram::network_header;
use crate::engine::host::QpHost;
use crate::engine::multicast::MULTICAST_QPN;
use crate::engine::peers::connection::Link;
use crate::engine::peers::hello::MAGIC;
use crate::engine::{Engine, index_in};
use crate::paging::held::Waiting;
use crate::shared::qp::QpShared;
use crate::shared::state::AdapterState;
use crate::stat::sheet;
use crate::tap::Ends;
use std::cell::Cell;
use std::sync::Arc;
use weir_link::{Arrival, Inbox};
use weir_transport::{Handled, Instant, Qp, QpState, Service};
use weir_wire::icrc::{self, Verdict};
use weir_wire::ip::Envelope;
use weir_wire::{DEFAULT_PKEY, ICRC_LEN, Packet, ROCE_PORT, burst, frame, mad};

/// The length of a BTH and an ICRC.
const SHORTEST: usize = 16;
/// A Weir peer's kernel numbers the segments of one send from 0, so their Identification is below this.
const IDS_OF_WEIR: u16 = 128;

impl Engine {
    /// Handles what has arrived. Returns the number of buffers.
    pub(super) fn receive(&mut self, adapter: &AdapterState, now: Instant) -> usize {
        let arrived = self.carrier.receive(&mut self.inbox).unwrap_or_else(|error| {
            if matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK)) {
                adapter.pace.note_loss();
            }
            0
        });
        if arrived == 0 {
            return self.receive_seldom(adapter, now);
        }
        self.empty_receives = 0;
        self.rings.note_arrivals(now);
        // The inbox is taken out while its packets are worked on; nothing else fills it meanwhile.
        let inbox = std::mem::replace(&mut self.inbox, Inbox::new(0));
        self.shown.traffic.received(&inbox.arrivals);
        for arrival in &inbox.arrivals {
            self.deliver(adapter, &inbox, arrival, now);
        }
        self.inbox = inbox;
        self.foreign.flush(now);
        arrived
    }

    /// The carrier has received nothing: looks at the slot's socket every 64th time; each turn does that where packets
    /// are expected.
    fn receive_seldom(&mut self, adapter: &AdapterState, now: Instant) -> usize {
        // The system call usually finds nothing.
        self.empty_receives = self.empty_receives.wrapping_add(1);
        let leave = self.expects_handed_over(now) || !self.empty_receives.is_multiple_of(64);
        if leave { 0 } else { self.receive_handed_over(adapter, now).count }
    }

    /// Delivers the datagrams of an arrival to their QPs.
    pub(super) fn deliver(&mut self, adapter: &AdapterState, inbox: &Inbox, arrival: &Arrival, now: Instant) {
        let over_links = arrival.over_links;
        let mut datagrams = burst::ack_first(inbox.datagrams(arrival).enumerate(), |(_, datagram)| datagram).peekable();
        while let Some((position, datagram)) = datagrams.next() {
            if datagram.starts_with(&MAGIC) {
                // Hellos go from slot port to slot port: those that came by port 4791 or were handed over are ignored.
                if arrival.to_port != ROCE_PORT {
                    self.handle_hello(adapter, arrival, datagram, now);
                }
                continue;
            }
            let Some(dest) = destination(datagram) else { continue };
            let Some(index) = self.accept(arrival, dest, datagram, now) else {
                if dest == MULTICAST_QPN {
                    self.deliver_to_group(adapter, arrival, (position, datagram), now);
                }
                continue;
            };
            let Some((shared, checks)) = self.checks(index, arrival) else {
                self.note_other_sender(adapter, (index, arrival), now);
                continue;
            };
            // A burst is usually for one QP, which is locked once.
            let mut protocol = shared.lock();
            let mut next = Some((position, datagram));
            while let Some((position, datagram)) = next {
                if let Some(packet) = checks.packet(position, datagram)
                    && (!checks.retired || is_wanted(&protocol, &packet))
                {
                    let side = QpHost::side_of(packet.headers.bth.opcode);
                    let mut host =
                        QpHost::in_turn(side, &shared, &adapter.regions, &mut self.cached, &mut self.completions);
                    if checks.datagram {
                        let header = network_header(arrival, datagram.len());
                        if protocol.handle_datagram(now, &packet, &header, &mut host) == Handled::Held {
                            let (psn, header) = (packet.headers.bth.psn, Some(&header));
                            self.hold(index, side, Waiting { psn, datagram, header, over_links });
                        }
                    } else {
                        if let Some(tap) = &mut self.tapped.tap {
                            tap.packet(false, ends(&shared, &protocol, arrival), &packet.headers, packet.payload.len());
                        }
                        let mut handled = handle(&mut protocol, now, (&packet, over_links), &mut host);
                        if handled == Handled::AfterReads {
                            drop(protocol);
                            handled = self.handle_after_reads(adapter, (index, &shared), (&packet, over_links), now);
                            protocol = shared.lock();
                        }
                        let packet = Waiting { psn: packet.headers.bth.psn, datagram, header: None, over_links };
                        match handled {
                            Handled::Done => {}
                            Handled::Dammed => self.shown.traffic.packets_dammed(),
                            Handled::Held => self.hold(index, side, packet),
                            Handled::AfterReads => {
                                self.hold_after_reads(adapter, (index, &mut protocol), packet);
                            }
                        }
                    }
                }
                next = datagrams.next_if(|(_, datagram)| destination(datagram) == Some(dest));
            }
            self.after(index, &mut protocol);
            drop(protocol);
            if checks.changed.get() {
                self.note_wrong_icrc(adapter, (index, arrival), now);
            }
            if checks.came.get().is_some() && checks.from_slot && arrival.to_port == ROCE_PORT {
                self.note_no_hello(adapter, (index, arrival), now);
            }
            if let Some(tagged) = checks.came.get()
                && let Some(entry) = self.table.get_mut(index)
                && entry.connection.note_packet(checks.by_slots, checks.from_slot, tagged)
                && let Some(peer) = entry.peer
            {
                self.peers.get_mut(peer).members.stays_foreign(index);
            }
        }
    }

    /// The index of the QP that a packet is for, if it is of this process. A packet by port 4791 for another slot is
    /// handed over.
    fn accept(&mut self, arrival: &Arrival, dest: u32, datagram: &[u8], now: Instant) -> Option<u16> {
        let index = index_in(&self.slot, dest);
        if index.is_none() && arrival.to_port == ROCE_PORT && dest != MULTICAST_QPN {
            if dest == mad::GSI_QPN {
                self.hand_over_mad(arrival, datagram, now);
            } else {
                self.foreign.hand_over(dest, arrival, datagram);
            }
        }
        index.filter(|index| self.table.index(dest) == Some(*index))
    }

    /// The checks for packets of a QP; `None` if packets with these addresses are not accepted.
    fn checks(&self, index: u16, arrival: &Arrival) -> Option<(Arc<QpShared>, Checks)> {
        let entry = self.table.get(index)?;
        let service = entry.shared.service;
        if entry.retired.is_some() && matches!(service, Service::Uc | Service::Ud) {
            // A retired QP acknowledges duplicates only, and these services have no ACKs.
            return None;
        }
        if service == Service::Ud {
            // Packets to a group address must have the multicast QPN.
            if arrival.to.is_multicast() {
                return None;
            }
            return Some((entry.shared.clone(), self.datagram_checks(arrival)));
        }
        let peer = self.peers.get(entry.peer?);
        if arrival.from.ip() != peer.route.remote || arrival.to != peer.route.local {
            return None;
        }
        // Weir processes send from slot port to slot port.
        let from_slot = arrival.from.port() == peer.slot_port;
        let by_slots = from_slot && arrival.to_port != ROCE_PORT;
        let frames = by_slots && self.peers.accepts_frames();
        let tag = (by_slots && self.peers.leaves_icrc_out()).then_some(entry.connection.tag);
        let (icrc, sender) = match entry.connection.link {
            Link::Weir(_) if !by_slots => return None,
            Link::Weir(_) => (peer.weir().is_none_or(|weir| weir.icrc), Sender::Weir),
            Link::Asking { .. } | Link::Foreign => (true, Sender::Foreign),
        };
        let (retired, envelope) = (entry.retired.is_some(), envelope(arrival));
        let checks = Checks {
            icrc,
            tag,
            came: Cell::new(None),
            changed: Cell::new(false),
            by_slots,
            from_slot,
            sender,
            frames,
            envelope,
            retired,
            datagram: false,
            shown: self.shown,
        };
        Some((entry.shared.clone(), checks))
    }

    /// The checks for datagrams, which any peer may send. They carry an ICRC, unless its omission was agreed.
    pub(super) fn datagram_checks(&self, arrival: &Arrival) -> Checks {
        let peer = self.peers.find(arrival.to, arrival.from.ip(), arrival.from.port());
        let (icrc, sender) = match peer {
            Some(weir) if arrival.to_port != ROCE_PORT => (weir.icrc, Sender::Weir),
            _ => (true, Sender::Foreign),
        };
        Checks {
            icrc,
            tag: None,
            came: Cell::new(None),
            changed: Cell::new(false),
            by_slots: false,
            from_slot: false,
            sender,
            frames: false,
            envelope: envelope(arrival),
            retired: false,
            datagram: true,
            shown: self.shown,
        }
    }
}

fn envelope(arrival: &Arrival) -> Envelope {
    Envelope {
        src: arrival.from.ip(),
        dst: arrival.to,
        src_port: arrival.from.port(),
        dst_port: arrival.to_port,
        ip_id: 0,
        dont_fragment: true,
    }
}

/// Passes a packet to its QP. Over several links it may come before earlier ones of its message.
pub(super) fn handle(
    protocol: &mut Qp,
    now: Instant,
    (packet, over_links): (&Packet<'_>, bool),
    host: &mut QpHost<'_>,
) -> Handled {
    match over_links && protocol.place_early(now, packet, host) {
        true => Handled::Done,
        false => protocol.handle_packet(now, packet, host),
    }
}

fn ends(shared: &QpShared, protocol: &Qp, arrival: &Arrival) -> Ends {
    let other_qp = protocol.attr().dest_qp_num;
    let over_links = arrival.over_links;
    Ends { own_qp: shared.num, other_qp, local: arrival.to, remote: arrival.from.ip(), over_links }
}

fn destination(datagram: &[u8]) -> Option<u32> {
    if datagram.len() < SHORTEST {
        return None;
    }
    Some(u32::from_be_bytes([0, datagram[5], datagram[6], datagram[7]]))
}

/// The kind of sender of a packet, which decides over the fields of the IP header that the ICRC covers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sender {
    /// A Weir process: Identifications below [`IDS_OF_WEIR`], and Don't Fragment set.
    Weir,
    /// A foreign adapter: any Identification, and Don't Fragment set or clear.
    Foreign,
}

/// The checks that a packet must pass before the protocol gets it.
pub(super) struct Checks {
    /// A correct ICRC is sufficient.
    icrc: bool,
    /// The tag that a packet of the QP's peer carries in place of an omitted ICRC.
    tag: Option<u32>,
    /// Set when a packet passed; whether it carried the tag.
    came: Cell<Option<bool>>,
    /// Set when a packet had a wrong ICRC.
    changed: Cell<bool>,
    /// The packet came from the port of the peer's slot to that of this slot (`by_slots`), or to any port
    /// (`from_slot`).
    by_slots: bool,
    from_slot: bool,
    sender: Sender,
    /// The sender may send frames.
    frames: bool,
    envelope: Envelope,
    retired: bool,
    datagram: bool,
    /// The counters of violations.
    shown: &'static sheet::Device,
}

impl Checks {
    /// Parses a datagram; `None` if its ICRC or tag is wrong, if it is malformed, or if it belongs to another
    /// partition. `position`: its number in a UDP_GRO buffer, which the ICRC depends on.
    pub(super) fn packet<'a>(&self, position: usize, datagram: &'a [u8]) -> Option<Packet<'a>> {
        if self.tag.is_some() && datagram.last_chunk().copied().map(u32::from_le_bytes) == self.tag {
            self.came.set(Some(true));
        } else if self.icrc && !self.icrc_ok(position, datagram) {
            // With the tag of an earlier connection it is no error.
            if self.tag.is_none() {
                self.changed.set(true);
                self.shown.traffic.wrong_icrc.bump(1);
            }
            return None;
        } else if !self.icrc && !self.datagram {
            return None;
        } else {
            self.came.set(Some(false));
        }
        let packet = if self.frames { frame::parse_any(datagram) } else { Packet::parse(datagram) }.ok()?;
        // IBTA 9.6.1.1.3: it is dropped silently, and counted.
        if !packet.headers.bth.is_in_partition_of(DEFAULT_PKEY) {
            self.shown.traffic.pkey_violations.bump(1);
            return None;
        }
        Some(packet)
    }

    fn icrc_ok(&self, position: usize, datagram: &[u8]) -> bool {
        if datagram.len() < SHORTEST + ICRC_LEN - 4 {
            return false;
        }
        let envelope = Envelope { ip_id: position as u16, ..self.envelope };
        match icrc::verify(&envelope, datagram) {
            Verdict::Good => true,
            Verdict::GoodWithId(id) => self.sender == Sender::Foreign || id < IDS_OF_WEIR,
            // A foreign adapter may leave Don't Fragment clear.
            Verdict::Bad if self.sender == Sender::Foreign => {
                let fragmentable = Envelope { dont_fragment: false, ..envelope };
                icrc::verify(&fragmentable, datagram) != Verdict::Bad
            }
            Verdict::Bad => false,
        }
    }
}

/// Returns whether a retired QP handles a packet: it only repeats ACKs and NAKs that it has sent before.
pub(super) fn is_wanted(protocol: &Qp, packet: &Packet<'_>) -> bool {
    let bth = &packet.headers.bth;
    let again = bth.psn.before(protocol.attr().rq_psn);
    let refused = protocol.state() == QpState::Error;
    !bth.opcode.is_response() && (refused || again && bth.opcode.has_payload() && !packet.payload.is_empty())
}

#[cfg(test)]
mod tests;
