//! Two sides of MultiEdge, with memories that note what the peer does with them.

use super::network::{Arrived, Line, Network};
use crate::Instant;
use crate::edge::{Endpoint, Event, Fault, Memory, Parameters, Scheduler, Setup};
use crate::testing::EdgePair;
use std::ops::Range;
use weir_wire::edge::{HEADER_LEN, PIECE_LEN};

/// A memory from address [`TestMemory::BASE`] on.
#[derive(Debug)]
pub struct TestMemory {
    pub bytes: Vec<u8>,
    /// What was done with it, in this order.
    pub accesses: Vec<Access>,
}

/// A range has been read or written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    pub range: Range<u64>,
    pub is_write: bool,
    pub by_peer: bool,
}

impl TestMemory {
    pub const BASE: u64 = 1 << 32;

    fn range(&self, address: u64, bytes: usize) -> Result<Range<usize>, Fault> {
        let start = address.checked_sub(Self::BASE).ok_or(Fault)? as usize;
        let end = start.checked_add(bytes).filter(|end| *end <= self.bytes.len()).ok_or(Fault)?;
        Ok(start..end)
    }

    fn note(&mut self, address: u64, bytes: usize, is_write: bool, by_peer: bool) {
        self.accesses.push(Access { range: address..address + bytes as u64, is_write, by_peer });
    }
}

impl Memory for TestMemory {
    type Bytes = Vec<u8>;

    fn read(&mut self, address: u64, bytes: u32, by_peer: bool) -> Result<Vec<u8>, Fault> {
        let range = self.range(address, bytes as usize)?;
        self.note(address, bytes as usize, false, by_peer);
        Ok(self.bytes[range].to_vec())
    }

    fn write(&mut self, address: u64, bytes: &Vec<u8>, by_peer: bool) -> Result<(), Fault> {
        let range = self.range(address, bytes.len())?;
        self.note(address, bytes.len(), true, by_peer);
        self.bytes[range].copy_from_slice(bytes);
        Ok(())
    }

    fn nothing(&mut self) -> Vec<u8> {
        vec![]
    }
}

/// Both sides, their memories, and the links between them.
pub struct Endpoints {
    pub now: Instant,
    pub sides: [Endpoint<Vec<u8>>; 2],
    pub memories: [TestMemory; 2],
    network: Network<Option<Vec<u8>>>,
    /// Bytes of a packet that carries something, at most.
    most: u64,
}

impl Endpoints {
    /// Over these links, with packets of so much payload, and memories of so many bytes.
    pub fn new(
        lines: &[Line],
        parameters: Parameters,
        scheduler: Scheduler,
        payload: u32,
        memory: usize,
        seed: u64,
    ) -> Endpoints {
        let first = EdgePair::FIRST;
        let side = |n: usize| {
            let setup = Setup { parameters, scheduler, peer: 7, first: [first[n], first[1 - n]] };
            Endpoint::new(setup, &vec![1; lines.len()], payload)
        };
        let memory = || TestMemory { bytes: vec![0; memory], accesses: vec![] };
        Endpoints {
            now: Instant(0),
            sides: [side(0), side(1)],
            memories: [memory(), memory()],
            network: Network::new(lines, seed),
            most: (HEADER_LEN + PIECE_LEN) as u64 + u64::from(payload),
        }
    }

    /// The links, which may be changed.
    pub fn lines(&mut self) -> &mut [Line] {
        &mut self.network.lines
    }

    /// Lets time pass until both sides are idle, or until `end`; `see` gets each event when it happens, with the side that
    /// it happens to and both memories. Returns whether both are idle.
    pub fn run(&mut self, end: Instant, see: &mut impl FnMut(usize, Event, &[TestMemory; 2])) -> bool {
        loop {
            self.transmit(see);
            if self.sides.iter().all(Endpoint::is_idle) {
                return true;
            }
            if !self.step(end, see) {
                return false;
            }
        }
    }

    /// Lets time pass until `end`, even if both sides are idle.
    pub fn run_until(&mut self, end: Instant, see: &mut impl FnMut(usize, Event, &[TestMemory; 2])) {
        self.transmit(see);
        while self.step(end, see) {
            self.transmit(see);
        }
        self.now = self.now.max(end);
    }

    fn transmit(&mut self, see: &mut impl FnMut(usize, Event, &[TestMemory; 2])) {
        for n in 0..2 {
            let (network, now, most) = (&mut self.network, self.now, self.most);
            self.sides[n].transmit(now, &mut self.memories[n], |(header, ack, carried)| {
                let (piece, bytes) = carried.unzip();
                let payload = bytes.map_or(0, |bytes| bytes.len() as u32);
                let size = network.put(now, n, (&header, ack, piece.as_ref()), payload, bytes.cloned());
                assert!(piece.is_none() || size <= most, "{size} bytes do not fit: {header:?}");
            });
            while let Some(event) = self.sides[n].poll_event() {
                see(n, event, &self.memories);
            }
        }
    }

    /// Time passes until something happens; returns whether something does by `end`.
    fn step(&mut self, end: Instant, see: &mut impl FnMut(usize, Event, &[TestMemory; 2])) -> bool {
        let timeouts = self.sides.iter().filter_map(Endpoint::poll_timeout);
        let Some(next) = timeouts.chain(self.network.next_arrival()).min().filter(|next| *next <= end) else {
            return false;
        };
        self.now = self.now.max(next);
        while let Some(arrived) = self.network.arrival(self.now) {
            self.deliver(arrived, see);
        }
        self.sides.iter_mut().for_each(|side| side.handle_timeout(self.now));
        true
    }

    fn deliver(&mut self, arrived: Arrived<Option<Vec<u8>>>, see: &mut impl FnMut(usize, Event, &[TestMemory; 2])) {
        let Arrived { to, header, ack, piece, carried: bytes } = arrived;
        if let Some((piece, bytes)) = piece.zip(bytes.as_ref()) {
            assert_eq!(bytes.len(), piece.payload() as usize);
        }
        let bytes = |_| bytes.expect("the header has a sequence number");
        let taken = self.sides[to].handle(self.now, (&header, ack.as_ref()), piece, bytes, &mut self.memories[to]);
        taken.expect("the peer keeps to the rules");
        while let Some(event) = self.sides[to].poll_event() {
            see(to, event, &self.memories);
        }
    }
}
