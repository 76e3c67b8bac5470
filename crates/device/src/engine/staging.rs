//! Staging of outgoing packets: header, payload and ICRC are assembled in the staging buffer, and the ICRC covers the
//! bytes that leave. (Computed over application memory in place, it would race with programs that write there.) Where
//! the ICRC is omitted, long payload stays in application memory, and the kernel reads it there.

use crate::engine::host::sge_ranges;
use crate::memory::copy;
use crate::memory::region::{AccessTarget, Cached, Regions};
use crate::memory::window::User;
use crate::paging::{FaultOrigin, Paged, QpFaults};
use crate::route::Route;
use crate::stat::sheet;
use std::net::SocketAddr;
use std::sync::Arc;
use weir_link::{Fate, Group, Iovec, MAX_IOVECS, Outbox};
use weir_transport::{Access, Denied, Egress, Outgoing, Payload, Refused, Remote, Sge, Side};
use weir_wire::ip::Envelope;
use weir_wire::{ICRC_LEN, icrc};

/// The most bytes in one UDP_SEGMENT send: an IP packet, less some margin.
const GROUP_BYTES: usize = 65_000;

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
    /// Records packets that the adapter itself loses.
    pub lost: &'a Lost,
    /// Payload may be sent in place: the operation completes only after the burst has left.
    pub in_place: bool,
}

/// Records packets that the adapter itself loses.
pub struct Lost {
    pub shown: &'static sheet::Device,
    /// There is a capture, which shows them.
    pub captured: bool,
}

/// The smallest payload for which sending in place is cheaper than copying.
const IN_PLACE: usize = 1024;
/// The most iovecs of one packet: headers, one for each SGE, the tail.
const PACKET_IOVECS: usize = 2 + 32;

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
        if !joins && self.outbox.groups.len() >= self.groups {
            return Err(Refused::Full);
        }
        if self.leaves_in_place(&packet.payload) {
            if self.outbox.total() + len > self.outbox.bytes.len() {
                return Err(Refused::Full);
            }
            return self.push_in_place(packet, joins);
        }
        let buffer = &mut self.outbox.bytes[start..start + len];
        packet.headers.emit(buffer);
        let (payload, tail) = buffer[headers..].split_at_mut(packet.payload.len());
        let mut memory = Memory { user: self.user, faults: self.faults, regions: self.regions, cached: self.cached };
        if let Err(denied) = memory.fill(&packet.payload, payload) {
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
            _ => self.outbox.add_iovec(Iovec { addr: self.outbox.addr(start), len }),
        }
        Ok(())
    }

    #[cold]
    fn lose(&mut self, packet: &Outgoing<'_>) {
        self.lost.shown.traffic.packets_lost.bump(1);
        if self.lost.captured && !self.discard {
            self.show_lost(packet);
        }
    }
}

impl Staging<'_> {
    /// Stages a packet for the capture alone, as a group of its own. If there is no room, it is not shown.
    fn show_lost(&mut self, packet: &Outgoing<'_>) {
        let headers = packet.headers.len();
        let body = headers + packet.payload.len() + usize::from(packet.headers.bth.pad);
        let (start, len) = (self.outbox.len, body + ICRC_LEN);
        if start + len > self.outbox.bytes.len() || self.outbox.groups.len() >= self.groups {
            return;
        }
        let envelope = self.envelope(0);
        let buffer = &mut self.outbox.bytes[start..start + len];
        packet.headers.emit(buffer);
        buffer[headers..].fill(0);
        let payload = &mut buffer[headers..headers + packet.payload.len()];
        let mut memory = Memory { user: self.user, faults: self.faults, regions: self.regions, cached: self.cached };
        // A missing page is not worth a page fault: zeros are shown.
        memory.peek(&packet.payload, payload);
        let icrc = icrc::compute(&envelope, &buffer[..body]);
        buffer[body..].copy_from_slice(&icrc.to_le_bytes());
        self.outbox.len += len;
        // The segment is longer than the datagram, so that no other datagram joins the group.
        let group = Group { len, fate: Fate::LOST | Fate::DAMMED, ..self.group(start, len + 1) };
        self.outbox.groups.push(group);
    }

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
        let headers = packet.headers.emit(&mut self.outbox.bytes[start..]);
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
        let mut count = 0;
        let mut add = |addr: u64, len: usize| {
            found[count] = Iovec { addr: addr as usize, len };
            count += 1;
        };
        let mut memory = Memory { user: self.user, faults: self.faults, regions: self.regions, cached: self.cached };
        match *payload {
            Payload::None | Payload::Bytes(_) => {}
            Payload::Remote(range) => add(memory.remote(&range)?.addr, range.len as usize),
            Payload::Gather { sges, offset, len } => {
                for (sge, at, take) in sge_ranges(sges, offset, len) {
                    match memory.local(sge, at, take)? {
                        Some(source) => add(source.addr, take),
                        None => zeros(take, &mut add),
                    }
                }
            }
        }
        Ok(count)
    }

    /// A new group for this destination, with datagrams of `segment` bytes.
    fn group(&self, start: usize, segment: usize) -> Group {
        let route = self.route;
        Group { start, segment, hops: route.hops, ..Group::new(*self.to, route.local, route.ifindex) }
    }

    /// UDP_SEGMENT requires datagrams of one size; only the last may be shorter.
    fn joins(&self, group: &Group, len: usize) -> bool {
        group.to == *self.to
            && group.from == self.route.local
            && group.hops == self.route.hops
            && len <= group.segment
            && group.len.is_multiple_of(group.segment)
            && group.len + len <= GROUP_BYTES
            && group.count() < self.segments
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
fn zeros(len: usize, add: &mut impl FnMut(u64, usize)) {
    static ZEROS: [u8; 4096] = [0; 4096];
    add(ZEROS.as_ptr().addr() as u64, len.min(ZEROS.len()));
}

/// The application memory that payload is copied from.
struct Memory<'a> {
    user: User,
    faults: &'a Arc<QpFaults>,
    regions: &'a Regions,
    cached: &'a mut Cached,
}

