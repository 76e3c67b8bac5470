//! Packets that leave on several links: those of one link and one size become one send.

use crate::interfaces::Interfaces;
use std::io;
use std::net::{IpAddr, SocketAddr};
use weir_link::{Carrier, Group, Iovec, MAX_IOVECS, Outbox};
use weir_transport::edge::Pair;

/// Bytes of headers that are staged, and of packets where they are copied.
const HEADERS: usize = 128 << 10;
const COPIES: usize = 256 << 10;
/// Packets that leave together, at most.
const PACKETS: usize = 512;

/// The ends of a link, as packets need them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    pub to: SocketAddr,
    pub from: IpAddr,
    /// Interface; 0: by route.
    pub ifindex: u32,
}

impl Ends {
    /// The ends of a link to a port of the peer. `interfaces`: this side's.
    pub fn of(link: &Pair, port: u16, interfaces: &Interfaces) -> Ends {
        let to = (link.remote.address, port).into();
        Ends { to, from: link.local.address, ifindex: interfaces.index(link.local.interface) }
    }

    /// Bytes of a UDP payload in an IP packet of so many bytes.
    pub fn room(&self, mtu: u32) -> u32 {
        mtu.saturating_sub(if self.from.is_ipv4() { 20 + 8 } else { 40 + 8 })
    }
}

/// Packets that leave.
pub struct Departures {
    /// Headers, and the groups of a carrier that takes iovecs.
    outbox: Outbox,
    /// Whole packets, for a carrier that does not.
    copies: Option<Outbox>,
    lanes: Vec<Lane>,
    /// Lanes in use.
    used: usize,
    packets: usize,
}

/// The packets of one link.
struct Lane {
    ends: Ends,
    packets: Vec<Leaving>,
}

/// A packet: its header is staged, its payload is anywhere.
#[derive(Clone, Copy)]
struct Leaving {
    header: Iovec,
    payload: Iovec,
}

impl Leaving {
    fn len(&self) -> usize {
        self.header.len + self.payload.len
    }
}

impl Default for Departures {
    fn default() -> Self {
        let outbox = Outbox::with_iovecs(HEADERS, PACKETS, 2 * PACKETS + 2);
        Departures { outbox, copies: None, lanes: vec![], used: 0, packets: 0 }
    }
}

impl Departures {
    /// Whether there is room for a packet with a header of so many bytes. If not, `send` makes room.
    pub fn has_room(&self, header: usize) -> bool {
        self.packets < PACKETS && self.outbox.len + header <= self.outbox.bytes.len()
    }

    /// Whether no packet waits.
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Adds a packet for a link; there is room. `header` writes the header into its argument and returns its length, at
    /// most `most`.
    ///
    /// # Safety
    /// The bytes of `payload` stay as they are, at their place, until `send` returns. If the carrier supports iovecs, they
    /// may be unmapped: such a packet is lost. Otherwise their pointer has exposed its provenance.
    pub unsafe fn put(&mut self, ends: Ends, most: usize, payload: Iovec, header: impl FnOnce(&mut [u8]) -> usize) {
        let start = self.outbox.len;
        let staged = &mut self.outbox.bytes[start..start + most];
        let len = header(staged);
        let header = Iovec { addr: staged.as_ptr().expose_provenance(), len };
        self.outbox.len += len;
        let lane = match self.lanes[..self.used].iter().position(|lane| lane.ends == ends) {
            Some(lane) => lane,
            None => {
                if self.used == self.lanes.len() {
                    self.lanes.push(Lane { ends, packets: Vec::new() });
                }
                self.lanes[self.used].ends = ends;
                self.used += 1;
                self.used - 1
            }
        };
        self.lanes[lane].packets.push(Leaving { header, payload });
        self.packets += 1;
    }

    /// Sends all packets. An error is that of a send; other packets have left.
    pub fn send(&mut self, carrier: &mut (impl Carrier + ?Sized)) -> io::Result<()> {
        if self.packets == 0 {
            return Ok(());
        }
        let result = if carrier.supports_iovecs() { self.send_in_place(carrier) } else { self.send_copies(carrier) };
        self.lanes[..self.used].iter_mut().for_each(|lane| lane.packets.clear());
        (self.used, self.packets) = (0, 0);
        self.outbox.clear();
        result
    }

    fn send_in_place(&mut self, carrier: &mut (impl Carrier + ?Sized)) -> io::Result<()> {
        let most = carrier.max_segments();
        for lane in &self.lanes[..self.used] {
            for packet in &lane.packets {
                let joins = self.outbox.groups.last().is_some_and(|group| joins(group, &lane.ends, packet.len(), most));
                if !joins {
                    self.outbox.groups.push(group(&lane.ends, packet.len()));
                }
                self.outbox.start_iovecs();
                self.outbox.add_iovec(packet.header);
                if packet.payload.len > 0 {
                    self.outbox.add_iovec(packet.payload);
                }
            }
        }
        carrier.send(&self.outbox)
    }

    fn send_copies(&mut self, carrier: &mut (impl Carrier + ?Sized)) -> io::Result<()> {
        let most = carrier.max_segments();
        let mut failed = None;
        let copies = self.copies.get_or_insert_with(|| Outbox::new(COPIES, PACKETS));
        for lane in &self.lanes[..self.used] {
            for packet in &lane.packets {
                if copies.len + packet.len() > copies.bytes.len() {
                    failed = failed.or(carrier.send(copies).err());
                    copies.clear();
                }
                let start = copies.len;
                for part in [packet.header, packet.payload] {
                    // SAFETY: the header is in the outbox, and the caller of `put` keeps the payload at its place.
                    let bytes =
                        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(part.addr), part.len) };
                    copies.bytes[copies.len..copies.len + part.len].copy_from_slice(bytes);
                    copies.len += part.len;
                }
                match copies.groups.last_mut().filter(|group| joins(group, &lane.ends, packet.len(), most)) {
                    Some(group) => group.len += packet.len(),
                    None => {
                        let group = group(&lane.ends, packet.len());
                        copies.groups.push(Group { start, len: packet.len(), ..group });
                    }
                }
            }
        }
        failed = failed.or(carrier.send(copies).err());
        copies.clear();
        failed.map_or(Ok(()), Err)
    }
}

fn group(ends: &Ends, segment: usize) -> Group {
    Group { segment, any_id: true, ..Group::new(ends.to, ends.from, ends.ifindex) }
}

/// Whether a packet becomes part of a group.
fn joins(group: &Group, ends: &Ends, len: usize, most: usize) -> bool {
    (group.to, group.from, group.ifindex) == (ends.to, ends.from, ends.ifindex)
        && group.takes(len, most)
        && group.iovecs.1 + 2 <= MAX_IOVECS
}
