//! Arrivals: whose they are, whether they are whole, and what the protocol makes of them.

use crate::adapter::Adapter;
use crate::engine::datagram::network_header;
use crate::engine::host::QpHost;
use crate::engine::multicast::MULTICAST_QPN;
use crate::engine::peers::{Note, Terms};
use crate::engine::{Engine, index_in};
use crate::hello::{Hello, MAGIC};
use crate::route::{Route, needs_scope};
use weir_link::{Arrival, Group, Inbox};
use weir_transport::{Handled, Instant, QpState, Service};
use weir_wire::icrc::{self, Verdict};
use weir_wire::ip::Envelope;
use weir_wire::{ICRC_LEN, Opcode, Operation, Packet, ROCE_PORT};

/// Handed over packets in one turn.
const HANDED_OVER: usize = 64;
/// A BTH and an ICRC.
const SHORTEST: usize = 16;
/// A Weir peer's kernel numbers the segments of one send from 0.
const IDS_OF_WEIR: u16 = 128;

impl Engine {
    /// Takes what has arrived. Returns the number of buffers.
    pub(super) fn receive(&mut self, adapter: &Adapter, now: Instant) -> usize {
        let arrived = self.carrier.receive(&mut self.inbox).unwrap_or(0);
        if arrived == 0 {
            return self.receive_seldom(adapter, now);
        }
        self.empty_receives = 0;
        // The inbox is lent out while its packets are worked on; nothing else fills it meanwhile.
        let inbox = std::mem::replace(&mut self.inbox, Inbox::new(0));
        self.shown.traffic.received(&inbox.arrivals);
        for arrival in &inbox.arrivals {
            self.deliver(adapter, &inbox, arrival, now);
        }
        self.inbox = inbox;
        arrived
    }

    /// Nothing came by the carrier: perhaps by the slot's socket, which each turn looks at where that is expected.
    fn receive_seldom(&mut self, adapter: &Adapter, now: Instant) -> usize {
        // A system call that finds nothing, as a rule.
        self.empty_receives = self.empty_receives.wrapping_add(1);
        let leave = self.foreign.expects() || !self.empty_receives.is_multiple_of(64);
        if leave { 0 } else { self.receive_handed_over(adapter, now) }
    }

    /// Packets that the holder of port 4791 passed on.
    pub(super) fn receive_handed_over(&mut self, adapter: &Adapter, now: Instant) -> usize {
        let mut count = 0;
        while count < HANDED_OVER
            && let Some(arrival) = self.slot.receive(&mut self.inbox.bytes)
        {
            let inbox = std::mem::replace(&mut self.inbox, Inbox::new(0));
            self.deliver(adapter, &inbox, &arrival, now);
            self.inbox = inbox;
            count += 1;
        }
        count
    }

    fn deliver(&mut self, adapter: &Adapter, inbox: &Inbox, arrival: &Arrival, now: Instant) {
        let mut rest = inbox.datagrams(arrival).enumerate();
        // An ACK that ends a burst stands there for its length only: what it acknowledges came before what it follows,
        // and programs may count on hearing of it first.
        let ack = rest.clone().next_back().filter(|(at, last)| *at > 0 && is_ack(last));
        let ack = ack.filter(|(at, _)| rest.clone().take(*at).all(|(_, datagram)| !is_response(datagram)));
        if ack.is_some() {
            rest.next_back();
        }
        let mut datagrams = ack.into_iter().chain(rest).peekable();
        while let Some((position, datagram)) = datagrams.next() {
            if datagram.starts_with(&MAGIC) {
                // Weir peers talk from slot port to slot port: by 4791, and so by whoever hands over, come others.
                if arrival.to_port != ROCE_PORT {
                    self.control(arrival, datagram, now);
                }
                continue;
            }
            let Some(dest) = destination(datagram) else { continue };
            let Some(index) = self.accept(arrival, dest, datagram) else {
                if dest == MULTICAST_QPN {
                    self.deliver_to_group(adapter, arrival, (position, datagram), now);
                }
                continue;
            };
            let Some((shared, checks)) = self.checks(index, arrival) else { continue };
            // A burst is of one QP, as a rule: it is locked once.
            let mut protocol = shared.lock();
            let mut next = Some((position, datagram));
            while let Some((position, datagram)) = next {
                if let Some(packet) = checks.packet(position, datagram)
                    && checks.wanted(&protocol, &packet)
                {
                    let side = QpHost::side_of(packet.headers.bth.opcode);
                    let cached = &mut self.cached;
                    let mut host = QpHost { shared: &shared, regions: &adapter.regions, cached, side };
                    if checks.datagram {
                        let header = network_header(arrival, datagram.len());
                        if protocol.handle_datagram(now, &packet, &header, &mut host) == Handled::Held {
                            self.hold(index, side, packet.headers.bth.psn, datagram, Some(&header));
                        }
                    } else if protocol.handle_packet(now, &packet, &mut host) == Handled::Held {
                        self.hold(index, side, packet.headers.bth.psn, datagram, None);
                    }
                }
                next = datagrams.next_if(|(_, datagram)| destination(datagram) == Some(dest));
            }
            self.after(index, &mut protocol);
        }
    }

    /// The QP that a packet is for, if it is ours. What came by port 4791 for others is handed to them.
    fn accept(&mut self, arrival: &Arrival, dest: u32, datagram: &[u8]) -> Option<u16> {
        let index = index_in(&self.slot, dest);
        if index.is_none() && arrival.to_port == ROCE_PORT && dest != MULTICAST_QPN {
            self.foreign.hand_over(dest, arrival, datagram);
        }
        index.filter(|index| self.table.index(dest) == Some(*index))
    }

