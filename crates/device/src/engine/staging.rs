//! Packets on their way out: header, payload and ICRC are put together in the staging buffer, where the ICRC is of the
//! same bytes that leave. (Taken over application memory in place it would race with programs that write there.)

use crate::engine::host::pieces;
use crate::engine::peers::Peer;
use crate::memory::copy;
use crate::memory::region::{Cached, Place, Regions};
use crate::memory::window::User;
use weir_link::{Group, Outbox};
use weir_transport::{Access, Denied, Egress, Outgoing, Payload, Refused};
use weir_wire::ip::Envelope;
use weir_wire::{ICRC_LEN, icrc};

/// The most bytes in one UDP_SEGMENT send: what fits into an IP packet, and some room.
const GROUP_BYTES: usize = 65_000;

/// Puts packets of one QP into the outbox.
pub struct Staging<'a> {
    pub outbox: &'a mut Outbox,
    pub groups: usize,
    pub segments: usize,
    pub peer: &'a Peer,
    pub port: u16,
    pub icrc: bool,
    /// The QP and its PD.
    pub user: User,
    pub regions: &'a Regions,
    pub cached: &'a mut Cached,
    /// The process at the other end is gone: packets lead nowhere.
    pub discard: bool,
}

impl Egress for Staging<'_> {
    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused> {
        let headers = packet.headers.len();
        let body = headers + packet.payload.len() + usize::from(packet.headers.bth.pad);
        let len = body + ICRC_LEN;
        let start = self.outbox.len;
        if start + len > self.outbox.bytes.len() {
            return Err(Refused::Full);
        }
        let joins = self.outbox.groups.last().is_some_and(|group| self.joins(group, len));
        if !joins && self.outbox.groups.len() == self.groups {
            return Err(Refused::Full);
        }
        let place = &mut self.outbox.bytes[start..start + len];
        packet.headers.emit(place);
        let (payload, tail) = place[headers..].split_at_mut(packet.payload.len());
        fill(&packet.payload, payload, self.user, self.regions, self.cached).map_err(Refused::Denied)?;
        tail.fill(0);
        if self.discard {
            return Ok(());
        }
        let position = if joins { self.outbox.groups.last().map_or(0, Group::count) } else { 0 };
        if self.icrc {
            let envelope = self.envelope(position);
            let (body, icrc_place) = self.outbox.bytes[start..start + len].split_at_mut(body);
            let icrc = icrc::compute(&envelope, body);
            icrc_place.copy_from_slice(&icrc.to_le_bytes());
        }
        self.outbox.len += len;
        match self.outbox.groups.last_mut() {
            Some(group) if joins => group.len += len,
            _ => {
                let route = &self.peer.route;
                let group = Group::new(self.peer.to, route.local, route.ifindex);
                self.outbox.groups.push(Group { start, len, segment: len, ..group });
            }
        }
        Ok(())
    }
}

impl Staging<'_> {
    /// UDP_SEGMENT wants datagrams of one size, the last of which may be shorter.
    fn joins(&self, group: &Group, len: usize) -> bool {
        group.to == self.peer.to
            && group.from == self.peer.route.local
            && len <= group.segment
            && group.len.is_multiple_of(group.segment)
            && group.len + len <= GROUP_BYTES
            && group.count() < self.segments
    }

    fn envelope(&self, position: usize) -> Envelope {
        Envelope {
            src: self.peer.route.local,
            dst: self.peer.route.remote,
            src_port: self.port,
            dst_port: self.peer.to.port(),
            // The kernel numbers the segments of a group from 0.
            ip_id: position as u16,
            dont_fragment: true,
        }
    }
}

fn fill(
    payload: &Payload<'_>,
    to: &mut [u8],
    user: User,
    regions: &Regions,
    cached: &mut Cached,
) -> Result<(), Denied> {
    match *payload {
        Payload::None => Ok(()),
        Payload::Bytes(bytes) => {
            to.copy_from_slice(bytes);
            Ok(())
        }
        Payload::Remote { rkey, va, len } => {
            let region = regions.find(rkey, cached)?;
            fetch(region.remote(user.pd, user.qp, va, len as u64, Access::REMOTE_READ)?, to)
        }
        Payload::Gather { sges, offset, len } => {
            let mut rest = to;
            for (sge, at, take) in pieces(sges, offset, len) {
                let (now, later) = rest.split_at_mut(take);
                let region = regions.find(sge.lkey, cached)?;
                match region.local(user.pd, sge.addr.wrapping_add(at), take as u64, Access::empty())? {
                    Place::Memory(from) => fetch(from, now)?,
                    Place::Null => now.fill(0),
                }
                rest = later;
            }
            if rest.is_empty() { Ok(()) } else { Err(Denied::Protection) }
        }
    }
}

fn fetch(from: u64, to: &mut [u8]) -> Result<(), Denied> {
    // SAFETY: `to` is ours; the application's side may be in any state.
    unsafe { copy::copy(to.as_mut_ptr(), from as *const u8, to.len()) }.map_err(|_| Denied::Unmapped)
}
