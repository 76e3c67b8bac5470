//! Packets that wait for a page, or for READs, in the order of their PSNs for each side of a QP, in a fixed number of preallocated
//! packet buffers. A packet that does not fit is dropped, like a packet lost on the wire.

use crate::Errno;
use crate::os::grow::zeroed;
use weir_transport::{PACKET_COST, Side};
use weir_wire::Psn;

/// Packet buffers of an adapter, and bytes of each: enough for a packet of the largest MTU.
const BUFFERS: usize = 2048;
const BUFFER_LEN: usize = 4608;
/// Limit for each side of a QP, in bytes: the largest window of a peer. More cannot be in flight.
const QUEUE_COST: usize = 512 << 10;

/// Bytes of a packet that are not payload, at most: headers of a frame or of a RoCE packet, and the ICRC. A peer's window
/// counts payload only.
const HEADERS: usize = 80;
const _: () = assert!(weir_wire::frame::HEADER_LEN + 4 <= HEADERS);

/// What a packet of so many bytes counts against [`QUEUE_COST`].
fn cost(len: usize) -> usize {
    len.saturating_sub(HEADERS) + PACKET_COST
}

/// The packet buffers of an adapter. The system allocates their memory when they are first used.
pub struct HeldPackets {
    bytes: Box<[u8]>,
    states: Box<[BufferState]>,
    /// Head of the list of free buffers.
    free: Option<u16>,
}

/// Description of the packet in a buffer.
#[derive(Clone, Copy)]
struct BufferState {
    next: Option<u16>,
    len: u16,
    psn: Psn,
    header: Option<[u8; 40]>,
    over_links: bool,
}

/// A packet that has to wait.
#[derive(Clone, Copy)]
pub struct Waiting<'a> {
    pub psn: Psn,
    pub datagram: &'a [u8],
    /// UD: the network header of the datagram.
    pub header: Option<&'a [u8; 40]>,
    /// It came over several links: earlier packets of its message may still come.
    pub over_links: bool,
}

/// The packets held for the two sides of a QP.
#[derive(Debug, Default)]
pub struct Held {
    queues: [Queue; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    /// First and last buffer.
    ends: Option<(u16, u16)>,
    cost: usize,
}

/// What became of a packet that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Now,
    /// It was kept before.
    Already,
    NoRoom,
}

/// A packet that was removed from its queue but still occupies its buffer.
pub struct Packet {
    buffer: u16,
}

impl HeldPackets {
    /// All buffers free. ENOMEM if there is no memory for them.
    pub fn new() -> Result<HeldPackets, Errno> {
        let state = |at: usize| BufferState {
            next: (at + 1 < BUFFERS).then_some(at as u16 + 1),
            len: 0,
            psn: Psn::default(),
            header: None,
            over_links: false,
        };
        // The system zeroes the memory when it is touched.
        let bytes = zeroed(BUFFERS * BUFFER_LEN)?;
        Ok(HeldPackets { bytes, states: (0..BUFFERS).map(state).collect(), free: Some(0) })
    }

    /// Puts a packet into the queue of a side, unless the queue already has it: peers retransmit unacknowledged
    /// packets. Datagrams have no sequence, so their PSNs are not compared.
    pub fn keep(&mut self, held: &mut Held, side: Side, packet: Waiting<'_>) -> Kept {
        let Waiting { psn, datagram, header, over_links } = packet;
        let queue = &mut held.queues[side as usize];
        let before = match queue.ends {
            Some((_, last)) if header.is_some() || self.states[usize::from(last)].psn.before(psn) => Some(last),
            Some((first, _)) => match self.place(first, psn) {
                Some(before) => before,
                None => return Kept::Already,
            },
            None => None,
        };
        let cost = cost(datagram.len());
        if datagram.len() > BUFFER_LEN || queue.cost + cost > QUEUE_COST {
            return Kept::NoRoom;
        }
        let Some(buffer) = self.free else { return Kept::NoRoom };
        let at = usize::from(buffer);
        self.free = self.states[at].next;
        let (first, last) = queue.ends.unwrap_or((buffer, buffer));
        let next = match before {
            Some(before) => self.states[usize::from(before)].next.replace(buffer),
            None => queue.ends.map(|_| first),
        };
        let len = datagram.len() as u16;
        self.states[at] = BufferState { next, len, psn, header: header.copied(), over_links };
        self.bytes[at * BUFFER_LEN..][..datagram.len()].copy_from_slice(datagram);
        queue.ends = Some((before.map_or(buffer, |_| first), next.map_or(buffer, |_| last)));
        queue.cost += cost;
        Kept::Now
    }

