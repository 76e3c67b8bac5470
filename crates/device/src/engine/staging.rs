//! Staging of outgoing packets: header, payload and ICRC are assembled in the staging buffer, and the ICRC covers the
//! bytes that leave. (Computed over application memory in place, it would race with programs that write there.) Where
//! the ICRC is omitted, long payload stays in application memory, and the kernel reads it there.

use crate::memory::access::{Extent, Granted, Memory, extents};
use crate::memory::keys::{Cached, Regions};
use crate::memory::window::User;
use crate::paging::QpFaults;
use crate::shared::route::Route;
use std::net::SocketAddr;
use std::sync::Arc;
use weir_link::{Group, Iovec, MAX_IOVECS, Outbox};
use weir_transport::{Access, Denied, Egress, Outgoing, Payload, Refused, Side};
use weir_wire::ip::Envelope;
use weir_wire::{ICRC_LEN, icrc};

/// Stages packets of one QP in the outbox.
pub struct Staging<'a> {
    pub outbox: &'a mut Outbox,
    pub groups: usize,
    pub segments: usize,
    pub route: &'a Route,
    /// The remote socket address.
    pub to: &'a SocketAddr,
    pub port: u16,
    /// The tag in place of an omitted ICRC; `None`: there is an ICRC.
    pub tag: Option<u32>,
    /// The QP and its PD.
    pub user: User,
    pub faults: &'a Arc<QpFaults>,
    pub regions: &'a Regions,
    pub cached: &'a mut Cached,
    /// The peer process is gone: packets are discarded.
    pub discard: bool,
    /// Payload may be sent in place: the operation completes only after the burst has left.
    pub in_place: bool,
}

/// The smallest payload for which sending in place is cheaper than copying.
const IN_PLACE: usize = 1024;
/// The most iovecs of one packet: headers, one for each SGE, the tail.
const PACKET_IOVECS: usize = 2 + 32;

impl Egress for Staging<'_> {
    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused> {
        let headers = packet.header_len();
        let body = headers + packet.payload.len() + usize::from(packet.headers.bth.pad);
        let len = body + ICRC_LEN;
        let start = self.outbox.len;
        if start + len > self.outbox.bytes.len() {
            return Err(Refused::Full);
        }
        let joins = self.outbox.groups.last().is_some_and(|group| self.joins(group, len));
        if !joins && self.outbox.groups.len() >= self.groups {
            return Err(Refused::Full);
        }
        if self.leaves_in_place(&packet.payload) {
            if self.outbox.total() + len > self.outbox.bytes.len() || !self.outbox.has_room_for_iovecs(PACKET_IOVECS) {
                return Err(Refused::Full);
            }
            return self.push_in_place(packet, joins);
        }
        let buffer = &mut self.outbox.bytes[start..start + len];
        packet.emit_header(buffer);
        let (payload, tail) = buffer[headers..].split_at_mut(packet.payload.len());
        let side = side_of(&packet.payload);
        let (user, regions, faults) = (self.user, self.regions, self.faults);
        let mut memory = Memory { user, side, regions, cached: self.cached, faults };
        if let Err(denied) = fill(&mut memory, &packet.payload, payload) {
            return Err(self.refusal(denied));
        }
        tail.fill(0);
        if self.discard {
            return Ok(());
        }
        let position = if joins { self.outbox.groups.last().map_or(0, Group::count) } else { 0 };
        let envelope = self.envelope(position);
        let (body, end) = self.outbox.bytes[start..start + len].split_at_mut(body);
        let icrc = self.tag.unwrap_or_else(|| icrc::compute(&envelope, body));
        end.copy_from_slice(&icrc.to_le_bytes());
        self.outbox.len += len;
        if !joins {
            self.outbox.groups.push(self.group(start, len));
        }
        match self.outbox.groups.last_mut() {
            Some(group) if group.iovecs.1 == 0 => group.len += len,
            // Contiguous with the group's last iovec, the tail of an earlier packet: the list does not grow.
            _ => self.outbox.add_iovec(Iovec { addr: self.outbox.addr(start), len }),
        }
        Ok(())
    }
}

