//! Departures: the ready QPs take turns until they have sent everything or their peers' windows are full.

use crate::engine::host::QpHost;
use crate::engine::local::rings::RingId;
use crate::engine::local::{RingEgress, Way, Written};
use crate::engine::peers::connection::Link;
use crate::engine::peers::identity::PeerId;
use crate::engine::peers::peer::Peer;
use crate::engine::staging::Staging;
use crate::engine::table::{Path, Table};
use crate::engine::tapped::Tapped;
use crate::engine::waiting::WaitReason;
use crate::engine::{Engine, OUTBOX_GROUPS, own_port};
use crate::memory::window::User;
use crate::pace::ThreadTasks;
use crate::shared::qp::QpShared;
use crate::shared::state::AdapterState;
use std::sync::Arc;
use std::time::Duration;
use weir_transport::{Egress, Instant, Limits, Outgoing, PACKET_COST, Progress, QpState, Refused, Service, Side};

/// Bursts in one turn, so that arrivals are not starved.
const FLUSHES: usize = 8;
/// A QP gives up no earlier than after this time where its packets, or their ACKs, may wait in a ring behind packets of
/// UC: longer than a ring waits (`local/receive_wait.rs`).
const BEHIND_UC: Duration = Duration::from_millis(250);

/// What of a QP departs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departing {
    All,
    /// Responses to READs and atomics, because a request waits for the data of READs. The data is copied: the request
    /// may change it before the packets leave.
    Responses,
}

impl Engine {
    /// Sends the packets of ready QPs. Returns whether anything was sent.
    pub(super) fn transmit(&mut self, adapter: &AdapterState, now: Instant) -> bool {
        let mut flushes = 0;
        let mut sent = false;
        while let Some(index) = self.ready.pop_front() {
            if let Some(entry) = self.table.get_mut(index) {
                entry.ready = false;
            }
            let full = self.transmit_one(adapter, index, now, Departing::All);
            if self.holds_after_reads(index) {
                self.continue_after_reads(adapter, index, now);
            }
            if full {
                sent = true;
                self.flush();
                self.ready(index);
                flushes += 1;
                if flushes == FLUSHES {
                    self.note_send_errors(adapter);
                    return true;
                }
            }
        }
        sent |= !self.outbox.groups.is_empty() | self.rings.take_sent();
        self.flush();
        if sent {
            self.note_send_errors(adapter);
            if self.carrier.wants_socket() {
                adapter.pace.ask_thread(ThreadTasks::SOCKET);
            }
        }
        sent
    }

    /// Keeps failed sends for the log, which another thread writes.
    fn note_send_errors(&mut self, adapter: &AdapterState) {
        let mut any = false;
        while let Some(error) = self.carrier.take_send_error() {
            adapter.send_errors.note(error);
            any = true;
        }
        if any {
            adapter.pace.ask_thread(ThreadTasks::LOG);
        }
    }

