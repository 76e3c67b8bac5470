//! Datagrams (UD): one QP sends to many peers, and receives from any peer.

use crate::engine::host::QpHost;
use crate::engine::peers::Peers;
use crate::engine::peers::identity::PeerId;
use crate::engine::peers::parked::{DATAGRAMS, Parked};
use crate::engine::peers::peer::State;
use crate::engine::staging::Staging;
use crate::engine::waiting::WaitReason;
use crate::engine::{Engine, OUTBOX_GROUPS, own_port};
use crate::memory::keys::{Cached, Regions};
use crate::memory::window::User;
use crate::pace::ThreadTasks;
use crate::paging::QpFaults;
use crate::shared::route::Route;
use crate::shared::state::AdapterState;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use weir_link::{Arrival, Outbox};
use weir_transport::{Egress, Instant, Limits, Outgoing, PACKET_COST, Progress, Refused, Side};
use weir_wire::ROCE_PORT;

/// Stages the datagrams of one QP, each for its own peer.
struct Staged<'a> {
    outbox: &'a mut Outbox,
    segments: usize,
    port: u16,
    routes: &'a [Option<Route>],
    peers: &'a mut Peers,
    parked: Option<&'a mut Parked>,
    user: User,
    faults: &'a Arc<QpFaults>,
    regions: &'a Regions,
    cached: &'a mut Cached,
    now: Instant,
    /// Peers that got a datagram; consecutive duplicates are omitted.
    served: &'a mut Vec<PeerId>,
    /// The reason why the next datagram waits.
    blocked: Option<WaitReason>,
}

impl Engine {
    /// Sends the datagrams of a QP. Returns whether it has more than the outbox holds.
    pub(super) fn transmit_datagrams(&mut self, adapter: &AdapterState, index: u16, now: Instant) -> bool {
        let Some(shared) = self.table.get(index).map(|entry| entry.shared.clone()) else { return false };
        let routes = adapter.addresses.read();
        let mut served = std::mem::take(&mut self.served);
        let mut protocol = shared.lock();
        let mut host =
            QpHost::in_turn(Side::Requester, &shared, &adapter.regions, &mut self.cached, &mut self.completions);
        let mut staged = Staged {
            outbox: &mut self.outbox,
            segments: self.carrier.max_segments(),
            port: own_port(&self.slot),
            routes: &routes,
            peers: &mut self.peers,
            parked: self.parked.as_deref_mut(),
            user: User { pd: shared.pd(), qp: shared.num },
            faults: &shared.faults,
            regions: &adapter.regions,
            cached: &mut self.payload_cached,
            now,
            served: &mut served,
            blocked: None,
        };
        let limits = Limits { request_bytes: usize::MAX, read_bytes: usize::MAX };
        let progress = protocol.poll_transmit(now, limits, &mut host, &mut staged);
        let blocked = staged.blocked;
        if let Some(reason) = blocked {
            // Before `after`, which checks whether the QP waits.
            self.wait_for(reason, index);
        }
        self.after(index, &mut protocol);
        drop(protocol);
        drop(routes);
        for peer in served.drain(..) {
            self.ask(peer, now);
        }
        self.served = served;
        self.ask_for_room(adapter);
        progress == Progress::Full && blocked.is_none()
    }

    /// Asks the engine's thread for room for peers, if there is too little.
    fn ask_for_room(&mut self, adapter: &AdapterState) {
        if !self.room_asked && self.peers.needed_capacity().is_some() {
            self.room_asked = true;
            adapter.pace.ask_thread(ThreadTasks::PEER_ROOM);
        }
    }

    /// Asks a peer how much it has taken in, if a question is due.
    pub(super) fn ask(&mut self, peer: PeerId, now: Instant) {
        if let Some(note) = self.peers.ask(peer, now) {
            self.send_hello(&note, &[]);
        }
    }
}