    /// Where a packet belongs in the queue that begins with a buffer and has a later packet: behind which buffer, or at the
    /// front. `None`: the queue has it.
    fn place(&self, first: u16, psn: Psn) -> Option<Option<u16>> {
        let next = |at: &u16| self.states[usize::from(*at)].next;
        let queue = std::iter::successors(Some(first), next);
        let mut before = None;
        for at in queue {
            match self.states[usize::from(at)].psn {
                its if its == psn => return None,
                its if its.before(psn) => before = Some(at),
                _ => break,
            }
        }
        Some(before)
    }

    /// Removes the first packet of a side from its queue.
    pub fn take(&mut self, held: &mut Held, side: Side) -> Option<Packet> {
        let queue = &mut held.queues[side as usize];
        let (first, last) = queue.ends?;
        let state = &mut self.states[usize::from(first)];
        queue.ends = state.next.take().map(|next| (next, last));
        queue.cost -= cost(state.len.into());
        Some(Packet { buffer: first })
    }

    /// Puts a packet back at the head of its queue.
    pub fn put_back(&mut self, held: &mut Held, side: Side, packet: Packet) {
        let queue = &mut held.queues[side as usize];
        let state = &mut self.states[usize::from(packet.buffer)];
        state.next = queue.ends.map(|(first, _)| first);
        queue.cost += cost(state.len.into());
        queue.ends = Some((packet.buffer, queue.ends.map_or(packet.buffer, |(_, last)| last)));
    }