    /// Returns whether the QP has more to send than the outbox holds.
    pub(super) fn transmit_one(
        &mut self,
        adapter: &AdapterState,
        index: u16,
        now: Instant,
        departing: Departing,
    ) -> bool {
        let Some(entry) = self.table.get_mut(index) else { return false };
        let shared = entry.shared.clone();
        if shared.service == Service::Ud {
            return self.transmit_datagrams(adapter, index, now);
        }
        if shared.service == Service::Raw {
            return self.transmit_ethernet(adapter, index, now);
        }
        let Some(peer) = entry.peer else {
            // There is no route, but in the error state the work requests are flushed.
            let mut protocol = shared.lock();
            if protocol.state() == QpState::Error {
                self.flush_queues(adapter, index, &mut protocol, now);
            }
            return false;
        };
        let link = entry.connection.link;
        let at = self.peers.get(peer);
        let icrc = at.weir().is_none_or(|weir| weir.icrc);
        let (tag, discard, foreign) = match link {
            // Any process can compute an ICRC: nothing is sent to a process that may not be the peer.
            Link::Weir(_) | Link::Asking { .. } if waits(link, at, icrc) => {
                let mut protocol = shared.lock();
                if protocol.state() == QpState::Error {
                    self.flush_queues(adapter, index, &mut protocol, now);
                } else {
                    drop(protocol);
                    self.wait_for(WaitReason::Peer(peer), index);
                }
                return false;
            }
            Link::Weir(demand) => {
                // The process that owned the peer QP has died, or does not show that it is alive.
                let dead = at.incarnation != Some(demand.incarnation) || icrc && at.is_silent();
                ((!icrc).then_some(demand.tag), dead, false)
            }
            _ => (None, false, true),
        };
        let mut drains = false;
        if let (Some(tag), false) = (tag, discard)
            && let Link::Weir(demand) = link
        {
            match self.way_of(peer, index, demand.incarnation, now) {
                Way::Ring(ring) => {
                    return self.transmit_by_ring(adapter, (index, &shared), (peer, ring, tag), now, departing);
                }
                way => drains = way == Way::Drain,
            }
        }
        let at = self.peers.get(peer);
        let mut protocol = shared.lock();
        protocol.set_program_polls(adapter.pace.program_polls());
        let together = self.carrier.max_segments() > 1;
        let to = at.to(foreign);
        match at.weir() {
            Some(weir) if !foreign => {
                protocol.set_patience(weir.patience);
                protocol.set_acks_first(!(weir.near && together));
                protocol.set_frames(weir.frames);
            }
            _ => {
                protocol.set_acks_first(true);
                protocol.set_frames(false);
            }
        }
        let limits = match drains {
            true => Limits { request_bytes: 0, read_bytes: 0 },
            false => Limits { request_bytes: self.peers.room(peer, foreign), read_bytes: self.peers.read_room(peer) },
        };
        // Requests that are held are executed before the kernel reads memory that is sent in place.
        let in_place = self.in_place && departing == Departing::All && !self.holds_after_reads(index);
        let mut host =
            QpHost::in_turn(Side::Requester, &shared, &adapter.regions, &mut self.cached, &mut self.completions);
        let route = &self.peers.get(peer).route;
        let staging = Staging {
            outbox: &mut self.outbox,
            groups: OUTBOX_GROUPS,
            segments: self.carrier.max_segments(),
            route,
            to: &to,
            port: own_port(&self.slot),
            tag,
            user: User { pd: shared.pd(), qp: shared.num },
            faults: &shared.faults,
            regions: &adapter.regions,
            cached: &mut self.payload_cached,
            discard,
            in_place: in_place && matches!(shared.service, Service::Rc | Service::Xrc),
        };
        let mut staging = Tapped::new(staging, &mut self.tapped, shared.num, *route);
        if departing == Departing::Responses {
            let progress = protocol.poll_responses(now, &mut host, &mut staging);
            takes_udp(&mut self.table, index, Some(now));
            self.after(index, &mut protocol);
            return progress == Progress::Full;
        }
        if shared.service == Service::Uc {
            let room = if foreign { usize::MAX } else { self.peers.unreliable_room(peer) };
            let mut metered = Metered { egress: staging, room, sent: 0, refused: false };
            let progress = protocol.poll_transmit(now, limits, &mut host, &mut metered);
            let Metered { sent, refused, .. } = metered;
            self.note_unreliable(peer, index, sent);
            if refused {
                // Before `after`, which checks whether the QP waits.
                self.wait_for(WaitReason::Peer(peer), index);
            }
            self.after(index, &mut protocol);
            self.ask(peer, now);
            return progress == Progress::Full && !refused;
        }
        let responds = protocol.has_responses();
        let progress = protocol.poll_transmit(now, limits, &mut host, &mut staging);
        takes_udp(&mut self.table, index, responds.then_some(now));
        let limited = progress == Progress::Limited;
        if limited {
            // Before `after`, which checks whether the QP waits.
            self.wait_for(WaitReason::Peer(peer), index);
        }
        self.after(index, &mut protocol);
        progress == Progress::Full
    }