impl Staging<'_> {
    /// A denial ends the QP's work requests at once. If staged payload of them is still to leave from application
    /// memory, the burst leaves first (`Full`); then the access is denied again.
    #[cold]
    fn refusal(&self, denied: Denied) -> Refused {
        // A page fault ends no work request.
        let leaves_first = denied != Denied::PageFault && self.in_place && !self.outbox.iovecs.is_empty();
        if !leaves_first {
            return Refused::Denied(denied);
        }
        self.faults.restore_failed();
        Refused::Full
    }

    /// Inline data is always copied: its buffer in the send queue may be reused before the burst leaves.
    fn leaves_in_place(&self, payload: &Payload<'_>) -> bool {
        let registered = matches!(payload, Payload::Gather { .. } | Payload::Remote(_));
        self.in_place && self.tag.is_some() && !self.discard && registered && payload.len() >= IN_PLACE
    }

    /// Stages the headers and the tail of a packet, and refers to its payload in place.
    fn push_in_place(&mut self, packet: &Outgoing<'_>, joins: bool) -> Result<(), Refused> {
        let mut found = [Iovec { addr: 0, len: 0 }; PACKET_IOVECS];
        let count = self.locate(&packet.payload, &mut found).map_err(|denied| self.refusal(denied))?;
        let start = self.outbox.len;
        let headers = packet.emit_header(&mut self.outbox.bytes[start..]);
        let tail = usize::from(packet.headers.bth.pad) + ICRC_LEN;
        let end = start + headers + tail;
        self.outbox.bytes[start + headers..end].fill(0);
        self.outbox.bytes[end - ICRC_LEN..end].copy_from_slice(&self.tag.unwrap_or(0).to_le_bytes());
        self.outbox.len = end;
        if !joins {
            self.outbox.groups.push(self.group(start, headers + packet.payload.len() + tail));
        }
        self.outbox.start_iovecs();
        self.outbox.add_iovec(Iovec { addr: self.outbox.addr(start), len: headers });
        for iovec in &found[..count] {
            self.outbox.add_iovec(*iovec);
        }
        self.outbox.add_iovec(Iovec { addr: self.outbox.addr(start + headers), len: tail });
        Ok(())
    }

    /// Finds the application memory that a payload consists of; returns the number of iovecs.
    fn locate(&mut self, payload: &Payload<'_>, found: &mut [Iovec; PACKET_IOVECS]) -> Result<usize, Denied> {
        let side = side_of(payload);
        let (user, regions, faults) = (self.user, self.regions, self.faults);
        let mut memory = Memory { user, side, regions, cached: self.cached, faults };
        let mut count = 0;
        let mut add = |granted: Option<Granted>, len: u64| {
            found[count] = match granted {
                Some(granted) => Iovec { addr: granted.addr as usize, len: len as usize },
                None => zeros(len as usize),
            };
            count += 1;
        };
        match *payload {
            Payload::None | Payload::Bytes(_) => {}
            Payload::Remote(range) => {
                add(memory.access(Extent::of_remote(&range), Access::REMOTE_READ)?, range.len);
            }
            Payload::Gather { sges, offset, len } => {
                for extent in extents(sges, offset, len) {
                    add(memory.access(extent, Access::empty())?, extent.len);
                }
            }
        }
        Ok(count)
    }

    /// A new group for this destination, with datagrams of `segment` bytes.
    fn group(&self, start: usize, segment: usize) -> Group {
        let (route, any_id) = (self.route, self.tag.is_some());
        Group { start, segment, hops: route.hops, any_id, ..Group::new(*self.to, route.local, route.ifindex) }
    }

    /// Whether a packet becomes part of a group.
    fn joins(&self, group: &Group, len: usize) -> bool {
        group.to == *self.to
            && group.from == self.route.local
            && group.hops == self.route.hops
            && group.any_id == self.tag.is_some()
            && group.takes(len, self.segments)
            && group.iovecs.1 + PACKET_IOVECS <= MAX_IOVECS
    }

    fn envelope(&self, position: usize) -> Envelope {
        Envelope {
            src: self.route.local,
            dst: self.route.remote,
            src_port: self.port,
            dst_port: self.to.port(),
            // The kernel numbers the segments of a group from 0.
            ip_id: position as u16,
            dont_fragment: true,
        }
    }
}

/// The payload of a null region: zeros.
fn zeros(len: usize) -> Iovec {
    static ZEROS: [u8; 4096] = [0; 4096];
    Iovec { addr: ZEROS.as_ptr().addr(), len: len.min(ZEROS.len()) }
}

/// Copies payload to the staging buffer.
pub(super) fn fill(memory: &mut Memory<'_>, payload: &Payload<'_>, to: &mut [u8]) -> Result<(), Denied> {
    match *payload {
        Payload::None => Ok(()),
        Payload::Bytes(bytes) => {
            to.copy_from_slice(bytes);
            Ok(())
        }
        Payload::Remote(range) => memory.read(Extent::of_remote(&range), Access::REMOTE_READ, to),
        Payload::Gather { sges, offset, .. } => memory.gather(sges, offset, to),
    }
}

/// The side of the QP that sends a payload: the responder sends what the peer READs.
pub(super) fn side_of(payload: &Payload<'_>) -> Side {
    if matches!(payload, Payload::Remote(_)) { Side::Responder } else { Side::Requester }
}

#[cfg(test)]
mod tests;