    /// A packet, as it was kept.
    pub fn get(&self, packet: &Packet) -> Waiting<'_> {
        let at = usize::from(packet.buffer);
        let BufferState { len, psn, ref header, over_links, .. } = self.states[at];
        let datagram = &self.bytes[at * BUFFER_LEN..][..usize::from(len)];
        Waiting { psn, datagram, header: header.as_ref(), over_links }
    }

    /// Frees the packet's buffer.
    pub fn release(&mut self, packet: Packet) {
        self.states[usize::from(packet.buffer)].next = self.free;
        self.free = Some(packet.buffer);
    }

    /// Drops all packets of a QP.
    pub fn clear(&mut self, held: &mut Held) {
        for side in [Side::Requester, Side::Responder] {
            while let Some(packet) = self.take(held, side) {
                self.release(packet);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Held {
        fn is_empty(&self) -> bool {
            self.queues.iter().all(|queue| queue.ends.is_none())
        }
    }

    fn waiting<'a>(number: u32, datagram: &'a [u8], header: Option<&'a [u8; 40]>) -> Waiting<'a> {
        Waiting { psn: Psn::new(number), datagram, header, over_links: false }
    }

    fn drain(buffers: &mut HeldPackets, held: &mut Held, side: Side) -> Vec<u8> {
        let mut found = Vec::new();
        while let Some(packet) = buffers.take(held, side) {
            found.push(buffers.get(&packet).datagram[0]);
            buffers.release(packet);
        }
        found
    }

    #[test]
    fn each_side_keeps_its_packets_in_order() {
        let (mut buffers, mut held) = (HeldPackets::new().unwrap(), Held::default());
        for number in 0..5 {
            assert_eq!(
                buffers.keep(&mut held, Side::Responder, waiting(number, &[number as u8; 100], None)),
                Kept::Now
            );
            assert_eq!(
                buffers.keep(&mut held, Side::Requester, waiting(number, &[number as u8 + 50; 7], None)),
                Kept::Now
            );
        }
        assert_eq!(buffers.keep(&mut held, Side::Responder, waiting(3, &[9; 100], None)), Kept::Already);
        let first = buffers.take(&mut held, Side::Responder).unwrap();
        assert_eq!(buffers.get(&first).datagram, [0; 100]);
        buffers.put_back(&mut held, Side::Responder, first);
        assert_eq!(drain(&mut buffers, &mut held, Side::Responder), [0, 1, 2, 3, 4]);
        assert_eq!(drain(&mut buffers, &mut held, Side::Requester), [50, 51, 52, 53, 54]);
        let last = buffers.take(&mut held, Side::Responder);
        assert!(last.is_none() && held.is_empty());
        // A packet that is put back alone becomes both first and last.
        assert_eq!(buffers.keep(&mut held, Side::Responder, waiting(9, &[9], None)), Kept::Now);
        let only = buffers.take(&mut held, Side::Responder).unwrap();
        buffers.put_back(&mut held, Side::Responder, only);
        assert_eq!(buffers.keep(&mut held, Side::Responder, waiting(10, &[10], None)), Kept::Now);
        assert_eq!(drain(&mut buffers, &mut held, Side::Responder), [9, 10]);
    }

    #[test]
    fn packets_that_come_out_of_order_are_put_in_order() {
        let (mut buffers, mut held) = (HeldPackets::new().unwrap(), Held::default());
        for number in [5, 9, 7, 3, 8, 6, 4, 10] {
            assert_eq!(buffers.keep(&mut held, Side::Responder, waiting(number, &[number as u8], None)), Kept::Now);
        }
        for number in [3, 7, 10] {
            assert_eq!(buffers.keep(&mut held, Side::Responder, waiting(number, &[0], None)), Kept::Already);
        }
        assert_eq!(drain(&mut buffers, &mut held, Side::Responder), [3, 4, 5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn a_side_holds_at_most_a_window_and_buffers_are_reused() {
        let (mut buffers, mut held) = (HeldPackets::new().unwrap(), Held::default());
        for _ in 0..3 {
            // The window of a peer counts payload: all its packets fit, with their headers.
            let packet = [1; 4096 + HEADERS];
            let mut keep = |n| buffers.keep(&mut held, Side::Responder, waiting(n, &packet, None)) == Kept::Now;
            let kept = (0..5000).take_while(|n| keep(*n));
            assert_eq!(kept.count(), QUEUE_COST / (4096 + PACKET_COST));
            buffers.clear(&mut held);
            assert!(held.is_empty());
        }
        let mut queues: Vec<Held> = (0..10).map(|_| Held::default()).collect();
        let mut total = 0;
        for held in &mut queues {
            let mut keep = |n| buffers.keep(held, Side::Requester, waiting(n, &[1; 64], None)) == Kept::Now;
            total += (0..5000).take_while(|n| keep(*n)).count();
        }
        assert_eq!(total, BUFFERS);
        let header = [3; 40];
        let mut held = Held::default();
        assert_eq!(buffers.keep(&mut held, Side::Responder, waiting(1, &[1], None)), Kept::NoRoom, "all are in use");
        buffers.clear(&mut queues[0]);
        assert_eq!(buffers.keep(&mut held, Side::Responder, waiting(1, &[1], Some(&header))), Kept::Now);
        assert_eq!(buffers.keep(&mut held, Side::Responder, waiting(0, &[2], Some(&header))), Kept::Now, "any PSN");
        let first = buffers.take(&mut held, Side::Responder).unwrap();
        let its = buffers.get(&first);
        assert_eq!((its.datagram, its.header), (&[1][..], Some(&header)));
    }
}
