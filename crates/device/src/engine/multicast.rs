//! Multicast: datagrams to a group go to every QP that is attached to it. They come to port 4791, as those of foreign
//! adapters do. The kernel gives a copy to each process that has joined the group, and the engine to each attached QP.

use crate::Errno;
use crate::engine::Engine;
use crate::engine::datagram::network_header;
use crate::engine::groups::Group;
use crate::engine::host::QpHost;
use crate::limits::LIMITS;
use crate::os::refused::refused;
use crate::paging::held::Waiting;
use crate::shared::state::AdapterState;
use std::net::IpAddr;
use weir_link::Arrival;
use weir_transport::{Handled, Instant, Side};
use weir_wire::{Packet, ROCE_PORT};

/// The destination QP of a packet to a group (IBTA 10.5.2).
pub const MULTICAST_QPN: u32 = 0xff_ffff;

impl Engine {
    /// Attaches a QP to a group, if it is not attached yet. ENOMEM beyond `LIMITS.max_groups`; EADDRINUSE where another
    /// socket has port 4791 exclusively; other errors of the kernel for the membership.
    pub fn attach(&mut self, adapter: &AdapterState, num: u32, address: IpAddr) -> Result<(), Errno> {
        let index = self.table.index(num).ok_or(Errno(libc::EINVAL))?;
        if let Some(group) = self.groups.find(address) {
            if !group.members.contains(&index) {
                group.members.push(index);
            }
            return Ok(());
        }
        if self.groups.0.len() == LIMITS.max_groups as usize {
            let (name, most) = (&adapter.device.name, LIMITS.max_groups);
            let why =
                format_args!("{name}: cannot join {address}: a device has {most} groups at most: ibv_detach_mcast");
            return Err(refused(libc::ENOMEM, why));
        }
        let membership = self.carrier.join(address, ROCE_PORT, adapter.device.ifindex).inspect_err(|error| {
            tracing::warn!("{}: cannot join {address}: {error}", adapter.device.name);
        })?;
        adapter.add_sockets(&[membership]);
        self.groups.0.push(Group { address, membership, members: vec![index] });
        adapter.pace.watch(membership).inspect_err(|_| self.leave(adapter, address))?;
        Ok(())
    }

    /// Detaches a QP from a group. EINVAL if it is not attached.
    pub fn detach(&mut self, adapter: &AdapterState, num: u32, address: IpAddr) -> Result<(), Errno> {
        let refused = Errno(libc::EINVAL);
        let index = self.table.index(num).ok_or(refused)?;
        let members = &mut self.groups.find(address).ok_or(refused)?.members;
        let position = members.iter().position(|member| *member == index).ok_or(refused)?;
        members.remove(position);
        if members.is_empty() {
            self.leave(adapter, address);
        }
        Ok(())
    }

    /// Returns whether a QP is attached to a group.
    pub fn is_attached(&self, num: u32) -> bool {
        self.table.index(num).is_some_and(|index| self.groups.has_member(index))
    }

    /// Detaches a QP from all its groups.
    pub fn detach_all(&mut self, adapter: &AdapterState, num: u32) {
        let Some(index) = self.table.index(num) else { return };
        let of = |group: &&Group| group.members.contains(&index);
        while let Some(address) = self.groups.0.iter().find(of).map(|group| group.address) {
            let _ = self.detach(adapter, num, address);
        }
    }

    /// Delivers a datagram to the QPs of its group. It always has an ICRC and comes to port 4791.
    pub(super) fn deliver_to_group(
        &mut self,
        adapter: &AdapterState,
        arrival: &Arrival,
        (position, datagram): (usize, &[u8]),
        now: Instant,
    ) {
        // The socket may also get packets that another interface received.
        let ours = arrival.to_port == ROCE_PORT && arrival.ifindex == adapter.device.ifindex;
        if !ours || self.groups.member(arrival.to, 0).is_none() {
            return;
        }
        let checks = self.datagram_checks(arrival);
        let Some(packet) = checks.packet(position, datagram) else { return };
        let header = network_header(arrival, datagram.len());
        let mut members = 0..;
        while let Some(index) = members.next().and_then(|at| self.groups.member(arrival.to, at)) {
            let Some(entry) = self.table.get(index) else { continue };
            let shared = entry.shared.clone();
            if shared.blocks_own_multicast() && self.is_own(adapter, &packet, arrival, shared.num) {
                continue;
            }
            let mut protocol = shared.lock();
            let side = Side::Responder;
            let mut host = QpHost::in_turn(side, &shared, &adapter.regions, &mut self.cached, &mut self.completions);
            if protocol.handle_datagram(now, &packet, &header, &mut host) == Handled::Held {
                let (psn, header) = (packet.headers.bth.psn, Some(&header));
                self.hold(index, side, Waiting { psn, datagram, header, over_links: false });
            }
            self.after(index, &mut protocol);
        }
    }

    /// Returns whether the QP itself has sent the packet: its QPN is unique in this network namespace.
    fn is_own(&self, adapter: &AdapterState, packet: &Packet<'_>, arrival: &Arrival, num: u32) -> bool {
        packet.headers.get::<weir_wire::Deth>().is_some_and(|deth| deth.src_qp.get() & 0xff_ffff == num)
            && arrival.from.port() == super::own_port(&self.slot)
            && adapter.watch.has(arrival.from.ip())
    }

    fn leave(&mut self, adapter: &AdapterState, address: IpAddr) {
        if let Some(position) = self.groups.0.iter().position(|group| group.address == address) {
            let group = self.groups.0.swap_remove(position);
            adapter.forget_socket(group.membership);
            self.carrier.leave(group.membership);
        }
    }
}