impl Staged<'_> {
    /// Stages a datagram in the outbox, or among the parked ones.
    fn stage(
        &mut self,
        parked: Option<&mut Parked>,
        route: &Route,
        to: &SocketAddr,
        tag: Option<u32>,
        packet: &Outgoing<'_>,
    ) -> Result<(), Refused> {
        let (outbox, groups, segments) = match parked {
            None => (&mut *self.outbox, OUTBOX_GROUPS, self.segments),
            Some(parked) => (&mut parked.outbox, DATAGRAMS, 1),
        };
        let mut staging = Staging {
            outbox,
            groups,
            segments,
            route,
            to,
            port: self.port,
            tag,
            user: self.user,
            faults: self.faults,
            regions: self.regions,
            cached: &mut *self.cached,
            discard: false,
            in_place: false,
        };
        staging.push(packet)
    }

    /// There is no room for the entry of a new peer.
    #[cold]
    fn without_room(&mut self) -> Result<(), Refused> {
        if self.peers.is_out_of_memory() {
            // The datagram is lost, as on a wire. The engine's thread tries again to get memory.
            return Ok(());
        }
        self.blocked = Some(WaitReason::Room);
        Err(Refused::Full)
    }

    /// Keeps a datagram until its peer's state is known; if there is no room for it, the QP waits.
    #[cold]
    fn park(&mut self, id: PeerId, packet: &Outgoing<'_>) -> Result<(), Refused> {
        let (route, to) = (self.peers.get(id).route, self.peers.get(id).to(false));
        let mut staged = Err(Refused::Full);
        if let Some(parked) = self.parked.take() {
            if parked.admits(id) {
                staged = self.stage(Some(&mut *parked), &route, &to, Some(0), packet);
            }
            if staged.is_ok() {
                parked.enter(id);
            }
            self.parked = Some(parked);
        }
        if staged == Err(Refused::Full) {
            self.blocked = Some(WaitReason::Peer(id));
        }
        staged
    }
}

impl Egress for Staged<'_> {
    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused> {
        let Some(to) = packet.to else { return Ok(()) };
        // The address handle was destroyed before the datagram left: it is dropped.
        let Some(route) = self.routes.get(to.address as usize).copied().flatten() else { return Ok(()) };
        if route.remote.is_multicast() {
            // Adapters of any kind may have joined a group: its packets go to port 4791 with an ICRC.
            return self.stage(None, &route, &route.to(ROCE_PORT), None, packet);
        }
        let Some(id) = self.peers.peer_of_datagram(route, to.dest_qp, self.now) else { return self.without_room() };
        let peer = self.peers.get(id);
        if peer.state == State::Unknown {
            return self.park(id, packet);
        }
        let icrc = peer.for_datagrams().is_none_or(|weir| weir.icrc);
        let cost = packet.headers.len() + packet.payload.len() + PACKET_COST;
        if self.peers.unreliable_room(id) < cost {
            self.blocked = Some(WaitReason::Peer(id));
            return Err(Refused::Full);
        }
        let (route, to) = (peer.route, peer.to(peer.state == State::Foreign));
        self.stage(None, &route, &to, (!icrc).then_some(0), packet)?;
        self.peers.get_mut(id).flow.sent(cost);
        if self.served.last() != Some(&id) {
            self.served.push(id);
        }
        Ok(())
    }
}

/// The network header before a received datagram: that of IPv6, or 20 zeros and that of IPv4 (annex A17.4.5.1). Fields
/// that the socket does not report have the values that most senders set.
pub fn network_header(arrival: &Arrival, datagram: usize) -> [u8; 40] {
    const UDP_HEADER: usize = 8;
    const UDP: u8 = 17;
    const HOP_LIMIT: u8 = 64;
    let mut header = [0; 40];
    let length = datagram + UDP_HEADER;
    match (arrival.from.ip(), arrival.to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let v4 = &mut header[20..];
            v4[0] = 0x45;
            v4[2..4].copy_from_slice(&((length + 20) as u16).to_be_bytes());
            // Do not fragment.
            v4[6] = 0x40;
            (v4[8], v4[9]) = (HOP_LIMIT, UDP);
            v4[12..16].copy_from_slice(&from.octets());
            v4[16..20].copy_from_slice(&to.octets());
            let sum = v4.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            v4[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            header[0] = 0x60;
            header[4..6].copy_from_slice(&(length as u16).to_be_bytes());
            (header[6], header[7]) = (UDP, HOP_LIMIT);
            header[8..24].copy_from_slice(&from.octets());
            header[24..40].copy_from_slice(&to.octets());
        }
        _ => {}
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_header_is_valid_for_ipv4_and_ipv6() {
        let arrival = |from: &str, to: &str| {
            let mut arrival = Arrival::new(SocketAddr::new(from.parse().unwrap(), 4791), 4791, 0, 0);
            arrival.to = to.parse().unwrap();
            arrival
        };
        let v4 = network_header(&arrival("10.0.0.1", "10.0.0.2"), 100);
        assert_eq!(v4[..20], [0; 20]);
        assert_eq!((v4[20], &v4[22..24], &v4[32..]), (0x45, &[0, 128][..], &[10, 0, 0, 1, 10, 0, 0, 2][..]));
        // A valid IPv4 header, checksum included, sums up to all ones.
        let sum: u32 = v4[20..].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        let v6 = network_header(&arrival("::1", "::2"), 100);
        assert_eq!((v6[0], &v6[4..8], v6[23], v6[39]), (0x60, &[0, 108, 17, 64][..], 1, 2));
    }
}