/// The address of payload, and its on-demand pages.
#[derive(Clone, Copy)]
struct Source {
    addr: u64,
    paged: Option<Paged>,
    side: Side,
}

impl Memory<'_> {
    fn fill(&mut self, payload: &Payload<'_>, to: &mut [u8]) -> Result<(), Denied> {
        match *payload {
            Payload::None => Ok(()),
            Payload::Bytes(bytes) => {
                to.copy_from_slice(bytes);
                Ok(())
            }
            Payload::Remote(range) => {
                let source = self.remote(&range)?;
                self.fetch(source, to)
            }
            Payload::Gather { sges, offset, len } => {
                let mut rest = to;
                for (sge, at, take) in sge_ranges(sges, offset, len) {
                    let (now, later) = rest.split_at_mut(take);
                    match self.local(sge, at, take)? {
                        Some(source) => self.fetch(source, now)?,
                        None => now.fill(0),
                    }
                    rest = later;
                }
                if rest.is_empty() { Ok(()) } else { Err(Denied::Protection) }
            }
        }
    }

    /// The source of a READ response. Its pages are present.
    fn remote(&mut self, range: &Remote) -> Result<Source, Denied> {
        let &Remote { pd, rkey, va, len } = range;
        let region = self.regions.find(rkey, self.cached)?;
        let addr = region.remote(pd.unwrap_or(self.user.pd), self.user.qp, va, len, Access::REMOTE_READ)?;
        self.admit(Source { addr, paged: region.paged, side: Side::Responder }, len, len)
    }

    /// `len` bytes from byte `at` of an SGE; `None` if it is of a null region. Their pages are present.
    fn local(&mut self, sge: &Sge, at: u64, len: usize) -> Result<Option<Source>, Denied> {
        let region = self.regions.find(sge.lkey, self.cached)?;
        match region.local(self.user.pd, sge.addr.wrapping_add(at), len as u64, Access::empty())? {
            AccessTarget::Memory(addr) => {
                let source = Source { addr, paged: region.paged, side: Side::Requester };
                self.admit(source, len as u64, u64::from(sge.length) - at).map(Some)
            }
            AccessTarget::Null => Ok(None),
        }
    }

    /// Copies payload without raising page faults: bytes of missing pages are left out.
    fn peek(&mut self, payload: &Payload<'_>, to: &mut [u8]) {
        let Payload::Gather { sges, offset, len } = *payload else {
            if let Payload::Bytes(bytes) = payload {
                to.copy_from_slice(bytes);
            }
            return;
        };
        let mut rest = to;
        for (sge, at, take) in sge_ranges(sges, offset, len) {
            let (now, later) = rest.split_at_mut(take);
            rest = later;
            let Ok(region) = self.regions.find(sge.lkey, self.cached) else { return };
            let target = region.local(self.user.pd, sge.addr.wrapping_add(at), take as u64, Access::empty());
            if let Ok(AccessTarget::Memory(addr)) = target
                && region.paged.is_none_or(|paged| paged.is_present(addr, take as u64))
            {
                // SAFETY: `now` is a slice of this function; the application's side may be in any state.
                let _ = unsafe { copy::copy(now.as_mut_ptr(), addr as *const u8, take) };
            }
        }
    }

    #[inline]
    fn admit(&self, source: Source, len: u64, left: u64) -> Result<Source, Denied> {
        if let Some(paged) = source.paged {
            paged.admit(source.addr, len, left, false, FaultOrigin { faults: self.faults, side: source.side })?;
        }
        Ok(source)
    }

    fn fetch(&self, from: Source, to: &mut [u8]) -> Result<(), Denied> {
        // SAFETY: `to` is a slice of the caller; the application's side may be in any state.
        unsafe { copy::copy(to.as_mut_ptr(), from.addr as *const u8, to.len()) }.map_err(|_| match from.paged {
            None => Denied::Unmapped,
            Some(paged) => {
                paged.missed(from.addr, to.len() as u64, false, FaultOrigin { faults: self.faults, side: from.side })
            }
        })
    }
}