    /// As [`transmit_one`](Self::transmit_one), by a ring to the peer.
    fn transmit_by_ring(
        &mut self,
        adapter: &AdapterState,
        (index, shared): (u16, &Arc<QpShared>),
        (peer, id, tag): (PeerId, RingId, u32),
        now: Instant,
        departing: Departing,
    ) -> bool {
        let at = self.peers.get(peer);
        let route = at.route;
        let mut patience = at.weir().map_or(Duration::ZERO, |weir| weir.patience);
        let limits = Limits { request_bytes: self.peers.room(peer, false), read_bytes: self.peers.read_room(peer) };
        let Some(ring) = self.rings.get_mut(id) else { return false };
        ring.unreliable |= shared.service == Service::Uc;
        if ring.unreliable {
            // Packets may wait behind one of UC.
            patience = patience.max(BEHIND_UC);
        }
        let mut protocol = shared.lock();
        protocol.set_patience(patience);
        // Of a long reply only a part may be in the ring when the ACK follows the first packets.
        let polls = adapter.pace.program_polls();
        protocol.set_program_polls(polls);
        protocol.set_acks_first(!polls);
        // Frames make the packets of a UDP_SEGMENT send equally long. A ring takes packets of any length.
        protocol.set_frames(false);
        let mut host =
            QpHost::in_turn(Side::Requester, shared, &adapter.regions, &mut self.cached, &mut self.completions);
        let egress = RingEgress {
            producer: &mut ring.endpoint.producer,
            tag,
            user: User { pd: shared.pd(), qp: shared.num },
            faults: &shared.faults,
            regions: &adapter.regions,
            cached: &mut self.payload_cached,
            shown: self.shown,
            written: Written::default(),
        };
        let mut egress = Tapped::new(egress, &mut self.tapped, shared.num, route);
        let (progress, refused, unreliable) = if shared.service == Service::Uc {
            let room = self.peers.unreliable_room(peer);
            let mut metered = Metered { egress, room, sent: 0, refused: false };
            let progress = protocol.poll_transmit(now, limits, &mut host, &mut metered);
            egress = metered.egress;
            (progress, metered.refused, metered.sent)
        } else if departing == Departing::Responses {
            (protocol.poll_responses(now, &mut host, &mut egress), false, 0)
        } else {
            let progress = protocol.poll_transmit(now, limits, &mut host, &mut egress);
            (progress, progress == Progress::Limited, 0)
        };
        let Written { packets, bytes, lie, .. } = egress.egress.written;
        let published = ring.endpoint.producer.publish() || packets > 0;
        if published {
            self.rings.note_sent();
            self.shown.traffic.packets_sent.bump(packets);
            self.shown.traffic.bytes_sent.bump(bytes as u64);
        }
        if refused {
            // Before `after`, which checks whether the QP waits.
            self.wait_for(WaitReason::Peer(peer), index);
        }
        self.after(index, &mut protocol);
        drop(protocol);
        if published && let Some(ring) = self.rings.get_mut(id) {
            ring.wake_peer();
        }
        if shared.service == Service::Uc {
            self.peers.get_mut(peer).flow.sent(unreliable);
            self.ask(peer, now);
        }
        if lie {
            self.abandon_ring(id);
        }
        progress == Progress::Full && !refused
    }

    /// Unacknowledged packets of a QP have left by UDP.
    fn note_unreliable(&mut self, peer: PeerId, index: u16, sent: usize) {
        self.peers.get_mut(peer).flow.sent(sent);
        if sent > 0 {
            takes_udp(&mut self.table, index, None);
        }
    }

    /// Flushes what is posted to a QP in the error state that has no peer.
    fn flush_queues(&mut self, adapter: &AdapterState, index: u16, protocol: &mut weir_transport::Qp, now: Instant) {
        struct DiscardEgress;
        impl weir_transport::Egress for DiscardEgress {
            fn push(&mut self, _: &weir_transport::Outgoing<'_>) -> Result<(), weir_transport::Refused> {
                Ok(())
            }
        }
        let Some(shared) = self.table.get(index).map(|entry| entry.shared.clone()) else { return };
        let mut host =
            QpHost::in_turn(Side::Requester, &shared, &adapter.regions, &mut self.cached, &mut self.completions);
        protocol.poll_transmit(now, Limits { request_bytes: 0, read_bytes: 0 }, &mut host, &mut DiscardEgress);
        self.after(index, protocol);
    }

    /// Sends the outbox and empties it. Send errors are recorded by the carrier; the packets are lost then.
    pub(super) fn flush(&mut self) {
        if !self.outbox.groups.is_empty() {
            self.shown.traffic.sent(&self.outbox.groups);
            let missing = self.carrier.send(&self.outbox).is_err();
            if missing && self.missing_in_place() {
                // Memory of a region was unmapped. The next attempt copies it, and the guarded copy finds the QP that
                // it belongs to.
                self.in_place = false;
            }
        }
        self.outbox.clear();
    }
}

/// Notes that packets of a QP go by UDP: some may be in flight. `responded`: when it sent responses, if it did.
fn takes_udp(table: &mut Table, index: u16, responded: Option<Instant>) {
    if let Some(entry) = table.get_mut(index) {
        entry.path = Path::Udp;
        entry.responded_by_udp = responded.or(entry.responded_by_udp);
    }
}

/// Returns whether requests to a peer wait until it has proven that it owns the QP there, or that it is still alive.
fn waits(link: Link, peer: &Peer, icrc: bool) -> bool {
    match link {
        Link::Asking { .. } => true,
        Link::Weir(_) => icrc && peer.is_suspected(),
        Link::Foreign => false,
    }
}

/// Counts the bytes sent to a peer that does not acknowledge them, and stops at its window.
struct Metered<E> {
    egress: E,
    room: usize,
    sent: usize,
    refused: bool,
}

impl<E: Egress> Egress for Metered<E> {
    fn has_room(&self) -> bool {
        self.egress.has_room()
    }

    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused> {
        let cost = packet.header_len() + packet.payload.len() + PACKET_COST;
        if self.sent + cost > self.room {
            self.refused = true;
            return Err(Refused::Full);
        }
        self.egress.push(packet)?;
        self.sent += cost;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
