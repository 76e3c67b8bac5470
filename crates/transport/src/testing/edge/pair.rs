//! Two sides of a connection, which send packets with orders.

use super::network::{Arrived, Line, Network};
use crate::Instant;
use crate::edge::{Connection, Order, Parameters, Scheduler, Seq, Setup};
use std::time::Duration;
use weir_wire::edge;

/// Packets shorter than this have room for an acknowledgement, bytes.
const ROOM: u32 = 9000;

/// One side, and what it sends.
pub struct EdgeSide {
    pub connection: Connection<u32, u32>,
    /// The packets to send: their bytes and orders. A packet carries its place in this list.
    pub packets: Vec<(u32, Order)>,
    /// How many of them have been sent.
    pub sent: usize,
    /// Packets of the peer that were performed, and when.
    pub performed: Vec<(u32, Instant)>,
    /// Packets that have arrived at the peer, as this side knows, in this order.
    pub arrived: Vec<u32>,
    /// Bytes that were put on each link, and how many packets went again.
    pub put: Vec<u64>,
    pub again: usize,
    /// Acknowledgements that left alone.
    pub acks: usize,
}

/// Both sides and the links between them.
pub struct EdgePair {
    pub now: Instant,
    pub sides: [EdgeSide; 2],
    network: Network<Option<u32>>,
}

impl EdgePair {
    /// The numbers of the first packets of both sides: near the end of their space.
    pub const FIRST: [Seq; 2] = [Seq(u32::MAX - 300), Seq(u32::MAX - 700)];

    /// How much later it is by the clock of each side than in a test: the microseconds of one soon pass 2^32.
    const CLOCKS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(4_294_900)];

    /// Over these links, which have these weights for the schedulers.
    pub fn new(lines: &[Line], weights: &[u32], parameters: Parameters, scheduler: Scheduler, seed: u64) -> EdgePair {
        let side = |n: usize| EdgeSide {
            connection: Connection::new(
                Setup { parameters, scheduler, peer: 7 + n as u32, first: [Self::FIRST[n], Self::FIRST[1 - n]] },
                weights,
            ),
            packets: vec![],
            sent: 0,
            performed: vec![],
            arrived: vec![],
            put: vec![0; lines.len()],
            again: 0,
            acks: 0,
        };
        EdgePair { now: Instant(0), sides: [side(0), side(1)], network: Network::new(lines, seed) }
    }

    /// The links, which may be changed.
    pub fn lines(&mut self) -> &mut [Line] {
        &mut self.network.lines
    }

    /// Lets time pass until nothing happens any more, or until `end`. Returns whether both sides are done.
    pub fn run(&mut self, end: Instant) -> bool {
        loop {
            (0..2).for_each(|n| self.turn(n));
            let timeout =
                |n: usize| self.sides[n].connection.poll_timeout().map(|at| Instant(0) + (at - Self::start(n)));
            let timeouts = (0..2).filter_map(timeout);
            let Some(next) = timeouts.chain(self.network.next_arrival()).min().filter(|next| *next <= end) else {
                self.now = self.now.max(end);
                return self.is_done();
            };
            self.now = self.now.max(next);
            while let Some(arrived) = self.network.arrival(self.now) {
                self.deliver(arrived);
            }
            (0..2).for_each(|n| self.sides[n].connection.handle_timeout(self.clock(n)));
        }
    }

    /// Whether both sides have sent all, and know that it has been performed.
    pub fn is_done(&self) -> bool {
        self.sides.iter().all(|side| side.sent == side.packets.len() && side.connection.is_idle())
    }

    /// What a side takes to be the time.
    pub fn clock(&self, n: usize) -> Instant {
        self.now + Self::CLOCKS[n]
    }

    fn start(n: usize) -> Instant {
        Instant(0) + Self::CLOCKS[n]
    }

    fn turn(&mut self, n: usize) {
        let (at, now, network) = (self.now, self.clock(n), &mut self.network);
        let EdgeSide { connection, packets, sent, put, again, acks, .. } = &mut self.sides[n];
        while let Some((header, packet)) = connection.poll_again(now) {
            let payload = packet.map_or(0, |packet| packets[*packet as usize].0 - edge::HEADER_LEN as u32);
            *again += usize::from(packet.is_some());
            put[usize::from(header.link)] += network.put(at, n, (&header, None, None), payload, packet.copied());
        }
        while let Some(&(bytes, order)) = packets.get(*sent).filter(|_| connection.has_room(now)) {
            let packet = *sent as u32;
            let Some(leaving) = connection.send(now, bytes, ROOM.saturating_sub(bytes), order, packet) else { break };
            *sent += 1;
            let payload = bytes - edge::HEADER_LEN as u32;
            let header = &leaving.header;
            put[usize::from(header.link)] += network.put(at, n, (header, leaving.ack, None), payload, Some(packet));
        }
        while let Some((header, ack)) = connection.poll_ack(now) {
            *acks += 1;
            put[usize::from(header.link)] += network.put(at, n, (&header, Some(ack), None), 0, None);
        }
    }

    fn deliver(&mut self, Arrived { to, header, ack, carried, .. }: Arrived<Option<u32>>) {
        assert!(header.connection == 8 - to as u32);
        let now = self.clock(to);
        let EdgeSide { connection, performed, arrived, .. } = &mut self.sides[to];
        let packet = |_| carried.expect("the header has a sequence number");
        let taken = connection.handle(now, &header, ack.as_ref(), packet, |_, packet| arrived.push(packet));
        taken.expect("the peer keeps to the window");
        while let Some((_, packet)) = connection.perform(now) {
            performed.push((packet, self.now));
        }
    }
}