    /// How packets for a QP are checked, if they may come from there at all.
    fn checks(&self, index: u16, arrival: &Arrival) -> Option<(std::sync::Arc<crate::qp::Shared>, Checks)> {
        let entry = self.table.get(index)?;
        let service = entry.shared.service;
        if entry.retired.is_some() && matches!(service, Service::Uc | Service::Ud) {
            // There is nothing that it could acknowledge.
            return None;
        }
        if service == Service::Ud {
            // To a group, and not to its QPs.
            if arrival.to.is_multicast() {
                return None;
            }
            return Some((entry.shared.clone(), self.datagram_checks(arrival)));
        }
        let peer = self.peers.get(entry.peer?);
        if arrival.from.ip() != peer.route.remote || arrival.to != peer.route.local {
            return None;
        }
        let Terms { icrc, weir } = peer.terms(arrival.from.port(), arrival.to_port, entry.epoch)?;
        let ids = if weir { IDS_OF_WEIR } else { u16::MAX };
        let retired = entry.retired.is_some();
        let checks = Checks { icrc, ids, envelope: envelope(arrival), retired, datagram: false };
        Some((entry.shared.clone(), checks))
    }

    /// Datagrams may come from anybody; whether they carry an ICRC was agreed, or they do.
    pub(super) fn datagram_checks(&self, arrival: &Arrival) -> Checks {
        let peer = self.peers.find(arrival.to, arrival.from.ip(), arrival.from.port());
        let (icrc, ids) = match peer {
            Some(weir) if arrival.to_port != ROCE_PORT => (weir.icrc, IDS_OF_WEIR),
            _ => (true, u16::MAX),
        };
        Checks { icrc, ids, envelope: envelope(arrival), retired: false, datagram: true }
    }

    fn control(&mut self, arrival: &Arrival, datagram: &[u8], now: Instant) {
        let Some(hello) = Hello::decode(datagram) else { return };
        let ifindex = if needs_scope(arrival.from.ip()) { arrival.ifindex } else { 0 };
        let route = Route { local: arrival.to, remote: arrival.from.ip(), ifindex, hops: 0 };
        let (peer, answer) = self.peers.heard(route, arrival.from.port(), &hello, now);
        if let Some(note) = answer {
            self.send_note(&note);
        }
        self.wake_waiting(peer);
    }

    /// Hellos that are due.
    pub(super) fn greet(&mut self, now: Instant) {
        while let Some((peer, note)) = self.peers.ask_again(now) {
            match note {
                Some(note) => self.send_note(&note),
                None => self.wake_waiting(Some(peer)),
            }
        }
        while let Some((note, foreign)) = self.peers.greet(now) {
            self.send_note(&note);
            if foreign.is_some() {
                self.foreign.wanted(now);
                self.wake_waiting(foreign);
            }
        }
    }

    pub(super) fn send_note(&mut self, note: &Note) {
        let bytes = note.hello.encode();
        if self.outbox.len + bytes.len() > self.outbox.bytes.len() || self.outbox.groups.len() >= super::OUTBOX_GROUPS {
            self.flush();
        }
        let start = self.outbox.len;
        self.outbox.bytes[start..start + bytes.len()].copy_from_slice(&bytes);
        self.outbox.len += bytes.len();
        let group = Group::new(note.to, note.route.local, note.route.ifindex);
        self.outbox.groups.push(Group { start, len: bytes.len(), segment: bytes.len(), ..group });
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

fn is_ack(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|opcode| Opcode(*opcode).operation() == Some(Operation::Acknowledge))
}

fn is_response(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|opcode| Opcode(*opcode).is_response())
}

fn destination(datagram: &[u8]) -> Option<u32> {
    if datagram.len() < SHORTEST {
        return None;
    }
    Some(u32::from_be_bytes([0, datagram[5], datagram[6], datagram[7]]))
}

/// What a packet must pass before the protocol sees it.
pub(super) struct Checks {
    icrc: bool,
    ids: u16,
    envelope: Envelope,
    retired: bool,
    datagram: bool,
}

impl Checks {
    pub(super) fn packet<'a>(&self, position: usize, datagram: &'a [u8]) -> Option<Packet<'a>> {
        if self.icrc && !self.whole(position, datagram) {
            return None;
        }
        Packet::parse(datagram).ok()
    }

    fn whole(&self, position: usize, datagram: &[u8]) -> bool {
        if datagram.len() < SHORTEST + ICRC_LEN - 4 {
            return false;
        }
        let envelope = Envelope { ip_id: position as u16, ..self.envelope };
        match icrc::verify(&envelope, datagram) {
            Verdict::Good => true,
            Verdict::GoodWithId(id) => id < self.ids,
            // An adapter that lets routers fragment.
            Verdict::Bad if self.ids == u16::MAX => {
                let fragmentable = Envelope { dont_fragment: false, ..envelope };
                icrc::verify(&fragmentable, datagram) != Verdict::Bad
            }
            Verdict::Bad => false,
        }
    }

    /// A retired QP only acknowledges again what it has acknowledged before, and refuses again what it has refused.
    fn wanted(&self, protocol: &weir_transport::Qp, packet: &Packet<'_>) -> bool {
        if !self.retired {
            return true;
        }
        let bth = &packet.headers.bth;
        let again = bth.psn.before(protocol.attr().rq_psn);
        let refused = protocol.state() == QpState::Error;
        !bth.opcode.is_response() && (refused || again && bth.opcode.has_payload() && !packet.payload.is_empty())
    }
}
